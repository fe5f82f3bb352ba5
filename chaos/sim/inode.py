"""What is in one simulated file, as its readers see it and as the disk has it?"""

from __future__ import annotations

import random
from typing import Final

from runtime.env import Buffer

PAGE_BYTES: Final = 4096
SECTOR_BYTES: Final = 512
_ZERO_PAGE: Final = bytes(PAGE_BYTES)


class Inode:
    """A file's content. ``pages`` is what reads see; ``stale`` holds, for every page whose newest content is
    not durable, the durable content (None: zeros). ``dropped`` marks those a failed sync gave up on: a later
    sync does not write them."""

    __slots__ = ("allocated", "dropped", "durable_size", "mtime_ms", "pages", "size", "stale")

    def __init__(self, now_ms: int) -> None:
        self.pages: dict[int, bytearray] = {}
        self.stale: dict[int, bytes | None] = {}
        self.dropped: set[int] = set()
        self.size = 0
        self.durable_size = 0
        self.allocated = 0
        self.mtime_ms = now_ms

    def copied(self) -> Inode:
        """The same content, all of it durable."""
        copy = Inode(self.mtime_ms)
        copy.pages = {number: bytearray(page) for number, page in self.pages.items()}
        copy.size, copy.durable_size, copy.allocated = self.size, self.size, self.allocated
        return copy

    def read(self, size: int, offset: int) -> bytes:
        size = min(size, self.size - offset)
        if size <= 0:
            return b""
        number, at = divmod(offset, PAGE_BYTES)
        if at + size <= PAGE_BYTES:
            page = self.pages.get(number)
            return bytes(size) if page is None else bytes(page[at : at + size])
        parts: list[Buffer] = []
        end = offset + size
        while offset < end:
            number, at = divmod(offset, PAGE_BYTES)
            count = min(PAGE_BYTES - at, end - offset)
            parts.append(memoryview(self.pages.get(number, _ZERO_PAGE))[at : at + count])
            offset += count
        return b"".join(parts)

    def write(self, data: Buffer, offset: int) -> None:
        view = memoryview(data).cast("B")
        done, size = 0, len(view)
        pages = self.pages
        while done < size:
            number, at = divmod(offset + done, PAGE_BYTES)
            count = min(PAGE_BYTES - at, size - done)
            self._dirty(number)
            page = pages.get(number)
            if page is None:
                page = pages[number] = bytearray(PAGE_BYTES)
            page[at : at + count] = view[done : done + count]
            done += count
        self.size = max(self.size, offset + size)

    def _dirty(self, number: int) -> None:
        if number not in self.stale:
            page = self.pages.get(number)
            self.stale[number] = None if page is None else bytes(page)
        self.dropped.discard(number)

    def truncate(self, size: int) -> None:
        if size < self.size:
            last, at = divmod(size, PAGE_BYTES)
            for number in [n for n in self.pages if n > last or (n == last and at == 0)]:
                self._dirty(number)
                del self.pages[number]
            if at and last in self.pages:
                self._dirty(last)
                self.pages[last][at:] = bytes(PAGE_BYTES - at)
        self.size = size

    def sync(self) -> None:
        if self.dropped:
            self.stale = {number: self.stale[number] for number in sorted(self.dropped)}
        else:
            self.stale.clear()
        self.durable_size = self.size

    def fail_sync(self) -> None:
        """EIO: the kernel marks the dirty pages clean; what they held reaches the disk no more."""
        self.dropped.update(self.stale)

    def drop(self) -> None:
        """The kernel needs the memory of the pages that a failed sync left clean: reads see the disk."""
        for number in sorted(self.dropped):
            old = self.stale.pop(number)
            self._restore(number, old if number * PAGE_BYTES < self.size else None)
        self.dropped.clear()

    def lose_power(self, rng: random.Random) -> None:
        size = self.size if self.size == self.durable_size else rng.choice((self.size, self.durable_size))
        for number in sorted(self.stale):
            old = self.stale[number]
            if number * PAGE_BYTES >= self.size:
                # Cut off by a truncate that is either done or not, never for some pages only.
                self._restore(number, old)
                continue
            lot = rng.random()
            if number in self.dropped or lot < 0.45:
                self._restore(number, old)
            elif lot < 0.65:
                self._tear(number, old, rng)
        self.size = max(self.size, self.durable_size)
        self.truncate(size)
        self.stale.clear()
        self.dropped.clear()
        self.durable_size = size

    def _restore(self, number: int, old: bytes | None) -> None:
        if old is None:
            self.pages.pop(number, None)
        else:
            self.pages[number] = bytearray(old)

    def _tear(self, number: int, old: bytes | None, rng: random.Random) -> None:
        page = self.pages.get(number)
        if page is None:
            return
        before = old or _ZERO_PAGE
        for at in range(0, PAGE_BYTES, SECTOR_BYTES):
            if rng.random() < 0.5:
                page[at : at + SECTOR_BYTES] = before[at : at + SECTOR_BYTES]
