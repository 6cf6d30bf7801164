# Everything a person or CI types. `make demo` and `make test` do all set-up themselves.
SHELL := /bin/bash
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
USER_VENV := .venv-user
FUZZ_VENV := .venv-fuzz
FUZZ_SECONDS ?= 20
BIN := $(VENV)/bin

.PHONY: help demo test test-world test-agent test-shell test-torch check soak fuzz bench lab-up lab-down clean
help: ## what can be typed
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(VENV)/.ready: requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "rlguard needs Python 3.11 or newer; install it (Debian: apt-get install python3 python3-venv)"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes -r requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -e .
	touch $@

# A user's own image: torch, and no rlguard.
$(USER_VENV)/.ready: requirements-user.lock | $(VENV)/.ready
	$(PYTHON) -m venv $(USER_VENV)
	$(BIN)/uv pip install --compile-bytecode --python $(USER_VENV)/bin/python --require-hashes -r requirements-user.lock
	touch $@

# A fuzzer guided by coverage. There are wheels for x86-64 and Python 3.11 to 3.13; elsewhere it is built, with clang.
$(FUZZ_VENV)/.ready: requirements-fuzz.lock | $(VENV)/.ready
	$(PYTHON) -m venv $(FUZZ_VENV)
	$(BIN)/uv pip install --quiet --python $(FUZZ_VENV)/bin/python --require-hashes -r requirements-fuzz.lock
	touch $@

demo: $(VENV)/.ready $(USER_VENV)/.ready ## a guarded job survives five acts on a real Kubernetes (root, Linux)
	$(BIN)/rlguard demo

check: $(VENV)/.ready ## format, lint, types, layers, unit and law tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -q tests/unit tests/law tests/house

# The lab wants the machine for itself; what comes before it shares the cores, each with its output in one piece.
test: $(VENV)/.ready $(USER_VENV)/.ready ## all tests, those on the lab among them (root, Linux)
	$(MAKE) --no-print-directory --jobs=5 --output-sync=target test-agent test-shell test-torch check test-world
	$(BIN)/pytest -v -p no:randomly -m "not soak" tests/lab

soak: $(VENV)/.ready $(USER_VENV)/.ready ## what takes longer: many labs, a demo killed again and again (half an hour)
	$(BIN)/pytest -v -p no:randomly -m soak tests/shell tests/lab

test-world: $(VENV)/.ready # the simulated world
	$(BIN)/pytest -v tests/world

test-agent: $(VENV)/.ready # the agent's process between faked edges
	$(BIN)/pytest -v -m "not soak" tests/shell/agent

test-shell: $(VENV)/.ready # the other processes between faked edges, and the shells in virtual time
	$(BIN)/pytest -v tests/shell --ignore=tests/shell/agent

test-torch: $(USER_VENV)/.ready # what runs in the user's process, beside torch
	PYTHONPATH=$(CURDIR) $(USER_VENV)/bin/python -m pytest -v tests/torch

fuzz: $(FUZZ_VENV)/.ready ## every parser of hostile text, FUZZ_SECONDS each (20); FUZZ_TARGETS names some
	PYTHONPATH=$(CURDIR) $(FUZZ_VENV)/bin/python tests/fuzz/run.py --seconds $(FUZZ_SECONDS) $(FUZZ_TARGETS)

bench: $(VENV)/.ready $(USER_VENV)/.ready ## every benchmark, as one table
	$(BIN)/python benchmarks/all.py

lab-up: $(VENV)/.ready $(USER_VENV)/.ready ## a real three-node Kubernetes on this machine
	$(BIN)/rlguard lab up --nodes 3

lab-down: $(VENV)/.ready ## remove it and everything it made
	$(BIN)/rlguard lab down

clean: ## remove what was built here (not the cache of the lab's programs)
	rm -rf build dist $(VENV) $(USER_VENV) $(FUZZ_VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
