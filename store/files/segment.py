"""How is an endless file kept as files of equal size, named by where they start?

CommitLog and ConsumeQueue both lie in directories of such files: the name is the offset of the first byte
as 20 digits, every file has its full size from the beginning, zeros where nothing is written yet.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from typing import Final

from model.errors import DiskError
from model.ids import is_number
from runtime.env import Buffer, Disk, File

NAME_DIGITS: Final = 20
ZERO_BLOCK: Final = bytes(1 << 20)


def is_segment_name(name: str) -> bool:
    return len(name) == NAME_DIGITS and is_number(name)


class FilePool:
    """Keeps at most ``open_max`` of its segments' files open; the one opened first is closed first."""

    def __init__(self, open_max: int) -> None:
        self._open_max = open_max
        self._open: OrderedDict[str, Segment] = OrderedDict()

    def opened(self, segment: Segment) -> None:
        self._open[segment.path] = segment
        if len(self._open) <= self._open_max:
            return
        for path, other in list(self._open.items())[: len(self._open) - self._open_max]:
            if other is not segment and other.close_if_idle():
                del self._open[path]

    def closed(self, segment: Segment) -> None:
        self._open.pop(segment.path, None)


class Segment:
    """One file of a SegmentDir. ``pin`` keeps it open while a sync runs off the loop; a segment dropped
    meanwhile is closed by the last ``unpin``."""

    __slots__ = ("_disk", "_pins", "_pool", "_retired", "opened", "path", "start")

    def __init__(self, disk: Disk, path: str, start: int, pool: FilePool | None = None) -> None:
        self.path = path
        self.start = start
        self._disk = disk
        self._pool = pool
        self.opened: File | None = None
        """The file while it is open; ``file`` opens it."""
        self._pins = 0
        self._retired = False

    @property
    def file(self) -> File:
        """The open file. Raises OSError when it cannot be opened, or was given up."""
        if self.opened is None:
            if self._retired:
                raise OSError(errno.EBADF, "the file is closed", self.path)
            self.opened = self._disk.open(self.path)
            if self._pool is not None:
                self._pool.opened(self)
        return self.opened

    def create(self) -> File:
        """Open the file, making it when absent."""
        if self.opened is None:
            self.opened = self._disk.open(self.path, create=True)
            if self._pool is not None:
                self._pool.opened(self)
        return self.opened

    def read(self, size: int, at: int) -> bytes:
        """Exactly ``size`` bytes at position ``at`` of the file. Raises DiskError."""
        try:
            data = self.file.pread(size, at)
        except OSError as error:
            raise DiskError(f"reading {self.path} at {at} failed: {error.strerror or error}") from error
        if len(data) != size:
            raise DiskError(f"{self.path} ends at {at + len(data)}, before {at + size}")
        return data

    def write(self, data: Buffer, at: int) -> None:
        (self.opened or self.file).pwrite(data, at)

    def erase(self, at: int, until: int, *, to_first_zeros: bool = False, zeros_too: bool = False) -> bool:
        """Make the bytes from ``at`` up to ``until`` zeros, touching only blocks that are not yet: was there
        one? ``to_first_zeros``: up to the first block of zeros found. ``zeros_too``: zeros that were written
        are written again, as the sync they waited for may have failed."""
        file = self.file
        touched = False
        stop = at  # of the bytes the file system says were written
        while at < until:
            if at >= stop:
                found = file.data_from(at)
                if found is None or (to_first_zeros and found[0] - at >= len(ZERO_BLOCK)):
                    break
                at, stop = found[0], min(found[1], until)
                continue
            if stop - at > len(ZERO_BLOCK) and not to_first_zeros:
                file.zero(at, stop - at)  # a long stretch: its metadata changes faster than its bytes
                touched = True
                at = stop
                continue
            size = min(len(ZERO_BLOCK), stop - at)
            zeros = ZERO_BLOCK[:size] if size < len(ZERO_BLOCK) else ZERO_BLOCK
            if zeros_too or file.pread(size, at) != zeros:
                file.pwrite(zeros, at)
                touched = True
            elif to_first_zeros and size == min(len(ZERO_BLOCK), until - at):
                break
            at += size
        return touched

    def is_zeros(self) -> bool:
        """Is nothing written in it? What was preallocated costs no reading."""
        at, size = 0, self.file.size()
        while at < size and (found := self.file.data_from(at)) is not None:
            at, stop = found[0], min(found[1], size)
            while at < stop:
                data = self.file.pread(min(len(ZERO_BLOCK), stop - at), at)
                if not data or any(data):
                    return False
                at += len(data)
        return True

    def pin(self) -> None:
        self._pins += 1

    def unpin(self) -> None:
        self._pins -= 1
        if self._retired and not self._pins:
            self._close()

    def close_if_idle(self) -> bool:
        if self._pins:
            return False
        self._close()
        return True

    def retire(self) -> None:
        """Close for good, as soon as nobody pins it."""
        self._retired = True
        if self._pool is not None:
            self._pool.closed(self)
        if not self._pins:
            self._close()

    def _close(self) -> None:
        if self.opened is not None:
            self.opened.close()
            self.opened = None


class SegmentDir:
    """The segments of one directory, oldest first, without gaps."""

    def __init__(self, disk: Disk, path: str, segment_bytes: int, pool: FilePool | None = None) -> None:
        self.path = path
        self.segment_bytes = segment_bytes
        self.segments: list[Segment] = []
        self.names_dirty = False  # names in it were made or removed since the last sync
        self._disk = disk
        self._pool = pool

    def load(self) -> None:
        """Find the segments there are; names that are not 20 digits are left alone. Opens no file."""
        names = [name for name in self._disk.listdir(self.path) if is_segment_name(name)]
        self.segments = [
            Segment(self._disk, f"{self.path}/{name}", int(name), self._pool) for name in sorted(names)
        ]

    def gap(self) -> int | None:
        """Index of the first segment that does not start where the one before it ends, or None."""
        for index in range(1, len(self.segments)):
            if self.segments[index].start != self.segments[index - 1].start + self.segment_bytes:
                return index
        return None

    def at(self, offset: int) -> Segment | None:
        """The segment that holds byte ``offset``, or None."""
        if not self.segments:
            return None
        index = (offset - self.segments[0].start) // self.segment_bytes
        return self.segments[index] if 0 <= index < len(self.segments) else None

    def new(self, start: int) -> Segment:
        """A segment object for ``start``; neither made on disk nor part of the list yet."""
        return Segment(self._disk, f"{self.path}/{start:0{NAME_DIGITS}}", start, self._pool)

    def remove(self, segment: Segment, aside: str | None = None) -> None:
        """Take ``segment`` off the list and off the disk, or into the directory ``aside``; the directories
        are synced by the caller."""
        self.segments.remove(segment)
        segment.retire()
        if aside is None:
            self._disk.remove(segment.path)
        else:
            self._disk.replace(segment.path, f"{aside}/{segment.path.rpartition('/')[2]}")

    def sync_dir(self) -> None:
        """Make the names in the directory durable, and its own."""
        self._disk.sync_dir(self.path)
        self._disk.sync_dir(self.path.rpartition("/")[0])

    def close(self) -> None:
        for segment in self.segments:
            segment.retire()
