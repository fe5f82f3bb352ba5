"""The promise: a failed test says whether the machine stood still, and an idle look tells nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.stand_still import LOOK_S, StandStills

ROOT = Path(__file__).parents[2]


def test_only_a_look_that_comes_late_is_a_stand_still() -> None:
    now = 1000.0
    stills = StandStills(now)
    for _ in range(5):
        now += LOOK_S + 0.5
        stills.look(now)
    assert stills.found == []
    now += LOOK_S + 6
    stills.look(now)
    assert stills.text_since(now, now + 2) == "for 6.0 s, 2.0 s before the failure was seen"
    assert stills.text_since(now + 1000, now + 1001) == ""


def test_the_report_of_a_failed_test_tells_of_it(tmp_path: Path) -> None:
    # A process that is stopped for 2 s is what a machine that stands still looks like from within.
    (tmp_path / "test_it.py").write_text(
        textwrap.dedent(
            """
            import os, subprocess, time

            def test_stopped():
                me = os.getpid()
                subprocess.Popen(["sh", "-c", f"kill -STOP {me}; sleep 2; kill -CONT {me}"])
                time.sleep(2.5)
                assert False

            def test_passes():
                assert True
            """
        )
    )
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_configure\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "."]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    assert done.stdout.count("the machine stood still") == 1, done.stdout
    assert "1 failed, 1 passed" in done.stdout
