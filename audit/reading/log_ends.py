"""Where does each log end? Where its last segment stops to be a log, seen beside the other replicas' logs.

An end is found, and may be taken back. ``find_end`` walks the last segment that holds records: what is
damaged with the log going on behind is ``skipped``; half a record at the end is ``torn``; a record that may
be left over from a log that was cut is ``refused``, and the log ends before the stretch in front of it.
With all ends known, ``find_ends`` walks those logs once more that refused one: what a longer log holds
alike is taken. Then ``_leave_out_leftovers`` may take the end back to where another log ends: what it cuts
off is ``left_over``. Last, ``aside.find_own_ends`` looks at the file in which each log ends. Does no record
there name its own place, it sets the file aside (``stray``), or lowers ``reach``, behind which such records
are no more the log's; and all ends are found anew, of which every field but ``reach`` and ``stray`` is.
Each turn leaves a log fewer files or lowers a ``reach``, so there are no more turns than files and
segments.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise

from audit.reading.layout import (
    BLANK_CHECKPOINT,
    GONE_CHECKPOINT,
    Replica,
    Segment,
    bytes_at,
    read_epochs,
    segment_reader,
    set_aside,
)
from audit.reading.records.record import MAGIC_V1, MAGIC_V2, MISPLACED, Parsed, Record, parse
from audit.reading.records.scan import skip_sound
from audit.reading.records.search import Read, Search
from audit.reading.storage import Storage, open_storage
from audit.reading.strays import Metered, belongs


def find_ends(replicas: list[Replica]) -> None:
    """Fill in ``end``, ``torn``, ``skipped``, ``holes`` of every replica; they share one segment size."""
    _miss_checkpoints(replicas)
    size = _size_of_most(*(r.segments for r in replicas))
    for replica in replicas:
        if replica.segments:
            _set_strays_aside(replica, size)
        if replica.segments or replica.unread:
            replica.segment_bytes = size  # also of what nobody can read
    for replica in replicas:
        find_end(replica)
    for replica in replicas:
        if replica.refused is not None and _held_elsewhere(replica, replicas, *replica.refused):
            find_end(replica, partial(_held_elsewhere, replica, replicas))
    for replica in replicas:
        _leave_out_leftovers(replica, [r for r in replicas if r is not replica and not r.empty])


def _size_of_most(*logs: list[Segment]) -> int:
    """With which size were files made? One that was cut or grew, or was made beside the log, is what is
    wrong, and however many there are in one log they do not tell of the others."""
    told = Counter(map(_size_told_by, filter(None, logs)))
    sizes = Counter(s.size_bytes for log in logs for s in log)
    return max(told, key=lambda size: (bool(size) and told[size], sizes[size], size), default=0)


def _size_told_by(log: list[Segment]) -> int:
    """Names that follow each other are so far apart, and most files have it still. One of 0 bytes tells
    none."""
    sizes = Counter(s.size_bytes for s in log)
    apart = Counter(after.base - before.base for before, after in pairwise(log))
    return max(sizes, key=lambda size: (bool(size) and 1 + apart[size], sizes[size], size))


def _miss_checkpoints(replicas: list[Replica]) -> None:
    """A keelmq that opens a store makes a checkpoint first: where the others' are keelmq's, a log without one
    lost it, and what it promised. So did one whose checkpoint has nothing in it: RocketMQ's has times."""
    for replica in replicas if any(r.sealed for r in replicas) else ():
        if replica.sealed is None and not replica.new and not replica.checkpoint_problem:
            replica.checkpoint_problem = BLANK_CHECKPOINT if replica.blank_checkpoint else GONE_CHECKPOINT


def _set_strays_aside(replica: Replica, size: int) -> None:
    """Segments begin at multiples of their size: what begins elsewhere lies over others, and would be looked
    for on all replicas. Of a store that has segments of another size the bases are told by that.
    Raises OSError."""
    own = _size_told_by(replica.segments)
    stray = [s for s in replica.segments if s.base % max(1, size) and s.base % max(1, own)]
    storage = open_storage(replica.location)
    try:
        metered = Metered(storage)
        told = [belongs(metered, segment.file, size) for segment in stray]
        replica.unseen |= metered.refused
    finally:
        storage.close()
    set_aside(replica, list(zip(stray, told, strict=True)))


def _leave_out_leftovers(replica: Replica, others: list[Replica]) -> None:
    """Where this log resumes behind unreadable bytes although another one ends right there and none has a
    record there: that is its end, and what follows are left-overs of a truncated log; if one was truncated,
    and what stands there is no record that was damaged."""
    for begin, _ in replica.skipped:
        ends_there = any(r.end == begin for r in others) and not any(r.end > begin for r in others)
        if ends_there and replica.promised <= begin and _was_cut(replica, begin):
            replica.left_over = (begin, replica.end)
            replica.end = begin
            replica.skipped = [s for s in replica.skipped if s[0] < begin]
            return


def _was_cut(replica: Replica, begin: int) -> bool:
    """May bytes of a log that was cut stand there? Not before a second epoch began, nor where a record's head
    names the place."""
    head = bytes_at(replica, begin, 36)
    own = len(head) == 36 and struct.unpack_from(">q", head, 28)[0] == begin
    named = own or int.from_bytes(head[4:8]) in (MAGIC_V1, MAGIC_V2)
    return not named and len(replica.epochs) > 1 and begin >= replica.epochs[1][1]


def _held_elsewhere(replica: Replica, replicas: list[Replica], begin: int, size: int) -> bool:
    """Does a longer log hold a refused record, byte for byte, at the same place? Then it is no left-over, but
    what stands behind a hole: its time is earlier because a clock went back."""
    own = bytes_at(replica, begin, size)
    longer = [
        r for r in replicas if r is not replica and r.end >= begin + size and r.covers(begin, begin + size)
    ]
    return any(bytes_at(other, begin, size) == own for other in longer)


Held = Callable[[int, int], bool]
"""Has another log the record at an offset, of a size, alike?"""


def find_end(replica: Replica, held: Held = lambda begin, size: False) -> None:
    """Walk the headers of the last segment that holds any record. What is ``held`` is the log's."""
    replica.torn, replica.refused, replica.left_over = None, None, None
    replica.skipped, replica.holes = [], []
    storage = open_storage(replica.location)
    try:
        for segment in reversed(replica.segments):
            if storage.data_from(segment.file, 0) is None:
                continue
            read = segment_reader(storage, segment)
            limit = segment.base + min(segment.size_bytes, replica.segment_bytes)
            segment_end = replica.segment_end(segment)
            if not _holds_records(storage, segment, read, limit, segment_end):
                continue
            _LastSegment(storage, replica, segment, read, limit, held).walk()
            break
        # Again: an epoch is written down before its first byte, so now it tells of all that was found.
        read_epochs(storage, replica)
    finally:
        storage.close()
    last = replica.start
    for segment in replica.segments:
        if segment.base >= replica.end:
            break
        if segment.base > last:
            replica.holes.append((last, segment.base))
        last = segment.base + replica.segment_bytes


def _holds_records(storage: Storage, segment: Segment, read: Read, limit: int, segment_end: int) -> bool:
    search = Search(read, segment_end)
    at = search.record(segment.base)
    if parse(search.data, at, segment.base, segment_end).size:
        return True
    begin = storage.data_from(segment.file, 0)
    return begin is not None and search.find_record(segment.base + begin, limit) >= 0


class _LastSegment:
    """Walks the last segment that holds records, to where they stop: sets ``end``, ``torn``, ``skipped``."""

    def __init__(
        self,
        storage: Storage,
        replica: Replica,
        segment: Segment,
        read: Read,
        limit: int,
        held: Held,
    ) -> None:
        self._held = held
        self._storage, self._replica, self._segment = storage, replica, segment
        self._limit = limit
        self._segment_end = replica.segment_end(segment)
        self._search = Search(read, self._segment_end)
        self._position = segment.base
        self._data, self._base, self._filled_at = b"", segment.base, -1
        self._last: Record | None = None
        # Without a Controller a recovered broker's checkpoint names its last record: check what follows.
        self._named = replica.confirmed if replica.clean and not replica.of_epochs else -1

    def walk(self) -> None:
        while self._position < self._limit:
            self._skip_sound()
            parsed = parse(self._data, self._position - self._base, self._position, self._segment_end)
            if parsed.problem in ("incomplete", "fewer than 8 bytes") and self._refill():
                continue
            if parsed.size:
                if parsed.record is not None and parsed.damage is not None and self._ends_with(parsed):
                    break
                if parsed.problem == MISPLACED and self._position + parsed.size > self._replica.reach:
                    break
                self._last = parsed.record or self._last
                self._position += parsed.size
            elif not self._resume():
                break
        self._replica.end = min(self._position, self._limit)

    def _skip_sound(self) -> None:
        if self._last is None or self._last.offset == self._named:
            return
        stop = self._named if self._position <= self._named else self._limit
        self._position = skip_sound(self._data, self._base, self._position, stop, self._segment_end)

    def _refill(self) -> bool:
        """All of the record here; False when there is none, or it was that already."""
        if self._filled_at == self._position:
            return False
        at = self._search.record(self._position)
        self._data, self._base, self._filled_at = self._search.data, self._search.base, self._position
        return at < len(self._data)

    def _parsed(self, offset: int) -> Parsed:
        at = self._search.record(offset)
        return parse(self._search.data, at, offset, self._segment_end)

    def _ends_with(self, parsed: Parsed) -> bool:
        """A damaged record ends the log only if nothing follows it: then it may be half written."""
        behind = self._position + parsed.size
        if not self._parsed(behind).size and not self._replica.clean and self._replica.confirmed < behind:
            self._replica.torn = (self._position, behind)
            return True
        # A broker has already cut its log here, and what follows are left-overs.
        return self._last is not None and self._named == self._last.offset

    def _resume(self) -> bool:
        """Go on behind unreadable bytes; False when the log ends before them."""
        replica, position = self._replica, self._position
        resumed = self._resumes_at()
        if resumed >= 0:
            replica.skipped.append((position, resumed))
            self._position = resumed
            return True
        at = position - self._base
        begin = self._storage.data_from(self._segment.file, position - self._segment.base)
        if not replica.clean and begin is not None and self._data[at : at + 8].strip(b"\0"):
            replica.torn = (position, min(self._limit, position + max(8, _claimed(self._data, at))))
        return False

    def _resumes_at(self) -> int:
        """Where the log goes on behind unreadable bytes, or -1 when it ends there.

        Truncation leaves old records behind the end, so a record found there counts only if the replica
        itself says the log was confirmed beyond, or if it was stored no earlier than the record before the
        gap. One that is older is the log's if a longer log of the group holds the same there (``find_ends``).
        """
        base = self._segment.base
        begin = self._storage.data_from(self._segment.file, self._position - base)
        if begin is None:
            return -1
        found = self._search.find_record(max(self._position + 1, base + begin), self._limit)
        if found < 0 or self._replica.confirmed > found:
            return found
        parsed = self._parsed(found)
        if parsed.record is None or parsed.damage is not None:
            return -1
        if self._last is None or _follows(parsed.record, self._last) or self._held(found, parsed.size):
            return found
        self._replica.refused = (found, parsed.size)
        return -1


def _follows(record: Record, last: Record) -> bool:
    same_queue = (record.topic, record.queue_id) == (last.topic, last.queue_id)
    if same_queue and record.queue_offset <= last.queue_offset:
        return False
    return record.store_timestamp_ms >= last.store_timestamp_ms


def _claimed(data: bytes, at: int) -> int:
    size = int.from_bytes(data[at : at + 4], "big", signed=True)
    return size if 0 < size < 1 << 24 else 8
