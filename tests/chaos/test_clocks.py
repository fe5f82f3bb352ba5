"""The promise of a clock fault on real processes: one sees another wall clock at once, and nothing stays."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chaos.live import clocks
from chaos.live.clocks import Clock

LOOK = """
import sys, time
for line in sys.stdin:
    print(time.time(), time.monotonic(), flush=True)
"""

TWO_THREADS = """
import threading, time
done = [0, 0]
ended = False
def work(at):
    while not ended:
        done[at] += 1
threads = [threading.Thread(target=work, args=(at,)) for at in (0, 1)]
for one in threads:
    one.start()
time.sleep(0.3)
ended = True
for one in threads:
    one.join()
print(sum(done) / time.process_time())
"""


@pytest.fixture(autouse=True)
def _there() -> None:
    reason = clocks.unavailable()
    if reason is not None:
        pytest.skip(reason)


def test_a_jump_moves_the_wall_clock_of_one_process_and_no_monotonic_one(tmp_path: Path) -> None:
    clock = Clock(tmp_path / "clock" / "broker-a-0")
    command = [*clock.command(), sys.executable, "-I", "-c", LOOK]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:

        def look() -> tuple[float, float]:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write("\n")
            child.stdin.flush()
            wall_s, monotonic_s = child.stdout.readline().split()
            return float(wall_s), float(monotonic_s)

        wall_s, monotonic_s = look()
        clock.jump(3_600_000)
        clock.jump(-600_000)
        later_s, then_s = look()
        assert 2900 < (later_s - wall_s) - (then_s - monotonic_s) < 3100, "what it is off adds up"
        assert clock.drift(3.0)
        assert not clock.drift(3.0)
        wall_s, monotonic_s = look()
        time.sleep(0.2)
        later_s, then_s = look()
        assert 2 < (later_s - wall_s) / (then_s - monotonic_s) < 4
        clock.jump(1000)
        assert clock.drift(1.0), "a jump leaves the rate as it is"
        wall_s, monotonic_s = look()
        time.sleep(0.2)
        later_s, then_s = look()
        assert 0.5 < (later_s - wall_s) / (then_s - monotonic_s) < 1.5
        child.kill()
    assert Path(clocks.SHARED, f"faketime_shm_{child.pid}").exists(), "a killed process leaves it"
    assert child.pid in clocks.noted(tmp_path / "clock")
    clocks.sweep(clocks.noted(tmp_path / "clock"))
    assert not any(clocks.SHARED.glob(f"*faketime_*_{child.pid}"))


def test_threads_of_one_process_keep_working(tmp_path: Path) -> None:
    """With its correction for glibc they made 36 times less of a CPU second; Controllers stood still."""
    clock = Clock(tmp_path / "clock" / "broker-a-0")
    command = clock.command()
    clock.jump(3_600_000)

    def per_cpu_s(*before: str) -> float:
        done = subprocess.run(
            [*before, sys.executable, "-I", "-c", TWO_THREADS], capture_output=True, text=True, check=True
        )
        return float(done.stdout)

    assert per_cpu_s(*command) > per_cpu_s() / 8


def test_what_a_living_process_has_is_left_alone(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for pid in (os.getpid(), gone.pid):
        for name in clocks.NAMES:
            (tmp_path / f"{name}{pid}").touch()
    other = tmp_path / f"{clocks.NAMES[0]}4000000"
    other.touch()
    assert clocks.sweep([os.getpid(), gone.pid], tmp_path) == 2
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {*(f"{name}{os.getpid()}" for name in clocks.NAMES), other.name}, "a container's, or so"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file away")
def test_what_another_users_process_left_stays(tmp_path: Path) -> None:
    (left := tmp_path / f"{clocks.NAMES[0]}4000000").touch()
    os.chown(left, 12_345, 12_345)
    assert clocks.sweep([4_000_000], tmp_path) == 0
    assert left.exists()


def test_a_library_that_is_none_is_refused_with_what_the_loader_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "libfaketime.so.1"
    monkeypatch.setenv("KEELMQ_FAKETIME", str(broken))
    assert "pip install 'keelmq[clock]'" in str(clocks.unavailable())
    broken.write_bytes(b"no library")
    assert "moves no clock here" in str(clocks.unavailable())
    assert str(broken) in str(clocks.unavailable())
