"""Words and colours in which people are told of faults."""

from __future__ import annotations

from typing import Final

from rlguard.model import Repair

MENDS: Final = {
    Repair.NONE: "nothing has to be done",
    Repair.RESTART_PROCESS: "start the process again",
    Repair.RESET_GPU: "reset the GPU, or reboot the node",
    Repair.REBOOT: "reboot the node",
    Repair.REPLACE: "have the hardware looked at or replaced",
    Repair.FIX_PROGRAM: "mend the program; the hardware is fine",
}
COLOURS: Final = {"fatal": "red", "lost": "red", "warning": "yellow", "degraded": "yellow", "healthy": "green"}


def split(notice_id: str) -> tuple[str, str]:
    """Code and device in a notice's id."""
    code, _, device = notice_id.partition("/")[2].partition("/")
    return code, device


def coloured(word: str) -> str:
    """The word as markup, in its colour if it has one."""
    return f"[{COLOURS[word]}]{word}[/{COLOURS[word]}]" if word in COLOURS else word
