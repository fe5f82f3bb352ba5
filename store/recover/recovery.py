"""What is true after a stop, clean or not?

    1. queues       entries up to the first that cannot be one; after an unclean stop only those the
                    checkpoint vouches for, the rest is made again
    2. CommitLog    from the segment that reaches back far enough, record by record with CRC. Bytes that are
                    no record are damage when good records follow and they were safe on disk once, or cannot
                    be what a cut-off write leaves: they stay, and are noted (store.damage). Else the log ends
                    there, and what lies behind is erased
    3. queues, index and epochs are cut to that end. After an unclean stop, what is not known to be durable is
                    written again and synced: a sync that failed before a restart in the same boot left it in
                    the page cache only, where no later sync finds it
    4. confirmed    what the checkpoint or a queue proves, never beyond the end; without a Controller the end
    5. records up to there are dispatched, entries of damaged ones kept; queue offsets come from the queues
                    and a scan of all that is behind

Where to start: with a sealed checkpoint at most 8 MiB before the settled offset (store.housekeeping): what
lies before was whole, and is durable with its queue entries. Else, after a clean stop, at the segment that
holds the end of what the queues know; after an unclean one at the newest whose first record is 3 s older
than what the checkpoint says was flushed everywhere. The index may be left behind: it catches up while the
broker serves (store.indexing).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from model.errors import DiskError
from model.message import LMQ_PREFIX, SCHEDULE_TOPIC, TRANSACTION_PREPARED
from runtime.env import Disk
from store.files.checkpoint import Checkpoint
from store.files.commit_log import CommitLog
from store.files.consume_queue import (
    PRE_BLANK_SIZE,
    TAGS_CODE_MIN,
    ConsumeQueue,
    ConsumeQueues,
    is_queue_name,
)
from store.files.damage import RECORD_BYTES_MAX, DamagedRange, DamageLedger, Lost, lost_a_page, resync
from store.files.index_file import Index
from store.files.record import (
    BLANK_BYTES,
    HEAD,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    BadRecord,
    Dispatch,
    DispatchParser,
    decode,
    is_torn,
    measure,
    store_timestamp_of,
)
from store.files.segment import Segment
from store.flow.dispatch import Dispatcher
from store.flow.indexing import Indexer
from store.flow.multi_dispatch import places as light_places

log = logging.getLogger(__name__)

MARGIN_MS = 3000
BLOCK_BYTES = 1 << 20
LOOK_BACK_BYTES = 8 << 20
"""So much of what is settled is read again: damage near the end is found before it is built upon."""


@dataclass(slots=True)
class Recovered:
    """What recovery did. Offsets in bytes."""

    clean: bool
    start: int
    end: int
    confirmed: int
    records: int


def recover(
    commit_log: CommitLog,
    queues: ConsumeQueues,
    index: Index | None,
    indexer: Indexer,
    dispatcher: Dispatcher,
    parser: DispatchParser,
    damage: DamageLedger,
    checkpoint: Checkpoint,
    *,
    clean: bool,
    controller_mode: bool,
    check_crc: bool,
    now_ms: int,
) -> Recovered:
    """Bring all files to one truth. Blocks for as long as the reading takes; raises DiskError, OSError."""
    commit_log.load()
    damage.load()
    if index is not None:
        index.load()
    if not commit_log.segments:
        queues.destroy()
        if index is not None:
            index.destroy()
        damage.truncate(0)
        dispatcher.start_at(0, 0)
        indexer.start_at(0)
        return Recovered(clean, 0, 0, 0, 0)
    log_min = commit_log.min_offset
    settled = min(max(checkpoint.settled_offset, log_min), commit_log.end) if checkpoint.vouched else 0
    queues.load(settled)
    proven = queues.max_physical
    if not proven:
        settled = 0  # somebody removed the queues: they are made again
    if settled:
        start = _boundary_before(commit_log, settled)
    elif clean:
        # A flipped bit in a queue entry must not move the start behind the end, into a segment made ahead.
        known = min(proven, checkpoint.master_flushed_offset) if checkpoint.vouched else proven
        start = _segment_start(commit_log, known)
    else:
        start = _unclean_start(commit_log, checkpoint)
        if index is not None and index.files:
            start = min(start, _segment_start(commit_log, max(index.end_offset, 0)))
    safe_end = _safe_end(queues, checkpoint, clean)
    is_stale = (lambda offset, last: False) if checkpoint.vouched else _Stale(commit_log, queues, parser)
    scan = Scan(commit_log, start, safe_end, checkpoint, clean, check_crc, is_stale)
    scan.run()
    if not clean and not scan.damaged and scan.last_is_torn():
        scan.drop_last()
    if clean:
        scan.doubt_last(lambda offset, size: _entry_disagrees(commit_log, queues, parser, offset, size))
    end = scan.end
    damage.truncate(end)
    damage.drop_below(log_min)
    _forget_mended(commit_log, damage)
    damage.note(lost_in(commit_log, queues, parser, scan.damaged, now_ms))
    believed = settled or start  # entries of later messages may be torn after an unclean stop
    if not clean:
        queues.truncate(believed)
    # A crash may have kept any page of what was written; a clean stop leaves zeros, or, when a real broker
    # cut its log, what it cut.
    commit_log.cut(end, to_first_zeros=clean, zeros_too=not clean)
    commit_log.flushed = min(believed, end)  # what else was found in the page cache is not proven durable yet
    if not clean:
        commit_log.rewrite(commit_log.flushed, end)
    commit_log.sync()
    again = queues.truncate(end)
    again += [queue for queue in queues if _drop_stale(commit_log, queue, damage) or queue.cut_short]
    for queue in queues:
        queue.correct_min(log_min)
    if index is not None:
        index.truncate(end)
    confirmed = end
    if controller_mode:
        confirmed = max(min(max(checkpoint.confirm_offset, proven), end), log_min)
    dispatched = max(min(queues.max_physical, end), log_min) if clean else believed
    if clean and settled:
        dispatched = max(dispatched, min(settled, end))  # no message without an entry lies in between
    # Entries that could not be right were dropped: make them, and what stood behind them, again.
    dispatched = max(min([dispatched, *(queue.max_physical for queue in again)]), log_min)
    queues.wrote_until(min(dispatched, believed))
    dispatcher.start_at(_record_start(commit_log, damage, min(dispatched, end)), confirmed)
    indexed = _indexed(commit_log, index, checkpoint, dispatcher.dispatched)
    indexer.start_at(_record_start(commit_log, damage, indexed), behind=True)
    checkpoint.indexed_offset = min(checkpoint.indexed_offset, indexer.at)  # a file of it may be gone
    dispatcher.run()
    if indexer.is_small(dispatcher.dispatched):
        indexer.catch_up(dispatcher.dispatched)
        indexer.start_at(dispatcher.dispatched)
    result = Recovered(clean, start, end, confirmed, scan.records)
    log.info(
        "recovered after %s stop: log [%d, %d), scanned %d records from %d, confirmed %d; %s",
        "a clean" if clean else "an unclean",
        log_min,
        end,
        scan.records,
        start,
        confirmed,
        scan.reason,
    )
    return result


def _safe_end(queues: ConsumeQueues, checkpoint: Checkpoint, clean: bool) -> int:
    """The offset below which every byte was safe on disk when the store was last open, 0 when unknown."""
    if checkpoint.vouched:
        return checkpoint.master_flushed_offset
    return queues.max_physical if clean else 0


def _boundary_before(commit_log: CommitLog, settled: int) -> int:
    """A record's start, or a segment's, not far before ``settled``, which is one itself."""
    begin = max(settled - LOOK_BACK_BYTES, commit_log.min_offset)
    for segment in commit_log.segments:
        at = begin - segment.start
        if at <= 0:
            return segment.start
        if at >= commit_log.segment_bytes:
            continue
        stop = min(settled - segment.start, commit_log.segment_bytes)
        found = resync(segment.read, segment.start, at - 1, stop)
        if found is not None:
            return segment.start + found
        if segment.start + stop == settled:
            break
    return settled


def _indexed(commit_log: CommitLog, index: Index | None, checkpoint: Checkpoint, dispatched: int) -> int:
    """The log offset up to which the index is right: what was dispatched without it is made up from there."""
    if index is None:
        return dispatched
    if index.removed:
        indexed = max(index.end_offset, 0)
    elif checkpoint.vouched:
        indexed = max(checkpoint.indexed_offset, index.end_offset)
    else:  # a clean stop writes all of it, and where dispatch begins after another the index ends behind it
        return dispatched
    return min(max(indexed, commit_log.min_offset), dispatched)


def _record_start(commit_log: CommitLog, damage: DamageLedger, offset: int) -> int:
    """``offset`` when something starts there, else the start of its segment: an entry's word may be wrong."""
    if offset >= commit_log.end or damage.at(offset) is not None:
        return offset
    try:
        if measure(commit_log.read(offset, 1 << 16), 0, offset, False) >= 0:
            return offset
    except BadRecord:
        return _segment_start(commit_log, offset)
    return offset


def _forget_mended(commit_log: CommitLog, damage: DamageLedger) -> None:
    """Take ranges off the ledger whose bytes are whole: a crash came between a repair and its note."""
    for item in list(damage.ranges):
        if item.kind == "bytes_differ":
            continue  # whole by its CRC, and yet another record than its queue has there
        at = item.begin
        try:
            while at < item.until:
                head = commit_log.read(at, HEAD.size)
                says = int.from_bytes(head[:4], "big", signed=True)
                if not 0 < says <= item.until - at:
                    break
                size = commit_log.whole(commit_log.read(at, says), 0, at)
                if not size:
                    break
                at += abs(size)
        except (BadRecord, DiskError):  # or unreadable still
            continue
        if at == item.until:
            damage.clear(item)


def lost_in(
    commit_log: CommitLog,
    queues: ConsumeQueues,
    parser: DispatchParser,
    found: list[DamagedRange],
    now_ms: int,
) -> list[DamagedRange]:
    """``found`` with what queue entries, or readable heads, say of the records that were there."""
    result: list[DamagedRange] = []
    entries = _entries_in(queues, found)
    for item in found:
        lost = {one.offset: one for one in entries if item.begin <= one.offset and _end(one) <= item.until}
        head = lost_head(commit_log, parser, item.begin, item.until)
        if head is not None:
            lost.setdefault(item.begin, head)
        rows = tuple(lost[offset] for offset in sorted(lost))
        result.append(DamagedRange(item.begin, item.until, item.kind, now_ms, rows))
    return result


def _end(one: Lost) -> int:
    return one.offset + one.size


def _entries_in(queues: ConsumeQueues, ranges: list[DamagedRange]) -> list[Lost]:
    """What the queues say of records in ``ranges``. One that cannot be read says nothing."""
    found: list[Lost] = []
    for queue in queues:
        if queue.topic.startswith(LMQ_PREFIX):
            continue  # the same record has a queue of its own
        try:
            for item in ranges:
                found += _entries_of(queue, item)
        except DiskError as error:
            log.error("what of %s/%d was lost is not known: %s", queue.topic, queue.queue_id, error)
    return found


def _entries_of(queue: ConsumeQueue, item: DamagedRange) -> list[Lost]:
    """What ``queue`` says of records in ``item``: looked for by halves, the loop may be waiting."""
    found: list[Lost] = []
    if queue.max_physical <= item.begin:
        return found
    at = queue.first_at(item.begin)
    while (entry := queue.entry(at)) is not None:
        offset, size, tags_code = entry
        if size != PRE_BLANK_SIZE:
            if offset >= item.until:
                break
            found.append(Lost(offset, size, queue.topic, queue.queue_id, at, tags_code))
        at += 1
    return found


def lost_head(commit_log: CommitLog, parser: DispatchParser, begin: int, until: int) -> Lost | None:
    """What the damaged record at ``begin`` says of itself, when its parts fit and fill the range."""
    try:
        data = commit_log.read(begin, until - begin)
        if measure(data, 0, begin, False) != until - begin:
            return None
    except (BadRecord, DiskError):  # or nothing can be read there
        return None
    found = parser.one(data, 0, until - begin)
    if found.sys_flag & TRANSACTION_PREPARED or not is_queue_name(found.topic, found.queue_id):
        return None
    return Lost(*found[:6])


def _drop_stale(commit_log: CommitLog, queue: ConsumeQueue, damage: DamageLedger) -> bool:
    """Forget last entries whose message is not where they say; were there any?

    A real broker that cut its log leaves the entries of what it cut on disk; once the log has grown past them
    again they look as if they were right.
    """
    dropped = False
    while queue.max_offset > queue.min_offset:
        index = queue.max_offset - 1
        entry = queue.entry(index)
        if entry is None or entry[1] == PRE_BLANK_SIZE or entry[0] < commit_log.min_offset:
            return dropped
        if any(one[:2] == entry[:2] for item in damage.ranges for one in item.lost):
            return dropped
        head = commit_log.read(entry[0], HEAD.size) if entry[0] < commit_log.end else b""
        if len(head) == HEAD.size:
            size, _, _, queue_id, _, queue_offset, physical_offset, _, _ = HEAD.unpack(head)
            if queue.topic.startswith(LMQ_PREFIX):
                if _is_light(commit_log, queue.topic, index, entry):
                    return dropped
            elif (physical_offset, size, queue_id, queue_offset) == (*entry[:2], queue.queue_id, index):
                return dropped
        log.warning("%s/%d: entry %d points to another message, dropped", queue.topic, queue.queue_id, index)
        queue.truncate(entry[0])
        dropped = True
    return dropped


def _is_light(commit_log: CommitLog, name: str, index: int, entry: tuple[int, int, int]) -> bool:
    """Does the record of the ``entry`` say that it is number ``index`` of the light queue ``name``?"""
    data = commit_log.read(entry[0], max(entry[1], 0))
    try:
        if measure(data, 0, entry[0], False) != entry[1]:
            return False
    except BadRecord:
        return False
    record = decode(data, check_crc=False)
    return (name, index) in light_places(record.topic, record.properties)


def _segment_start(commit_log: CommitLog, offset: int) -> int:
    """Start of the newest segment that starts at or below ``offset``; at worst the first."""
    starts = [segment.start for segment in commit_log.segments if segment.start <= offset]
    return starts[-1] if starts else commit_log.min_offset


def _unclean_start(commit_log: CommitLog, checkpoint: Checkpoint) -> int:
    limit_ms = min(checkpoint.physic_timestamp_ms, checkpoint.logics_timestamp_ms) - MARGIN_MS
    for segment in reversed(commit_log.segments):
        stored_ms = _first_store_time(commit_log, segment)
        if stored_ms is not None and stored_ms <= limit_ms:
            return segment.start
    return commit_log.min_offset


def _first_store_time(commit_log: CommitLog, segment: Segment) -> int | None:
    """Store time (ms) of a segment's first record; None when that is not whole: its time may be wrong."""
    size = int.from_bytes(segment.read(4, 0), "big")
    if not RECORD_BYTES_MIN <= size <= min(commit_log.segment_bytes, RECORD_BYTES_MAX):
        return None
    data = segment.read(size, 0)
    try:
        return store_timestamp_of(data) if commit_log.whole(data, 0, segment.start) > 0 else None
    except BadRecord:
        return None


class _Stale:
    """Is a good record behind bad bytes the rest of a log that was cut there, and grew over it only in part?

    A real broker does not erase what it cuts. The rest is older than what was written after the cut, and
    other records have its places in the queues now. Stores written here have no such rest.
    """

    def __init__(self, commit_log: CommitLog, queues: ConsumeQueues, parser: DispatchParser) -> None:
        self._log = commit_log
        self._queues = queues
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
    """Walks whole records from ``start`` to where the log ends; damage on the way goes into ``damaged``."""

    def __init__(
        self,
        commit_log: CommitLog,
        start: int,
        safe_end: int,
        checkpoint: Checkpoint,
        clean: bool,
        check_crc: bool,
        is_stale: Callable[[int, int], bool],
    ) -> None:
        self.records = 0
        self.reason = "the log ends in zeros"
        self.damaged: list[DamagedRange] = []
        self.end = start
        self._log = commit_log
        self._safe_end = safe_end
        self._safe_ms = checkpoint.physic_timestamp_ms
        self._clean = clean
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
                self._log.need_whole()  # a start may be told to stop
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
        unsafe = size > 0 and not self._clean and offset >= self._safe_end
        if unsafe and is_torn(block[at : at + size], offset) and self._next_good(offset + size) is not None:
            raise BadRecord("unreadable_region", f"the record at {offset} is torn in its properties")
        return size

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
        """Position from which on the segment is good again, its size when the next one is; None: the log ends
        at ``at``."""
        offset = segment.start + at
        segment_bytes = self._log.segment_bytes
        safe = offset < self._safe_end
        if not (written or safe):
            return None
        self.reason = str(bad)
        good = self._next_good(offset + 1)
        if good is not None and self._is_stale(good, self._last_at):
            self.reason += "; what lies behind was cut off once"
            return None
        if good is None:
            until = self._end_of_last(segment, at) if safe and written else None
            if until is None:
                return None
        else:
            until = min(good, segment.start + segment_bytes)
            safe = safe or self._clean or self._was_flushed(good)
            if not safe and lost_a_page(segment.read, at, until - segment.start):
                self.reason += "; bytes were lost in a write that a crash cut short"
                return None
        self.damaged.append(DamagedRange(offset, until, bad.kind))
        return until - segment.start

    def _was_flushed(self, good: int) -> bool:
        """Is the record at ``good`` older than what the checkpoint says was flushed?"""
        segment = next(s for s in self._log.segments if s.start <= good < s.start + self._log.segment_bytes)
        head = segment.read(min(76, segment.start + self._log.segment_bytes - good), good - segment.start)
        if len(head) < 76 or HEAD.unpack_from(head)[1] not in (MAGIC_V1, MAGIC_V2):
            return False
        return store_timestamp_of(head) < self._safe_ms

    def _end_of_last(self, segment: Segment, at: int) -> int | None:
        """The end of a damaged record nothing follows, when its parts fit or all is known to be safe."""
        offset = segment.start + at
        size = int.from_bytes(segment.read(4, at), "big", signed=True)
        left = self._log.segment_bytes - at
        if RECORD_BYTES_MIN <= size <= min(left, RECORD_BYTES_MAX):
            try:
                if measure(segment.read(size, at), 0, offset, False) == size:
                    return offset + size
            except BadRecord as bad:
                log.debug("%s", bad)
        known = min(self._safe_end, segment.start + self._log.segment_bytes)
        return known if offset < known <= offset + RECORD_BYTES_MAX else None

    def last_is_torn(self) -> bool:
        """Do the last record's properties end in NUL? Their last bytes never came, though the body, and so
        its CRC, did: what a crash may leave."""
        if self._last_at < self._safe_end or self._last_at < 0:
            return False
        size = HEAD.unpack(self._log.read(self._last_at, HEAD.size))[0]
        return is_torn(self._log.read(self._last_at, size), self._last_at)

    def doubt_last(self, disagrees: Callable[[int, int], bool]) -> None:
        """Note the last record as damaged if ``disagrees(its offset, its size)``: the rest of it was lost."""
        if self._last_at < 0 or self._last_at + RECORD_BYTES_MIN > self.end:
            return
        size = HEAD.unpack(self._log.read(self._last_at, HEAD.size))[0]
        if self._last_at + size == self.end and disagrees(self._last_at, size):
            self.damaged.append(DamagedRange(self._last_at, self.end, "bytes_differ"))
            self.reason = f"the last record, at {self._last_at}, is not the one its queue entry was made of"

    def drop_last(self) -> None:
        self.end, self.records = self._last_at, self.records - 1
        self.reason = f"the last record, at {self.end}, is torn"


def _entry_disagrees(
    commit_log: CommitLog, queues: ConsumeQueues, parser: DispatchParser, offset: int, size: int
) -> bool:
    """Was the queue entry of this record made when it said something else? Its properties are in no CRC."""
    item = parser.one(commit_log.read(offset, size), 0, size)
    queue = queues.get(item.topic, item.queue_id)
    if item.sys_flag & TRANSACTION_PREPARED or queue is None or item.topic == SCHEDULE_TOPIC:
        return False  # a delayed message's entry says when it is due: the levels may be others now
    entry = queue.entry(item.queue_offset) if item.queue_offset >= queue.min_offset else None
    if entry is None or entry[:2] != (offset, size) or entry[2] < TAGS_CODE_MIN:
        return False
    return entry[2] != item.tags_code


def stopped_cleanly(disk: Disk, root: str) -> bool:
    """No ``abort`` file: the last stop removed it."""
    return not disk.exists(f"{root}/abort")
