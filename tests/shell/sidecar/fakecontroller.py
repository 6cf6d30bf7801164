"""A controller for tests: signs for whoever shows a token, grants the world once every member has reported."""

from __future__ import annotations

from dataclasses import replace

from aiohttp import web
from authority import Authority

from rlguard.io.link import Outbox, accept
from rlguard.io.tls import CONTROLLER, pod_identity, server_context
from rlguard.messages import Grant, Message, PodReport, Timing, Want
from rlguard.model import GroupKey, World

KEY = GroupKey("team", "ppo", 0)
TIMING = Timing(
    stage_interval=0.5,
    flush_interval=1.0,
    stall_limit=60.0,
    same_step_limit=5,
    attempts=20,
    attempts_window=3600.0,
    keep=3,
)


class FakeController:
    """Speaks to the sidecars of one group of `size` members. A token is the text `<pod> <uid>`."""

    def __init__(self, authority: Authority, size: int) -> None:
        self.authority = authority
        self.reports: dict[str, PodReport] = {}
        self.want = Want.RUN
        self.port = 0
        self._size = size
        self._outbox = Outbox()
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> None:
        """Listen on loopback."""
        app = web.Application()
        app.router.add_post("/v1/certificate", self._certificate)
        app.router.add_get("/v1/pod", self._pod)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        context = server_context(self.authority.credentials(CONTROLLER), client_required=False)
        site = web.TCPSite(self._runner, "127.0.0.1", port, ssl_context=context)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Be away."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _certificate(self, request: web.Request) -> web.Response:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme != "Bearer" or len(token.split()) != 2:
            return web.Response(status=401, text="no token of ours\n")
        pod, uid = token.split()
        body = await request.json()
        certificate = self.authority.sign(body["request"].encode(), pod_identity(KEY.namespace, pod, uid))
        return web.json_response({"certificate": certificate.decode()})

    async def _pod(self, request: web.Request) -> web.StreamResponse:
        return await accept(request, lambda _identity: self._outbox, self._heard)

    def _heard(self, _identity: str, message: Message) -> None:
        assert isinstance(message, PodReport)
        self.reports[message.member.uid] = message
        if len(self.reports) == self._size:
            self._outbox.publish(self.grant())

    def grant(self) -> Grant:
        """The whole world, as soon as all of it is known."""
        reports = sorted(self.reports.values(), key=lambda report: report.member.index)
        leader = reports[0]
        return Grant(
            key=KEY,
            generation=1,
            job_uid="job-uid",
            leader=leader.member,
            leader_port=leader.port,
            world=World(tuple(report.member for report in reports)),
            world_number=1,
            expected=None,
            save_within=None,
            want=self.want,
            why="",
            timing=TIMING,
        )

    def say(self, want: Want) -> None:
        """Want something else of the group."""
        self.want = want
        self._outbox.publish(replace(self.grant(), want=want))

    def leader(self) -> PodReport | None:
        """The leader pod's newest report."""
        return next((report for report in self.reports.values() if report.member.index == 0), None)
