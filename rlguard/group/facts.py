"""What both cores of a group are told and ask for. The rest: `coordinator_facts` and `member_facts`.

`at` is CLOCK_BOOTTIME in seconds everywhere. Three rules hold for both cores:

- Views change in `fold` alone. Where only time has passed, `decide` asks for `Advance` and the shell answers with
  `Ticked`; a decision made twice from one view is the same decision.
- An action is asked for again at each decision until the fact that answers it (named in its docstring) is told. The
  shell runs each at most once at a time and answers each try, with `StoreFailed` if it went wrong.
- Orders and reports are snapshots: the shell's outbox holds the newest and repeats it every heartbeat.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ticked:
    """Fact: the answer to `Advance`."""

    at: float


@dataclass(frozen=True, slots=True)
class ControllerLink:
    """Fact: is there a live link to the controller (closed after `SUSPECT` seconds of silence). Told at changes."""

    at: float
    open: bool


@dataclass(frozen=True, slots=True)
class Advance:
    """Action: time alone has changed something; tell `Ticked` at once."""
