"""How many requests begin in one turn of the event loop, over all connections of a server?

One read may bring thousands of small requests, and forty connections forty reads: begun all at once they
would hold up the lease, heartbeats and replication, which run on the same loop. ``A_TURN`` begin in one; the
other frames wait, and their connections are read no further and take turns, a request each.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

A_TURN: Final = 50


class Waiting(Protocol):
    """A connection with frames that wait."""

    def go_on(self) -> bool:
        """Begin the request of the first frame; whether more wait."""


class Starts:
    """Holds: a connection that waits is in the line once, and the line moves in every turn."""

    def __init__(self) -> None:
        self._left = A_TURN
        self._armed = False
        self._line: dict[Waiting, None] = {}  # in order of arrival

    def take(self) -> bool:
        """Whether one more request may begin in this turn; it counts then."""
        self._arm()
        if not self._left:
            return False
        self._left -= 1
        return True

    def wait(self, connection: Waiting) -> None:
        """Its frames wait from now on; one that waits already keeps its place."""
        self._line.setdefault(connection)
        self._arm()

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._armed = False
        self._left = A_TURN
        line = self._line
        if line:
            self._arm()
        while line and self._left:
            self._left -= 1
            connection = next(iter(line))
            del line[connection]
            if connection.go_on():
                line[connection] = None
