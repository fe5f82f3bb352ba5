"""Which of a connection's sends are stored first? Those that came first, whichever of both ways they take.

A send on the ordinary way may wait between its frame and the log: for its peer to read, behind other
connections' long answers, for its own long body to be weighed, for its turn, for a handover, behind a long
batch. While one does, the fast path takes none of that connection: they go behind it. Those that take the
ordinary way, too, come to their handler in order: each waits until the one before it is there. Other requests
of the connection, as heartbeats and held pulls, are in nobody's way.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

from model.codes import Request

WAITS: Final = "sends_in_order"
"""The attribute of a connection that has sends on the ordinary way: its ``Sends``."""
_SENDS: Final = frozenset(
    map(int, (Request.SEND_MESSAGE, Request.SEND_MESSAGE_V2, Request.SEND_BATCH_MESSAGE))
)


class Place:
    """Of one send among those of its connection."""

    __slots__ = ("_attributes", "_first", "_passed", "_sends")

    def __init__(self, attributes: dict[str, Any], sends: Sends) -> None:
        self._attributes = attributes
        self._sends = sends
        self._first: asyncio.Event | None = None  # set once it is
        self._passed = False

    @property
    def is_first(self) -> bool:
        """All sends before it have come to their handler, or ended."""
        return self._sends.line[0] is self

    async def comes_first(self) -> None:
        """Return when it is first."""
        self._first = asyncio.Event()
        if not self.is_first:
            await self._first.wait()

    def passes(self) -> None:
        """It comes to its handler, or never does: the next one is first. Nothing happens the second time."""
        if self._passed:
            return
        self._passed = True
        line = self._sends.line
        line.remove(self)  # nearly always the first
        if line and line[0]._first is not None:
            line[0]._first.set()

    def ends(self) -> None:
        self.passes()
        self._sends.count -= 1
        if not self._sends.count:
            del self._attributes[WAITS]


class Sends:
    """``count``: on the ordinary way; ``line``: those of them that have not come to their handler yet."""

    __slots__ = ("count", "line")

    def __init__(self) -> None:
        self.count = 0
        self.line: deque[Place] = deque()


def begins(attributes: dict[str, Any], code: int) -> Place | None:
    """A request has begun; None: it is no send."""
    if code not in _SENDS:
        return None
    sends: Sends | None = attributes.get(WAITS)
    if sends is None:
        sends = attributes[WAITS] = Sends()
    sends.count += 1
    place = Place(attributes, sends)
    sends.line.append(place)
    return place


def ends(place: Place | None) -> None:
    """A request is stored or refused; its answer may wait."""
    if place is not None:
        place.ends()
