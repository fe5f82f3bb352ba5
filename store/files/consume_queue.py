"""Which messages are in a queue, in order, and where does each lie in the CommitLog?

    at  size  field
     0     8  physical offset    bytes
     8     4  size               bytes
    12     8  tags code          hash of TAGS; for a delayed message when it is due, ms

Entry n lies at byte 20 n of the queue; a file holds ``mappedFileSizeConsumeQueue`` bytes and is zeros after
the last entry. Entries that never were (a queue that starts late) are 0, 0x7FFFFFFF, 0. New entries stay in
memory until the next flush tick: readers here see them at once, after a crash they are made again from the
log. Source of the format: Apache RocketMQ 5.x, ``store/ConsumeQueue``; checked against stores it wrote.
"""

from __future__ import annotations

import logging
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from model.errors import DiskError
from runtime.env import Disk, File
from store.files.segment import FilePool, Segment, SegmentDir

log = logging.getLogger(__name__)

ENTRY: Final = struct.Struct(">qiq")
ENTRY_BYTES: Final = 20
"""Of four bytes each."""
assert ENTRY.size == ENTRY_BYTES
PRE_BLANK_SIZE: Final = 0x7FFFFFFF
TAGS_CODE_MIN: Final = -(1 << 31)
"""A smaller tags code is the address of a RocketMQ extension file."""
PRE_BLANK: Final = ENTRY.pack(0, PRE_BLANK_SIZE, 0)
BUFFER_BYTES_MAX: Final = 64 * 1024
_SCAN_ENTRIES: Final = 4096
FILL_ENTRIES_MAX: Final = 1 << 14
"""So many empty entries are written where a queue goes on later, however small its files are."""
_LOOK_AHEAD_ENTRIES: Final = 256
"""More than a block of 4 KiB holds: what rots, or is lost, goes by blocks."""


OffsetsTaken = Callable[[str, int, int], int | None]
"""(topic of a queue, physical offset, size) -> how many of its offsets that record takes; None: nobody can
tell."""


def is_queue_name(topic: str, queue_id: int) -> bool:
    """Can there be a folder of that name? Topics of replicated bytes are somebody else's word."""
    raw = topic.encode("utf-8", "surrogateescape")
    return (
        0 < len(raw) <= 255
        and b"/" not in raw
        and b"\0" not in raw
        and topic not in (".", "..")
        and queue_id >= 0
    )


def fill(file: File, size: int) -> None:
    """A new file has its full size. Sparse: thousands of queues would fill a disk with zeros."""
    if file.size() < size:
        file.truncate(size)


class ConsumeQueue:
    """One queue. ``max_offset`` = index the next entry gets, ``min_offset`` = first whose message the log
    still holds, ``max_physical`` = end of the last message (bytes)."""

    __slots__ = (
        "_dir",
        "_disk",
        "_file_bytes",
        "_short",
        "_unsynced",
        "buffer",
        "cut_short",
        "max_offset",
        "max_physical",
        "min_offset",
        "queue_id",
        "topic",
        "written",
    )

    def __init__(
        self, disk: Disk, path: str, topic: str, queue_id: int, file_bytes: int, pool: FilePool | None = None
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.min_offset = 0
        self.max_offset = 0
        self.max_physical = 0
        self.buffer = bytearray()  # the entries from ``written`` up to ``max_offset``
        self.written = 0
        self.cut_short = False  # loading met an entry that cannot be one, and more behind it
        self._disk = disk
        self._file_bytes = file_bytes
        self._dir = SegmentDir(disk, path, file_bytes, pool)
        self._short: list[Segment] = []  # files that a crash left before they had their full size
        self._unsynced: dict[int, Segment] = {}

    @property
    def first_offset(self) -> int:
        """The first index there is an entry for, whatever it says."""
        return self._dir.segments[0].start // ENTRY_BYTES if self._dir.segments else self.written

    # -- writing ---------------------------------------------------------------------------------------

    def put(self, queue_offset: int, offset: int, size: int, tags_code: int) -> bool:
        """Add an entry; False when it is there already. A queue that starts late, or skips indexes, is
        filled with entries that stand for no message."""
        if queue_offset < self.max_offset or offset + size <= self.max_physical:
            return False
        if queue_offset > self.max_offset:
            self._skip_to(queue_offset)
        self.buffer += ENTRY.pack(offset, size, tags_code)
        self.max_offset = queue_offset + 1
        self.max_physical = offset + size
        return True

    def skip_to(self, queue_offset: int) -> None:
        """Let the next entry be ``queue_offset``: those between stand for no message of their own, an inner
        batch's for what the record before them holds."""
        self.buffer += PRE_BLANK * (queue_offset - self.max_offset)
        self.max_offset = max(self.max_offset, queue_offset)

    def _skip_to(self, queue_offset: int) -> None:
        per_file = self._file_bytes // ENTRY_BYTES
        if self.max_offset:
            log.warning(
                "%s/%d goes on at %d, not at %d: the messages between are not in the log",
                self.topic,
                self.queue_id,
                queue_offset,
                self.max_offset,
            )
        fresh = not self.max_offset or queue_offset - self.max_offset > max(per_file, FILL_ENTRIES_MAX)
        if fresh:
            self.destroy()
            self.written = self.max_offset = queue_offset - queue_offset % per_file
        self.skip_to(queue_offset)
        if fresh:
            self.min_offset = queue_offset

    def flush(self) -> None:
        """Write the buffered entries to their files. Raises OSError; what was not written stays buffered."""
        view = memoryview(bytes(self.buffer))
        done = 0
        try:
            while done < len(view):
                at = self.written * ENTRY_BYTES
                segment = self._segment(at)
                room = self._file_bytes - (at - segment.start)
                part = view[done : done + room]
                segment.write(part, at - segment.start)
                self._unsynced[segment.start] = segment
                done += len(part)
                self.written += len(part) // ENTRY_BYTES
        finally:
            del self.buffer[:done]

    @property
    def missing_file(self) -> str:
        """The path of its first file, which is to be made; "": there is one, or it is not the first."""
        return "" if self._dir.segments or self.written or not self.buffer else self._dir.new(0).path

    def _segment(self, at: int) -> Segment:
        segment = self._dir.at(at)
        if segment is not None:
            return segment
        start = at - at % self._file_bytes
        if not self._dir.segments:
            self._disk.makedirs(self._dir.path)
        segment = self._dir.new(start)
        file = segment.create()
        fill(file, self._file_bytes)
        self._dir.segments.append(segment)
        self._dir.names_dirty = True
        return segment

    @property
    def is_unsynced(self) -> bool:
        """Was a file, or a name, changed since the last sync?"""
        return bool(self._unsynced) or self._dir.names_dirty

    def take_unsynced(self) -> list[Segment]:
        """The files written since the last call, pinned: the caller syncs and unpins them. Raises OSError, as
        where no descriptor is left: then nothing is taken."""
        found: list[Segment] = []
        try:
            for segment in self._unsynced.values():
                segment.create()  # opened here: the pool is no matter for another thread
                segment.pin()
                found.append(segment)
        except OSError:
            for segment in found:
                segment.unpin()
            raise
        self._unsynced.clear()
        return found

    def synced(self) -> None:
        """All that was written, names too, was made durable by other means."""
        self._unsynced.clear()
        self._dir.names_dirty = False

    def doubt_names(self) -> None:
        """The names of the files there are may not be durable."""
        self._dir.names_dirty = self._dir.names_dirty or bool(self._dir.segments)

    def take_new_names(self) -> list[str]:
        """The directories whose names changed since the last call, innermost first."""
        if not self._dir.names_dirty:
            return []
        self._dir.names_dirty = False
        queue = self._dir.path
        topic = queue.rpartition("/")[0]
        root = topic.rpartition("/")[0]
        return [queue, topic, root, root.rpartition("/")[0]]

    # -- reading ---------------------------------------------------------------------------------------

    def read(self, index: int, count_max: int) -> bytes:
        """The entries from ``index`` on, up to ``count_max``, not crossing a file; b"" where none is."""
        count = min(count_max, self.max_offset - index)
        if count <= 0:
            return b""
        if index >= self.written:
            at = (index - self.written) * ENTRY_BYTES
            return bytes(self.buffer[at : at + count * ENTRY_BYTES])
        at = index * ENTRY_BYTES
        segment = self._dir.at(at)
        if segment is None:
            return b""
        in_file = at - segment.start
        size = min(min(count, self.written - index) * ENTRY_BYTES, self._file_bytes - in_file)
        return segment.read(size, in_file)

    def entry(self, index: int) -> tuple[int, int, int] | None:
        """(physical offset, size, tags code) of entry ``index``, or None."""
        raw = self.read(index, 1)
        return ENTRY.unpack(raw) if raw else None

    def entries(
        self, begin: int | None = None, end: int | None = None
    ) -> Iterator[tuple[int, int, int, int]]:
        """(index, physical offset, size, tags code) from ``begin`` (default: the first kept) up to ``end``
        (default: all)."""
        index = self.min_offset if begin is None else begin
        stop = self.max_offset if end is None else end
        while raw := self.read(index, min(_SCAN_ENTRIES, stop - index)):
            for offset, size, tags_code in ENTRY.iter_unpack(raw):
                yield index, offset, size, tags_code
                index += 1

    # -- loading, cutting ------------------------------------------------------------------------------

    def find(self) -> None:
        """Find the files. Raises DiskError, OSError where one is of another size than the configured one;
        nothing was changed then."""
        self._dir.load()
        says = f"mappedFileSizeConsumeQueue says {self._file_bytes}"
        for segment in self._dir.segments:
            size = segment.file.size()
            if size > self._file_bytes:
                raise DiskError(
                    f"{segment.path} has {size} bytes, {says}: the files were made with another size;"
                    " set that again"
                )
            if segment.start % self._file_bytes:
                raise DiskError(
                    f"{segment.path} begins at no multiple of a file, {says}: set the size that the"
                    " files were made with, or, where that is refused too, move the directory consumequeue"
                    " away: it is made again from the log"
                )
            if size < self._file_bytes:
                self._short.append(segment)

    def load(self, settled: int = 0) -> None:
        """Find the entries on disk, behind ``find``.

        Those of messages that end at or below ``settled`` are known to be there: the last of them is looked
        for by halves. Without one the scan begins with the third-last file. It goes on to the first entry
        that cannot be one; what lies behind that is zeroed. Raises DiskError, OSError.
        """
        for segment in self._short:
            segment.file.truncate(self._file_bytes)
        self._short.clear()
        gap = self._dir.gap()
        if gap is not None:
            log.warning(
                "%s: no file before %d: what is behind is made again from the log",
                self._dir.path,
                self._dir.segments[gap].start,
            )
            for segment in self._dir.segments[gap:]:
                self._dir.remove(segment)
            self._dir.names_dirty = True
        if not self._dir.segments:
            return
        self.written = self.max_offset = (self._dir.segments[-1].start + self._file_bytes) // ENTRY_BYTES
        index, physical = self._last_settled(settled) if settled else (0, 0)
        known = index > self.first_offset
        if not known:
            first = max(0, len(self._dir.segments) - 3)
            while first and not self._valid_at(self._dir.segments[first]):
                first -= 1
            index, physical = self._dir.segments[first].start // ENTRY_BYTES, 0
        end, physical = self._scan(index, physical)
        # What follows a settled end may be what a crash left of entries that were on their way.
        self.cut_short = gap is not None or (self._missed(end, settled) if known else self._holds_more(end))
        self._cut_to(end)
        self.max_physical = physical
        self.min_offset = min(self._dir.segments[0].start // ENTRY_BYTES, end) if self._dir.segments else end

    def _valid_at(self, segment: Segment) -> bool:
        offset, size, _ = ENTRY.unpack(segment.read(ENTRY_BYTES, 0))
        return bool(size > 0 and offset >= 0)

    def _last_settled(self, settled: int) -> tuple[int, int]:
        """The index behind the last entry of a message that ends at or below ``settled``, and where that
        message ends (bytes). Entries without a message say nothing: they count as what is before them."""
        low, high = self.first_offset, self.max_offset
        while low < high:
            middle = (low + high) // 2
            if self._settled_size(middle, settled):
                low = middle + 1
            else:
                high = middle
        while low > self.first_offset:
            found = self.entry(low - 1)
            if found is not None and found[1] != PRE_BLANK_SIZE and self._settled_size(low - 1, settled):
                return low, found[0] + found[1]
            low -= 1
        return low, 0

    def _settled_size(self, index: int, settled: int) -> int:
        """The size of the message of an entry that cannot be younger than ``settled``; else 0."""
        found = self.entry(index)
        if found is None or found[0] < 0 or found[1] <= 0:
            return 0
        return found[1] if found[1] == PRE_BLANK_SIZE or found[0] + found[1] <= settled else 0

    def _missed(self, end: int, settled: int) -> bool:
        """Do settled entries lie behind ``end``? Then the one there is damaged, or a block of them."""
        raw = self.read(end, _LOOK_AHEAD_ENTRIES)
        raw += self.read(end + len(raw) // ENTRY_BYTES, _LOOK_AHEAD_ENTRIES)  # a reading ends with its file
        return any(raw) and any(
            0 < size != PRE_BLANK_SIZE and 0 < offset + size <= settled
            for offset, size, _ in ENTRY.iter_unpack(raw)
        )

    def _scan(self, index: int, physical: int) -> tuple[int, int]:
        """Where the valid entries from ``index`` on end, and where the last message of them ends; the one
        before ended at ``physical``."""
        for at, offset, size, _ in self.entries(index):
            if size == PRE_BLANK_SIZE and not offset:
                continue
            if size <= 0 or offset < physical:
                return at, physical
            physical = offset + size
        return self.max_offset, physical

    def _holds_more(self, end: int) -> bool:
        """Is the entry at ``end`` not empty, or the one behind it? Queues end in empty entries."""
        return any(self.read(end, 1)) or any(self.read(end + 1, 1))

    def patch(self, index: int, offset: int, size: int, tags_code: int) -> bool:
        """Make entry ``index``, already there, say this; False when it does. Raises OSError, DiskError."""
        entry = ENTRY.pack(offset, size, tags_code)
        if self.read(index, 1) == entry:
            return False
        if index >= self.written:
            at = (index - self.written) * ENTRY_BYTES
            self.buffer[at : at + ENTRY_BYTES] = entry
            return True
        segment = self._dir.at(index * ENTRY_BYTES)
        if segment is None:
            return False  # an older file, deleted meanwhile
        segment.write(entry, index * ENTRY_BYTES - segment.start)
        self._unsynced[segment.start] = segment
        return True

    def _cut_to(self, end: int) -> None:
        """Forget the entries from index ``end`` on, on disk too (zeros; files behind are removed)."""
        if end >= self.written:
            del self.buffer[(end - self.written) * ENTRY_BYTES :]
            self.max_offset = end
            return
        self.buffer.clear()
        at = end * ENTRY_BYTES
        while self._dir.segments and self._dir.segments[-1].start >= max(at, 1):
            self._unsynced.pop(self._dir.segments[-1].start, None)
            self._dir.remove(self._dir.segments[-1])
            self._dir.names_dirty = True
        segment = self._dir.at(at)
        if segment is not None:
            old_end = min(self.written * ENTRY_BYTES, segment.start + self._file_bytes)
            if segment.erase(at - segment.start, old_end - segment.start):
                self._unsynced[segment.start] = segment
        self.written = self.max_offset = end
        if not self._dir.segments:
            self.min_offset = end

    def truncate(self, physical: int, taken: OffsetsTaken) -> bool:
        """Forget the entries of messages that end above ``physical``; was there one? Raises OSError."""
        if self.max_physical <= physical:
            return False
        found = self._last_below(physical)
        if found is None:
            self._cut_to(self.min_offset)
            self.max_physical = 0
        else:
            self._end_behind(found, taken)
            self.max_physical = found[1] + found[2]
        return True

    def drop_empty_end(self, taken: OffsetsTaken) -> bool:
        """Forget empty entries at the end that no record accounts for: the message that followed them is not
        in the log, and whoever leads next may give their offsets. Were there any? Raises OSError."""
        before, found = self.max_offset, self._last_below(sys.maxsize)
        if found is not None:
            self._end_behind(found, taken)
        return self.max_offset < before

    def _last_below(self, physical: int) -> tuple[int, int, int] | None:
        """(index, physical offset, size) of the last entry whose message ends at or below ``physical``. Zeros
        are none: pages of a file that lacks after a power failure, before those that are there."""
        begin = self.max_offset
        while begin > self.min_offset:
            stop, begin = begin, max(self.min_offset, begin - _SCAN_ENTRIES)
            for index, offset, size, _ in reversed(list(self.entries(begin, stop))):
                if 0 < size != PRE_BLANK_SIZE and offset + size <= physical:
                    return index, offset, size
        return None

    def _end_behind(self, last: tuple[int, int, int], taken: OffsetsTaken) -> None:
        """Let the queue end behind an entry and the empty ones that belong to its record, an inner batch:
        those are never given out again."""
        index, offset, size = last
        end = empty = index + 1
        while empty < self.max_offset and (found := self.entry(empty)) and found[1] == PRE_BLANK_SIZE:
            empty += 1
        if empty > end:
            count = taken(self.topic, offset, size)
            end = empty if count is None else min(empty, index + count)
        self._cut_to(end)

    def first_at(self, physical: int) -> int:
        """The index of the first entry kept whose message lies at or above log offset ``physical``."""
        low, high = self.min_offset, self.max_offset
        first = self.entry(low)
        if first is not None and first[1] != PRE_BLANK_SIZE and first[0] >= physical:
            high = low
        while low < high:
            middle = probe = (low + high) // 2
            found = self.entry(probe)
            while found is not None and found[1] == PRE_BLANK_SIZE and probe + 1 < high:
                probe += 1  # entries without a message say nothing: the next real one does
                found = self.entry(probe)
            if found is None or found[1] == PRE_BLANK_SIZE or found[0] < physical:
                low = probe + 1
            else:
                high = middle
        while (found := self.entry(low)) is not None and found[1] == PRE_BLANK_SIZE:
            low += 1
        return low

    def drop_below(self, log_min: int) -> list[Segment]:
        """Move ``min_offset`` to the first entry whose message lies at or above ``log_min``; returns the
        files that are no longer needed, off the list but still on disk."""
        low = self.first_at(log_min)
        self.min_offset = low
        gone: list[Segment] = []
        while len(self._dir.segments) > 1 and self._dir.segments[1].start <= low * ENTRY_BYTES:
            segment = self._dir.segments.pop(0)
            self._unsynced.pop(segment.start, None)
            segment.retire()
            gone.append(segment)
        return gone

    def correct_min(self, log_min: int) -> None:
        """``min_offset`` after loading: the first entry that stands for a message the log holds. Files that
        a crash left before it are removed, if their own last entry says so, too. Blocks."""
        self.min_offset = min(self.first_offset, self.max_offset)
        for segment in self.drop_below(log_min):
            with suppress(OSError):  # the next start tries again
                file = self._disk.open(segment.path)
                try:
                    last = file.pread(ENTRY_BYTES, self._file_bytes - ENTRY_BYTES)
                finally:
                    file.close()
                if 0 <= ENTRY.unpack(last)[0] < log_min:
                    self._disk.remove(segment.path)

    def destroy(self) -> None:
        """Drop every entry and file. Raises OSError."""
        for segment in list(self._dir.segments):
            self._dir.remove(segment)
        self._unsynced.clear()
        self.buffer.clear()
        self.min_offset = self.max_offset = self.written = self.max_physical = 0

    def close(self) -> None:
        self._dir.close()
