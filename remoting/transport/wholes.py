"""Which long frames are taken in this turn of the loop, now that they are whole?

The bytes of a frame that is collected were put aside, and cost little. With its last byte it is joined,
checked, copied and written, and that byte may be all that is read of it: a hundred connections may send their
last bytes at once. So a frame that is whole costs its whole length; what a long one takes beyond the share of
its turn is paid in the turns that follow, in which everybody else is read as ever.

Counted in bytes, and not in time: under simulation it does the same.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

A_TURN_BYTES: Final = 512 << 10


class Joining(Protocol):
    """A connection with a frame that is whole."""

    @property
    def closed(self) -> bool: ...

    def join_on(self) -> None:
        """Take the frame."""


class Wholes:
    """Of one server's clients. Holds: in one turn less than ``A_TURN_BYTES`` and one frame more are taken, in
    the order in which they became whole."""

    def __init__(self) -> None:
        self._left = A_TURN_BYTES
        self._line: dict[Joining, int] = {}  # in order of arrival, with the lengths of their frames
        self._armed = False

    def take(self, connection: Joining, size: int) -> bool:
        """Whether its frame of so many bytes is taken now. Else ``join_on`` is called in a later turn."""
        if self._left <= 0 or self._line:
            self._line[connection] = size
            return False
        self._spend(size)
        return True

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left <= 0 and not self._armed:
            self._armed = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._armed = False
        self._left = min(self._left, 0) + A_TURN_BYTES
        line = self._line
        while line and self._left > 0:
            connection = next(iter(line))
            size = line.pop(connection)
            if not connection.closed:
                self._spend(size)
                connection.join_on()
        self._spend(0)
