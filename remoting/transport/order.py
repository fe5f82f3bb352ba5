"""Which of a connection's sends are stored first? Those that came first, whichever of both ways they take.

A send on the ordinary way may wait between its frame and the log: for its turn, for a handover, behind a long
batch. While one does, the fast path takes none of that connection: they go behind it. Other requests of the
connection, as heartbeats and held pulls, are in nobody's way.

Of two on the ordinary way one that waits before its handler begins, behind other connections' long answers
or for its own long body to be weighed, may come second.
"""

from __future__ import annotations

from typing import Any, Final

from model.codes import Request

WAITS: Final = "sends_in_order"
"""The attribute of a connection that has sends on the ordinary way: how many."""
_SENDS: Final = frozenset(
    map(int, (Request.SEND_MESSAGE, Request.SEND_MESSAGE_V2, Request.SEND_BATCH_MESSAGE))
)


def begins(attributes: dict[str, Any], code: int) -> None:
    """A request has begun."""
    if code in _SENDS:
        attributes[WAITS] = attributes.get(WAITS, 0) + 1


def ends(attributes: dict[str, Any], code: int) -> None:
    """It is stored or refused; its answer may wait."""
    if code in _SENDS:
        attributes[WAITS] -= 1
        if not attributes[WAITS]:
            del attributes[WAITS]
