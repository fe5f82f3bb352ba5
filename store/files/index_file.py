"""Which messages of a topic carry a key?

    at  size  header field
     0   8+8  store time of the first and last message, ms
    16   8+8  physical offset of the first and last message, bytes
    32     4  slots in use
    36     4  entry count, starting at 1: entry 0 is never used

    40 + 4 i                slot i: newest entry of the keys that hash there, 0 = none
    40 + 4 slots + 20 k     entry k: key hash 4, physical offset 8, seconds since the first message 4,
                            entry before it in the same slot 4

The key is ``topic#key``, its hash |String.hashCode| of Java (0 when that is -2^31), its slot hash % slots.
A file is named by the local time it was made, yyyyMMddHHmmssSSS, or follows the name before it where that
is not earlier. Only hashes are kept: who looks up reads the message.

Slots and new entries of the current file stay in memory. A flush writes the entries, then the slots, then the
header, and syncs each before the next: load mends a file that a crash left in between. The header is written
last, so the entries it counts are durable. After an unclean stop the header and the slots may be in the page
cache only: a sync of them may have failed. ``Unproven`` says that the next flush writes them again.
Source of the format: Apache RocketMQ 5.x, ``store/index``; checked against files it wrote.
"""

from __future__ import annotations

import errno
import logging
import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, count
from typing import TYPE_CHECKING, Final

from model.errors import DiskError
from model.ids import PhysicalOffset
from runtime.env import Disk, File

if TYPE_CHECKING:
    from runtime.native._native import Block

log = logging.getLogger(__name__)

HEADER: Final = struct.Struct(">qqqqii")
HEADER_BYTES: Final = 40
SLOT_BYTES: Final = 4
ENTRY: Final = struct.Struct(">iqii")
ENTRY_BYTES: Final = 20
assert (HEADER.size, ENTRY.size) == (HEADER_BYTES, ENTRY_BYTES)
_PAGE_SLOTS_SHIFT: Final = 10
_PAGE_SLOTS: Final = 1 << _PAGE_SLOTS_SHIFT
_FOREVER_MS: Final = 1 << 62
_INT_MAX: Final = 0x7FFFFFFF
_NAME_CHARS: Final = 17
CHECKED_AT_ONCE: Final = 1 << 14
"""Slots looked at between two turns of the loop: half a millisecond."""
_PICTURE_BYTES: Final = 1 << 18
"""Bytes of slots copied between two turns of the loop: a fifth of a millisecond."""
LOOKED_AT_ONCE: Final = 128
"""Entries of a key looked at between two turns of the loop: a third of a millisecond."""
STILL_LOOKING: Final = PhysicalOffset(-1)


Item = tuple[int, PhysicalOffset, int]
"""What goes into the index: key hash, physical offset, store time in ms."""


@dataclass(slots=True)
class Header:
    """The first 40 bytes of a file. ``count`` is the number of the next entry."""

    begin_timestamp_ms: int = 0
    end_timestamp_ms: int = 0
    begin_offset: PhysicalOffset = PhysicalOffset(0)
    end_offset: PhysicalOffset = PhysicalOffset(0)
    slots_used: int = 0
    count: int = 1

    def encode(self) -> bytes:
        return HEADER.pack(
            self.begin_timestamp_ms,
            self.end_timestamp_ms,
            self.begin_offset,
            self.end_offset,
            self.slots_used,
            self.count,
        )


class Pages:
    """Some of the pages that a file's slots lie in. ``noted`` has a byte for each of them all, 1 for one of
    these: of many messages most note one that is there already, and that is to cost nothing."""

    __slots__ = ("noted",)

    def __init__(self, slots: int) -> None:
        self.noted = bytearray((slots + _PAGE_SLOTS - 1) >> _PAGE_SLOTS_SHIFT)

    def __bool__(self) -> bool:
        return 1 in self.noted

    def __iter__(self) -> Iterator[int]:
        """From the first to the last."""
        return compress(count(), self.noted)

    def add(self, page: int) -> None:
        self.noted[page] = 1

    def update(self, pages: Iterable[int]) -> None:
        for page in pages:
            self.noted[page] = 1

    def add_all(self) -> None:
        self.noted[:] = b"\x01" * len(self.noted)


@dataclass(slots=True)
class _Flush:
    """What one flush writes: ``entries_bytes`` of new entries, and ``pages`` of slots."""

    pages: Pages
    entries_bytes: int = 0
    steps: list[list[tuple[int, bytes]]] = field(default_factory=list)  # (offset, bytes); a sync after each
    cut: bool = False  # a cut came after the picture was begun


class IndexFile:
    """One file; see ``Header`` for what it says of itself."""

    def __init__(self, disk: Disk, path: str, slots: int, entries: int) -> None:
        self.path = path
        self.head = Header()
        self.slots = slots
        self.entries_max = entries
        self.pending = bytearray()  # entries from ``written`` up to the header's count
        self.table: array[int] | None = None  # the slots in memory, while the file takes entries
        self.dirty_pages = Pages(slots)
        self.unproven = False  # header and slots may be in the page cache only, and are not in memory yet
        self._written = 1
        self._flush: _Flush | None = None  # the one that runs, perhaps off the loop
        self._retired = False
        self._disk = disk
        self._file: File | None = None
        self._entries_at = HEADER_BYTES + SLOT_BYTES * slots

    @property
    def file_bytes(self) -> int:
        return self._entries_at + ENTRY_BYTES * self.entries_max

    @property
    def file(self) -> File:
        if self._file is None:
            if self._retired:
                raise OSError(errno.EBADF, "the file is closed", self.path)
            self._file = self._disk.open(self.path)
        return self._file

    @property
    def is_full(self) -> bool:
        return self.head.count >= self.entries_max

    @property
    def is_dirty(self) -> bool:
        return bool(self.pending or self.dirty_pages)

    def create(self) -> None:
        """Make the file, sparse: 420 MB of zeros are not reserved. Raises OSError."""
        self._file = self._disk.open(self.path, create=True)
        self._file.truncate(self.file_bytes)
        self.table = array("i", bytes(SLOT_BYTES)) * self.slots

    def load(self) -> None:
        """Read the header. Raises DiskError when the file cannot be an index of this shape."""
        size = self.file.size()
        if size != self.file_bytes:
            raise DiskError(
                f"{self.path} has {size} bytes, {self.file_bytes} by maxHashSlotNum and maxIndexNum"
            )
        self.head = head = Header(*HEADER.unpack(self.file.pread(HEADER_BYTES, 0)))
        head.count = self._written = max(head.count, 1)
        if not 1 <= head.count <= self.entries_max or head.begin_offset > head.end_offset:
            raise DiskError(f"{self.path}: the header cannot be right")

    def writable(self) -> array[int]:
        """The slots in memory, mended: a crash may have left slots that point behind the last entry."""
        if self.table is None:
            table = self.read_slots()
            self.take_slots(table, self.wrong_slots(table, 0, len(table)))
        assert self.table is not None, "taken above"
        return self.table

    def read_slots(self) -> array[int]:
        """The slots on disk. Changes nothing: may run off the loop. Raises OSError."""
        table = array("i", self.file.pread(SLOT_BYTES * self.slots, HEADER_BYTES))
        if sys.byteorder == "little":
            table.byteswap()
        return table

    def wrong_slots(self, table: array[int], first: int, until: int) -> list[int]:
        """Which of the slots ``first`` to ``until`` of ``table`` point behind the last entry."""
        wrong: list[int] = []
        for begin in range(first, until, CHECKED_AT_ONCE):
            part = table[begin : min(begin + CHECKED_AT_ONCE, until)]
            if max(part) >= self.head.count:
                wrong += [begin + at for at, number in enumerate(part) if number >= self.head.count]
        return wrong

    def take_slots(self, table: array[int], wrong: list[int]) -> None:
        """Keep what ``read_slots`` found, mended, unless the slots are in memory already. Raises OSError."""
        if self.table is not None:
            return
        self.table = table
        if self.unproven:
            self.dirty_pages.update(self._written_pages())
            self.unproven = False
        for slot in wrong:
            number = table[slot]
            while number >= self.head.count:
                number = self._previous_on_disk(number)
            self._set(slot, number)

    def _written_pages(self) -> set[int]:
        """The header's page, and the pages of slots the file system has bytes for."""
        pages = {0}
        at = HEADER_BYTES
        while (found := self.file.data_from(at)) is not None and found[0] < self._entries_at:
            first = max(found[0] - HEADER_BYTES, 0) // (SLOT_BYTES * _PAGE_SLOTS)
            last = (min(found[1], self._entries_at) - HEADER_BYTES - 1) // (SLOT_BYTES * _PAGE_SLOTS)
            pages.update(range(first, last + 1))
            at = found[1]
        return pages

    def _previous_on_disk(self, number: int) -> int:
        if number >= self.entries_max:
            return 0
        raw = self.file.pread(ENTRY_BYTES, self._entries_at + number * ENTRY_BYTES)
        before = int(ENTRY.unpack(raw)[3])
        return before if 0 <= before < number else 0

    def _set(self, slot: int, number: int) -> None:
        assert self.table is not None, "only a file in memory changes"
        self.table[slot] = number
        self.dirty_pages.add(slot >> _PAGE_SLOTS_SHIFT)

    def add(self, items: Sequence[Item]) -> None:
        """Add entries, oldest first; they must fit."""
        table = self.table if self.table is not None else self.writable()
        head = self.head
        number = head.count
        if number == 1:
            _, head.begin_offset, head.begin_timestamp_ms = items[0]
        slots, begin_ms, pack = self.slots, head.begin_timestamp_ms, ENTRY.pack
        dirty = self.dirty_pages.noted
        entries: list[bytes] = []
        last_ms, seconds, new_slots = begin_ms, 0, 0
        for key_hash, offset, stored_ms in items:
            if stored_ms != last_ms:
                last_ms = stored_ms
                seconds = min(max((stored_ms - begin_ms) // 1000, 0), _INT_MAX)
            slot = key_hash % slots
            before = table[slot]
            entries.append(pack(key_hash, offset, seconds, before))
            table[slot] = number
            dirty[slot >> _PAGE_SLOTS_SHIFT] = 1
            if not before:
                new_slots += 1
            number += 1
        self.pending += b"".join(entries)
        head.count = number
        head.slots_used += new_slots
        _, head.end_offset, head.end_timestamp_ms = items[-1]

    def add_packed(self, block: Block, first: int, until: int, seen: int, most: int) -> bool:
        """``add`` of the keys of the messages in these places of ``block`` that begin behind ``seen``; False:
        they do not fit, or are more than ``most``, and nothing has changed. The slots are in memory."""
        head = self.head
        empty = head.count == 1
        found = block.index_entries(
            first,
            until,
            seen,
            self.table,
            head.count,
            min(self.entries_max - head.count, most),
            head.begin_timestamp_ms,
            self.dirty_pages.noted,
            _PAGE_SLOTS_SHIFT,
        )
        if found is None:
            return False
        entries, new_slots, first_offset, first_ms, last_offset, last_ms = found
        if entries:
            if empty:
                head.begin_offset, head.begin_timestamp_ms = first_offset, first_ms
            self.pending += entries
            head.count += len(entries) // ENTRY_BYTES
            head.slots_used += new_slots
            head.end_offset, head.end_timestamp_ms = last_offset, last_ms
        return True

    def truncate(self, offset: int) -> None:
        """Take back the entries of messages at or behind ``offset``."""
        table, head = self.writable(), self.head
        while head.count > 1:
            key_hash, at, seconds, before = self.entry(head.count - 1)
            if at < offset:
                head.end_offset = at
                head.end_timestamp_ms = head.begin_timestamp_ms + seconds * 1000
                break
            head.count -= 1
            slot = key_hash % self.slots
            if table[slot] == head.count:
                self._set(slot, before)
                head.slots_used -= not before
        if head.count < self._written:
            self.pending.clear()
            self._written = head.count
        else:
            del self.pending[(head.count - self._written) * ENTRY_BYTES :]
        self.dirty_pages.add(0)  # the header must be written even when no slot changed
        if self._flush is not None:
            self._flush.cut = True

    def entry(self, number: int) -> tuple[int, PhysicalOffset, int, int]:
        """(key hash, physical offset, seconds since the first, entry before) of entry ``number``."""
        if number >= self._written:
            at = (number - self._written) * ENTRY_BYTES
            key_hash, offset, seconds, before = ENTRY.unpack_from(self.pending, at)
        else:
            raw = self.file.pread(ENTRY_BYTES, self._entries_at + number * ENTRY_BYTES)
            key_hash, offset, seconds, before = ENTRY.unpack(raw)
        return key_hash, offset, seconds, before

    def find(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[PhysicalOffset]:
        """Physical offsets of entries with this hash, newest first, stored within [begin_ms, end_ms]
        (to the second); STILL_LOOKING after each LOOKED_AT_ONCE entries: a key may have millions."""
        number = self._newest(key_hash % self.slots)
        looked_at = 0
        while number > 0:
            if looked_at == LOOKED_AT_ONCE:
                looked_at = 0
                yield STILL_LOOKING
                if number >= self.head.count:  # a cut came meanwhile
                    number = self._newest(key_hash % self.slots)
                    continue
            looked_at += 1
            found, offset, seconds, before = self.entry(number)
            stored_ms = self.head.begin_timestamp_ms + seconds * 1000
            if stored_ms + 999 < begin_ms:
                return
            if found == key_hash and stored_ms <= end_ms:
                yield offset
            number = before if before < number else 0

    def other_time(self, key_hash: int, offset: PhysicalOffset, stored_ms: int) -> bool:
        """Whether the entry of the message at ``offset`` says that it was stored in another second. Of a key
        with many newer ones nothing is said, nor of an entry that came late: it carries another time."""
        number = self._newest(key_hash % self.slots)
        for _ in range(LOOKED_AT_ONCE):
            if not 0 < number < self.head.count:
                return False
            found, at, seconds, before = self.entry(number)
            if found == key_hash and at == offset:
                due = min(max((stored_ms - self.head.begin_timestamp_ms) // 1000, 0), _INT_MAX)
                return seconds < due or (seconds > due and not self._may_be_late(number, offset, seconds))
            number = before if before < number else 0
        return False

    def _may_be_late(self, number: int, offset: PhysicalOffset, seconds: int) -> bool:
        """Late entries have the second of the newest message before them, which lies behind theirs in the
        log; one message may have many, and many may come late one after the other."""
        for earlier in range(number - 1, max(0, number - 1 - LOOKED_AT_ONCE), -1):
            _, at, then, _ = self.entry(earlier)
            if at > offset:
                return True
            if then != seconds:
                return False
        return number > LOOKED_AT_ONCE

    def _newest(self, slot: int) -> int:
        if self.table is not None:
            number = self.table[slot]
        else:
            number = struct.unpack(">i", self.file.pread(SLOT_BYTES, HEADER_BYTES + slot * SLOT_BYTES))[0]
        while number >= self.head.count and number:
            number = self._previous_on_disk(number)
        return int(number)

    def holds_time(self, begin_ms: int, end_ms: int) -> bool:
        return (
            self.head.count > 1
            and self.head.begin_timestamp_ms <= end_ms
            and self.head.end_timestamp_ms >= begin_ms
        )

    def picture(self) -> Iterator[None]:
        """Copy what a flush has to write, a part with each step; then ``write_picture``, then ``end_flush``.

        What is added in between leaves the file as a crash in a write does: the copied slots may point to it,
        so its entries come last and are copied too, while the header tells of none of it.
        """
        pages, self.dirty_pages = self.dirty_pages, Pages(self.slots)
        self._flush = flush = _Flush(pages)
        header = self.head.encode()
        slots: list[tuple[int, bytes]] = []
        copied = 0
        for at, data in self._runs(list(pages)):
            slots.append((HEADER_BYTES + at * SLOT_BYTES, data))
            copied += len(data)
            if copied >= _PICTURE_BYTES:
                copied = 0
                yield
        entries = bytes(self.pending)
        flush.entries_bytes = len(entries)
        entries_at = self._entries_at + self._written * ENTRY_BYTES
        flush.steps = [[(entries_at, entries)], slots, [(0, header)]]

    def write_picture(self) -> None:
        """Write what was copied. Blocks, may run off the loop; raises OSError."""
        file = self.file
        assert self._flush is not None, "a picture comes first"
        for step in self._flush.steps:
            for at, data in step:
                file.pwrite(data, at)
            file.sync()

    def end_flush(self, done: bool) -> None:
        """The write is over; what it failed to write, or wrote although a cut came meanwhile, is written
        again next time."""
        flush, self._flush = self._flush, None
        if self._retired:
            self.close()
            return
        if flush is None:
            return
        if flush.cut:
            self.dirty_pages.add_all()
        elif done:
            del self.pending[: flush.entries_bytes]
            self._written += flush.entries_bytes // ENTRY_BYTES
        else:
            self.dirty_pages.update(flush.pages)

    def _runs(self, pages: list[int]) -> Iterator[tuple[int, bytes]]:
        table = self.table
        if table is None:
            return
        at = 0
        while at < len(pages):
            stop = at + 1
            last = min(len(pages), at + _PICTURE_BYTES // (_PAGE_SLOTS * SLOT_BYTES))
            while stop < last and pages[stop] == pages[stop - 1] + 1:
                stop += 1
            first = pages[at] * _PAGE_SLOTS
            part = table[first : (pages[stop - 1] + 1) * _PAGE_SLOTS]
            if sys.byteorder == "little":
                part.byteswap()
            yield first, part.tobytes()
            at = stop

    def close(self) -> None:
        """Close the file, once no flush needs it any more."""
        self._retired = True
        if self._file is not None and self._flush is None:
            self._file.close()
            self._file = None
