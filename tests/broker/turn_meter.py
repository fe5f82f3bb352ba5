"""How long did one turn of the event loop take, in CPU time of its thread?

CPU time, so that a busy machine changes little; the test's own work in the same loop counts as well. A
machine that stands still, as virtual ones do, counts that as CPU time: so a turn is compared to a loop of
plain steps on the same machine, and a test whose turn was too long is tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.turns import Slice

LIMIT_LOOPS = 40.0
"""Of ``loop_s``: 0.1 s here, five times what docs/security.md promises. What it guards against took 0.3 s and
more."""
TRIES = 5


class LongTurn(AssertionError):
    """Perhaps of the machine, not of the test: ``tried_again`` finds out."""


def loop_s() -> float:
    """CPU seconds of 100,000 plain steps on this machine: the least of some runs."""
    found = []
    for _ in range(5):
        began, total = time.thread_time(), 0
        for step in range(100_000):
            total += step
        found.append(time.thread_time() - began)
    return min(found)


class Meter:
    longest_s = 0.0
    turns = 0

    def check(self, loops: float = LIMIT_LOOPS) -> None:
        """Raises LongTurn when a turn took longer than so many ``loop_s``."""
        limit_s = loops * loop_s()
        if self.longest_s >= limit_s:
            raise LongTurn(f"a turn of {self.longest_s * 1000:.1f} ms, at most {limit_s * 1000:.1f}")


_tried_again = False


def tried_again(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """A test that checks a Meter, up to TRIES times, each in a directory of its own, until no turn is long.

    What holds the loop does so each time; a machine that stood still did so once.
    """

    @functools.wraps(test)
    async def tries(tmp_path: Path, **arguments: Any) -> None:
        global _tried_again
        _tried_again = True
        try:
            for number in range(1, TRIES + 1):
                directory = tmp_path / f"try-{number}"
                directory.mkdir()
                try:
                    return await test(tmp_path=directory, **arguments)
                except LongTurn:
                    if number == TRIES:
                        raise
        finally:
            _tried_again = False

    return tries


@contextlib.asynccontextmanager
async def metered() -> AsyncIterator[Meter]:
    """``meter.longest_s`` is the longest turn of the loop inside of the block."""
    assert _tried_again, "a test that measures turns is tried_again"
    meter = Meter()

    async def watch() -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            meter.longest_s = max(meter.longest_s, now - last)
            meter.turns += 1
            last = now

    gc.collect()
    gc.freeze()  # what thousands of tests before left is not looked through in here
    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    try:
        yield meter
    finally:
        await asyncio.sleep(0)
        watching.cancel()


class Slices:
    """How often was the clock looked at?"""

    looks = 0


def counted_slices(monkeypatch: pytest.MonkeyPatch) -> Slices:
    """Each slice ends at each look."""
    found = Slices()

    def is_over(self: Slice) -> bool:
        found.looks += 1
        return True

    monkeypatch.setattr(Slice, "is_over", is_over)
    return found
