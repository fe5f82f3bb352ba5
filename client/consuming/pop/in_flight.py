"""How many messages may a consumer ask for now? Pure.

What is in flight was popped and has not come to its end. The bounds are shared evenly among the sources (a
topic at one group of brokers): a long poll of an idle source keeps no room of a busy one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from model.pop import MESSAGES_MAX

S = TypeVar("S")


class Holding:
    """What one source was asked for, and has in flight."""

    def __init__(self) -> None:
        self.asked = self.number = self.bytes = 0

    def on_answer(self, sizes: Sequence[int]) -> None:
        """What was asked for came, or will not come."""
        self.asked = 0
        self.number += len(sizes)
        self.bytes += sum(sizes)

    def on_end(self, size: int) -> None:
        self.number -= 1
        self.bytes -= size


class InFlight(Generic[S]):
    """``number_max`` messages in all. A source with its share of ``bytes_max`` asks for no more; one answer
    may go beyond it.

    Holds: what is in flight and what is asked for are ``number_max`` messages at most.
    """

    def __init__(self, number_max: int, bytes_max: int) -> None:
        if number_max < 1 or bytes_max < 1:
            raise ValueError("a consumer holds one message at least")
        self._number_max = number_max
        self._bytes_max = bytes_max
        self._sources: dict[S, Holding] = {}
        self._leaving: list[Holding] = []

    @property
    def number(self) -> int:
        return sum(held.number for held in self._all())

    @property
    def bytes(self) -> int:
        return sum(held.bytes for held in self._all())

    def open(self, source: S) -> None:
        self._sources.setdefault(source, Holding())

    def close(self, source: S) -> None:
        """It is asked no more; what it has in flight counts until its end."""
        self._leaving = [one for one in self._leaving if one.number or one.asked]
        self._leaving.append(self._sources.pop(source))

    def room(self, source: S) -> int:
        """For how many messages ``source`` may be asked now."""
        held, among = self._sources[source], len(self._sources)
        if held.bytes >= max(1, self._bytes_max // among):
            return 0
        free = self._number_max - sum(one.number + one.asked for one in self._all())
        return max(0, min(MESSAGES_MAX, max(1, self._number_max // among) - held.number, free))

    def on_asked(self, source: S, count: int) -> Holding:
        held = self._sources[source]
        assert not held.asked, "a source is asked once at a time"
        assert count <= self.room(source), "no source is asked for more than it has room for"
        held.asked = count
        return held

    def check_invariants(self) -> None:
        for held in self._all():
            assert held.number >= 0, "each message ends once"
            assert held.number or not held.bytes, "bytes are those of messages in flight"
        asked = sum(held.asked for held in self._all())
        assert self.number + asked <= self._number_max, "no more is in flight than was allowed"

    def _all(self) -> list[Holding]:
        return [*self._sources.values(), *self._leaving]
