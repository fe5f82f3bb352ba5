"""Where do the bytes of a master wait until they are whole frames, without being copied?

The transport reads into ``room``, and the body of a frame is a view of the same memory: between the socket
and the log nothing is copied but the begin of a frame whose rest does not fit behind it.
"""

from __future__ import annotations

from typing import Final

ROOM_BYTES: Final = 256 * 1024
"""What one read may bring; a longer frame gets more, as far as it has come."""
_ROOM_BYTES_MIN: Final = 64 * 1024


class Inflow:
    """``view[start:end]`` came and was not taken. What is taken stays as it is until the next ``room``."""

    __slots__ = ("end", "start", "view")

    def __init__(self) -> None:
        self.view = memoryview(bytearray(ROOM_BYTES))
        self.start = 0
        self.end = 0

    def peek(self, size: int) -> bytes:
        """A copy of ``size`` bytes that came into ``room`` and are not counted yet."""
        return bytes(self.view[self.end : self.end + size])

    def room(self, sizehint: int = -1) -> memoryview:
        """Where the next bytes go; never empty."""
        view, start, end = self.view, self.start, self.end
        if start == end:
            if len(view) > ROOM_BYTES:  # the long frame is taken
                self.view = memoryview(bytearray(ROOM_BYTES))
            self.start = self.end = 0
            return self.view
        if len(view) - end < _ROOM_BYTES_MIN:
            size = end - start
            if size > len(view) // 2:  # a length field alone reserves nothing
                self.view = memoryview(bytearray(2 * len(view)))
            self.view[:size] = view[start:end]
            self.start, self.end = 0, size
        return self.view[self.end :]
