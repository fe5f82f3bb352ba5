"""A fixed workload on a simulated disk, a picture of the disk before each of its writes, and what is true of
a store opened on such a picture after the power failed there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from model.errors import DiskError
from model.ids import Epoch, PhysicalOffset
from store.files.record import NewMessage, walk
from store.message_store import MessageStore
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv
from tests.store.support import SEGMENT, config, message, records_of, scrub_all
from tests.waiting import until

KINDS = ("start", "append", "roll", "flush", "housekeeping", "truncate", "repair", "retention", "stop")
NEVER_MS = 3_600_000
SETTINGS: dict[str, Any] = {
    "flush_interval_ms": NEVER_MS,
    "flush_queue_interval_ms": NEVER_MS,
    "queue_file_bytes": 400,
}
WRITES = ("pwrite", "truncate", "allocate", "sync", "sync_dir", "remove", "replace")


@dataclass
class Known:
    """What a store opened on a picture may and must hold."""

    safe: dict[int, bytes] = field(
        default_factory=dict
    )  # acknowledged, and nobody is cutting it: must be there
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


@dataclass
class Point:
    """A moment just before a write: the disk as it was, page cache included."""

    kind: str
    where: str
    disk: FaultyDisk
    known: Known
    number: int

    def crash(self, seed: int) -> tuple[str, FaultyDisk]:
        """What the power failure leaves: with seed 0 only what was synced, else what chance keeps."""
        after = self.disk.crash(None if seed == 0 else seed * 1000 + self.number)
        return f"{self.kind}, before write {self.number}: {self.where}, seed {seed}", after


class Workload:
    """Runs once, taking ``points``; ``truth`` is the log its group ends with, from offset 0 on."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.truth = b""
        self.cut_at = 0
        self._kind = "start"
        self._known = Known()
        self._env = FaultyEnv()
        self._unsafe: dict[int, tuple[bytes, str, int, int]] = {}

    def _take(self, what: str, path: str) -> int | None:
        if what in WRITES:
            disk, known = self._env.disk.copy(), self._known.copy()
            self.points.append(Point(self._kind, f"{what} {path}", disk, known, len(self.points)))
        return None

    @contextmanager
    def _during(self, kind: str) -> Iterator[None]:
        former, self._kind = self._kind, kind
        try:
            yield
        finally:
            self._kind = former

    async def run(self) -> None:
        self._env.disk.fail = self._take
        store = await self._open()
        store.epochs.append(Epoch(1), PhysicalOffset(0))
        await self._put(store, 30)
        await self._flush(store)
        await self._put(store, 8)
        await self._flush(store)
        await self._look_after(store)
        cut = await self._put(store, 30)
        await self._flush(store)
        await self._look_after(store)
        await self._put(store, 3)
        self._truncate(store, cut[4])
        await self._put(store, 12)
        await self._flush(store)
        await self._rot_and_repair(store, 9)
        await self._put(store, 30)
        await self._flush(store)
        await self._rot_and_repair(store, 30)
        await self._look_after(store)
        for _ in range(2):
            self.truth += store.log.read(store.log.min_offset, SEGMENT)
            await self._delete_oldest(store)
            await self._put(store, 5)
        await self._flush(store)
        await self._close(store)
        store = await self._open()
        await self._put(store, 5)
        await self._flush(store)
        self.truth += bytes_of(store)
        await self._close(store)

    async def _open(self) -> MessageStore:
        with self._during("start"):
            store = MessageStore(self._env, config(**SETTINGS))
            await store.open()
        return store

    async def _close(self, store: MessageStore) -> None:
        with self._during("stop"):
            await store.close()

    async def _put(self, store: MessageStore, count: int) -> list[int]:
        """Append one by one; returns their physical offsets."""
        offsets: list[int] = []
        with self._during("append"):
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

    def _next_raw(self, store: MessageStore, new: NewMessage) -> tuple[int, bytes]:
        """Where the next message goes, and its bytes, before it is written."""
        records, dispatches, size = store.writer._encode_all([new], store.stamp_ms())
        if size > store.log.room:
            with self._during("roll"):
                store.log.roll()
            records, dispatches, size = store.writer._encode_all([new], store.stamp_ms())
        return dispatches[0].offset, records[0]

    async def _flush(self, store: MessageStore) -> None:
        """The way of SYNC_FLUSH: once ``flushed`` has reached the end, the answers go out."""
        with self._during("flush"):
            store.sync_to(store.log.end)
            await until(lambda: store.log.flushed == store.log.end)
        for at, (raw, topic, queue_id, queue_offset) in self._unsafe.items():
            self._known.safe[at] = raw
            self._known.given[topic, queue_id] = queue_offset
        self._unsafe.clear()

    async def _look_after(self, store: MessageStore) -> None:
        with self._during("housekeeping"):
            await store.background.housekeeping.queues.flush()
            await store.background.housekeeping.flush_index()
            for _ in range(2):
                await store.background.housekeeping.write_checkpoint()

    def _truncate(self, store: MessageStore, offset: int) -> None:
        known = self._known
        known.safe = {at: raw for at, raw in known.safe.items() if at < offset}
        known.given = {}
        for at, raw in known.safe.items():
            (record,) = walk(raw, at)
            known.given[record.topic, record.queue_id] = record.queue_offset
        with self._during("truncate"):
            store.truncate(PhysicalOffset(offset))
        # From here on nothing of what was cut may come back.
        known.allowed = {at: raws for at, raws in known.allowed.items() if at < offset}
        self._unsafe = {at: item for at, item in self._unsafe.items() if at < offset}
        with self._during("truncate"):
            store.epochs.append(Epoch(2), PhysicalOffset(offset))
        self.cut_at = offset

    async def _rot_and_repair(self, store: MessageStore, which: int) -> None:
        at = sorted(self._known.safe)[which]
        raw = self._known.safe.pop(at)
        self._known.good[at] = raw
        node = self._env.disk.nodes[f"/store/commitlog/{at - at % SEGMENT:020}"]
        for place in (node.cache, node.disk):
            if len(place) > at % SEGMENT + 95:
                place[at % SEGMENT + 95] ^= 4
        self._known.allowed[at].add(bytes(node.cache[at % SEGMENT : at % SEGMENT + len(raw)]))
        with self._during("repair"):
            scrub_all(store)
            await mend(store, self._known.good.get)
        assert store.damage.ranges == []
        self._known.safe[at] = self._known.good.pop(at)
        self._known.allowed[at] = {raw}

    async def _delete_oldest(self, store: MessageStore) -> None:
        known = self._known
        known.log_min += SEGMENT
        known.safe = {at: raw for at, raw in known.safe.items() if at >= known.log_min}
        with self._during("retention"):
            store.log.forget_first()
            await store.retention._remove_forgotten()
            await store.retention.follow_log_start()


async def mend(store: MessageStore, good_at: Callable[[int], bytes | None]) -> None:
    """Repair what is damaged by what a replica has (``good_at`` an offset)."""
    for wanted in store.repairer.wanted():
        good = good_at(wanted.of.begin)
        if good is not None and len(good) == wanted.of.until - wanted.of.begin:
            await store.repairer.mend(wanted, wanted.before + good + wanted.behind)


async def examine(where: str, disk: FaultyDisk, known: Known) -> None:
    """Open the store a crash left and hold it against what is ``known``. Raises AssertionError."""
    store = MessageStore(FaultyEnv(disk), config(**SETTINGS))
    try:
        await store.open()
    except DiskError as error:
        raise AssertionError(f"{where}: {error}") from error
    try:
        scrub_all(store)
        await mend(store, known.good.get)
        assert store.damage.ranges == [], f"{where}: damaged {store.damage.ranges}"
        found = _records_by_offset(store)
        for at, raw in known.safe.items():
            assert found.get(at) == raw, f"{where}: the acknowledged record at {at} is gone"
        for at, raw in found.items():
            assert raw in known.allowed.get(at, ()), f"{where}: what is at {at} was cut or never written"
        for queue_id in (0, 1):
            served = [record.queue_offset for record in records_of(store, "T", queue_id)]
            first = served[0] if served else 0
            assert served == list(range(first, first + len(served))), (
                f"{where}: queue {queue_id} has {served}"
            )
            assert len(served) >= sum(1 for raw in known.safe.values() if raw[15] == queue_id), (
                f"{where}: few are served"
            )
            following = store.next_offset("T", queue_id)
            assert following > known.given.get(("T", queue_id), -1), f"{where}: offset {following} is reused"
        end = store.log.end
        put = store.put(message("after"))[0]
        assert put.physical_offset >= end, f"{where}: written at {put.physical_offset}, below {end}"
        store.confirm(store.log.end)
        await store.caught_up()
        assert records_of(store)[-1].body == b"after", f"{where}: what is appended next is not served"
    finally:
        await store.close()


def _records_by_offset(store: MessageStore) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for segment in store.log.segments:
        data = store.log.read(segment.start, SEGMENT) if segment.start < store.log.end else b""
        for record in walk(data, segment.start):
            at = record.physical_offset - segment.start
            found[record.physical_offset] = data[at : at + record.size]
    return found


def bytes_of(store: MessageStore, begin: int | None = None) -> bytes:
    """The log from ``begin``, or from its start."""
    found, at = b"", store.log.min_offset if begin is None else begin
    while data := store.log.read(at, SEGMENT):
        found += data
        at += len(data)
    return found


def points() -> Workload:
    """A workload that has run."""
    workload = Workload()
    asyncio.run(workload.run())
    return workload
