"""What waits for the end of this turn of the loop, to be appended in one write?

Small reads of several connections: their records are encoded already, against the log's end, their answers
are made, and nothing is stored yet. docs/decisions/0013-one-append-a-turn.md says who ends a turn, and what
is answered when its write fails.
"""

from __future__ import annotations

from typing import Final

from remoting.service import Connection

READ_BYTES_MAX: Final = 16 * 1024
"""A longer read earns a write of its own: nothing of it has to be copied."""
TURN_BYTES_MAX: Final = 1 << 20


Read = tuple[Connection, bytes, bytes]
"""Whose it is, the whole frames one read brought, all of them taken, and the answers to them."""


class Turn:
    """Reads in the order they came. Holds: it is empty, or their records belong at ``begin`` of the log."""

    __slots__ = ("begin", "reads")

    def __init__(self) -> None:
        self.begin = -1
        self.reads: list[Read] = []

    def __bool__(self) -> bool:
        return bool(self.reads)

    def add(self, begin: int, read: Read) -> None:
        assert not self.reads or begin == self.begin, (
            f"the turn's records are for {self.begin}, the log ends at {begin}"
        )
        self.begin = begin
        self.reads.append(read)

    def take(self) -> list[Read]:
        """All of them; afterwards there are none."""
        reads, self.reads = self.reads, []
        return reads
