# The one image: controller, agent, and what the injector puts into guarded pods. No torch is in it.
#   docker build -t REGISTRY/rlguard:0.1.0 .
FROM python:3.12-slim AS build
RUN pip install --no-cache-dir uv && python3 -m venv --without-pip /opt/rlguard
WORKDIR /src
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY rlguard rlguard
COPY agent agent
COPY sidecar sidecar
COPY controller controller
COPY chaos chaos
# Versions and hashes are those of the lock; what only tests and the lab need is left out.
RUN uv pip install --no-cache --compile-bytecode --python /opt/rlguard/bin/python3 \
    --constraint requirements.lock '.[agent,sidecar,controller]'

FROM python:3.12-slim
COPY --from=build /opt/rlguard /opt/rlguard
ENV PATH=/opt/rlguard/bin:$PATH PYTHONUNBUFFERED=1
# The chart and the injector say which user each container runs as, and its command.
USER 65532:65532
CMD ["python3", "-m", "rlguard_controller"]
