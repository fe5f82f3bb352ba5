"""What is read from a peer, and when: where do bytes wait until they are whole frames, and for how long?"""

from __future__ import annotations

import asyncio
from typing import Final

READ_BYTES_MIN: Final = 16 * 1024
READ_BYTES_USUAL: Final = 256 * 1024  # a buffer grown beyond this for one long frame is given back
PARTIAL_FRAME_S: Final = 10.0  # a frame that has begun must be whole after this ...
PARTIAL_BYTES_PER_S: Final = 128 * 1024  # ... plus its size over this rate


class Inbox:
    """One buffer: ``buffer[start:end]`` is what came and was not taken. ``begun_at``: since when a begun
    frame is there (the loop's clock), None = there is none."""

    __slots__ = ("begun_at", "buffer", "end", "room_bytes_min", "start")

    def __init__(self) -> None:
        self.buffer = bytearray(READ_BYTES_MIN)
        self.room_bytes_min = READ_BYTES_MIN // 4  # with less at its end, ``make_room`` before the next read
        self.start = 0
        self.end = 0
        self.begun_at: float | None = None

    def took(self, start: int, now: float) -> None:
        """Frames up to ``start`` are handled; what follows is the begin of one."""
        if start < self.end:
            if start != self.start or self.begun_at is None:
                self.begun_at = now
            self.start = start
            return
        size = len(self.buffer)
        if size > READ_BYTES_USUAL:
            self.buffer = bytearray(READ_BYTES_USUAL)
        elif self.end == size < READ_BYTES_USUAL:
            # The read filled it: a busy peer gets a larger buffer, so that one call handles more.
            self.buffer = bytearray(min(size * 2, READ_BYTES_USUAL))
        self.start = self.end = 0
        self.begun_at = None

    def overdue(self, now: float) -> bool:
        """Whether the begun frame should be whole by now."""
        if self.begun_at is None:
            return False
        begun = self.buffer[self.start : self.start + 4]
        size = int.from_bytes(begun, "big") if self.end - self.start >= 4 else 0
        return now - self.begun_at > PARTIAL_FRAME_S + size / PARTIAL_BYTES_PER_S

    def begin_anew(self, now: float) -> None:
        """Nothing was read for a while: a begun frame has its whole time from now on."""
        if self.begun_at is not None:
            self.begun_at = now

    def drop(self) -> None:
        """What came is not looked at."""
        self.start = self.end = 0

    def free(self) -> None:
        """Nothing comes any more."""
        self.buffer = bytearray()
        self.drop()

    def make_room(self, frame_bytes_max: int) -> None:
        """Move the begun frame to the front, and double a buffer it fills.

        A length field alone reserves nothing: the buffer grows with the bytes that came.
        """
        kept = self.end - self.start
        size = len(self.buffer)
        begun = memoryview(self.buffer)[self.start : self.end]
        if kept > size // 2:
            size = min(size * 2, max(size, frame_bytes_max) + READ_BYTES_MIN)
        elif self.end == size < READ_BYTES_USUAL:
            # The read filled it: a busy peer gets a larger buffer, so that one call handles more.
            size = min(size * 2, READ_BYTES_USUAL)
        if size == len(self.buffer):
            self.buffer[:kept] = bytes(begun)
        else:
            buffer = bytearray(size)
            buffer[:kept] = begun
            self.buffer = buffer
        self.start, self.end = 0, kept


class ReadGate:
    """Whether anything is read from the peer. ``unread``: it leaves what it is sent. ``held``: what it asked
    for waits for something else. ``paused``: nothing is read."""

    __slots__ = ("held", "paused", "unread")

    def __init__(self) -> None:
        self.unread = self.held = self.paused = False

    def move(self, transport: asyncio.Transport, *, busy: bool) -> bool:
        """Pause or resume reading, ``busy`` for a reason beyond this connection's; whether it is resumed."""
        pause = self.unread or self.held or busy
        before, self.paused = self.paused, pause
        if pause and not before:
            transport.pause_reading()
        elif before and not pause:
            transport.resume_reading()
            return True
        return False
