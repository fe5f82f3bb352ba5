"""What is true after a stop, clean or not?

    1. queues       entries up to the first that cannot be one; after an unclean stop only those the
    checkpoint
                    vouches for, the rest is made again
    2. CommitLog    from the segment that reaches back far enough, record by record with CRC, to the first
    that is
                    not whole and right; there the log ends, and what lies behind is erased
    3. queues, index and epochs are cut to that end
    4. confirmed    what the checkpoint or a queue proves, never beyond the end; without a Controller the end
    5. records up to there are dispatched; queue offsets come from the queues and a scan of all that is behind

The segment to start from: after a clean stop the one that holds the end of what the queues know; after an
unclean one the newest whose first record is 3 s older than what the checkpoint says was flushed everywhere.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from runtime.env import Disk
from store.checkpoint import Checkpoint
from store.commit_log import CommitLog
from store.consume_queue import PRE_BLANK_SIZE, ConsumeQueue, ConsumeQueues
from store.dispatch import Dispatcher
from store.index_file import Index
from store.record import (
    HEAD,
    MAGIC_V1,
    MAGIC_V2,
    BadRecord,
    decode,
    measure,
    prop_crc_ok,
    store_timestamp_of,
)
from store.segment import Segment

log = logging.getLogger(__name__)

MARGIN_MS = 3000
BLOCK_BYTES = 1 << 20


@dataclass(slots=True)
class Recovered:
    """What recovery did. Offsets in bytes; ``cut_reason`` says why the log ends where it ends."""

    clean: bool
    start: int
    end: int
    confirmed: int
    records: int
    cut_reason: str


def recover(
    disk: Disk,
    root: str,
    commit_log: CommitLog,
    queues: ConsumeQueues,
    index: Index | None,
    dispatcher: Dispatcher,
    checkpoint: Checkpoint,
    *,
    clean: bool,
    controller_mode: bool,
    check_crc: bool,
    check_prop_crc: bool,
) -> Recovered:
    """Bring all files to one truth. Blocks for as long as the reading takes; raises DiskError, OSError."""
    commit_log.load()
    if index is not None:
        index.load()
    if not commit_log.segments:
        queues.destroy()
        if index is not None:
            index.destroy()
        dispatcher.start_at(0, 0)
        return Recovered(clean, 0, 0, 0, 0, "there is no CommitLog")
    log_min = commit_log.min_offset
    if clean:
        queues.load(None)
        start = _segment_start(commit_log, queues.max_physical)
        proven = queues.max_physical
    else:
        start = _unclean_start(commit_log, checkpoint)
        if index is not None and index.files:
            start = min(start, _segment_start(commit_log, max(index.end_offset, 0)))
        queues.load(None)
        proven = queues.max_physical
        queues.truncate(start)
    scan = _Scan(commit_log, start, check_crc, check_prop_crc)
    scan.run()
    if not clean and scan.bad is None and scan.last_is_torn():
        scan.drop_last()
    end = scan.end
    if scan.bad is not None and scan.goes_on():
        _set_aside(disk, root, commit_log, end)
    # A crash may have kept any page of what was written; a clean stop leaves zeros, or, when a real broker
    # cut its log, what it cut.
    commit_log.cut(end, to_first_zeros=clean)
    commit_log.flushed = start  # what this process found in the page cache is not proven durable yet
    commit_log.sync()
    queues.truncate(end)
    for queue in queues:
        _drop_stale(commit_log, queue)
        queue.correct_min(log_min)
    if index is not None:
        index.truncate(end)
    confirmed = end
    if controller_mode:
        confirmed = max(min(max(checkpoint.confirm_offset, proven), end), log_min)
    dispatcher.start_at(max(min(queues.max_physical, end), log_min) if clean else start, confirmed)
    dispatcher.run()
    result = Recovered(clean, start, end, confirmed, scan.records, scan.reason)
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


def _drop_stale(commit_log: CommitLog, queue: ConsumeQueue) -> None:
    """Forget last entries whose message is not where they say.

    A real broker that cut its log leaves the entries of what it cut on disk; once the log has grown past them
    again they look as if they were right.
    """
    while queue.max_offset > queue.min_offset:
        index = queue.max_offset - 1
        entry = queue.entry(index)
        if entry is None or entry[1] == PRE_BLANK_SIZE or entry[0] < commit_log.min_offset:
            return
        head = commit_log.read(entry[0], HEAD.size) if entry[0] < commit_log.end else b""
        if len(head) == HEAD.size:
            size, _, _, queue_id, _, queue_offset, physical_offset, _, _ = HEAD.unpack(head)
            if (physical_offset, size, queue_id, queue_offset) == (*entry[:2], queue.queue_id, index):
                return
        log.warning("%s/%d: entry %d points to another message, dropped", queue.topic, queue.queue_id, index)
        queue.truncate(entry[0])


def _segment_start(commit_log: CommitLog, offset: int) -> int:
    """Start of the newest segment that starts at or below ``offset``; at worst the first."""
    starts = [segment.start for segment in commit_log.segments if segment.start <= offset]
    return starts[-1] if starts else commit_log.min_offset


def _unclean_start(commit_log: CommitLog, checkpoint: Checkpoint) -> int:
    limit_ms = min(checkpoint.physic_timestamp_ms, checkpoint.logics_timestamp_ms) - MARGIN_MS
    for segment in reversed(commit_log.segments):
        stored_ms = _first_store_time(segment)
        if stored_ms is not None and stored_ms <= limit_ms:
            return segment.start
    return commit_log.min_offset


def _first_store_time(segment: Segment) -> int | None:
    head = segment.read(76, 0)
    if HEAD.unpack_from(head)[1] not in (MAGIC_V1, MAGIC_V2):
        return None
    return store_timestamp_of(head)


class _Scan:
    """Walks whole records from ``start``; stops at the first that is not whole and right."""

    def __init__(self, commit_log: CommitLog, start: int, check_crc: bool, check_prop_crc: bool) -> None:
        self.records = 0
        self.reason = "the log ends in zeros"
        self.bad: BadRecord | None = None
        self._log = commit_log
        self.end = start
        self._crc = check_crc
        self._prop_crc = check_prop_crc
        self._last_at = -1

    def run(self) -> None:
        """Leave the end of the last good record in ``end``."""
        for segment in self._log.segments:
            if segment.start == self.end and not self._segment(segment):
                break

    def _segment(self, segment: Segment) -> bool:
        """Walk one segment; does the log go on in the next one?"""
        segment_bytes = self._log.segment_bytes
        at = block_at = 0
        block = b""
        while at < segment_bytes:
            offset = segment.start + at
            try:
                size = measure(block, at - block_at, offset, self._crc)
                if size > 0 and self._prop_crc:
                    self._check_prop_crc(block[at - block_at : at - block_at + size], offset)
            except BadRecord as bad:
                if any(block[at - block_at : at - block_at + 8]):
                    self.bad = bad
                    self.reason = str(bad)
                return False
            if size > 0:
                self._last_at = offset
                at += size
                self.end = offset + size
                self.records += 1
            elif size < 0:
                if at - size != segment_bytes:
                    self.reason = f"the blank at {offset} does not reach the segment's end"
                    return False
                self.end = segment.start + segment_bytes
                return True
            elif block_at + len(block) == segment_bytes:
                self.reason = f"the record at {offset} is cut off by the end of its segment"
                return False
            else:  # the block ends before the record does
                head = block[at - block_at : at - block_at + 4]
                want = max(int.from_bytes(head, "big"), BLOCK_BYTES) if len(head) == 4 else BLOCK_BYTES
                block_at, block = at, segment.read(min(want, segment_bytes - at), at)
        return True

    def _check_prop_crc(self, record: bytes, offset: int) -> None:
        if prop_crc_ok(record) is False:
            raise BadRecord("crc_mismatch", f"record at {offset}: its CRC property does not match")

    def last_is_torn(self) -> bool:
        """Do the last record's properties end in NUL? Their last bytes never came, though the body, and so
        its CRC, did: what a crash may leave."""
        if self._last_at < 0:
            return False
        size = HEAD.unpack(self._log.read(self._last_at, HEAD.size))[0]
        return decode(self._log.read(self._last_at, size), check_crc=False).properties.endswith("\0")

    def drop_last(self) -> None:
        self.end, self.records = self._last_at, self.records - 1
        self.reason = f"the last record, at {self.end}, is torn"

    def goes_on(self) -> bool:
        """Is there a whole record right behind the bad one? Then it is damage, not the end of the log."""
        head = self._log.read(self.end, HEAD.size)
        if len(head) < HEAD.size:
            return False
        size = HEAD.unpack_from(head)[0]
        behind = self.end + size
        if size <= 0 or behind // self._log.segment_bytes != self.end // self._log.segment_bytes:
            return False
        try:
            return measure(self._log.read(behind, BLOCK_BYTES), 0, behind) > 0
        except BadRecord:
            return False


def _set_aside(disk: Disk, root: str, commit_log: CommitLog, cut: int) -> None:
    """Keep a copy of all bytes behind damage before the log is cut there: ``damaged/<cut>/`` under the root.

    A slave gets the messages again from its master; whoever has no replica can still repair from the copy.
    """
    directory = f"{root}/damaged/{cut:020}"
    log.error("the log is damaged at %d and goes on behind: the rest is kept in %s", cut, directory)
    if disk.is_dir(directory):
        return  # an earlier start kept it
    disk.makedirs(directory)
    for segment in commit_log.segments:
        if segment.start + commit_log.segment_bytes <= cut:
            continue
        target = disk.open(f"{directory}/{segment.start:020}", create=True)
        try:
            target.truncate(commit_log.segment_bytes)
            for at in range(max(cut - segment.start, 0), commit_log.segment_bytes, BLOCK_BYTES):
                data = segment.read(min(BLOCK_BYTES, commit_log.segment_bytes - at), at)
                if any(data):
                    target.pwrite(data, at)
            target.sync()
        finally:
            target.close()
    disk.sync_dir(directory)


def stopped_cleanly(disk: Disk, root: str) -> bool:
    """No ``abort`` file: the last stop removed it."""
    return not disk.exists(f"{root}/abort")
