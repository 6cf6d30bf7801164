"""A training program without torch: counts steps, stages a counter, resumes from it. Run by the launcher.

Appends `<incarnation> <step> <pid> <first step of this start>` to `$STEP_LOG` for each step.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from rlguard.train import pages

SHM = Path(os.environ["RLGUARD_SHM"])
INCARNATION = os.environ["RLGUARD_INCARNATION"]
WORLD = json.loads(os.environ["RLGUARD_WORLD"])
RESUME = json.loads(os.environ["RLGUARD_RESUME"])
RANK, SIZE = WORLD["node_rank"], WORLD["nnodes"]
LAST_STEP = int(os.environ.get("LAST_STEP", "1000000"))
STEP_S = 0.02


def resumed() -> int:
    """The next step to do."""
    if RESUME is None:
        return 0
    slot = RESUME["slot"]
    folder = Path(RESUME["directory"]) if slot is None else pages.slot_path(SHM, 0, slot)
    state = json.loads((folder / f"counter-{RANK}.json").read_text())
    assert RESUME["checkpoint"].startswith(f"{state['step']}@"), (RESUME, state)
    return state["step"] + 1


def stage(writer: pages.RankWriter, control: pages.ControlPage, step: int) -> None:
    """Write the counter into the ordered slot."""
    folder = pages.slot_path(SHM, 0, control.slot)
    folder.mkdir(exist_ok=True)
    old = pages.read_header(folder)
    sequence = (old.sequence if old else 0) + 1
    header = pages.HeaderWriter(folder)
    header.write(pages.SlotHeader(INCARNATION, step, sequence, dirty=True))
    content = json.dumps({"step": step}).encode()
    (folder / f"counter-{RANK}.json").write_bytes(content)
    (folder / "common.json").write_bytes(b"{}")
    files = (
        pages.SlotFile(f"counter-{RANK}.json", len(content), shared=False),
        pages.SlotFile("common.json", 2, shared=True),
    )
    pages.write_files_json(folder, files)
    header.write(pages.SlotHeader(INCARNATION, step, sequence, dirty=False))
    header.close()
    answer(writer, control, step, pages.StageResult.STAGED)


def answer(writer: pages.RankWriter, control: pages.ControlPage, step: int, result: pages.StageResult) -> None:
    """Say what became of the order."""
    writer.update(order=control.order, stage_step=step, slot=control.slot, result=result)


def main() -> None:
    """Step until the last one."""
    first = resumed()
    page = pages.RankPage(INCARNATION, RANK, SIZE, 1, pid=os.getpid(), hook=True, heartbeat_ns=pages.boottime_ns())
    writer, peek = pages.RankWriter(SHM, 0, page), pages.ControlPeek(SHM)
    log = Path(os.environ["STEP_LOG"])
    for step in range(first, LAST_STEP + 1):
        time.sleep(STEP_S)
        writer.beat(step, pages.boottime_ns())
        with log.open("a") as file:
            file.write(f"{INCARNATION} {step} {os.getpid()} {first}\n")
        if peek.order() != writer.page.order:
            control = pages.read_control(SHM)
            if control is None or control.incarnation != INCARNATION or control.order == writer.page.order:
                continue
            if step == control.step:
                stage(writer, control, step)
            elif step > control.step:
                answer(writer, control, step, pages.StageResult.PAST)


if __name__ == "__main__":
    main()
