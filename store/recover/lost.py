"""Which records were in a damaged range? Their queue entries, and what can still be read of them, say so.

A range begins where a record does, and ends where one does or the segment: only then can whole records of a
replica mend it. An end may have been a guess, though, if a slave's log ended, or was truncated, within a
record. Damage that begins there, where no record does, is the rest of the same range.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from zlib import crc32

from model.errors import DiskError
from model.ids import PhysicalOffset, QueueOffset
from model.message import LMQ_PREFIX, TRANSACTION_PREPARED
from store.files.commit_log import CommitLog
from store.files.consume_queue import PRE_BLANK_SIZE, ConsumeQueue, is_queue_name
from store.files.consume_queues import ConsumeQueues
from store.files.damage import DamagedRange, Lost
from store.files.record import HEAD, MAGIC_V1, MAGIC_V2, BadRecord, DispatchParser, measure
from store.files.store_files import StoreFiles

log = logging.getLogger(__name__)


def note_damage(files: StoreFiles, parser: DispatchParser, found: list[DamagedRange], now_ms: int) -> None:
    """Write ``found`` into the ledger, with what was lost, and each with the range it goes on from. Raises
    DiskError."""
    files.damage.note(lost_in(files, parser, [_from_its_begin(files, item) for item in found], now_ms))


def note_what_belongs_together(files: StoreFiles, parser: DispatchParser, now_ms: int) -> None:
    """Make one of known ranges that touch where no record begins. Raises DiskError."""
    known = files.damage.ranges
    found = [joined for item in known if (joined := _from_its_begin(files, item)) is not item]
    files.damage.note(lost_in(files, parser, found, now_ms))


def _from_its_begin(files: StoreFiles, item: DamagedRange) -> DamagedRange:
    former = files.damage.at(item.begin - 1)
    if former is None or former.until > item.begin or item.begin % files.log.segment_bytes == 0:
        return item
    if _begins_there(files, item):
        return item
    return DamagedRange(former.begin, item.until, former.kind)


def _begins_there(files: StoreFiles, item: DamagedRange) -> bool:
    """Did a record begin where ``item`` does? Its magic, its own offset or a queue entry says so."""
    try:
        head = files.log.read(item.begin, HEAD.size)
    except DiskError:
        return True  # as whoever found it says
    if len(head) == HEAD.size:
        _, magic, _, _, _, _, said, _, _ = HEAD.unpack(head)
        if magic in (MAGIC_V1, MAGIC_V2) or said == item.begin:
            return True
    return any(one.offset == item.begin for one in (*item.lost, *_entries_in(files.queues, [item])))


def lost_in(
    files: StoreFiles, parser: DispatchParser, found: list[DamagedRange], now_ms: int
) -> list[DamagedRange]:
    """``found`` with what queue entries, or readable heads, say of the records that were there, and which
    bytes are doubted."""
    result: list[DamagedRange] = []
    entries = _entries_in(files.queues, found)
    for item in found:
        lost = {one.offset: one for one in entries if item.begin <= one.offset and _end(one) <= item.until}
        head = _lost_head(files.log, parser, item.begin, item.until)
        if head is not None:
            lost.setdefault(head.offset, head)
        rows = tuple(lost[offset] for offset in sorted(lost))
        crc = _doubted(files.log, item)
        result.append(DamagedRange(item.begin, item.until, item.kind, now_ms, rows, crc))
    return result


def _doubted(commit_log: CommitLog, item: DamagedRange) -> int | None:
    """The CRC-32 of the bytes that a range is about whose bytes are whole."""
    if item.kind != "bytes_differ":
        return None
    with suppress(DiskError):
        return crc32(commit_log.read(item.begin, item.until - item.begin))
    return None


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
            log.error(
                "%s/%d cannot be read, its lost records are unknown: %s", queue.topic, queue.queue_id, error
            )
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
            place = (queue.topic, queue.queue_id, QueueOffset(at))
            found.append(Lost(PhysicalOffset(offset), size, *place, tags_code))
        at += 1
    return found


def _lost_head(commit_log: CommitLog, parser: DispatchParser, begin: int, until: int) -> Lost | None:
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
