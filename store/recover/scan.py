"""Where does the log end, and which bytes before that are no record?

Record by record, with CRC. ``Scan`` decides what the first bytes are that are no record; the first row that
fits counts. Damage is noted and the scan goes on behind it; else the log ends there.

    safe   below ``safe_end``: synced once, as far as the checkpoint tells
    clean  the broker stopped in order
    killed only its process died: all that it wrote is there, but for the end of its last write
    good   the first whole record, or blank, behind the bytes
    zeros  their first 8 bytes are zeros

    bytes      good record behind                             verdict
    zeros      (not asked), and the bytes are not safe        end: never written
    any        yes, the rest of a log that RocketMQ cut       end (StaleRest)
    any        yes; safe, clean, or good is older than the    damage up to good (_damaged_until)
               checkpoint
    any        yes, and a disk block before it is zeros; the  end: a write was cut short (lost_a_page)
               machine may have lost power
    any        yes                                            damage up to good
    not safe   no                                             end
    zeros      no                                             end
    not zeros  no; they are the beginning of a record that    end: partial (_end_of_last)
               goes on behind ``safe_end``
    not zeros  no; the record's lengths fit                   damage: this record
    not zeros  no; a record begins behind them that goes on   damage up to that one, which is partial
               behind ``safe_end``
    not zeros  no; ``safe_end`` is at most a record away      damage up to ``safe_end``
    not zeros  no                                             end

On a slave ``safe_end`` may lie in a record, so the last row may put the end of a range, and of the log, into
one: where nothing tells where it began. What comes behind then belongs to the same range (``lost.py``).

A whole record can be torn (record.is_torn: zeros in its properties), if it is not safe. One that a good
record follows is treated as bytes that are no record where the machine may have lost power (_measure). The
last one is dropped (last_is_torn; recovery.py says when it is asked). After a clean stop the last one is
damage if its queue entry was made of another (doubt_last).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from model.message import SCHEDULE_TOPIC, TRANSACTION_PREPARED
from store.files.commit_log import CommitLog
from store.files.consume_queue import PRE_BLANK_SIZE, TAGS_CODE_MIN
from store.files.damage import RECORD_BYTES_MAX, DamagedRange, lost_a_page, resync
from store.files.partial import claimed_end, damaged_end
from store.files.record import (
    BLANK_BYTES,
    HEAD,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    BadRecord,
    Dispatch,
    DispatchParser,
    is_torn,
    measure,
    store_timestamp_of,
)
from store.files.segment import Segment
from store.files.store_files import StoreFiles

log = logging.getLogger(__name__)

BLOCK_BYTES: Final = 1 << 20
_TIME_BYTES: Final = 76
"""The store time of a record lies within its first bytes."""


class StaleRest:
    """Is a good record behind bad bytes the rest of a log that was cut there, and grew over it only in part?

    A real broker does not erase what it cuts. The rest is older than what was written after the cut, and
    other records have its places in the queues now. Stores written here have no such rest.
    """

    def __init__(self, files: StoreFiles, parser: DispatchParser) -> None:
        self._log = files.log
        self._queues = files.queues
        self._parser = parser

    def __call__(self, offset: int, last: int) -> bool:
        found = self._parsed(offset)
        if found is None:
            return False
        before = self._parsed(last) if last >= 0 else None
        if before is not None and found.store_timestamp_ms < before.store_timestamp_ms:
            return True
        if found.sys_flag & TRANSACTION_PREPARED:
            return False
        queue = self._queues.get(found.topic, found.queue_id)
        entry = queue.entry(found.queue_offset) if queue is not None else None
        return entry is not None and entry[1] != PRE_BLANK_SIZE and entry[0] != offset

    def _parsed(self, offset: int) -> Dispatch | None:
        size = int.from_bytes(self._log.read(offset, 4), "big")
        data = self._log.read(offset, size)
        try:
            if measure(data, 0, offset, False) > 0:
                return self._parser.one(data, 0, size)
        except BadRecord:
            return None
        return None


class Scan:
    """Walks whole records from ``start`` to where the log ends; damage on the way goes into ``damaged``.

    Bytes below ``safe_end``, and records older than ``safe_ms``, were safe on the disk once. On a slave
    ``safe_end`` may lie in a record: that one was not, it is partial. ``partial_until``: where it says that
    it ends; 0 = none.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        start: int,
        *,
        safe_end: int,
        safe_ms: int,
        clean: bool,
        killed: bool,
        check_crc: bool,
        is_stale: Callable[[int, int], bool],
    ) -> None:
        self.records = 0
        self.reason = "the log's files end"
        self.damaged: list[DamagedRange] = []
        self.end = start
        self.partial_until = 0
        self._log = commit_log
        self._safe_end = safe_end
        self._safe_ms = safe_ms
        self._clean = clean
        self._killed = killed
        self._crc = check_crc
        self._is_stale = is_stale
        self._last_at = -1

    def run(self) -> None:
        """Leave the end of the log in ``end``."""
        segment_bytes = self._log.segment_bytes
        for segment in self._log.segments:
            at = self.end - segment.start
            if 0 <= at < segment_bytes and not self._segment(segment, at):
                break

    def _segment(self, segment: Segment, at: int) -> bool:
        """Walk one segment from position ``at``; does the log go on in the next one?"""
        segment_bytes = self._log.segment_bytes
        block_at = at
        block = b""
        while at < segment_bytes:
            offset = segment.start + at
            try:
                size = self._measure(block, at - block_at, offset, segment_bytes - at)
            except BadRecord as bad:
                data = block[at - block_at : at - block_at + BLANK_BYTES]
                following = self._bad(segment, at, bad, any(data))
                if following is None:
                    return False
                self.end = segment.start + following
                at = following
                continue
            if size > 0:
                self._last_at = offset
                at += size
                self.end = offset + size
                self.records += 1
            elif size < 0:
                self.end = segment.start + segment_bytes
                return True
            else:  # the block ends before the record does
                self._log.need_unbroken()  # a start may be told to stop
                head = block[at - block_at : at - block_at + 4]
                want = max(int.from_bytes(head, "big"), BLOCK_BYTES) if len(head) == 4 else BLOCK_BYTES
                block_at, block = at, segment.read(min(want, segment_bytes - at), at)
        return True

    def _measure(self, block: bytes, at: int, offset: int, left: int) -> int:
        """As record.measure; what cannot be in a segment with ``left`` bytes left raises BadRecord."""
        if left < BLANK_BYTES:
            raise BadRecord("unreadable_region", f"no blank fits at {offset}")
        size = self._log.whole(block, at, offset) if self._crc else measure(block, at, offset, False)
        if size < 0 and -size != left:
            raise BadRecord("unreadable_region", f"the blank at {offset} does not reach the segment's end")
        if size == 0 and at + BLANK_BYTES <= len(block):
            says = int.from_bytes(block[at : at + 4], "big")
            if says > min(left, RECORD_BYTES_MAX):
                raise BadRecord("unreadable_region", f"the record at {offset} says it has {says} bytes")
        if size > 0 and self._may_lack_pages(offset + size):
            self._need_all_pages(block, at, offset, size)
        return size

    def _may_lack_pages(self, end: int) -> bool:
        """Was a record that ends there perhaps not all on the disk when the power failed?"""
        return not (self._clean or self._killed) and end > self._safe_end

    def _need_all_pages(self, block: bytes, at: int, offset: int, size: int) -> None:
        """Raises BadRecord. The body's CRC is asked for whatever is configured."""
        if not self._crc:
            self._log.whole(block, at, offset)
        if is_torn(block[at : at + size], offset) and self._next_good(offset + size) is not None:
            raise BadRecord("unreadable_region", f"the record at {offset} is torn in its properties")

    def _next_good(self, offset: int) -> int | None:
        """The first whole record, or right blank, at or behind ``offset``, in this segment or a later one."""
        for segment in self._log.segments:
            if segment.start + self._log.segment_bytes <= offset:
                continue
            at = max(offset - segment.start, 0)
            found = resync(segment.read, segment.start, at - 1, self._log.segment_bytes)
            if found is not None:
                return segment.start + found
            if segment.start > offset:
                return None  # a whole segment without a record: nothing was ever behind it
        return None

    def _bad(self, segment: Segment, at: int, bad: BadRecord, written: bool) -> int | None:
        """Damage, or the end of the log? Position from which on the segment is good again, its size when the
        next one is; None: the log ends at ``at``. ``written``: one of its first 8 bytes is not zero."""
        offset = segment.start + at
        was_safe = offset < self._safe_end
        if not written and not was_safe:
            self.reason = "the log ends in zeros"  # never written
            return None
        self.reason = str(bad)
        good = self._next_good(offset + 1)
        if good is not None:
            until = self._damaged_until(segment, offset, good, was_safe)
        else:
            until = self._end_of_last(segment, at) if written and was_safe else None
        if until is None:
            return None
        self.damaged.append(DamagedRange(offset, until, bad.kind))
        return until - segment.start

    def _damaged_until(self, segment: Segment, offset: int, good: int, was_safe: bool) -> int | None:
        """Where damage at ``offset`` ends; None when the record at ``good`` does not prove that the log goes
        on there: it is left from a cut, or a crash cut the write at ``offset`` short."""
        if self._is_stale(good, self._last_at):
            self.reason += "; what lies behind was cut off once"
            return None
        until = min(good, segment.start + self._log.segment_bytes)
        if was_safe or self._clean or self._killed or self._was_flushed(good):
            return until
        if lost_a_page(segment.read, offset - segment.start, until - segment.start):
            self.reason += "; bytes were lost in a write that a crash cut short"
            return None
        return until

    def _was_flushed(self, good: int) -> bool:
        """Is the record at ``good`` older than what the checkpoint says was flushed?"""
        segment = next(s for s in self._log.segments if s.start <= good < s.start + self._log.segment_bytes)
        at = good - segment.start
        head = segment.read(min(_TIME_BYTES, self._log.segment_bytes - at), at)
        if len(head) < _TIME_BYTES or HEAD.unpack_from(head)[1] not in (MAGIC_V1, MAGIC_V2):
            return False
        return store_timestamp_of(head) < self._safe_ms

    def _end_of_last(self, segment: Segment, at: int) -> int | None:
        """The end of a damaged record nothing follows, when its parts fit or all is known to be safe."""
        offset = segment.start + at
        left = self._log.segment_bytes - at
        came = self._safe_end - offset
        partial_until = claimed_end(segment.read, at, offset, came) if came < left else None
        if partial_until is not None:
            self.partial_until = partial_until
            self.reason = f"the record at {offset} came in part, {came} bytes of it"
            return None
        found = damaged_end(segment.read, at, segment.start, at + came, self._log.segment_bytes)
        if found is not None:
            return segment.start + found
        known = min(self._safe_end, segment.start + self._log.segment_bytes)
        return known if offset < known <= offset + RECORD_BYTES_MAX else None

    def last_is_torn(self) -> bool:
        """Is the last record torn, and was it never safe on disk? A crash may leave it so: the body, and so
        its CRC, came, the last bytes of the properties did not."""
        if self.end <= self._safe_end or self._last_at < 0:
            return False
        size = HEAD.unpack(self._log.read(self._last_at, HEAD.size))[0]
        return is_torn(self._log.read(self._last_at, size), self._last_at, killed=self._killed)

    def doubt_last(self, disagrees: Callable[[int, int], bool]) -> None:
        """Note the last record as damaged if ``disagrees(its offset, its size)``: the rest of it was lost."""
        if self._last_at < 0 or self._last_at + RECORD_BYTES_MIN > self.end:
            return
        size = HEAD.unpack(self._log.read(self._last_at, HEAD.size))[0]
        if self._last_at + size == self.end and disagrees(self._last_at, size):
            self.damaged.append(DamagedRange(self._last_at, self.end, "bytes_differ"))
            self.reason = f"the last record, at {self._last_at}, is not the one its queue entry was made of"

    def drop_last(self) -> None:
        if self._last_at < self._safe_end:
            self.partial_until = self.end
        self.end, self.records = self._last_at, self.records - 1
        self.reason = f"the last record, at {self.end}, is torn"


def entry_disagrees(files: StoreFiles, parser: DispatchParser, offset: int, size: int) -> bool:
    """Was the queue entry of this record made when it said something else? Its properties are in no CRC."""
    item = parser.one(files.log.read(offset, size), 0, size)
    queue = files.queues.get(item.topic, item.queue_id)
    if item.sys_flag & TRANSACTION_PREPARED or queue is None or item.topic == SCHEDULE_TOPIC:
        return False  # a delayed message's entry says when it is due: the levels may be others now
    entry = queue.entry(item.queue_offset) if item.queue_offset >= queue.min_offset else None
    if entry is None or entry[:2] != (offset, size) or entry[2] < TAGS_CODE_MIN:
        return False
    return entry[2] != item.tags_code
