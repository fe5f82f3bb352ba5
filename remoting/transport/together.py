"""How do the answers of many connections leave in one call?

Each leaves as with ``Connection.write_now``. What each write costs beside the system's own work, the steps of
Python's ``os.write`` and the interpreter lock, is paid once for all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from runtime.direct import all_taken


class Written(Protocol):
    """What is needed of a connection."""

    last_io: float

    def write_now(self, data: bytes) -> None: ...

    def at_once(self, data: bytes) -> int:
        """The descriptor that is handed ``data`` now; below 0: there is none."""

    def write_rest(self, data: bytes, sent: int) -> None:
        """``sent`` bytes of ``data`` were handed over."""


def write_all_now(answered: Sequence[tuple[Written, bytes]]) -> None:
    """``write_now`` of each, in this order; a connection may be there more than once."""
    if len(answered) == 1:  # of a producer alone
        connection, data = answered[0]
        connection.write_now(data)
        return
    connections: list[Written] = []
    descriptors: list[int] = []
    parts: list[bytes] = []
    for connection, data in answered:
        descriptor = connection.at_once(data)
        if descriptor >= 0:
            connections.append(connection)
            descriptors.append(descriptor)
            parts.append(data)
            continue
        if parts:  # what came before of this connection goes first
            _hand_over(connections, descriptors, parts)
            connections, descriptors, parts = [], [], []
        connection.write_now(data)
    if parts:
        _hand_over(connections, descriptors, parts)


def _hand_over(connections: list[Written], descriptors: list[int], parts: list[bytes]) -> None:
    now = asyncio.get_running_loop().time()
    for connection in connections:
        connection.last_io = now
    count, sent = all_taken(descriptors, parts)
    if count == len(parts):
        return
    connections[count].write_rest(parts[count], sent)
    # The same connection may be there again, and has something before it now: each is asked anew.
    for at in range(count + 1, len(parts)):
        connections[at].write_now(parts[at])
