"""What is true after a stop, clean or not?

    1. queues       entries up to the first that cannot be one; after an unclean stop only those the
                    checkpoint covers, the rest is made again
    2. CommitLog    from the segment that reaches back far enough, record by record with CRC. Bytes that are
                    no record are damage when good records follow and they were safe on disk once, or cannot
                    be what a cut-off write leaves: they stay, and are noted (store.files.damage). Else the
                    log ends there, and what lies behind is erased
    3. queues and index are cut to that end (epochs by MessageStore). After an unclean stop, what is not known
                    to be durable is written again and synced: a sync that failed before a restart in the
                    same boot left it in the page cache only, where no later sync finds it
    4. confirmed    what the checkpoint or a queue proves, never beyond the end; without a Controller the end
    5. records up to there are dispatched, entries of damaged ones kept; queue offsets come from the queues
                    and a scan of all that is behind

Where to start: with a sealed checkpoint at most 8 MiB before the settled offset (flow/upkeep/housekeeping):
what lies before was whole, and is durable with its queue entries. Else, after a clean stop, at the segment
that holds the end of what the queues know; after an unclean one at the newest whose first record is 3 s older
than what the checkpoint says was flushed everywhere. The index may be left behind: it catches up while the
broker serves (store.flow.dispatching.indexing).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from model.ids import PhysicalOffset
from model.message import LMQ_PREFIX
from store.files.checkpoint import Checkpoint
from store.files.commit_log import CommitLog
from store.files.consume_queue import PRE_BLANK_SIZE, ConsumeQueue, OffsetsTaken
from store.files.damage import RECORD_BYTES_MAX, DamageLedger, resync
from store.files.index import Index
from store.files.partial import claimed_end
from store.files.record import HEAD, RECORD_BYTES_MIN, BadRecord, decode, measure, store_timestamp_of
from store.files.segment import Segment
from store.files.store_files import StoreFiles
from store.flow.dispatching.dispatch import offsets_taken
from store.flow.dispatching.multi_dispatch import places as light_places
from store.flow.dispatching.store_flow import StoreFlow
from store.recover.lost import note_damage, note_what_belongs_together
from store.recover.mended import forget_mended
from store.recover.scan import Scan, StaleRest, entry_disagrees

log = logging.getLogger(__name__)

MARGIN_MS: Final = 3000
LOOK_BACK_BYTES = 8 << 20
"""So much of what is settled is read again: damage near the end is found before it is built upon."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What recovery did. Offsets in bytes. ``partial_until``: as ``Scan`` has it."""

    clean: bool
    start: int
    end: int
    confirmed: int
    records: int
    partial_until: int = 0


def recover(
    files: StoreFiles,
    flow: StoreFlow,
    *,
    clean: bool,
    killed: bool,
    reached: int,
    controller_mode: bool,
    check_crc: bool,
    now_ms: int,
) -> Recovered:
    """Bring all files to one truth. ``killed``: as ``scan`` has it; ``reached``: so far the log was written,
    0 when unknown. Blocks for as long as the reading takes; raises DiskError, OSError."""
    return _Recovery(files, flow, clean, killed, reached, controller_mode, check_crc, now_ms).run()


class _Recovery:
    """The five steps. ``settled``: up to here the checkpoint says all is durable, 0 when it says nothing;
    ``proven``: the end of the last message in a queue; ``believed``: queue entries of messages below it are
    kept."""

    def __init__(
        self,
        files: StoreFiles,
        flow: StoreFlow,
        clean: bool,
        killed: bool,
        reached: int,
        controller_mode: bool,
        check_crc: bool,
        now_ms: int,
    ) -> None:
        self.files = files
        self.flow = flow
        self.clean = clean
        self.killed = killed
        self.reached = reached
        self.controller_mode = controller_mode
        self.check_crc = check_crc
        self.now_ms = now_ms
        self.settled = 0
        self.proven = 0
        self.start = 0
        self.believed = 0

    def run(self) -> Recovered:
        files = self.files
        files.log.load()
        files.damage.load()
        if files.index is not None:
            files.index.load(clean=self.clean)
        if not files.log.segments:
            return self._empty()
        self._load_queues()
        self.start = self._start()
        self.believed = self.settled or self.start  # entries behind may be torn after an unclean stop
        scan = self._scan()
        partial_until = max(scan.partial_until, self._came_in_part(scan.end))
        self._note_damage(scan)
        # Should it be killed in the cut, the next start misses the same as this one.
        missed = self.reached > max(scan.end, partial_until)
        files.health.before_cut(self.reached if missed else scan.end)
        self._end_log_at(scan.end)
        dispatched = self._cut_queues(scan.end)
        confirmed = self._confirmed(scan.end)
        self._dispatch(dispatched, confirmed)
        log.info(
            "recovered after %s stop: log [%d, %d), scanned %d records from %d, confirmed %d; %s",
            "a clean" if self.clean else "an unclean",
            files.log.min_offset,
            scan.end,
            scan.records,
            self.start,
            confirmed,
            scan.reason,
        )
        return Recovered(self.clean, self.start, scan.end, confirmed, scan.records, partial_until)

    def _empty(self) -> Recovered:
        """There is no log: what other files say is of a former one."""
        files = self.files
        files.queues.destroy()
        if files.index is not None:
            files.index.destroy()
        files.damage.truncate(0)
        self.flow.dispatcher.start_at(0, 0)
        self.flow.indexer.start_at(0)
        return Recovered(self.clean, 0, 0, 0, 0)

    def _load_queues(self) -> None:
        commit_log, checkpoint = self.files.log, self.files.checkpoint.now
        if checkpoint.trusted:
            self.settled = min(max(checkpoint.settled_offset, commit_log.min_offset), commit_log.end)
        self.files.queues.load(self.settled, clean=self.clean)
        self.proven = self.files.queues.max_physical
        if not self.proven:
            self.settled = 0  # somebody removed the queues: they are made again

    def _start(self) -> int:
        """The record, or segment, from which on the log is read."""
        commit_log, checkpoint, index = self.files.log, self.files.checkpoint.now, self.files.index
        if self.settled:
            return _boundary_before(commit_log, self.settled)
        if self.clean:
            # A flipped bit in a queue entry must not move the start behind the end, into a segment made
            # ahead.
            proven = self.proven
            known = min(proven, checkpoint.master_flushed_offset) if checkpoint.trusted else proven
            return _segment_start(commit_log, known)
        start = _unclean_start(commit_log, checkpoint)
        if index is not None and index.files:
            start = min(start, _segment_start(commit_log, max(index.end_offset, 0)))
        return start

    def _scan(self) -> Scan:
        files, checkpoint, parser = self.files, self.files.checkpoint.now, self.flow.parser
        scan = Scan(
            files.log,
            self.start,
            safe_end=self._safe_end(),
            # One of ours says which bytes were safe; times are as its masters' clocks were.
            safe_ms=0 if checkpoint.trusted else checkpoint.physic_timestamp_ms,
            clean=self.clean,
            killed=self.killed,
            check_crc=self.check_crc,
            is_stale=(lambda offset, last: False) if checkpoint.trusted else StaleRest(files, parser),
        )
        scan.run()
        # A real broker's checkpoint does not say what was safe when it stopped.
        may_be_torn = not scan.damaged and (checkpoint.trusted or not self.clean)
        if may_be_torn and scan.last_is_torn():
            scan.drop_last()
        elif self.clean:
            scan.doubt_last(lambda offset, size: entry_disagrees(files, parser, offset, size))
        return scan

    def _came_in_part(self, end: int) -> int:
        """Where the record ends that begins at ``end`` and of which a part came, 0 if none does: what a
        slave has of its master's log ends anywhere."""
        commit_log = self.files.log
        at = end % commit_log.segment_bytes
        came = min(self.reached - end, commit_log.segment_bytes - at)
        segment = next((s for s in commit_log.segments if s.start == end - at), None)
        if came <= 0 or segment is None:
            return 0
        return claimed_end(segment.read, at, end, came) or 0

    def _safe_end(self) -> int:
        """The offset below which every byte was safe on disk when the store was last open, 0 when unknown."""
        if self.files.checkpoint.now.trusted:
            return self.files.checkpoint.now.master_flushed_offset
        return self.proven if self.clean else 0

    def _note_damage(self, scan: Scan) -> None:
        files = self.files
        files.damage.truncate(scan.end)
        files.damage.drop_below(files.log.min_offset)
        forget_mended(files.log, files.damage)
        note_what_belongs_together(files, self.flow.parser, self.now_ms)
        note_damage(files, self.flow.parser, scan.damaged, self.now_ms)

    def _end_log_at(self, end: int) -> None:
        """Erase what lies behind, and make durable what lies before."""
        commit_log = self.files.log
        if not self.clean:
            self.files.queues.truncate(self.believed, offsets_taken(commit_log))
        # A crash may have kept any page of what was written; a clean stop leaves zeros, or, when a real
        # broker cut its log, what it cut.
        commit_log.cut(end, to_first_zeros=self.clean, zeros_too=not self.clean)
        commit_log.flushed = PhysicalOffset(min(self.believed, end))
        if not self.clean:  # what else is in the page cache may be there only
            commit_log.rewrite(commit_log.flushed, end)
        commit_log.sync()

    def _cut_queues(self, end: int) -> int:
        """Cut queues and index to the log; returns the log offset from which on records are dispatched."""
        files = self.files
        log_min = files.log.min_offset
        taken = offsets_taken(files.log)
        again = files.queues.truncate(end, taken)
        again += [q for q in files.queues if _drop_stale(files.log, q, files.damage, taken) or q.cut_short]
        for queue in files.queues:
            queue.correct_min(log_min)
        if files.index is not None:
            files.index.truncate(end)
        dispatched = max(min(files.queues.max_physical, end), log_min) if self.clean else self.believed
        if self.clean and self.settled:
            dispatched = max(dispatched, min(self.settled, end))  # no message without an entry lies between
        # Entries that could not be right were dropped: make them, and what stood behind them, again.
        dispatched = max(min([dispatched, *(queue.max_physical for queue in again)]), log_min)
        files.queues.wrote_until(min(dispatched, self.believed))
        return min(dispatched, end)

    def _confirmed(self, end: int) -> int:
        if not self.controller_mode:
            return end
        confirmed = max(self.files.checkpoint.now.confirm_offset, self.proven)
        return max(min(confirmed, end), self.files.log.min_offset)

    def _dispatch(self, dispatched: int, confirmed: int) -> None:
        """Dispatch what is confirmed; index it now if it is little."""
        files, dispatcher, indexer = self.files, self.flow.dispatcher, self.flow.indexer
        checkpoint = files.checkpoint.now
        dispatcher.start_at(_record_start(files.log, files.damage, dispatched), confirmed)
        indexed = _indexed(files.log, files.index, checkpoint, dispatcher.dispatched)
        indexer.start_at(_record_start(files.log, files.damage, indexed), behind=True)
        # A file of it may be gone; where the index is turned off, all of them may be.
        kept = indexer.at if files.index is not None else PhysicalOffset(0)
        checkpoint.indexed_offset = min(checkpoint.indexed_offset, kept)
        dispatcher.run_to_end_for_recovery()
        if indexer.is_small(dispatcher.dispatched):
            indexer.catch_up(dispatcher.dispatched)
            indexer.start_at(dispatcher.dispatched)


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
    elif checkpoint.trusted:
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


def _drop_stale(
    commit_log: CommitLog, queue: ConsumeQueue, damage: DamageLedger, taken: OffsetsTaken
) -> bool:
    """Forget last entries whose message is not where they say; were there any? And empty ones that stand for
    nothing.

    A real broker that cut its log leaves the entries of what it cut on disk; once the log has grown past them
    again they look as if they were right.
    """
    dropped = False
    while queue.max_offset > queue.min_offset:
        index = queue.max_offset - 1
        entry = queue.entry(index)
        if entry is not None and entry[1] == PRE_BLANK_SIZE and queue.drop_empty_end(taken):
            continue
        if entry is None or entry[1] == PRE_BLANK_SIZE or entry[0] < commit_log.min_offset:
            return dropped
        if any(one[:2] == entry[:2] for item in damage.ranges for one in item.lost):
            return dropped
        if _is_there(commit_log, queue, index, entry):
            return dropped
        log.warning("%s/%d: entry %d points to another message, dropped", queue.topic, queue.queue_id, index)
        if not queue.truncate(entry[0], taken):
            return True  # none of its entries names a message
        dropped = True
    return dropped


def _is_there(commit_log: CommitLog, queue: ConsumeQueue, index: int, entry: tuple[int, int, int]) -> bool:
    """Does the record that the ``entry`` points to say that it is number ``index`` of the queue?"""
    head = commit_log.read(entry[0], HEAD.size) if entry[0] < commit_log.end else b""
    if len(head) < HEAD.size:
        return False
    if queue.topic.startswith(LMQ_PREFIX):
        return _is_light(commit_log, queue.topic, index, entry)
    size, _, _, queue_id, _, queue_offset, physical_offset, _, _ = HEAD.unpack(head)
    return (physical_offset, size, queue_id, queue_offset) == (*entry[:2], queue.queue_id, index)


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
