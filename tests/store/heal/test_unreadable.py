"""The promise about sectors that cannot be read: the rest of the log is checked all the same, and what they
held comes back from a replica, whole pages at a time."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from store.heal.repair import PAGE_BYTES, UNREADABLE_AGAIN_MS
from store.heal.scrub import FAILED_READS_MAX, FAILED_REST_S
from store.message_store import MessageStore
from tests.fakes.disk.memory import FaultyEnv, FaultyFile
from tests.store.support import fill, opened, scrub_all

LOG = f"/store/commitlog/{0:020d}"
KEYS: dict[str, Any] = {"segment_bytes": 64 * PAGE_BYTES, "append_prop_crc": True, "scrub_megabytes_per_s": 0}


class Sectors:
    """Pages of files the disk does not give any more, until a write covers one as a whole."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bad: dict[str, set[int]] = {}
        self.failed: list[tuple[str, int]] = []
        pread, put = FaultyFile.pread, FaultyFile._put

        def read(file: FaultyFile, size: int, offset: int) -> bytes:
            if self._hit(file.path, offset, offset + size):
                self.failed.append((file.path, offset))
                raise OSError(errno.EIO, "Input/output error", file.path)
            return pread(file, size, offset)

        def write(file: FaultyFile, data: bytes, offset: int) -> None:
            for page in self._hit(file.path, offset, offset + len(data)):
                if not offset <= page * PAGE_BYTES < (page + 1) * PAGE_BYTES <= offset + len(data):
                    raise OSError(errno.EIO, "Input/output error", file.path)
                self.bad[file.path].remove(page)
            put(file, data, offset)

        monkeypatch.setattr(FaultyFile, "pread", read)
        monkeypatch.setattr(FaultyFile, "_put", write)

    def _hit(self, path: str, begin: int, until: int) -> list[int]:
        pages = self.bad.get(path, set())
        return [page for page in pages if begin < (page + 1) * PAGE_BYTES and page * PAGE_BYTES < until]


@pytest.fixture
def sectors(monkeypatch: pytest.MonkeyPatch) -> Sectors:
    return Sectors(monkeypatch)


def _flip(env: FaultyEnv, offset: int) -> None:
    env.disk.nodes[LOG].cache[offset] ^= 16


async def _mend(store: MessageStore, whole: bytes) -> None:
    for wanted in store.repairer.wanted():
        await store.repairer.mend(wanted, whole[wanted.begin : wanted.until])


@pytest.mark.parametrize("pages", [{5}, {5, 6, 7}, {5, 9}, {0}, set(range(5, 5 + 2 * FAILED_READS_MAX))])
async def test_rot_behind_pages_that_cannot_be_read_is_found_and_all_of_it_mended(
    sectors: Sectors, pages: set[int]
) -> None:
    env = FaultyEnv()
    async with opened(env, **KEYS) as store:
        puts = await fill(store, 600)
        whole = store.log.read(0, store.log.end)
        rotten = puts[-20]
        _flip(env, rotten.physical_offset + 90)
        sectors.bad[LOG] = set(pages)
        scrub_all(store)
        assert store.scrub.unreadable == len(pages)
        *unreadable, last = store.damage.ranges
        assert (last.begin, last.until) == (rotten.physical_offset, rotten.physical_offset + rotten.size)
        assert {item.kind for item in unreadable} == {"unreadable_region"}
        lost = [
            put
            for put in puts
            if any(
                put.physical_offset < (page + 1) * PAGE_BYTES
                and page * PAGE_BYTES < put.physical_offset + put.size
                for page in pages
            )
        ]
        assert [one.offset for item in unreadable for one in item.lost] == [p.physical_offset for p in lost]
        assert sum(item.until - item.begin for item in unreadable) == sum(put.size for put in lost)
        failed = len(sectors.failed)
        scrub_all(store)
        assert len(sectors.failed) == failed, "what is noted is not read again"
        await _mend(store, whole)
        assert store.damage.ranges == []
        assert sectors.bad[LOG] == set()
        assert store.log.read(0, store.log.end) == whole
        assert store.why_not_writable is None


async def test_a_step_does_not_meet_more_failing_reads_than_it_may(sectors: Sectors) -> None:
    async with opened(FaultyEnv(), **KEYS) as store:
        await fill(store, 600)
        sectors.bad[LOG] = set(range(3, 12)) | set(range(14, 17))
        rests: list[float] = []

        async def pause(seconds: float) -> bool:
            rests.append(seconds)
            return store.scrub.passes == 0

        steps: list[int] = []
        step = store.scrub.step

        def counted() -> None:
            before = len(sectors.failed)
            step()
            steps.append(len(sectors.failed) - before)

        store.scrub.step = counted  # type: ignore[method-assign]
        store.scrub._first_bytes_per_s = 1 << 30
        await store.scrub.run(pause)
        assert store.scrub.passes == 1
        assert max(steps) <= FAILED_READS_MAX + 1  # and one to tell what is lost
        assert sum(steps) <= 12 + 2 * 2 + 2
        assert FAILED_READS_MAX * FAILED_REST_S in rests
        assert store.scrub.unreadable == 12


async def test_a_page_that_holds_more_than_what_a_replica_gives_is_not_written(sectors: Sectors) -> None:
    """The last page is written in part only: the rest of it would have to be read."""

    env = FaultyEnv()
    async with opened(env, **KEYS) as store:
        await fill(store, 100)
        whole = store.log.read(0, store.log.end)
        assert len(whole) % PAGE_BYTES
        sectors.bad[LOG] = {len(whole) // PAGE_BYTES}
        scrub_all(store)
        (item,) = store.damage.ranges
        assert item.until == len(whole)
        await _mend(store, whole)
        assert store.damage.ranges == [item]
        assert store.why_not_writable is None
        failed = len(sectors.failed)
        await _mend(store, whole)
        assert len(sectors.failed) == failed, "each try is another slow read"
        for tries, wait_ms in enumerate((UNREADABLE_AGAIN_MS, 2 * UNREADABLE_AGAIN_MS)):
            env.clock_ms += wait_ms - 1
            await _mend(store, whole)
            assert len(sectors.failed) == failed + tries, "not before its time"
            env.clock_ms += 1
            await _mend(store, whole)
            assert len(sectors.failed) == failed + tries + 1, "the next wait is twice as long"
        env.clock_ms += 4 * UNREADABLE_AGAIN_MS
        sectors.bad[LOG].clear()
        await _mend(store, whole)
        assert store.damage.ranges == []


async def test_a_store_opens_with_an_unreadable_range_on_its_ledger(
    sectors: Sectors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.recover.recovery.LOOK_BACK_BYTES", 4096)
    env = FaultyEnv()
    async with opened(env, **KEYS) as store:
        await fill(store, 600)
        sectors.bad[LOG] = {5}
        scrub_all(store)
    async with opened(env, **KEYS) as store:
        assert [item.kind for item in store.damage.ranges] == ["unreadable_region"]


@pytest.mark.parametrize("path", ["/store/consumequeue/T/0", "/store/index"])
async def test_a_queue_or_an_index_that_cannot_be_read_does_not_end_the_pass(
    sectors: Sectors, path: str
) -> None:
    env = FaultyEnv()
    async with opened(env, **KEYS) as store:
        puts = await fill(store, 60)
        await store.indexed()
        await store.background.housekeeping.queues.flush()
        await store.background.housekeeping.flush_index()
        _flip(env, puts[-3].physical_offset + 90)
        for name in [name for name in env.disk.nodes if name.startswith(path + "/")]:
            sectors.bad[name] = {0}
        failed = len(sectors.failed)
        scrub_all(store)
        assert len(sectors.failed) > failed, "nothing was asked of it"
        assert store.damage.at(puts[-3].physical_offset) is not None
