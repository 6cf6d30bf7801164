"""The launcher does what its sidecar says, reports what happened, and leaves no process behind."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from fake_sidecar import REPO, FakeSidecar

from rlguard.launch import processes
from rlguard.launch.output import TAIL_BYTES, Stream, Tail
from rlguard.launch.ranks import STUCK_AFTER_S, Ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Pod = Callable[..., FakeSidecar]

SLEEP = "import time; time.sleep(600)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); " + SLEEP


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    """Make pods that run a Python program, and take them down."""
    made = []

    def make(program: str, **environment: str) -> FakeSidecar:
        made.append(FakeSidecar(tmp_path / str(len(made)), [sys.executable, "-c", program], environment))
        return made[-1]

    yield make
    for one in made:
        one.close()


def eventually(what: Callable[[], Any], seconds: float = 10) -> Any:
    """Wait for a true value of something outside this process; fails when it does not come."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError):
            value = what()
            if value:
                return value
        time.sleep(0.005)
    raise AssertionError(f"never came: {what}")


def is_dead(pid: int) -> bool:
    """Whether a process is gone, or a zombie."""
    fields = processes._stat(pid)
    return fields is None or fields[0] == "Z"


def test_nothing_runs_before_an_order(pod: Pod) -> None:
    """The first state is whole."""
    state = pod(SLEEP).until("none")
    assert state["incarnation"] is None
    assert state["hooked"] is None
    assert not state["terminating"]
    assert not state["idle"]


def test_the_command_gets_its_incarnation_and_its_output_is_the_containers(pod: Pod) -> None:
    """Both streams, in the log and in the tail."""
    one = pod(
        "import os, sys; print(os.environ['RLGUARD_INCARNATION'], os.environ['X']); print('err', file=sys.stderr)"
    )
    one.order({"type": "start", "incarnation": "3.1", "env": {"X": "y"}})
    state = one.until("exited")
    assert (state["code"], state["signal"], state["hooked"]) == (0, None, False)
    assert set(state["tail"].splitlines()) == {"3.1 y", "err"}
    assert set(one.log.read_text().splitlines()) == {"3.1 y", "err"}


def test_the_users_own_path_comes_after_ours(pod: Pod) -> None:
    """The hook is found first, and the user's modules are found still."""
    one = pod("import os; print(os.environ['PYTHONPATH'])", PYTHONPATH="/mine")
    one.start("3.1", None)
    assert one.until("exited")["tail"] == f"{one.lib}:/mine\n"


@pytest.mark.parametrize(
    ("end", "code", "number"),
    [("sys.exit(3)", 3, None), ("os.kill(os.getpid(), 9)", None, 9), ("raise RuntimeError", 1, None)],
)
def test_how_the_command_ended_is_told_and_what_it_left_is_killed(
    pod: Pod, end: str, code: int | None, number: int | None
) -> None:
    """A child in a session of its own, deaf to SIGTERM, adopted by the launcher."""
    one = pod(
        "import os, subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {DEAF!r}], start_new_session=True, stdout=subprocess.PIPE)\n"
        f"child.stdout.readline(); print(child.pid, flush=True); {end}"
    )
    one.start("3.1", None)
    state = one.until("exited")
    assert (state["code"], state["signal"]) == (code, number)
    assert is_dead(int(state["tail"].split()[0]))
    assert one.launcher.poll() is None


def test_a_command_that_cannot_start_has_exited_and_says_why(tmp_path: Path) -> None:
    """As a shell would: 127."""
    one = FakeSidecar(tmp_path, ["no-such-program"])
    one.start("3.1", None)
    state = one.until("exited")
    assert state["code"] == 127
    assert "no-such-program" in state["tail"]
    one.close()


def test_a_stop_kills_what_does_not_end_in_its_grace(pod: Pod) -> None:
    """And not before."""
    one = pod(DEAF)
    one.start("3.1", None)
    eventually(lambda: "deaf" in one.log.read_text())
    begin = time.monotonic()
    one.order({"type": "stop", "incarnation": "3.1", "grace_s": 0.4})
    assert one.until("gone")["signal"] is None
    assert 0.4 <= time.monotonic() - begin < 5


def test_a_stop_of_another_incarnation_changes_nothing(pod: Pod) -> None:
    """Only the next state answers it."""
    one = pod(SLEEP)
    one.start("3.1", None)
    one.until("running")
    one.order({"type": "stop", "incarnation": "3.0", "grace_s": 0})
    one.until("running")
    one.until("running")


def test_an_incarnation_starts_once(pod: Pod) -> None:
    """Neither again while it runs, nor after; another one only after a stop."""
    one = pod("import os; print(os.environ['RLGUARD_INCARNATION'], flush=True); " + SLEEP)
    for incarnation in ("3.1", "3.1", "3.2"):
        one.start(incarnation, None)
    eventually(lambda: one.log.read_text() == "3.1\n")
    one.order({"type": "stop", "incarnation": "3.1", "grace_s": 0.0})
    one.until("gone", incarnation="3.1")
    one.start("3.1", None)
    one.start("3.2", None)
    one.until("running", incarnation="3.2")
    eventually(lambda: one.log.read_text() == "3.1\n3.2\n")


def test_ended_ranks_do_not_end_the_container_and_a_next_start_works(pod: Pod) -> None:
    """An ended container would cost the group."""
    one = pod("import os, sys; sys.exit(int(os.environ['RLGUARD_INCARNATION'][-1]))")
    for attempt in (1, 2):
        one.start(f"3.{attempt}", None)
        assert one.until("exited", incarnation=f"3.{attempt}")["code"] == attempt


def test_a_terminating_pods_ranks_run_on_until_the_stop(pod: Pod) -> None:
    """The sidecar saves first; then the launcher ends well."""
    one = pod(SLEEP)
    one.start("3.1", None)
    one.until("running")
    one.launcher.terminate()
    one.until("running", terminating=True)
    one.order({"type": "stop", "incarnation": "3.1", "grace_s": 1.0})
    assert one.launcher.wait(10) == 0


def test_an_idle_launcher_runs_nothing_and_ends_with_its_pod(pod: Pod) -> None:
    """A completed job's pods stay, idle."""
    one = pod(SLEEP)
    one.order({"type": "idle"})
    one.until("none", idle=True)
    one.launcher.terminate()
    assert one.launcher.wait(10) == 0


def test_untouched_is_as_without_rlguard(pod: Pod) -> None:
    """No variable of ours, no path of ours, and the container ends as the command does."""
    one = pod("import os, sys; print([n for n in os.environ if 'RLGUARD' in n or n == 'PYTHONPATH']); sys.exit(5)")
    one.order({"type": "untouched"})
    assert one.launcher.wait(10) == 5
    assert one.log.read_text() == "[]\n"


def test_bad_orders_are_said_and_the_next_good_one_is_obeyed(pod: Pod) -> None:
    """No traceback, no end."""
    one = pod("print('ran')")
    one._connection.sendall(b"\xff{\n[]\n" + json.dumps({"type": "start"}).encode() + b"\n")
    one.order({"type": "stop", "incarnation": "3.1", "grace_s": "soon"})
    one.order({"type": "dance"})
    one.start("3.1", None)
    assert one.until("exited")["code"] == 0
    assert "'dance'" in one.log.read_text()
    assert "Traceback" not in one.log.read_text()


def test_a_new_sidecar_process_gets_the_whole_state(pod: Pod) -> None:
    """The connection comes back, ranks run on."""
    one = pod(SLEEP)
    one.start("3.1", None)
    pid = one.until("running")["pid"]
    one._reader.close()
    one._connection.close()
    one._connection, _ = one._server.accept()
    one._reader = one._connection.makefile("rb")
    assert one.until("running", incarnation="3.1")["pid"] == pid


def test_the_tail_is_bounded_and_the_log_is_whole(pod: Pod) -> None:
    """The last 4 KiB go to the report, everything to the container's log."""
    one = pod("print('x' * 100_000 + 'end')")
    one.start("3.1", None)
    tail = one.until("exited")["tail"]
    eventually(lambda: one.log.stat().st_size == 100_004)
    assert len(tail) == TAIL_BYTES
    assert tail.endswith("xend\n")


def test_a_log_that_nobody_reads_does_not_keep_orders_from_being_obeyed(tmp_path: Path) -> None:
    """The container's output pipe is full; a stop still stops."""
    reader, clogged = os.pipe()
    one = FakeSidecar(tmp_path, [sys.executable, "-c", "while True: print('x' * 1000)"], output=clogged)
    try:
        one.start("3.1", None)
        eventually(lambda: not select.select([], [clogged], [], 0)[1])
        one.order({"type": "stop", "incarnation": "3.1", "grace_s": 0.2})
        one.until("gone", seconds=10)
    finally:
        one.close()
        os.close(reader)
        os.close(clogged)


def test_ranks_die_with_their_launcher(pod: Pod) -> None:
    """The kernel sees to it."""
    one = pod("import os; print(os.getpid(), flush=True); " + SLEEP)
    one.start("3.1", None)
    pid = int(eventually(lambda: one.log.read_text().strip()))
    one.launcher.kill()
    eventually(lambda: is_dead(pid))


SLOW_AGENT = f"""
import os, subprocess, sys
rank = subprocess.Popen([sys.executable, '-c', {SLEEP!r}], env={{**os.environ, 'LOCAL_RANK': '0'}})
helper = subprocess.Popen([sys.executable, '-c', 'import sys; sys.exit(9)'])
helper.wait()
print(rank.pid, flush=True)
open(os.environ['RLGUARD_RUN'] + '/hooked-3.1', 'w').write(str(os.getpid()))
{DEAF}
"""


def test_a_dead_rank_is_told_at_once_and_a_slow_torchrun_does_not_hold_it_up(pod: Pod) -> None:
    """Real torchrun may wait 30 s for the other ranks; a helper process that failed is no rank."""
    one = pod(SLOW_AGENT)
    one.start("3.1", None)
    one.until("running", hooked=True)
    one.until("running")  # a whole second later at most: the rank is watched
    os.kill(int(one.state["tail"].split()[0]), signal.SIGKILL)
    begin = time.monotonic()
    assert one.until("stopping")["signal"] == 9
    assert time.monotonic() - begin < 3  # a slow torchrun would hold it up for 30
    assert one.until("exited")["signal"] == 9
    assert time.monotonic() - begin < 5


def test_what_survives_sigkill_is_named_and_no_longer_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A process in the kernel's D state, played by one whose signals get lost."""
    alive = [4242]
    monkeypatch.setattr(processes, "descendants", lambda _root: alive)
    monkeypatch.setattr(processes, "has_children", lambda: bool(alive))
    monkeypatch.setattr(processes, "send", lambda _pids, _number: None)
    ranks = Ranks(["x"], tmp_path)
    ranks.phase = "running"
    ranks.stop(1.0, now=10.0)
    ranks.tick(11.0)
    assert ranks.phase == "stopping"
    ranks.tick(11.1 + STUCK_AFTER_S)
    assert (ranks.phase, ranks.stuck) == ("stuck", [4242])
    alive.clear()
    ranks.tick(60.0)
    assert (ranks.phase, ranks.stuck) == ("gone", [])


RELAY = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), flush=True)
if os.fork():
    time.sleep(600)
while True:
    if os.fork():
        os._exit(0)
"""


def test_gone_is_said_of_no_process_that_forks_faster_than_one_can_look(pod: Pod) -> None:
    """Each one lives a moment: a walk of /proc finds the dead and misses the newborn."""
    one = pod(RELAY)
    one.start("3.1", None)
    group = int(eventually(lambda: one.log.read_text().strip()))
    try:
        one.order({"type": "stop", "incarnation": "3.1", "grace_s": 0.1})
        one.until("gone", seconds=10)
        with pytest.raises(ProcessLookupError):
            os.killpg(group, 0)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def test_output_without_end_lets_the_launcher_do_its_other_work() -> None:
    """A sink that takes all at once and ranks that never pause."""
    with open("/dev/zero", "rb") as source, open("/dev/null", "wb") as sink:  # noqa: PTH123 # devices
        stream = Stream(source.fileno(), sink.fileno(), Tail())
        assert stream.pump()
        assert not stream.waits


@pytest.mark.parametrize("name", ["3", "3.1/x", "../3.1", "3.1" * 2000, "3.1\n"])
def test_an_incarnation_that_is_none_starts_nothing(pod: Pod, name: str) -> None:
    one = pod("print('ran', flush=True); " + SLEEP)
    one.start(name, None)
    one.start("3.1", None)
    assert one.until("running")["incarnation"] == "3.1"


def test_wrong_usage_is_said() -> None:
    """Without a command there is nothing to launch."""
    launcher = str(REPO / "rlguard/launch/__main__.py")
    result = subprocess.run([sys.executable, launcher, "torchrun"], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "usage" in result.stderr
