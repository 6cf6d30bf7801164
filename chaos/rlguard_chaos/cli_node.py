"""`rlguard node`: for people in front of a machine or its log. None of the commands needs Kubernetes."""

from __future__ import annotations

import argparse
import difflib
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rlguard.errors import BadConfigError
from rlguard.health.catalogue import Catalogue, Row, builtin
from rlguard.health.described import with_every_code
from rlguard.health.faults import Until
from rlguard.health.grouping import PROGRAM_OR_GPU
from rlguard.health.replay import LINE_LIMIT, Replay, Step, read_log, replay
from rlguard.model import Notice, Repair
from rlguard.wire import to_json
from rlguard_chaos import cli_check
from rlguard_chaos.words import MENDS, coloured, split

EPILOG: Final = """examples:
  sudo rlguard node check                      is anything wrong with this machine? One look, no cluster
  rlguard node explain 79                      what Xid 79 means, how bad it is, what mends and what ends it
  rlguard node explain sxid-20034              the same for a fault of an NVSwitch
  rlguard node explain rdma-port-down          any code of an Event or a condition about a Node will do
  dmesg | rlguard node replay -                what this machine's kernel log tells
  journalctl -k -o short-iso | rlguard node replay - --json

Exit status of replay: 0 nothing wrong at the end, 1 something is; 2 the input or the code is not known.
That of check: rlguard node check --help."""

ENDS: Final = {
    Until.BOOT: "a reboot",
    Until.CHECK: "a reset after which the driver asks for nothing more (Xid 154 to 0x0), or a reboot",
    Until.PAIR: "the line that takes it back, or a reboot",
    Until.SEEN: "nothing more of it to be seen: its source looks again and again",
}
CHARACTERS: Final = 200
NARROWEST: Final = 16
BESIDES: Final = 50
"""Columns of the timeline that are not the log's own text."""
NEAR: Final = 4
"""Codes named beside one that is unknown."""


def register(parser: argparse.ArgumentParser) -> None:
    """Add the commands to the parser of `rlguard node`."""
    parser.description = "What is wrong with this machine, what faults mean, and what a kernel log tells."
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    cli_check.register(verbs.add_parser("check", help="what is wrong with this machine, at one look"))
    _register_explain(verbs.add_parser("explain", help="what a fault code means and what to do about it"))
    _register_replay(verbs.add_parser("replay", help="what a kernel log tells, as a timeline"))


def _register_explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("code", metavar="CODE", help="79, xid-79, sxid-20034, oom-kill, rdma-port-down, ...")
    _add_common(parser)
    parser.set_defaults(run=_explain)


def _register_replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE|-", help="records of /dev/kmsg, or what dmesg or journalctl -k print")
    parser.add_argument("--any", action="store_true", help="believe lines that programs wrote into the log, too")
    _add_common(parser)
    parser.set_defaults(run=_replay)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.add_argument(
        "--catalogue", metavar="FILE", type=Path, help="your own rows over those of the tables (JSON; docs/corpus.md)"
    )


def _catalogue(arguments: argparse.Namespace) -> Catalogue:
    if not arguments.catalogue:
        return builtin()
    try:
        return builtin(arguments.catalogue.read_text("utf-8"))
    except (BadConfigError, UnicodeDecodeError) as error:
        raise BadConfigError(f"{arguments.catalogue}: {error}; docs/corpus.md shows the form") from error


def _explain(arguments: argparse.Namespace) -> int:
    catalogue = with_every_code(_catalogue(arguments))
    row = find(catalogue, arguments.code)
    if arguments.json:
        sys.stdout.write(json.dumps(explained(catalogue, row)) + "\n")
        return 0
    table = Table(show_header=False, box=None)
    for name, text in _words(catalogue, row, _ends(row)):
        table.add_row(f"[bold]{name}[/bold]", escape(text))
    Console().print(table)
    return 0


def find(catalogue: Catalogue, given: str) -> Row:
    """The row of a code in any of its spellings. Raises BadConfigError with what comes nearest."""
    code = given.strip().lower()
    numbered = re.fullmatch(r"(sxid|xid)?[ -]?([0-9]{1,6})", code)
    families = [numbered[1]] if numbered and numbered[1] else ["xid", "sxid"]
    names = [f"{family}-{int(numbered[2])}" for family in families] if numbered else [code]
    spelled = {one.lower(): one for one in catalogue.rows}
    for name in names:
        if name in spelled:
            return catalogue.rows[spelled[name]]
    near = _nearest(catalogue, names[-1]) if numbered else difflib.get_close_matches(code, catalogue.rows, NEAR)
    hint = f"; near it are {', '.join(near)}" if near else "; codes look like 79, xid-79, sxid-20034, oom-kill"
    told = "The agent tells a code that it does not know as a warning and does nothing"
    raise BadConfigError(f"{given!r:.40} is no code of the tables{hint}. {told}")


def _nearest(catalogue: Catalogue, name: str) -> list[str]:
    family, _, number = name.partition("-")
    alike = [code for code in catalogue.rows if code.startswith(f"{family}-")]
    return sorted(alike, key=lambda code: abs(int(code.partition("-")[2]) - int(number)))[:NEAR]


def explained(catalogue: Catalogue, row: Row) -> dict[str, Any]:
    """A row for programs; the field names are those of the tables."""
    severity, scope, repair = row.rating
    return {
        "code": row.code,
        "meaning": row.meaning,
        "severity": severity.value,
        "scope": scope.value,
        "repair": repair.value,
        "clears": str(row.clears),
        "nonfatal": row.nonfatal,
        "fatal": row.fatal,
        "actions": {str(number): list(rating) for number, rating in row.actions.items()},
        "ends": list(row.ends),
        "follows": list(row.follows),
        "ended_by": [other.code for other in catalogue.rows.values() if row.code in other.ends],
        "source": row.source,
        "catalogue": catalogue.version,
    }


def _words(catalogue: Catalogue, row: Row, ends: str) -> Iterator[tuple[str, str]]:
    severity, scope, repair = row.rating
    yield row.code, row.meaning
    yield "how bad", f"{severity}, for the {scope}"
    if row.nonfatal:
        yield "", f"{row.nonfatal} where the line says Nonfatal"
    if row.fatal:
        yield "", f"{row.fatal} where the line says Fatal"
    for number, (worse, what, mend) in row.actions.items():
        yield f"action {number}", f"{worse}, for the {what}: {MENDS[mend]}"
    yield "what to do", f"{repair}: {MENDS[repair]}"
    yield "over with", ends
    yield from _relations(catalogue, row)
    yield "source", row.source
    yield "tables", catalogue.version


def _relations(catalogue: Catalogue, row: Row) -> Iterator[tuple[str, str]]:
    ended_by = [other.code for other in catalogue.rows.values() if row.code in other.ends]
    if ended_by:
        yield "taken back by", ", ".join(ended_by)
    if row.ends:
        yield "takes back", ", ".join(row.ends)
    if row.code in PROGRAM_OR_GPU:
        yield "on several GPUs", f"{Repair.FIX_PROGRAM}: {MENDS[Repair.FIX_PROGRAM]}"
        yield "on one alone", f"in one process after another, {Repair.RESET_GPU}: {MENDS[Repair.RESET_GPU]}"
    if row.follows:
        yield "not told", f"within a minute after {', '.join(row.follows)}: a consequence"


def _ends(row: Row) -> str:
    if row.clears.until is Until.QUIET:
        return f"{row.clears.seconds:g} s in which it is not told again, or a reboot"
    return ENDS[row.clears.until]


def _replay(arguments: argparse.Namespace) -> int:
    counter: Counter[str] = Counter()
    with _opened(arguments.file) as lines:
        log = read_log(_counted(lines, counter), kernel_only=not arguments.any)
        played = replay(log, _catalogue(arguments))
    if not counter["lines"]:
        raise BadConfigError(f"{arguments.file}: no line in it; does dmesg need root here?")
    if arguments.json:
        sys.stdout.write(json.dumps(replayed(played)) + "\n")
    else:
        _print(played, Console(), counter["lines"])
    return 1 if played.notices else 0


@contextmanager
def _opened(name: str) -> Iterator[Iterator[str]]:
    """The log's lines, whatever bytes are in it."""
    if name == "-":
        yield _lines(io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8", errors="replace"))
        return
    with Path(name).open(encoding="utf-8", errors="replace") as file:
        yield _lines(file)


def _counted(lines: Iterator[str], counter: Counter[str]) -> Iterator[str]:
    for line in lines:
        counter["lines"] += bool(line.strip())
        yield line


def _lines(file: TextIO) -> Iterator[str]:
    """Line by line; of a line that does not end, its beginning: it must not fill the memory."""
    begins = True
    while line := file.readline(LINE_LIMIT):
        if begins:
            yield line
        begins = line.endswith("\n")


def replayed(played: Replay) -> dict[str, Any]:
    """A replay for programs."""
    return {
        "steps": [to_json(step) for step in played.steps],
        "left_out": played.left_out,
        "verdict": played.verdict.value,
        "notices": [{**to_json(notice), "count": played.counts[notice.id]} for notice in played.notices],
    }


def _print(played: Replay, console: Console, lines: int) -> None:
    if played.steps:
        console.print(_timeline(played, console.width - BESIDES))
    if played.left_out:
        console.print(f"{played.left_out} later steps are not shown.")
    word, end = coloured(played.verdict.value), f"At the end of the log ({lines} lines)"
    if not played.notices:
        console.print(f"{end}: {word}, no fault stands.")
        return
    console.print(f"{end}: {word}. What stands:")
    table = Table("fault", "device", "times", "what to do", "what it said", box=SIMPLE_HEAD)
    for notice in played.notices:
        code, device = split(notice.id)
        name, count = f"{coloured(notice.severity.value)} {code}", str(played.counts[notice.id])
        table.add_row(name, escape(device), count, MENDS[notice.repair], escape(notice.detail[:CHARACTERS]))
    console.print(table)


def _timeline(played: Replay, room: int) -> Table:
    table = Table(box=SIMPLE_HEAD)
    for name in ("time", "line", "verdict", "repair"):
        table.add_column(name, no_wrap=True)
    table.add_column("fault", min_width=NARROWEST)
    table.add_column("text", min_width=NARROWEST)
    begin = played.steps[0].at
    for step in played.steps:
        faults, repairs = _happened(step)
        verdict, text = coloured(step.verdict.value), escape(_cut(" ".join(step.text.split()), max(room, NARROWEST)))
        table.add_row(f"+{step.at - begin:.3f}", str(step.number or ""), verdict, repairs, faults, text)
    return table


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 1]}…"


def _happened(step: Step) -> tuple[str, str]:
    """What began and ended with a step, a line each, and beside it what to do."""
    rows = [(_began(notice), notice.repair.value) for notice in step.began]
    rows += [(f"[green]over[/green] {escape(' '.join(split('/' + name)))}", "") for name in step.ended]
    if not rows:
        rows = [(f"[dim]{escape(code)}[/dim]", "") for code in step.told]
    return "\n".join(fault for fault, _ in rows), "\n".join(repair for _, repair in rows)


def _began(notice: Notice) -> str:
    code, device = split(notice.id)
    return f"{coloured(notice.severity.value)} {escape(code)} {escape(device)}"
