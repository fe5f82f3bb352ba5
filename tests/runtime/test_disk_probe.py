"""The promise of DiskProbe: a disk that hangs is told from one that is slow, or refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from runtime.disk_probe import FILE, DiskProbe
from runtime.os_env import OsEnv

T = TypeVar("T")


class Hanging(OsEnv):
    """What is offloaded waits until ``goes_on``."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = asyncio.Event()
        self.offloaded = 0

    async def offload(self, call: Callable[[], T]) -> T:
        self.offloaded += 1
        await self.goes_on.wait()
        return call()


async def test_one_write_at_most_is_under_way_while_the_disk_hangs(tmp_path: Path) -> None:
    env = Hanging()
    probe = DiskProbe(env, str(tmp_path))
    for _ in range(3):
        with pytest.raises(TimeoutError, match="the disk hangs"):
            await probe.answers(0.01)
    assert env.offloaded == 1, "no thread more for each that asks"
    env.goes_on.set()
    await probe.answers(5)
    assert (tmp_path / FILE).stat().st_size > 0
    assert env.offloaded == 1, "the one that was given up ended"
    await probe.answers(5)
    assert env.offloaded == 2


class Slow(OsEnv):
    def __init__(self, *slow_s: float) -> None:
        super().__init__()
        self.slow_s = iter(slow_s)

    async def offload(self, call: Callable[[], T]) -> T:
        await asyncio.sleep(next(self.slow_s))
        return call()


async def test_one_that_is_known_to_be_slow_is_waited_for_and_not_for_ever(tmp_path: Path) -> None:
    probe = DiskProbe(Slow(0.3, 0.3, 1e6), str(tmp_path))
    with pytest.raises(TimeoutError, match=r"within 0\.01 s"):
        await probe.answers(0.01)
    await asyncio.sleep(0.4)
    await probe.answers(0.01)
    with pytest.raises(TimeoutError, match=r"within 0\.[6-9]"):
        await probe.answers(0.01)


async def test_a_log_elsewhere_is_tried_too_and_gets_no_file_among_its_segments(tmp_path: Path) -> None:
    log, gone = tmp_path / "log", tmp_path / "gone"
    log.mkdir()
    await DiskProbe(OsEnv(), str(tmp_path), [str(log), str(gone)]).answers(5)
    assert (tmp_path / FILE).stat().st_size == (log / FILE / FILE).stat().st_size > 0
    assert [path for path in log.iterdir() if path.is_file()] == []
    assert not gone.exists()


async def test_a_disk_that_refuses_does_not_hang(tmp_path: Path) -> None:
    await DiskProbe(OsEnv(), str(tmp_path / "gone")).answers(5)
    assert list(tmp_path.iterdir()) == []
