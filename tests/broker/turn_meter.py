"""How long did one turn of the event loop take, in CPU time of its thread?

CPU time, so that a busy machine changes nothing; the test's own work in the same loop counts as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator

import pytest

from runtime.turns import Slice

LIMIT_S = 0.1
"""Five times what docs/security.md promises: machines that run tests are slow and busy. What it
guards against took 0.3 s and more."""


class Meter:
    longest_s = 0.0
    turns = 0


@contextlib.asynccontextmanager
async def metered() -> AsyncIterator[Meter]:
    """``meter.longest_s`` is the longest turn of the loop inside of the block."""
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
