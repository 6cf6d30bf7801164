"""What a person sees while an experiment runs: what broke, what was seen, what was decided and why, what it cost."""

from __future__ import annotations

import time
from typing import Final, Self

from rich.console import Console
from rich.text import Text

from rlguard_chaos.judge import GroupSeen, Judgement, Seen

STYLES: Final = {"broke": "bold red", "seen": "yellow", "decided": "cyan", "cost": "green", "failed": "bold red"}


class Narrator:
    """Prints one line per event, with the time since the start; on a terminal a status line shows the job's step."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._start = time.monotonic()
        self._told: set[tuple[str, str]] = set()
        self._phase = ""
        self._status = console.status("waiting for the job") if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def title(self, text: str) -> None:
        """A headline before an act."""
        self.console.print(Text(f"\n{text}", style="bold"))

    def say(self, kind: str, text: str) -> None:
        """One event; `kind` is broke, seen, decided, cost, failed or anything else for plain lines."""
        line = Text(f"{time.monotonic() - self._start:7.1f} s  ")
        line.append(f"{kind:<8}", style=STYLES.get(kind, "dim"))
        line.append(text)
        self.console.print(line, soft_wrap=True)

    def group(self, group: GroupSeen) -> None:
        """Say what is new in the group's status."""
        if group.phase != self._phase:
            self._phase = group.phase
            world = f"incarnation {group.generation}.{group.attempt}, world of {len(group.world)}"
            self.say("phase", f"{group.phase}, {world}")
        if self._status is not None:
            self._status.update(f"{group.phase}: step {group.step}, newest checkpoint {group.newest}")
        for incident in group.incidents:
            self._incident(incident)

    def skip(self, group: GroupSeen) -> None:
        """Take what is there already as told."""
        self._phase = group.phase
        for incident in group.incidents:
            self._told |= {(incident.id, part) for part in ("seen", "decided", "cost")}

    def _incident(self, incident: Seen) -> None:
        self._once(incident, "seen", f"{incident.fault}: {incident.detail}")
        if incident.resumed is not None or incident.lost_steps is not None:  # until then the rung may still change
            self._once(incident, "decided", f"{incident.decision}, because {incident.why}")
        if incident.first_step_at is not None:
            took = incident.first_step_at - incident.detected_at
            lost = f"{incident.lost_steps} steps lost, first new step {took:.1f} s after it was seen"
            self._once(incident, "cost", f"resumed from {incident.resumed or 'step 0'}: {lost}")

    def _once(self, incident: Seen, kind: str, text: str) -> None:
        if (incident.id, kind) not in self._told:
            self._told.add((incident.id, kind))
            self.say(kind, text)

    def judged(self, judgement: Judgement) -> None:
        """Say how it ended."""
        if judgement.recovered:
            self.say("cost", f"recovered: {judgement.reason}")
        else:
            self.say("failed", f"NOT recovered: {judgement.reason}")
