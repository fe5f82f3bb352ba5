"""What a process without descriptors cannot open is not settled, and is synced when there are some again."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from store.files.consume_queues import OPEN_FILES_MAX
from store.flow.upkeep.housekeeping import Housekeeping
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv
from tests.store.support import fill, opened
from tests.waiting import until

NEVER_MS = 3_600_000
QUEUES = OPEN_FILES_MAX + 100
"""Files of the first ones are closed when these are written."""


class Refusing(FaultyDisk):
    """``left``: of the files of queues, how many more may be opened."""

    left = 1 << 30

    def open(self, path: str, *, create: bool = False) -> Any:
        if "consumequeue" in path:
            if not self.left:
                raise OSError(errno.EMFILE, "no descriptors", path)
            self.left -= 1
        return super().open(path, create=create)


@pytest.mark.parametrize("left", [0, 3])
async def test_queues_that_cannot_be_opened_for_their_sync_are_not_settled(left: int) -> None:
    """None of a round, or those behind the third one."""
    disk = Refusing()
    async with opened(FaultyEnv(disk), flush_queue_interval_ms=NEVER_MS) as store:
        await fill(store, QUEUES, queues=QUEUES)
        flush = store.background.housekeeping.queues
        await store.background.flusher._sync()
        store.files.queues.write_out()
        for turn in range(2):
            disk.left = left
            await flush.flush()
            assert store.files.checkpoint.now.settled_offset == 0
            assert store.files.queues.unsynced_count == QUEUES - left * (turn + 1)
            assert (store.why_not_writable is None) == (left > 0)
        disk.left = 1 << 30
        while store.files.queues.unsynced_count:
            await flush.flush()
        assert store.files.checkpoint.now.settled_offset == store.log.end
        assert store.why_not_writable is None
        await store.background.housekeeping.write_checkpoint()
        crashed = disk.crash()
    async with opened(FaultyEnv(crashed)) as store:
        for queue_id in range(QUEUES):
            assert store.next_offset("T", queue_id) == 1


async def test_a_round_that_goes_well_takes_back_what_a_failed_one_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries: list[int] = []
    real = Housekeeping.flush_index

    async def fails_once(self: Housekeeping) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise OSError(errno.EMFILE, "no descriptors")
        await real(self)

    monkeypatch.setattr(Housekeeping, "flush_index", fails_once)
    monkeypatch.setattr(Housekeeping, "_index_is_due", lambda self, since_s: True)
    async with opened(FaultyEnv(), flush_queue_interval_ms=20) as store:
        await until(lambda: store.why_not_writable is not None)
        await until(lambda: store.why_not_writable is None)
        assert len(tries) >= 2
