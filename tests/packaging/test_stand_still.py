"""The promise: only a test that failed while the machine stood still says so, and is tried again."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.stand_still import LOOK_S, STILL_S, TRIES_AGAIN, StandStills

ROOT = Path(__file__).parents[2]


def test_only_a_look_that_comes_late_is_a_stand_still() -> None:
    now = 1000.0
    stills = StandStills(now)
    for _ in range(5):
        now += LOOK_S + STILL_S / 2
        stills.look(now)
    assert stills.found == []
    assert not stills.since(0)
    now += LOOK_S + 6
    stills.look(now)
    assert stills.text_since(now, now + 2) == "for 6.0 s, 2.0 s before the failure was seen"
    assert stills.text_since(now + 1000, now + 1001) == ""
    assert stills.since(now)
    assert not stills.since(now + 1)


def test_what_a_worker_asks_before_each_test_waits_for_nothing(pytestconfig: pytest.Config) -> None:
    """Without workers this is the socket where they would be heard."""
    asking: socket.socket = pytestconfig.failures_db.sock  # type: ignore[attr-defined]
    assert asking.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def outcome(folder: Path, text: str, setting: str = "") -> str:
    """What pytest says of tests in a file, run in a process of its own."""
    (folder / "test_it.py").write_text(textwrap.dedent(text))
    (folder / "conftest.py").write_text(f"from tests.conftest import pytest_configure\n{setting}")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "."]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)
    return done.stdout


# A process that is stopped is what a machine that stands still looks like from within.
STOPPED = """
    import os, subprocess, time

    def stand_still():
        me = os.getpid()
        subprocess.Popen(["sh", "-c", f"kill -STOP {me}; sleep 0.8; kill -CONT {me}"])
        time.sleep(1.2)

    tries = []
"""


def test_a_test_that_failed_while_the_machine_stood_still_is_tried_again(tmp_path: Path) -> None:
    said = outcome(
        tmp_path,
        STOPPED
        + """
    def test_stopped_once():
        tries.append(1)
        if len(tries) == 1:
            stand_still()
        assert len(tries) == 2
        """,
    )
    assert "1 passed, 1 rerun" in said, said


def test_a_test_that_goes_on_failing_fails_and_tells_why_that_may_be(tmp_path: Path) -> None:
    said = outcome(
        tmp_path,
        STOPPED
        + """
    def test_stopped_every_time():
        stand_still()
        assert False
        """,
    )
    assert f"1 failed, {TRIES_AGAIN} rerun" in said, said
    assert "the machine stood still" in said, said


def test_a_test_that_failed_while_the_machine_ran_is_not_tried_again(tmp_path: Path) -> None:
    said = outcome(
        tmp_path,
        STOPPED
        + """
    def test_passes():
        stand_still()

    def test_fails_once():
        tries.append(1)
        assert len(tries) == 2
        """,
    )
    assert "1 failed, 1 passed" in said, said
    assert "rerun" not in said, said


FOREIGN = """
    import pytest
    tries = []

    @pytest.mark.interop
    def test_of_programs_not_ours():
        tries.append(1)
        assert len(tries) == 2

    def test_of_ours():
        tries.append("x")
        assert "y" in tries
    """


@pytest.mark.parametrize(
    ("load", "said_of_it"),
    [(1000.0, "1 failed, 1 passed, 1 warning, 1 rerun"), (0.0, "2 failed, 1 warning")],
    ids=["busy", "idle"],
)
def test_a_test_of_programs_not_ours_is_tried_again_on_a_busy_machine(
    tmp_path: Path, load: float, said_of_it: str
) -> None:
    said = outcome(tmp_path, FOREIGN, f"import os\nos.getloadavg = lambda: ({load}, 0.0, 0.0)\n")
    assert said_of_it in said, said
