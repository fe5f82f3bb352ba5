"""The promise about power: whenever it fails, what was flushed is there, and what was cut stays gone.

One workload (append, roll, flush, dispatch, checkpoint, truncate, rot, repair, retention, close) runs once;
before each of its writes a picture of the disk is taken, as a power failure would leave it there: pages not
synced are lost, all of them or each by chance. Every picture is then opened and examined.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from typing import Any

from model.errors import DiskError
from store.message_store import MessageStore
from store.record import walk
from tests.store.faulty import FaultyDisk, FaultyEnv
from tests.store.support import SEGMENT, config, message, records_of

SEEDS = int(os.environ.get("KEELMQ_CRASH_SEEDS", "2"))
"""Pictures a write; 22 give more than 5,000 crash points."""
NEVER_MS = 3_600_000
MANUAL: dict[str, Any] = {
    "flush_interval_ms": NEVER_MS,
    "flush_queue_interval_ms": NEVER_MS,
    "queue_file_bytes": 2000,
}
WRITES = ("pwrite", "truncate", "allocate", "sync", "sync_dir")


@dataclass
class Known:
    """What a store opened on a picture may and must hold."""

    safe: dict[int, bytes] = field(default_factory=dict)  # flushed, and nobody is cutting it: must be there
    allowed: dict[int, set[bytes]] = field(default_factory=dict)  # may be there, by offset
    given: dict[tuple[str, int], int] = field(default_factory=dict)  # queue offsets of the safe ones
    good: dict[int, bytes] = field(default_factory=dict)  # what a replica has of the rotten ones
    log_min: int = 0  # a segment below may be deleted

    def copy(self) -> Known:
        return Known(
            dict(self.safe),
            {offset: set(raws) for offset, raws in self.allowed.items()},
            dict(self.given),
            dict(self.good),
            self.log_min,
        )


class Workload:
    """Runs on a disk and takes pictures of it."""

    def __init__(self, seeds: int) -> None:
        self.pictures: list[tuple[str, FaultyDisk, Known]] = []
        self._known = Known()
        self._seeds = seeds
        self._env = FaultyEnv()
        self._unsafe: dict[int, tuple[bytes, str, int, int]] = {}

    def _take(self, what: str, path: str) -> int | None:
        if what in WRITES:
            where = f"before write {len(self.pictures) // self._seeds}: {what} {path}"
            for seed in range(self._seeds):
                disk = self._env.disk.crash(None if seed == 0 else seed * 1000 + len(self.pictures))
                self.pictures.append((f"{where}, seed {seed}", disk, self._known.copy()))
        return None

    async def run(self) -> None:
        self._env.disk.fail = self._take
        store = MessageStore(self._env, config(**MANUAL))
        await store.open()
        await self._put(store, 30)
        self._flush(store)
        await self._put(store, 8)
        self._flush(store)
        await self._look_after(store)
        cut = await self._put(store, 20)
        self._flush(store)
        await self._look_after(store)
        await self._put(store, 3)
        self._truncate(store, cut[4])
        await self._put(store, 12)
        self._flush(store)
        await self._rot_and_repair(store)
        await self._put(store, 20)
        self._flush(store)
        await self._look_after(store)
        await self._delete_oldest(store)
        await self._put(store, 5)
        self._flush(store)
        await store.close()
        store = MessageStore(self._env, config(**MANUAL))
        await store.open()
        await self._put(store, 5)
        self._flush(store)
        await store.close()

    async def _put(self, store: MessageStore, count: int) -> list[int]:
        """Append one by one; returns their physical offsets."""
        offsets: list[int] = []
        for number in range(count):
            body = f"{number}".encode().ljust(60 + 97 * (number % 7), b"x")
            queue_id = number % 2
            new = message(body, queue_id=queue_id, uniq=f"U{number}")
            at, raw = self._next_raw(store, new)
            self._known.allowed.setdefault(at, set()).add(raw)
            put = store.put(new)[0]
            assert put.physical_offset == at
            self._unsafe[at] = (raw, "T", queue_id, put.queue_offset)
            offsets.append(at)
        store.confirm(store.log.end)
        await store.caught_up()
        return offsets

    def _next_raw(self, store: MessageStore, new: object) -> tuple[int, bytes]:
        """Where the next message goes, and its bytes, before it is written."""
        records, dispatches, size = store._encode([new], store.stamp_ms())  # type: ignore[list-item]
        if size > store.log.room:
            store.log.roll()
            records, dispatches, size = store._encode([new], store.stamp_ms())  # type: ignore[list-item]
        return dispatches[0].offset, records[0]

    def _flush(self, store: MessageStore) -> None:
        """From here on the answers are out."""
        store.log.sync()
        for at, (raw, topic, queue_id, queue_offset) in self._unsafe.items():
            self._known.safe[at] = raw
            self._known.given[topic, queue_id] = queue_offset
        self._unsafe.clear()

    async def _look_after(self, store: MessageStore) -> None:
        await store._housekeeping.flush_queues()
        await store._housekeeping.flush_index()
        for _ in range(2):
            await store._housekeeping.write_checkpoint()

    def _truncate(self, store: MessageStore, offset: int) -> None:
        known = self._known
        known.safe = {at: raw for at, raw in known.safe.items() if at < offset}
        known.given = {}
        for raw in known.safe.values():
            (record,) = walk(raw, next(at for at, one in known.safe.items() if one is raw))
            known.given[record.topic, record.queue_id] = record.queue_offset
        store.truncate(offset)
        known.allowed = {at: raws for at, raws in known.allowed.items() if at < offset}
        self._unsafe = {at: item for at, item in self._unsafe.items() if at < offset}

    async def _rot_and_repair(self, store: MessageStore) -> None:
        at = sorted(self._known.safe)[9]
        raw = self._known.safe.pop(at)
        self._known.good[at] = raw
        node = self._env.disk.nodes[f"/store/commitlog/{at - at % SEGMENT:020}"]
        for place in (node.cache, node.disk):
            place[at % SEGMENT + 95] ^= 4
        self._known.allowed[at].add(bytes(node.cache[at % SEGMENT : at % SEGMENT + len(raw)]))
        store.scrub.whole_pass()
        await _mend(store, self._known)
        assert store.damage.ranges == []
        self._known.safe[at] = self._known.good.pop(at)
        self._known.allowed[at] = {raw}

    async def _delete_oldest(self, store: MessageStore) -> None:
        known = self._known
        known.log_min = SEGMENT
        known.safe = {at: raw for at, raw in known.safe.items() if at >= SEGMENT}
        store.retention._remove(store.log.forget_first())
        await store.follow_log_start()


async def _mend(store: MessageStore, known: Known) -> None:
    for wanted in store.repairer.wanted():
        good = known.good.get(wanted.of.begin)
        if good is not None and len(good) == wanted.of.until - wanted.of.begin:
            await store.repairer.mend(wanted, wanted.before + good + wanted.behind)


async def _examine(where: str, disk: FaultyDisk, known: Known) -> None:
    env = FaultyEnv(disk)
    store = MessageStore(env, config(**MANUAL))
    try:
        await store.open()
    except DiskError as error:
        raise AssertionError(f"{where}: {error}") from error
    try:
        store.scrub.whole_pass()
        if known.good:
            await _mend(store, known)
        assert store.damage.ranges == [], where
        found = _log_of(store)
        for at, raw in known.safe.items():
            assert found.get(at) == raw, f"{where}: the record at {at} is gone"
        for at, raw in found.items():
            assert raw in known.allowed.get(at, ()), f"{where}: what is at {at} was cut or never written"
        for queue_id in (0, 1):
            served = [record.queue_offset for record in records_of(store, "T", queue_id)]
            first = served[0] if served else 0
            assert served == list(range(first, first + len(served))), where
            assert len(served) >= sum(1 for raw in known.safe.values() if raw[15] == queue_id), where
            assert store.next_offset("T", queue_id) > known.given.get(("T", queue_id), -1), where
        end = store.log.end
        put = store.put(message("after"))[0]
        assert put.physical_offset >= end, where
        store.confirm(store.log.end)
        await store.caught_up()
        assert records_of(store)[-1].body == b"after", where
    finally:
        await store.close()


def _log_of(store: MessageStore) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for segment in store.log.segments:
        data = store.log.read(segment.start, SEGMENT) if segment.start < store.log.end else b""
        for record in walk(data, segment.start):
            at = record.physical_offset - segment.start
            found[record.physical_offset] = data[at : at + record.size]
    return found


def test_a_power_failure_before_any_write_loses_nothing_that_was_flushed() -> None:
    async def run() -> int:
        workload = Workload(SEEDS)
        await workload.run()
        for where, disk, known in workload.pictures:
            await _examine(where, disk, known)
        return len(workload.pictures)

    assert asyncio.run(run()) > 200 * SEEDS
