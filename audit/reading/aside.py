"""Which files of ``commitlog`` are no part of its log, although they hold records?

A record names its place, so what a file of another name holds is told by its records. A file that stands
under a later segment's name says nothing of where the log ends, and no retention took what it holds; one of
no segment's name may be a copy that somebody made.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from audit.reading.layout import (
    Replica,
    Segment,
    bytes_at,
    is_segment_name,
    segment_reader,
    set_aside,
)
from audit.reading.log_ends import find_end, find_ends
from audit.reading.records.record import MISPLACED, parse
from audit.reading.records.scan import scan_columns
from audit.reading.records.search import find_record, sync, window
from audit.reading.storage import Storage, UnfitFileError, names_in, open_storage
from audit.reading.strays import Behind, Metered, belongs
from audit.rows.intervals import Interval

OTHERS_MAX: Final = 1000
"""Files of other names that are looked at, each as far as a segment is long."""
_HEAD_BYTES: Final = 36
"""As far as a record's place."""
Moved = tuple[Segment, Interval | None]
"""A file all of whose records name other places, and the segment that they name."""


def settle(replicas: list[Replica]) -> None:
    """Find the ends of all logs, and note what files hold that are no part of them."""
    find_own_ends(replicas)
    size = max((r.segment_bytes for r in replicas), default=0)
    for replica in replicas:
        _note_moved(replica)
        _note_other_names(replica, size)


def find_own_ends(replicas: list[Replica]) -> None:
    """The ends of all logs (``find_ends``), by records that name their own places; what holds others is set
    aside. Where nothing was moved it reads a record's head more of each log."""
    find_ends(replicas)
    while _leave_out_moved(replicas):
        find_ends(replicas)


def _leave_out_moved(replicas: list[Replica]) -> bool:
    """Of a last file whose records all name other places no log is longer. Behind the end of all logs it is
    none of the log's; where another log, or its own confirmOffset, says that the log went on there it is
    damaged, as far as that. Whether there was any."""
    moved = {at: found for at, r in enumerate(replicas) if (found := _moved_end(r, replicas)) is not None}
    done = False
    for at, (segment, home) in moved.items():
        r = replicas[at]
        others = [
            moved[b][0].base if b in moved else other.end
            for b, other in enumerate(replicas)
            if b != at and not other.empty
        ]
        reach = max([r.confirmed, *others])
        if reach <= segment.base and (others or _ended_before(r, segment)):
            set_aside(r, [(segment, home)])
            done = True
        elif others and reach < min(r.end, r.reach):
            r.reach, done = reach, True
    return done


def _moved_end(r: Replica, replicas: list[Replica]) -> Moved | None:
    """The file in which the log ends, if no record there names its own place, and it was not one record whose
    place was changed. Raises OSError."""
    segment = r.segment_at(r.end - 1) if not r.empty else None
    if segment is None:
        return None
    storage = open_storage(r.location)
    try:
        begin, end, read = segment.base, r.segment_end(segment), segment_reader(storage, segment)
        head = read(begin, _HEAD_BYTES)
        if len(head) < _HEAD_BYTES or _place_of(head) == begin:
            return None
        data = window(read, begin, end - begin)
        first = parse(data, 0, begin, end)
        if first.problem != MISPLACED or find_record(read, begin, end, end) >= 0:
            return None
        place, own = _place_of(data), data[: first.size]
        data = window(read, begin + first.size, end - begin - first.size)
        if parse(data, 0, begin + first.size, end).problem == MISPLACED:
            copied = _place_of(data) - first.size == place
        else:
            copied = any(bytes_at(other, place, first.size) == own for other in replicas)
        return (segment, belongs(storage, segment.file, r.segment_bytes)) if copied else None
    finally:
        storage.close()


def _place_of(data: bytes) -> int:
    """Where the record that ``data`` begins with says that it stands."""
    return int.from_bytes(data[28:36], signed=True)


def _ended_before(r: Replica, segment: Segment) -> bool:
    """Did the log end inside an earlier file? A log goes on in the next one only when one is full."""
    kept = r.segments
    r.segments, r.end = [s for s in kept if s.base < segment.base], r.start
    find_end(r)
    ended = r.start < r.end < segment.base
    r.segments = kept
    find_end(r)
    return ended


def _note_moved(r: Replica) -> None:
    """Files under the names of the log's segments, or of later ones, that hold a segment which the log has
    not: moved over one of it, or behind its end with a head that is torn, or appended to one."""
    storage = open_storage(r.location)
    there = _Whole(storage, r)
    try:
        for segment in r.segments:
            try:
                held = segment, _home_of(storage, r, segment)
                if held[1] is None and segment.size_bytes > r.segment_bytes:
                    held = _appended(storage, r, segment, there)
            except OSError:
                continue  # what cannot be read is told where the log is read
            if held[1] is not None and held[1][0] not in there:
                r.stray.append(held)
    finally:
        storage.close()


def _appended(storage: Storage, r: Replica, segment: Segment, there: _Whole) -> Moved:
    """What stands behind a segment in its file, as far as one is long. What would stand there in a larger
    one was not appended, where all the files are."""
    size = r.segment_bytes
    home = belongs(Behind(storage, size), segment.file, size, size)
    larger = all(s.size_bytes > size for s in r.segments)
    if home is not None and home[0] == segment.base + size and (larger or home[0] in there):
        home = None
    return Segment(segment.base + size, segment.file, segment.size_bytes - size), home


def _home_of(storage: Storage, r: Replica, segment: Segment) -> Interval | None:
    """The segment that a file's records name, if none of them names its own place."""
    begin, end, read = segment.base, r.segment_end(segment), segment_reader(storage, segment)
    if sync(read(begin, _HEAD_BYTES), 0, begin, end) == 0:
        return None
    at = storage.data_from(segment.file, 0)
    if at is None or not parse(window(read, begin, end - begin), 0, begin, end).problem:
        return None
    if find_record(read, begin + at, begin + segment.size_bytes, end) >= 0:
        return None
    return belongs(storage, segment.file, r.segment_bytes)


class _Whole:
    """The segments that the log has itself: in a file of that name, sound to the segment's end or the log's.
    What one lacks that is damaged, or cannot be read, another file may hold. Each is walked once, if it is
    asked for, by the process that begins an audit, alone: where files of other names are copies of the whole
    log that is the log once more. ``metered``: up to so much of it; of the rest nobody says that a file has
    what the log has not."""

    def __init__(self, storage: Storage, r: Replica, metered: Metered | None = None) -> None:
        self._storage, self._r, self._metered = storage, r, metered
        self._files = {s.base: s for s in r.segments}
        self._told: dict[int, bool] = {}

    def __contains__(self, base: int) -> bool:
        if base not in self._told:
            segment = self._files.get(base)
            try:
                self._told[base] = segment is not None and self._goes_on(segment)
            except OSError:
                self._told[base] = False
            self._told[base] |= segment is not None and self._metered is not None and self._metered.refused
        return self._told[base]

    def _goes_on(self, segment: Segment) -> bool:
        """Raises OSError."""
        storage = self._metered or self._storage
        read, end = segment_reader(storage, segment), self._r.segment_end(segment)
        stop = min(end, self._r.end)
        run = scan_columns(read, segment.base, stop, segment.base, end, stop, aligned=True)
        while True:
            try:
                next(run)
            except StopIteration as ended:
                return segment.base < stop and not ended.value[1]


def _note_other_names(r: Replica, segment_bytes: int) -> None:
    """What files of other names hold, of segments that the log has not. ``segment_bytes``: of all replicas,
    as the log may have none; 0: nobody knows, and a file is taken for a whole one."""
    known = {s.file for s, _ in r.stray}
    storage = open_storage(r.location)
    try:
        metered = Metered(storage)
        there = _Whole(storage, r, metered)
        for number, file in enumerate(_other_names(storage, r)):
            if number >= OTHERS_MAX:
                r.unseen = True
                break
            if file in known:
                continue
            try:
                size = storage.size(file)
                whole = segment_bytes or size
                home = belongs(metered, file, whole, whole) if whole else None
            except (FileNotFoundError, UnfitFileError):
                continue  # it is no segment, and nothing says that it was one
            except OSError:
                r.unseen = True  # nobody knows
                continue
            if home is not None and home[0] not in there:
                r.stray.append((Segment(home[0], file, size), home))
        r.unseen |= metered.refused
    finally:
        storage.close()


def _other_names(storage: Storage, r: Replica) -> Iterator[str]:
    """Files of ``commitlog`` that have no segment's name, and those of folders in it."""
    for name in storage.listdir("commitlog"):
        file = f"commitlog/{name}"
        if is_segment_name(name):
            continue
        try:
            inside = names_in(storage, file)
        except OSError:
            r.unseen = True
            continue
        yield from (f"{file}/{inner}" for inner in inside) if inside else (file,)
