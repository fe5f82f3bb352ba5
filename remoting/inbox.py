"""What is read from a peer, and when: where do bytes wait until they are whole frames, and for how long?

All connections of one port read into one buffer (``scratch``): what a read brought is handled before the
next read of anybody. A connection keeps memory of its own only for a frame that has begun.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

READ_BYTES_MIN: Final = 16 * 1024
READ_BYTES_USUAL: Final = 256 * 1024
"""So much one read may bring: many peers in the middle of long frames would share a turn of the loop with
megabytes each, which the system copies, and makes pages for, on the loop's time."""
PARTIAL_FRAME_S: Final = 10.0  # a frame that has begun must be whole after this ...
PARTIAL_BYTES_PER_S: Final = 128 * 1024  # ... plus its size over this rate
REQUESTS_MAX: Final = 4096  # requests of one connection being handled at the same time


def scratch() -> bytearray:
    """The buffer that all connections of one server read into."""
    return bytearray(READ_BYTES_USUAL)


class Inbox:
    """``buffer[start:end]`` is what came and was not taken. ``begun_at``: since when a begun frame is there
    (the loop's clock), None = there is none.

    A begun frame is kept in ``_kept``. It goes in front of the next read into the scratch buffer; when that
    read did not complete it, it stays in a buffer of its own, which grows with the bytes that come: a length
    field alone reserves nothing, and a slow peer's bytes are not copied again and again.
    """

    __slots__ = ("_kept", "_scratch", "begun_at", "buffer", "counted", "end", "start")

    def __init__(self, scratch: bytearray) -> None:
        self.buffer = self._scratch = scratch
        self.start = 0
        self.end = 0
        self.begun_at: float | None = None
        self.counted = 0  # of ``owned``, what the server's guard knows of
        self._kept: bytearray | None = None

    @property
    def owned(self) -> int:
        """Bytes of memory that a begun frame takes."""
        return 0 if self._kept is None else len(self._kept)

    def room(self, frame_bytes_max: int) -> memoryview:
        """Where the next read goes."""
        kept = self._kept
        if kept is None:
            self.buffer = self._scratch
            self.start = self.end = 0
        elif self.buffer is kept:
            self._grow(frame_bytes_max)
        else:
            # Again at each read: others may have used the scratch buffer since.
            size = len(kept)
            self._scratch[:size] = kept
            self.buffer = self._scratch
            self.start, self.end = 0, size
        return memoryview(self.buffer)[self.end : self.end + READ_BYTES_USUAL]

    def took(self, start: int, now: float) -> None:
        """Frames up to ``start`` are handled; what follows is the begin of one."""
        if start >= self.end:
            self._kept = None
            self.begun_at = None
            self.buffer = self._scratch
            self.start = self.end = 0
            return
        progress = start != self.start or self.begun_at is None
        if progress:
            self.begun_at = now
        size = self.end - start
        if progress and size <= len(self._scratch) // 2:
            self._kept = self.buffer[start : self.end]
            self.buffer = self._scratch
        elif self.buffer is self._scratch:
            own = bytearray(max(READ_BYTES_MIN, 2 * size))
            own[:size] = memoryview(self.buffer)[start : self.end]
            self._kept = self.buffer = own
            self.start, self.end = 0, size
        else:
            self.start = start

    def overdue(self, now: float) -> bool:
        """Whether the begun frame should be whole by now."""
        if self.begun_at is None or self._kept is None:
            return False
        start, end = (self.start, self.end) if self.buffer is self._kept else (0, len(self._kept))
        size = int.from_bytes(self._kept[start : start + 4], "big") if end - start >= 4 else 0
        return now - self.begun_at > PARTIAL_FRAME_S + size / PARTIAL_BYTES_PER_S

    def begin_anew(self, now: float) -> None:
        """Nothing was read for a while: a begun frame has its whole time from now on."""
        if self.begun_at is not None:
            self.begun_at = now

    def drop(self) -> None:
        """Nothing that comes is looked at; no memory is kept."""
        self._kept = None
        self.begun_at = None
        self.buffer = self._scratch
        self.start = self.end = 0

    def _grow(self, frame_bytes_max: int) -> None:
        """Move the begun frame to the front of its own buffer, and double a buffer it fills."""
        size = len(self.buffer)
        if size - self.end >= size // 4:
            return
        kept = self.end - self.start
        if kept > size // 2:
            size = min(size * 2, max(size, frame_bytes_max) + READ_BYTES_MIN)
        own = bytearray(size)
        own[:kept] = memoryview(self.buffer)[self.start : self.end]
        self._kept = self.buffer = own
        self.start, self.end = 0, kept


class ReadGate:
    """Whether anything is read from the peer. ``unread``: it leaves what it is sent. ``held``: what it asked
    for waits for something else. ``handling``: requests without an answer; ``blocked`` of these wait until it
    has read. ``later``: frames whose requests begin in a later turn. ``paused``: nothing is read."""

    __slots__ = ("blocked", "handling", "held", "later", "paused", "unread")

    def __init__(self) -> None:
        self.unread = self.held = self.paused = False
        self.handling = self.blocked = 0
        self.later: deque[bytes] = deque()

    def move(self, transport: asyncio.Transport, *, all_held: bool) -> bool:
        """Pause or resume reading, ``all_held`` of all connections; whether it is resumed."""
        pause = self.unread or self.held or all_held or self.handling >= REQUESTS_MAX or bool(self.later)
        before, self.paused = self.paused, pause
        if pause and not before:
            transport.pause_reading()
        elif before and not pause:
            transport.resume_reading()
            return True
        return False
