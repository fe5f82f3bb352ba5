"""A log that grows fast is settled before its time: how often does that reach the disk?"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from store.files import commit_log
from store.flow.upkeep import housekeeping
from tests.fakes.disk.memory import FaultyEnv
from tests.store.support import SEGMENT, message, opened

HOUR_MS = 3_600_000
STEP_BYTES = 256
ROUND_S = 0.05


async def test_steps_of_growth_in_quick_succession_have_one_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_log, "GROWN_BYTES", STEP_BYTES)
    monkeypatch.setattr(housekeeping, "EARLY_S", ROUND_S)
    env, synced = FaultyEnv(), Counter[str]()

    def note(what: str, path: str) -> None:
        synced[path.rsplit("/", 2)[-2]] += what == "sync"

    env.disk.fail = note
    async with opened(
        env, segment_bytes=64 * SEGMENT, flush_interval_ms=HOUR_MS, flush_queue_interval_ms=HOUR_MS
    ) as store:
        store.log.growth.grown_at = store.log.growth.notice_at = STEP_BYTES
        synced.clear()
        began_s = asyncio.get_running_loop().time()
        steps = 0
        while store.log.flushed < 20 * STEP_BYTES and steps < 10_000:
            store.put(message(b"x" * STEP_BYTES))
            store.confirm(store.log.end)
            steps += 1
            await asyncio.sleep(ROUND_S / 20)
        rounds = (asyncio.get_running_loop().time() - began_s) / ROUND_S
        assert store.log.flushed >= 20 * STEP_BYTES, "it is synced long before its interval is over"
        assert 1 <= synced["commitlog"] <= rounds + 1, (synced, steps)
        assert steps > 2 * synced["commitlog"], "not once a step"
