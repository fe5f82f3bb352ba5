"""Is a store directory whole: its log, its queues, its index, its epochs?

Queues and index are made of the log: an entry that is not what the log says is damage, and so is one that is
missing up to where the checkpoint says that they were written.

The log ends at the first bytes that are no record, if nothing says that there was more: the checkpoint, or
after an unclean stop the queues. What lies behind such an end was cut, or was being written when the
process died; a recovery drops it and it is no damage. Bytes that are no record before that end are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from model.config import StoreConfig
from model.errors import DiskError
from model.message import LMQ_PREFIX, SCHEDULE_TOPIC, TRANSACTION_PREPARED
from runtime.env import Disk
from store.files.checkpoint import Checkpoint
from store.files.consume_queue import PRE_BLANK_SIZE, TAGS_CODE_MIN
from store.files.record import BadRecord, Dispatch, DispatchParser, Record, delay_levels_ms, measure
from store.flow.dispatching.multi_dispatch import places
from store.offline.directory import Damage, SegmentInfo, StoreDirectory
from store.offline.index_check import IndexCheck, Shape, shape_of
from store.offline.log_reach import LogReach
from store.offline.queues.begins import QueueBegins
from store.offline.queues.dues import dues_of, odd_dues
from store.offline.queues.entries import EntryCheck
from store.offline.queues.places import Placed, Queue, Says
from store.offline.queues.sizes import size_of

DAMAGE_MAX: Final = 1000
OFFSET_MAX: Final = 2**63 - 1
_NONE: Final = (0, 0, 0)
_PLACES_MAX: Final = 64
"""So many places of a queue are looked at for the entry of a record that names another one."""


Progress = Callable[[int, int], None]
"""Hears bytes read since the last call, and bytes there are."""


def verify(
    disk: Disk,
    root: str,
    config: StoreConfig | None = None,
    progress: Progress | None = None,
    reach: int = 0,
    queue_file_bytes: int = 0,
) -> dict[str, Any]:
    """``ok``, ``records``, ``minOffset``, ``maxOffset``, ``confirmOffset``, ``epochs`` and ``damage`` of the
    store at ``root``, JSON-ready; ``tail`` is what recovery will drop behind the end, or None.

    ``config`` gives the shape of the index files and the delay levels; ``reach``: others know that
    the log goes on up to there; ``queue_file_bytes``: the size of its queues' files, as others know it, else
    the files tell. Raises DiskError when the directory cannot be read at all.
    """
    with StoreDirectory(disk, root, lenient=True) as store:
        if progress is not None:
            total = sum(segment.size for segment in store.segments())
            store.progress = lambda size: progress(size, total)
        config = config or StoreConfig()
        size = queue_file_bytes or size_of(disk, store).size
        return _Verification(store, config, size).run(shape_in(config), reach)


@dataclass(slots=True)
class _Ends:
    """Of the queues: ``following``: the place behind the last record that is to be entered; ``late``: the
    first one that need not be, and is not."""

    following: dict[Queue, int] = field(default_factory=dict)
    late: dict[Queue, Placed] = field(default_factory=dict)


class _Verification:
    def __init__(self, store: StoreDirectory, config: StoreConfig, queue_file_bytes: int) -> None:
        self._store = store
        self._parser = DispatchParser(delay_levels_ms(config.delay_levels))
        self._segments = store.segments()
        self._damage: list[Damage] = []
        self._damaged_to = 0  # where the last damage of the log ends
        self._entries = EntryCheck(store, self._parser)
        self._begins = QueueBegins(store, queue_file_bytes)
        self._records = 0
        self._end = 0
        self._queued_to = 0  # what was not confirmed at the stop is in no queue yet, and no damage
        self._tail: dict[str, int] | None = None
        self._last: Record | None = None
        self._ends = _Ends()

    def run(self, configured: Shape, reach: int) -> dict[str, Any]:
        store = self._store
        segments = self._segments
        checkpoint = store.checkpoint()
        self._queued_to = _queued_to(checkpoint, clean=store.stopped_cleanly)
        log_min = segments[0].start if segments else 0
        log = range(log_min, segments[-1].end if segments else 0)
        until = _indexed_to(checkpoint, there=bool(store.index_files()))
        self._index = IndexCheck(store, shape_of(store, configured), log, until)
        self._reach = LogReach(store, checkpoint, reach)
        self._log(segments)
        for item in self._begins.places.rest():
            self._placed(item)
        self._sizes()
        self._gone_files()
        self._lately(checkpoint)
        self._queues(log_min, self._end >= self._reach.end)
        self._dues()
        self._index.finish(self._end)
        if store.index_half_made:
            self._note(Damage("index_missing", 0, 0, "index", "a repair was cut short"))
        for row in self._index.rows:
            self._note(row)
        try:
            epochs = [{"epoch": entry.epoch, "start": entry.start} for entry in store.epochs()]
        except DiskError as error:
            epochs = []
            self._note(Damage("epoch_file_corrupt", 0, 0, "epochFileCheckpoint", str(error)))
        self._damage = [*self._unfit(), *self._damage][:DAMAGE_MAX]
        return {
            "ok": not self._damage,
            "records": self._records,
            "minOffset": log_min,
            "maxOffset": self._end,
            "confirmOffset": checkpoint.confirm_offset,
            "epochs": epochs,
            "damage": [item.to_json() for item in self._damage],
            "tail": self._tail,
        }

    def _unfit(self) -> Iterator[Damage]:
        for path, why in sorted(self._store.unfit.items()):
            begin = int(path.rpartition("/")[2]) if path.startswith("commitlog/") else 0
            yield Damage("file_unreadable", begin, begin, path, why)

    def _note_log(self, damage: Damage) -> None:
        self._damaged_to = max(self._damaged_to, damage.until)
        self._index.hole(damage.physical_offset, damage.until)
        self._note(damage)

    def _note(self, damage: Damage) -> None:
        if len(self._damage) < DAMAGE_MAX:
            self._damage.append(damage)

    # -- the log ---------------------------------------------------------------------------------------

    def _log(self, segments: list[SegmentInfo]) -> None:
        self._end = segments[0].start if segments else 0
        expected = self._end
        for segment in segments:
            if segment.start > expected:
                self._note_log(Damage("missing_segment", expected, segment.start, f"{expected:020}"))
            elif segment.start < expected:
                text = f"it begins before {expected}, where the file before it ends"
                self._note(Damage("unreadable_region", segment.start, segment.start, segment.name, text))
            expected = segment.end
            if not self._segment(segment):
                break
        for segment in segments:
            if surplus := self._store.surplus.get(segment.start):
                text = f"{surplus} bytes stand behind the segment's end, {segment.size} bytes"
                self._note(Damage("unreadable_region", segment.end, segment.end, segment.name, text))
        last = self._last
        if last is not None and last.properties.endswith("\0") and not self._store.stopped_cleanly:
            text = "the last record's properties end in zeros: it is torn"
            self._note_log(
                Damage("unreadable_region", last.physical_offset, self._end, _name(segments, last), text)
            )
            self._end = last.physical_offset
        self._note_gone(max(self._end, self._damaged_to), self._reach.end)

    def _note_gone(self, begin: int, until: int) -> None:
        """The log knew of records in [``begin``, ``until``), and there are none: one row a segment."""
        text = f"queues or checkpoint know the log up to {until}"
        while begin < until:
            ends = (segment.end for segment in self._segments if segment.start <= begin < segment.end)
            stop = min(until, next(ends, until))
            file = _file_at(self._segments, begin)
            self._note_log(Damage("unreadable_region", begin, stop, file, text))
            begin = stop

    def _segment(self, segment: SegmentInfo) -> bool:
        """Walk one segment; False where the log ends."""
        reach, hole_until = self._reach, 0
        for item in self._store.segment_records(segment):
            if isinstance(item, Record):
                self._record(item)
                continue
            if item.kind == "unreadable_region" and not reach.is_behind(item.physical_offset):
                self._tail = {"physicalOffset": item.physical_offset, "until": item.until}
                return False
            if item.kind == "unreadable_region":
                item = self._as_far_as_known(segment, item)
                hole_until = item.until
            else:
                self._end = item.until
            self._note_log(item)
        ends_blank = self._blank_at(segment, self._end) or (
            hole_until and self._blank_at(segment, hole_until)
        )
        if not ends_blank:
            reach.is_behind(max(self._end, hole_until))
        if not ends_blank and reach.end > segment.end:  # damage up to the segment's end, and there is more
            self._note_gone(max(self._end, hole_until, segment.start), segment.end)
        if ends_blank or reach.end > segment.end:
            self._end = segment.end
        return self._end == segment.end

    def _as_far_as_known(self, segment: SegmentInfo, item: Damage) -> Damage:
        """A damaged head tells where its record ends: not behind the log's end, where nothing stands."""
        if item.until <= self._reach.end or self._store.is_sound(item.until):
            return item
        until = max(self._reach.end, self._store.written_until(segment, item.physical_offset))
        return replace(item, until=min(item.until, until))

    def _blank_at(self, segment: SegmentInfo, offset: int) -> bool:
        if not segment.start <= offset < segment.end:
            return False
        head = self._store.read(segment.path, 8, offset - segment.start)
        try:
            return len(head) == 8 and measure(head, 0, offset) == offset - segment.end
        except BadRecord:
            return False

    def _record(self, record: Record) -> None:
        self._records += 1
        self._end = record.physical_offset + record.size
        self._last = record
        self._index.take(record)
        self._reach.take(record)
        if record.queue_offset < 0 and not record.sys_flag & TRANSACTION_PREPARED:
            text = f"the record says entry {record.queue_offset}: it is in no queue"
            file = f"consumequeue/{record.topic}/{record.queue_id}"
            self._note(Damage("cq_missing", record.physical_offset, self._end, file, text))
            return
        if not record.sys_flag & TRANSACTION_PREPARED:
            for item in self._begins.places.take(record):
                self._placed(item)

    def _placed(self, item: Placed) -> None:
        record = item.record
        end, file = record.physical_offset + record.size, f"consumequeue/{record.topic}/{record.queue_id}"
        if item.says is Says.WRONG:
            self._entries.unbelieved.add(record.physical_offset)
            if end <= self._queued_to and not self._is_entered(item):  # its own place is met by the queue
                other = (
                    f"queue {item.queue_id} lacks it"
                    if item.queue_id >= 0
                    else f"the next one {item.following}"
                )
                text = f"the record says entry {record.queue_offset}, and {other}"
                self._note(Damage("cq_missing", record.physical_offset, end, file, text))
            return
        key = (record.topic, record.queue_id)
        self._begins.take(record)
        if end <= self._queued_to:
            self._ends.following[key] = max(self._ends.following.get(key, 0), record.queue_offset + 1)
        elif key not in self._ends.late and (self._entries.entry(*key, record.queue_offset) or _NONE)[1] <= 0:
            self._ends.late[key] = replace(item, record=replace(record, body=b""))
        wrong = self._entries.wrong(record)
        if wrong is not None and wrong.found[1] == PRE_BLANK_SIZE:  # others are met by way of the queues
            text = f"entry {record.queue_offset} stands for no message"
            self._note(Damage("cq_missing", record.physical_offset, end, file, text))
        elif wrong is not None and wrong.found[1] > 0 and 0 <= wrong.found[0] < self._segments[0].start:
            text = f"entry {record.queue_offset} points before the log"  # as those of expired messages may
            self._note(Damage("cq_wrong", record.physical_offset, end, file, text))

    def _is_entered(self, item: Placed) -> bool:
        """Has its queue an entry for a record, at a place that the record does not tell?"""
        record = item.record
        at = range(item.before, min(item.following, item.before + _PLACES_MAX))
        found = (self._entries.entry(*item.queue, place) for place in at if place >= 0)
        wanted = (record.physical_offset, record.size)
        return not at or any(entry is not None and entry[:2] == wanted for entry in found)

    # -- what is made from it --------------------------------------------------------------------------

    def _at(self, offset: int, size: int) -> Dispatch | None:
        """What the record at ``offset`` says, None when no record of ``size`` bytes is there."""
        data = self._store.record_bytes(offset, size)
        try:
            return self._parser.one(data, 0, size) if measure(data, 0, offset, False) == size else None
        except BadRecord:
            return None

    def _gone_files(self) -> None:
        """Retention may have gone on meanwhile, and taken messages that were read here."""
        begin = next((segment.start for segment in self._store.segments()), self._end)
        text = "the log has messages whose entries stood in this file"
        for path, physical in self._begins.gone():
            if physical >= begin:
                self._note(Damage("cq_missing", physical, physical, path, text))

    def _sizes(self) -> None:
        size = self._begins.size
        for topic, queue_id in self._store.queues() if size else ():
            for file in self._store.queue_files(topic, queue_id):
                path = file.path.removeprefix(f"{self._store.root}/")
                if file.start % size:
                    text = (
                        f"begins at no multiple of {size}, as the others do: no broker opens it, move it away"
                    )
                    self._note(Damage("cq_wrong", 0, 0, path, text))
                elif file.size != size:
                    self._note(Damage("cq_wrong", 0, 0, path, f"has {file.size} bytes, not {size}"))

    def _lately(self, checkpoint: Checkpoint) -> None:
        """Of a store that was killed, and whose checkpoint does not say which entries it has: its broker was
        less than a segment behind, as audits take it (``audit.kinds.made.entries.tail_from``)."""
        if checkpoint.trusted or not self._segments:
            return
        confirmed = checkpoint.confirm_offset or OFFSET_MAX
        tail = min(confirmed, self._end - max(segment.size for segment in self._segments))
        for key, item in self._ends.late.items():
            record = item.record
            if record.physical_offset < tail:
                self._ends.following[key] = max(self._ends.following.get(key, 0), record.queue_offset + 1)

    def _dues(self) -> None:
        for topic, queue_id in self._store.queues():
            if topic == SCHEDULE_TOPIC:
                file = f"consumequeue/{topic}/{queue_id}"
                for due, wanted in odd_dues(dues_of(self._store, self._entries, queue_id)):
                    than = f", and by those beside it at {wanted}" if wanted >= 0 else ""
                    text = f"entry {due.place} is due at {due.due_ms} ms, was stored at {due.stored_ms}{than}"
                    self._note(Damage("cq_wrong", due.offset, due.offset + due.size, file, text))

    def _holes(self, topic: str, queue_id: int, place: int) -> None:
        """Places that end a queue for who reads it, and do not by what stands behind them."""
        for hole in self._entries.holes(topic, queue_id, place):
            what = "no entry" if hole.zeros else "no size of a message"
            text = f"{what} at {hole.begin} to {hole.until - 1}, and {hole.until} is there"
            kind = "cq_missing" if hole.zeros else "cq_wrong"
            self._note(Damage(kind, hole.physical, hole.physical, f"consumequeue/{topic}/{queue_id}", text))

    def _queues(self, log_min: int, end_is_sure: bool) -> None:
        there: dict[Queue, int] = {}
        for queue in self._store.queues():
            there[queue] = self._queue(queue, log_min, end_is_sure)
            self._holes(*queue, there[queue])
            self._behind_gap(queue, there[queue], log_min)
        for (topic, queue_id), following in self._ends.following.items():
            end = there.get((topic, queue_id), 0)
            if end < following:
                file = f"consumequeue/{topic}/{queue_id}"
                text = f"ends at {end}, the log's last record is {following - 1}"
                self._note(Damage("cq_missing", self._end, self._end, file, text))

    def _queue(self, queue: Queue, log_min: int, end_is_sure: bool) -> int:
        """The place behind the last entry of a queue that names a record of the log, or one that is gone."""
        end, file = 0, f"consumequeue/{queue[0]}/{queue[1]}"
        beyond: list[Damage] = []  # of the log's end; no cut left those that others follow
        for index, offset, size, tags_code in self._store.queue_entries(*queue):
            if 0 <= offset < log_min:
                end = index + 1
                continue
            found = self._at(offset, size) if offset + size <= self._end else None
            if found is not None:
                if found[2:5] == (*queue, index):
                    for row in beyond:
                        self._note(row)
                    beyond.clear()
                self._entry(queue, index, found, tags_code)
                end = index + 1
                continue
            row = Damage("cq_dangling", offset, offset + size, file, f"entry {index}")
            if offset + size <= self._end:
                self._note(row)
                end = index + 1
            # What is at its queue's end, a cut left: another record takes the place.
            elif not end_is_sure or index < self._ends.following.get(queue, 0):
                self._note(row)
            elif len(beyond) < DAMAGE_MAX:
                beyond.append(row)
        return end

    def _behind_gap(self, queue: Queue, place: int, log_min: int) -> None:
        """Entries from ``place`` on that stand where no reader of the queue gets. What is named behind the
        log's end, a cut left; what retention took may be named anywhere."""
        for index, offset, size, tags_code in self._entries.named_behind(queue, place):
            if 0 <= offset < log_min or offset + size > self._end:
                continue
            found = self._at(offset, size)
            if found is not None:
                self._entry(queue, index, found, tags_code)
            else:
                file, text = f"consumequeue/{queue[0]}/{queue[1]}", f"entry {index}, behind the queue's end"
                self._note(Damage("cq_dangling", offset, offset + size, file, text))

    def _entry(self, queue: Queue, index: int, found: Dispatch, tags_code: int) -> None:
        """Is the entry at a place right that names a record?"""
        if queue[0].startswith(LMQ_PREFIX):
            record = self._store.record_at(found.offset)
            right = record is not None and (queue[0], index) in places(record.topic, record.properties)
        else:
            right = found[2:5] == (*queue, index) and _is_tag(found, tags_code)
        if not right:
            file, until = f"consumequeue/{queue[0]}/{queue[1]}", found.offset + found.size
            text = f"entry {index} points to {found.topic}/{found.queue_id} {found.queue_offset}"
            self._note(Damage("cq_wrong", found.offset, until, file, text))


def shape_in(config: StoreConfig) -> Shape:
    """The configured shape of index files."""
    return Shape(config.index_slots, config.index_entries)


def _queued_to(checkpoint: Checkpoint, *, clean: bool) -> int:
    """Records that end by this log offset have their queue entries."""
    if checkpoint.trusted:
        return checkpoint.confirm_offset if clean else checkpoint.settled_offset
    return OFFSET_MAX if clean else 0


def _indexed_to(checkpoint: Checkpoint, *, there: bool) -> int | None:
    """Records that end by this log offset have their index entries; None: those before the last entry."""
    if checkpoint.trusted:
        return checkpoint.indexed_offset
    return None if there or not checkpoint.index_timestamp_ms else OFFSET_MAX


def _is_tag(found: Dispatch, tags_code: int) -> bool:
    """When a delayed message is due, and where an extension lies, only the writer knew."""
    return tags_code == found.tags_code or found.topic == SCHEDULE_TOPIC or tags_code < TAGS_CODE_MIN


def _file_at(segments: list[SegmentInfo], offset: int) -> str:
    return next((segment.name for segment in segments if segment.start <= offset < segment.end), "")


def _name(segments: list[SegmentInfo], record: Record) -> str:
    return _file_at(segments, record.physical_offset)
