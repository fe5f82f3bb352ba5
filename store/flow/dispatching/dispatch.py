"""How do records that are confirmed become visible: in their queue, in the index, to those who wait?

What was appended is remembered, so that dispatch costs no second reading: by the master, and by a slave with
the compiled path, as far as its records are plain. The rest, and recovery, parse the log. A record is
dispatched once its end is confirmed, in batches, from a callback of the loop; never before, because consumers
must not see what a new master may cut.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from model.errors import DiskError
from model.ids import PhysicalOffset
from model.message import (
    INNER_BATCH,
    INNER_NUM,
    LMQ_PREFIX,
    SCHEDULE_TOPIC,
    TRANSACTION_PREPARED,
    property_of,
)
from runtime.env import Buffer
from store.files.commit_log import CommitLog
from store.files.compiled import PACKED, compiled
from store.files.consume_queue import BUFFER_BYTES_MAX, ENTRY, ConsumeQueue, OffsetsTaken, is_queue_name
from store.files.damage import RECORD_BYTES_MAX, may_have
from store.files.partial import claimed_end
from store.files.record import (
    BLANK_BYTES,
    MAGIC_BLANK,
    RECORD_BYTES_MIN,
    BadRecord,
    Dispatch,
    DispatchParser,
    decode,
    measure,
)
from store.files.store_files import StoreFiles
from store.flow.dispatching.arrivals import Arrival, OnArrive
from store.flow.dispatching.indexing import Indexer
from store.flow.dispatching.walker import READ_BYTES

if TYPE_CHECKING:
    from runtime.native._native import Block, Parser

log = logging.getLogger(__name__)

REMEMBERED_MAX = 100_000
"""Records kept in memory for dispatch, on a slave its plain ones; beyond that the log is parsed."""
STEP_RECORDS = 4096
COPIED_S = 0.005
"""While nobody waits for it here, what comes from a master within so long of copies that were dispatched at
once is gathered until it is over: a step costs about as much for a few records as for many."""
COPIED_BYTES = 256 * 1024
"""So many are not put off."""
FAR_ENTRIES = 4096
"""A queue does not go on so far behind its end unless two records in a row say so."""

_BLANK = MAGIC_BLANK.to_bytes(4, "big")
WRITING_QUEUES = "writing a ConsumeQueue"

_FarEntry = tuple[int, int, int, int]
"""Queue offset, where the record lies, its size, its tags code: as ``ConsumeQueue.put`` takes them."""


class Remembered:
    """What was appended and waits for dispatch, oldest first: where it begins and ends, and its records."""

    def __init__(self) -> None:
        self.end = -1
        """Where what was added last ends; -1: nothing was."""
        self.next_record = -1
        """Of the bytes a master sent: a record begins there; -1: nobody knows."""
        self.items: deque[tuple[int, int, Sequence[Dispatch]]] = deque()
        self._count = 0

    def add(self, start: int, end: int, dispatches: Sequence[Dispatch]) -> None:
        """The bytes [start, end) were appended and hold ``dispatches``; none for a blank."""
        if self._count < REMEMBERED_MAX:
            self.items.append((start, end, dispatches))
            self._count += len(dispatches) + 1
            self.end = end

    def pop_first(self) -> None:
        self._count -= len(self.items.popleft()[2]) + 1

    def clear(self) -> None:
        self.items.clear()
        self._count = 0
        self.end = self.next_record = -1


class _Turns:
    """When does the dispatcher take its next ``turn``, a callback of the loop?"""

    def __init__(self, turn: Callable[[], None]) -> None:
        self._turn = turn
        self._is_soon = False
        self._put_off: asyncio.TimerHandle | None = None  # one that is to come later
        self._copies_at_s = float("-inf")  # of the loop's time: when copies were dispatched last

    def begin(self) -> None:
        """It begins."""
        self._is_soon = False
        if self._put_off is not None:
            self._put_off = None
            self._copies_at_s = asyncio.get_running_loop().time()

    def soon(self) -> None:
        if self._put_off is not None:
            self._put_off.cancel()
            self._put_off = None
        if not self._is_soon:
            self._is_soon = True
            asyncio.get_running_loop().call_soon(self._turn)

    def for_copies(self, *, at_once: bool) -> None:
        """Copies are to be dispatched: in ``COPIED_S`` after the last ones, or ``at_once``."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        wait_s = self._copies_at_s + COPIED_S - now_s
        if at_once or wait_s <= 0:
            self._copies_at_s = now_s
            self.soon()
        elif self._put_off is None and not self._is_soon:
            self._put_off = loop.call_later(wait_s, self._turn)

    def hurry(self) -> None:
        """What was put off comes now."""
        if self._put_off is not None:
            self.soon()


class Dispatcher:
    """Keeps ``dispatched`` <= ``confirmed`` <= log.end (bytes), and brings the first to the second."""

    def __init__(
        self, files: StoreFiles, indexer: Indexer, parser: DispatchParser, on_arrive: list[OnArrive]
    ) -> None:
        self.confirmed = PhysicalOffset(0)
        self.dispatched = PhysicalOffset(0)
        self.last_timestamp_ms = 0  # store time of the last record dispatched
        self._files = files
        self._indexer = indexer
        self._parser = parser
        self._on_arrive = on_arrive
        self._far: dict[tuple[str, int], _FarEntry] = {}  # what a queue could not go on with, the newest
        self.on_bad: Callable[[int, int, BadRecord], bool] = lambda at, until, bad: False
        """Asked about bytes at ``at`` that are no record, before ``until``: were they noted as damage?"""
        self._copied_until = -1  # where the bytes end that a master sent last
        self.remembered = Remembered()
        module = compiled() if type(parser) is DispatchParser else None
        self._packer: Parser | None = None if module is None else module.Parser(Dispatch, SCHEDULE_TOPIC)
        self._turns = _Turns(self._turn)
        self._stalled_at = -1  # the confirmed offset that ends inside of a record, or of damage
        self._waiters: list[asyncio.Future[None]] = []

    def check_invariants(self) -> None:
        """Raise if a consumer could see what a new master may cut, or what is not there."""
        assert self.dispatched <= self.confirmed, (
            f"dispatched up to {self.dispatched}, confirmed only up to {self.confirmed}"
        )
        assert self.confirmed <= self._files.log.end, (
            f"confirmed up to {self.confirmed}, the log ends at {self._files.log.end}"
        )
        assert self._indexer.at <= self.dispatched, (
            f"indexed up to {self._indexer.at}, dispatched only up to {self.dispatched}"
        )

    # -- from the log ----------------------------------------------------------------------------------

    def remember_raw(self, start: int, data: Buffer) -> None:
        """``data``, bytes of a master's log, was appended at ``start``: its plain records are dispatched
        without reading them again. It may be cut anywhere, so this goes by where a record must begin."""
        self._copied_until = end = start + len(data)
        if self._packer is None:
            return
        remembered = self.remembered
        at = start if start in (self.dispatched, remembered.end) else remembered.next_record
        view = memoryview(data)
        while start <= at < end:
            parsed: tuple[Any, int] = self._packer.parse(view if at == start else view[at - start :], at, end)
            block, behind = parsed
            if behind > at:
                remembered.add(at, behind, block)
            if behind == end:  # as a rule
                at = end
                break
            # What is not plain, or not whole, is parsed from the log; all of them begin with their length.
            size = int.from_bytes(view[behind - start : behind - start + 4], "big", signed=True)
            at = -1
            if size >= BLANK_BYTES and end - behind >= 4:
                at = behind + size
        remembered.next_record = at

    def confirm(self, offset: int) -> None:
        """Let records that end at or below ``offset`` be dispatched soon. Never moves back."""
        offset = min(offset, self._files.log.end)
        if offset > self.confirmed:
            self.confirmed = PhysicalOffset(offset)
            self._turns.soon()

    def confirm_copied(self, offset: int) -> None:
        """``confirm`` of what was copied from a master, which serves its consumers: what comes in quick
        succession is gathered while nobody waits here."""
        offset = min(offset, self._files.log.end)
        if offset <= self.confirmed:
            return
        self.confirmed = PhysicalOffset(offset)
        many = offset - self.dispatched >= COPIED_BYTES
        self._turns.for_copies(at_once=many or bool(self._on_arrive))

    def hurry(self) -> None:
        """What was put off is dispatched now."""
        self._turns.hurry()

    def move_back(self, offset: int) -> None:
        """The log was cut to ``offset``."""
        self.remembered.clear()
        self._far = {key: entry for key, entry in self._far.items() if entry[1] + entry[2] <= offset}
        self._copied_until = min(self._copied_until, offset)
        self.confirmed = min(self.confirmed, PhysicalOffset(offset))
        self.dispatched = min(self.dispatched, PhysicalOffset(offset))
        self._indexer.move_back(offset)
        self._stalled_at = -1

    def start_at(self, dispatched: int, confirmed: int) -> None:
        """Where recovery found things."""
        self.remembered.clear()
        self._far.clear()
        self._copied_until = -1
        self.dispatched = PhysicalOffset(dispatched)
        self.confirmed = PhysicalOffset(confirmed)
        self._stalled_at = -1

    # -- dispatching -----------------------------------------------------------------------------------

    @property
    def is_level(self) -> bool:
        """Is there no whole confirmed record left to dispatch?"""
        return self.dispatched >= self.confirmed or self._stalled_at == self.confirmed

    async def caught_up(self) -> None:
        """Return when dispatch has reached ``confirmed``. Raises DiskError when it cannot."""
        while not self.is_level:
            if self._files.health.broken is not None:
                raise DiskError(self._files.health.broken)
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            self._turns.soon()
            await waiter

    def _turn(self) -> None:
        self._turns.begin()
        try:
            self.step()
        except (DiskError, OSError) as error:
            log.error("dispatch at %d failed: %s", self.dispatched, error)
            self._files.health.broke(f"dispatch at {self.dispatched} failed: {error}")
        if self.dispatched >= self.confirmed or self.is_level or self._files.health.broken is not None:
            if self._waiters:
                self._wake_all()
        else:
            self._turns.soon()

    def _wake_all(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def run_to_end_for_recovery(self) -> None:
        """Dispatch all that is confirmed, now, and tell nobody: recovery, off the loop. Raises DiskError,
        OSError."""
        hooks, self._on_arrive = self._on_arrive, []
        try:
            while not self.is_level:
                if self._files.health.broken is not None:
                    raise DiskError(self._files.health.broken)  # told to stop
                self.step()
        finally:
            self._on_arrive = hooks

    def step(self) -> None:
        """Dispatch about STEP_RECORDS records. Raises DiskError, OSError."""
        remembered, items = self.remembered, self.remembered.items
        while items and items[0][1] <= self.dispatched:
            remembered.pop_first()
        if items and items[0][0] <= self.dispatched:
            if isinstance(items[0][2], PACKED):
                self._step_packed()
            else:
                self._step_remembered()
        elif items and items[0][0] < self.confirmed:
            before = self.dispatched
            with suppress(BadRecord):
                self._step_parsed(items[0][0])
            if self.dispatched == before:
                # Damage, or no record ends where one is remembered: the log as a whole tells what is there.
                remembered.clear()
                self._stalled_at = -1
        else:
            self._step_parsed(self.confirmed)

    def _step_remembered(self) -> None:
        remembered, items = self.remembered, self.remembered.items
        confirmed = self.confirmed
        batch: list[Dispatch] = []
        at: int = self.dispatched
        while items and len(batch) < STEP_RECORDS:
            start, end, dispatches = items[0]
            if start > at or isinstance(dispatches, PACKED):
                break
            if end <= confirmed:
                remembered.pop_first()
                batch += dispatches if start >= at else [d for d in dispatches if d.offset >= at]
                at = end
                continue
            first = at
            for item in dispatches:
                if item.offset + item.size > confirmed:
                    break
                if item.offset >= first:
                    batch.append(item)
                    at = item.offset + item.size
            if at == self.dispatched and not batch:
                self._stalled_at = confirmed
            break
        self._deliver(batch, at)

    def _step_packed(self) -> None:
        """``_step_remembered`` of what the compiled path appended."""
        remembered, confirmed, taken = self.remembered, self.confirmed, 0
        items = remembered.items
        while items and taken < STEP_RECORDS:
            start, end, block = items[0]
            if start > self.dispatched or start >= confirmed or not isinstance(block, PACKED):
                return
            before = self.dispatched
            self._deliver_packed(block, confirmed)
            if end > confirmed:
                if self.dispatched == before:
                    self._stalled_at = confirmed
                return
            remembered.pop_first()
            taken += len(block)

    def _step_parsed(self, until: int) -> None:
        at = self.dispatched
        if at >= until:
            return
        damaged = self._files.damage.at(at)
        if damaged is not None:
            if damaged.until > until:
                self._stalled_at = self.confirmed
            else:  # the lost records keep their places in their queues; readers pass over them
                self._deliver(damaged.lost_from(at), damaged.until)
            return
        until = self._files.damage.next_begin(at, until)
        data = self._files.log.read(at, min(READ_BYTES, until - at))
        if self._packer is not None:
            block, end = self._packer.parse(data, at, until)
            if end > at:  # the rest, what is not plain, in the next step
                self._deliver_packed(block, end)
                return
        try:
            found, end = self._parse(data, at, until)
        except BadRecord as bad:
            end = _whole_until(data, at)
            if end == at:
                self._no_record(at, until, bad)
                return
            found, end = self._parser.parse(data[: end - at], at, end)
        if end == at:
            self._stalled_at = self.confirmed
            return
        self._deliver(found, end)

    def _parse(self, data: bytes, at: int, until: int) -> tuple[list[Dispatch], int]:
        """Whole records at the begin of ``data``, or one that is longer; and where they end: at ``at`` when
        only a part of what begins there is confirmed. Raises BadRecord.

        What contradicts itself, or cannot end before its segment does or known damage begins, is no record:
        it would be waited for, for ever.
        """
        found, end = self._parser.parse(data, at, until)
        if end > at or len(data) < BLANK_BYTES or data[4:8] == _BLANK:
            return found, end
        says = int.from_bytes(data[:4], "big", signed=True)
        left = self._files.log.segment_bytes - at % self._files.log.segment_bytes
        if self._files.damage.at(until) is not None:
            left = min(left, until - at)
        if not may_have(says, left):
            raise BadRecord("unreadable_region", f"the record at {at} says it has {says} bytes")
        if at + says <= until:  # longer than one reading
            return self._parser.parse(self._files.log.read(at, says), at, until)
        if claimed_end(lambda size, p: self._files.log.read(at + p, size), 0, at, until - at) is None:
            raise BadRecord("unreadable_region", f"the parts of the record at {at} do not add up")
        return found, end

    def _no_record(self, at: int, until: int, bad: BadRecord) -> None:
        """Bytes at ``at`` are no record. Raises BadRecord when nothing will ever tell where good ones go on.

        A master sends damage that it alone has as it is, and in pieces: the good record behind it may come
        yet, as the rest of a partial one does. What this broker wrote itself comes in whole records.
        """
        if self.on_bad(at, until, bad):
            return
        if self._copied_until != self._files.log.end or until - at > RECORD_BYTES_MAX:
            raise bad
        self._stalled_at = self.confirmed

    def _deliver(self, batch: list[Dispatch], end: int) -> None:
        """Put ``batch`` into queues and index, then say who arrived."""
        if batch:
            arrived = self._put(batch)
            self._indexer.take(batch, end)
            self.last_timestamp_ms = batch[-1].store_timestamp_ms or self.last_timestamp_ms
            self.dispatched = PhysicalOffset(end)
            if arrived and self._on_arrive:
                self._tell([(key[0], key[1], offset, key[2]) for key, offset in arrived.items()])
        else:
            self._indexer.take((), end)
            self.dispatched = PhysicalOffset(end)

    def _deliver_packed(self, block: Block, until: int) -> None:
        """``_deliver`` of those messages of ``block`` that end at or below ``until``."""
        first, behind = block.place_of(self.dispatched), block.place_of(until)
        if first == behind:
            return
        end, stored_ms = block.end(behind)
        queues = self._files.queues
        arrived: list[Arrival] | None = [] if self._on_arrive else None
        full = block.enter(first, behind, queues.table(), queues.dirty, arrived, BUFFER_BYTES_MAX)
        if full is None:  # each message by the rules for that
            self._deliver(block.items(first, behind), end)
            return
        for queue in full:
            if self._files.health.why_not_writable is None:
                self._flush(queue)
        self._indexer.take_packed(block, first, behind, end)
        self.last_timestamp_ms = stored_ms or self.last_timestamp_ms
        self.dispatched = PhysicalOffset(end)
        if arrived:
            for hook in tuple(self._on_arrive):  # ``_tell``
                hook(arrived)

    def _tell(self, arrived: list[Arrival]) -> None:
        for hook in tuple(self._on_arrive):  # one may take itself out
            hook(arrived)

    def _put(self, batch: list[Dispatch]) -> dict[tuple[str, int, int], int]:
        queues = self._files.queues
        table = queues.table()
        dirty = queues.dirty
        pack = ENTRY.pack
        arrived: dict[tuple[str, int, int], int] = {}
        for offset, size, topic, queue_id, queue_offset, tags_code, _, _, _, sys_flag in batch:
            if sys_flag & TRANSACTION_PREPARED:  # prepared and rolled back ones are in no queue
                continue
            queue = table.get((topic, queue_id))
            if queue is None:
                queue = self._opened(topic, queue_id, (queue_offset, offset, size, tags_code))
                if queue is None:
                    continue
            if queue_offset == queue.max_offset and offset >= queue.max_physical:
                buffer = queue.buffer
                buffer += pack(offset, size, tags_code)
                queue.max_offset = queue_offset + 1
                queue.max_physical = offset + size
                if len(buffer) >= BUFFER_BYTES_MAX and self._files.health.why_not_writable is None:
                    self._flush(queue)
            elif self._is_far(
                (topic, queue_id), queue.max_offset, (queue_offset, offset, size, tags_code)
            ) or not self._put_one(queue, (queue_offset, offset, size, tags_code)):
                continue
            if sys_flag & INNER_BATCH:  # the other messages of the record have its offset plus 1, 2, ...
                queue.skip_to(queue_offset + messages_at(self._files.log, offset, size))
            dirty[queue] = None
            arrived[topic, queue_id, tags_code] = queue.max_offset
        return arrived

    def _opened(self, topic: str, queue_id: int, entry: _FarEntry) -> ConsumeQueue | None:
        """The queue, made for its first record; None where that is not believed."""
        if not is_queue_name(topic, queue_id):
            log.error("record at %d: no queue can be named %r %d", entry[1], topic, queue_id)
            return None
        if self._is_far((topic, queue_id), 0, entry):
            return None
        return self._files.queues.open(topic, queue_id)

    def _put_one(self, queue: ConsumeQueue, entry: _FarEntry) -> bool:
        """With the one before it, where that was not believed alone. False: it is there already."""
        before = self._far.pop((queue.topic, queue.queue_id), None)
        if before is not None and before[0] == entry[0] - 1:
            queue.put(*before)
        return queue.put(*entry)

    def _is_far(self, key: tuple[str, int], end: int, entry: _FarEntry) -> bool:
        """Is this no offset the queue, which ends at ``end``, can go on at? Then the record's head rotted,
        and nothing is entered: a scrub, or who compares replicas, sees it. When a second record goes on
        there, both are believed."""
        queue_offset, offset, _, _ = entry
        near = end + FAR_ENTRIES if end else offset // RECORD_BYTES_MIN
        start = self._files.queues.start_of(*key)
        if queue_offset <= max(near, FAR_ENTRIES, start + FAR_ENTRIES):
            return False
        before = self._far.get(key)
        if before is not None and before[0] == queue_offset - 1:
            return False
        self._far[key] = entry
        log.error(
            "record at %d: offset %d is too far behind the end of %s/%d, not entered",
            offset,
            queue_offset,
            *key,
        )
        return True

    def _flush(self, queue: ConsumeQueue) -> None:
        try:
            queue.flush()
        except OSError as error:
            self._files.health.failed(error, WRITING_QUEUES)


def messages_at(commit_log: CommitLog, offset: int, size: int) -> int:
    """How many queue offsets a record of ``size`` bytes takes: as many as its INNER_NUM says, else 1."""
    record = decode(commit_log.read(offset, size), check_crc=False)
    count = property_of(record.properties, INNER_NUM) or ""
    return max(int(count), 1) if count.isascii() and count.isdigit() and len(count) < 6 else 1


def offsets_taken(commit_log: CommitLog) -> OffsetsTaken:
    """See ``OffsetsTaken``, by the records of this log."""

    def taken(topic: str, offset: int, size: int) -> int | None:
        if topic.startswith(LMQ_PREFIX):
            return 1  # of a light queue, whatever its record holds
        if not (
            commit_log.min_offset <= offset <= offset + size <= commit_log.end and size <= RECORD_BYTES_MAX
        ):
            return None
        try:
            record = decode(commit_log.read(offset, size), check_crc=False)
        except (BadRecord, DiskError):
            return None
        if record.sys_flag & INNER_BATCH:
            return messages_at(commit_log, offset, size)
        # No CRC covers the flag: it may have rotted.
        return None if property_of(record.properties, INNER_NUM) is not None else 1

    return taken


def _whole_until(data: bytes, offset: int) -> int:
    """Where the first bytes of ``data`` that are no record lie; its first byte is physical ``offset``."""
    at = 0
    try:
        while (size := measure(data, at, offset + at, False)) > 0:
            at += size
    except BadRecord:
        return offset + at
    return offset + at
