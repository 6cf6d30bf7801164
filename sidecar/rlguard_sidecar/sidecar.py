"""The whole sidecar: who tells whom. Every part runs as a named task; a bug in one ends the process, loudly, and the
supervisor starts it again.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, Final

from rlguard.group import facts, member_facts
from rlguard.group.member_facts import LauncherState
from rlguard.io.clock import boottime
from rlguard.io.identity import keep_credentials
from rlguard.io.link import Dialler, Outbox, Target
from rlguard.io.tls import CONTROLLER, node_identity
from rlguard.messages import (
    Acknowledged,
    AgentReport,
    Figures,
    Grant,
    GroupReport,
    MemberReport,
    Message,
    Order,
    PodReport,
    Ranks,
)
from rlguard.model import CheckpointId
from rlguard.policy import HEARTBEAT
from rlguard_sidecar.coordinator import Coordinator
from rlguard_sidecar.kept import KeptCredentials
from rlguard_sidecar.member import MemberShell
from rlguard_sidecar.notices import Notices
from rlguard_sidecar.peers import PeerServer, Reach, Roster, leader_target
from rlguard_sidecar.remembered import Remembered
from rlguard_sidecar.root import RootState, RootWatch
from rlguard_sidecar.settings import Settings
from rlguard_sidecar.storeactions import StoreActions, stores_of

CONTROLLER_PATH: Final = "/v1/pod"
AGENT_PATH: Final = "/v1/node"
FIGURES_EVERY: Final = 5
"""Heartbeats between two messages whose only news are figures."""


class Sidecar:
    """Wires the parts of one pod's sidecar."""

    def __init__(self, settings: Settings, log: Any) -> None:
        self._settings = settings
        self._log = log
        self._credentials = KeptCredentials(settings.keep_fd, settings.authority)
        self._remembered = Remembered(settings.state, log)
        self._notices = Notices(settings.member.uid, settings.grace)
        self._stores = stores_of(settings.root, settings.state)
        self._terminating = self._untouched = False
        self._noticed: tuple[str, ...] = ()
        self._group: GroupReport | None = None
        self._own_report: MemberReport | None = None
        self._figures: Figures | None = None
        self._own_order: Order | None = None
        self._to_controller, self._to_coordinator, self._to_agent = Outbox(), Outbox(), Outbox()
        self._roster = Roster(settings.key) if settings.leads else None
        self._coordinator = self._make_coordinator() if self._roster is not None else None
        self._member = MemberShell(settings, self._stores.bulk, self._report, self._launcher_said, boottime, log)
        self._root = RootWatch(settings.root, self._stores.lineage, self._job_uid, self._root_seen, log)
        self._peers = PeerServer(settings.listen_fd, self._credentials, self._roster, self._member_heard)
        self._reach = Reach(self._leader_address, self._coordinator_link, boottime)

    async def run(self) -> None:
        """Run all parts, for ever."""
        async with asyncio.TaskGroup() as tasks:
            for name, part in self._parts().items():
                tasks.create_task(part, name=name)

    def _parts(self) -> dict[str, Any]:
        settings, contexts = self._settings, self._credentials.client_context
        credentials = keep_credentials(
            lambda: settings.controller, settings.token, settings.authority, self._credentials
        )
        controller = Dialler(
            self._controller, contexts, self._to_controller, self._controller_said, self._controller_link
        )
        agent = Dialler(self._agent, contexts, self._to_agent, self._agent_said)
        parts = {
            "credentials": credentials,
            "controller": controller.run(),
            "agent": agent.run(),
            "peers": self._peers.run(),
            "root": self._root.run(),
            "member": self._member.run(),
            "heartbeat": self._beat(),
        }
        if self._coordinator is not None:
            return {**parts, "coordinator": self._coordinator.run()}
        coordinator = Dialler(self._leader, contexts, self._to_coordinator, self._coordinator_said, self._reach.link)
        return {**parts, "coordinator-link": coordinator.run(), "reach": self._reach.run()}

    def _make_coordinator(self) -> Coordinator:
        if self._roster is None:
            raise TypeError("only the leader pod coordinates")
        actions = StoreActions(self._stores, self._settings.member.uid, self._job_uid, boottime)
        return Coordinator(self._settings, actions, self._roster, self._group_report, self._order, boottime, self._log)

    # ---- whom to call

    def _controller(self) -> Target | None:
        address = self._settings.controller
        return Target(f"https://{address}{CONTROLLER_PATH}", CONTROLLER) if address else None

    def _agent(self) -> Target:
        host = self._settings.host_ip
        host = f"[{host}]" if ":" in host else host
        return Target(
            f"https://{host}:{self._settings.agent_port}{AGENT_PATH}", node_identity(self._settings.member.node)
        )

    def _leader(self) -> Target | None:
        return leader_target(self._remembered.grant)

    def _leader_address(self) -> tuple[str, int] | None:
        grant = self._remembered.grant
        return (grant.leader.address, grant.leader_port) if self._leader() is not None and grant is not None else None

    def _job_uid(self) -> str | None:
        grant = self._remembered.grant
        return grant.job_uid if grant is not None else None

    # ---- what is heard

    def _controller_said(self, message: Message) -> None:
        if not isinstance(message, Grant) or message.key != self._settings.key:
            return
        known = self._remembered.grant
        if known is not None and message.generation < known.generation:
            return
        if known is None or (known.generation, known.world_number) != (message.generation, message.world_number):
            self._log.info("granted", generation=message.generation, world_number=message.world_number, why=message.why)
        self._remembered.keep(message)
        if self._coordinator is not None:
            self._coordinator.granted(message)

    def _controller_link(self, open_: bool) -> None:
        self._log.info("controller", open=open_)
        fact = facts.ControllerLink(boottime(), open_)
        self._member.tell(fact)
        if self._coordinator is not None:
            self._coordinator.tell(fact)

    def _agent_said(self, message: Message) -> None:
        if isinstance(message, AgentReport) and message.node == self._settings.member.node:
            self._notices.agent_said(message, boottime())
            self._acknowledge()
            self._tell_notices()

    def _coordinator_said(self, message: Message) -> None:
        if isinstance(message, Order):
            self._member.ordered(message)

    def _coordinator_link(self, open_: bool) -> None:
        self._log.info("coordinator", within_reach=open_)
        self._member.tell(member_facts.CoordinatorLink(boottime(), open_))
        self._publish()

    def _member_heard(self, report: MemberReport) -> None:
        if self._coordinator is not None:
            self._coordinator.heard(report)

    def _launcher_said(self, state: LauncherState) -> None:
        self._untouched = state.incarnation is None and state.ranks is not Ranks.NONE
        self._root.running = state.incarnation is not None
        if state.terminating and not self._terminating:
            self._terminating = True
            self._notices.end(boottime())
            self._tell_notices()

    def _root_seen(self, root: RootState) -> None:
        self._member.tell(member_facts.RootSeen(boottime(), root.readable, root.lineage, root.completed))
        self._publish()

    # ---- what is said

    def _report(self, report: MemberReport) -> None:
        changed, self._own_report = report != self._own_report, report
        if self._coordinator is None:
            self._to_coordinator.publish(report)
        elif changed:
            self._coordinator.heard(report)

    def _order(self, uid: str, order: Order) -> None:
        if uid == self._settings.member.uid and order != self._own_order:
            self._own_order = order
            self._member.ordered(order)

    def _group_report(self, report: GroupReport) -> None:
        self._group = report
        self._publish()

    def _tell_notices(self) -> None:
        now = boottime()
        standing = self._notices.standing(now)
        ids = tuple(notice.id for notice in standing)
        if ids != self._noticed:
            self._log.info("notices", ids=ids)
            self._noticed = ids
        self._member.tell(member_facts.NoticesHeard(now, standing))
        self._publish()

    def _publish(self) -> None:
        settings = self._settings
        leads, root = settings.leads, self._root.state
        self._to_controller.publish(
            PodReport(
                key=settings.key,
                member=settings.member,
                port=self._peers.port,
                root_state=root.state,
                disk_generation=root.generation,
                completed=root.completed,
                completed_by=root.completed_by,
                hears_coordinator=leads or self._reach.open,
                notices=self._notices.standing(boottime()),
                terminating=self._terminating,
                untouched=self._untouched,
                group=self._group,
                reached=self._reached(),
            )
        )

    def _acknowledge(self) -> None:
        uid = self._settings.member.uid
        self._to_agent.publish(Acknowledged(uid, self._notices.agent_ids, self._figures))

    def _take_figures(self) -> None:
        """As of now; seldom, because with each a message goes out."""
        report, member = self._own_report, self._settings.member
        if report is not None:
            staged = max((slot.checkpoint for slot in report.slots), default=None)
            self._figures = Figures(
                self._settings.key,
                member.index,
                report.incarnation,
                report.ranks,
                report.step,
                report.heartbeat_age,
                staged,
            )
        self._acknowledge()

    def _reached(self) -> CheckpointId | None:
        report = self._own_report
        if report is None or report.incarnation is None or report.step is None:
            return None
        return CheckpointId(report.incarnation, report.step)

    async def _beat(self) -> None:
        """What links do between pods, for the leader pod's own member; and time left, as of now."""
        if self._coordinator is not None:
            self._member.tell(member_facts.CoordinatorLink(boottime(), open=True))
            if self._remembered.grant is not None:
                self._coordinator.granted(self._remembered.grant)
        for beat in itertools.count():
            if beat % FIGURES_EVERY == 0:
                self._take_figures()
            if self._coordinator is not None and self._own_report is not None:
                self._coordinator.heard(self._own_report)
            if self._own_order is not None:
                self._member.ordered(self._own_order)
            self._publish()
            await asyncio.sleep(HEARTBEAT)
