"""Which handshake begins next? Addresses take turns.

- An address with a thousand that wait has its turn as everybody else. Within it, as among addresses, the
  newest goes first while more wait than may be under way: who floods keeps its own waiting.
- Addresses from which a handshake ended well lately have every second turn, when others wait as well.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Generic, Protocol, TypeVar

KNOWN_MAX: Final = 4096
"""Addresses that are remembered."""


class Caller(Protocol):
    """A connection that wants a handshake."""

    @property
    def host(self) -> str: ...


C = TypeVar("C", bound=Caller)


class Queue(Generic[C]):
    """Those that wait; pure. Holds: each waits at its address once, and each address in one line."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, None] = OrderedDict()  # the one heard of last is the last
        self._first: OrderedDict[str, dict[C, None]] = OrderedDict()  # by address: those that were known
        self._others: OrderedDict[str, dict[C, None]] = OrderedDict()
        self._known_next = True
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, caller: C) -> None:
        host = caller.host
        is_first = host in self._first or (host in self._known and host not in self._others)
        line = self._first if is_first else self._others
        line.setdefault(host, {})[caller] = None
        self._size += 1

    def next(self, most: int) -> C:
        """Who is to begin next, while ``most`` may be under way."""
        line = self._first if self._known_next else self._others
        line = line or self._first or self._others
        waiting = line[next(reversed(line) if len(line) > most else iter(line))]
        return next(reversed(waiting) if len(waiting) > most else iter(waiting))

    def take(self, caller: C, most: int) -> None:
        """It begins."""
        self.pass_over(caller, most)
        self.remove(caller)

    def pass_over(self, caller: C, most: int) -> None:
        """Others are before its address now."""
        line = self._first if caller.host in self._first else self._others
        self._known_next = line is self._others
        line.move_to_end(caller.host, last=len(line) <= most)

    def last(self) -> C:
        """Who would begin last in a flood: the eldest of the address that waits longest."""
        line = self._others or self._first
        return next(iter(line[next(iter(line))]))

    def remove(self, caller: C) -> None:
        """It waits no more, if it did."""
        for line in (self._first, self._others):
            waiting = line.get(caller.host)
            if waiting is not None and caller in waiting:
                del waiting[caller]
                self._size -= 1
                if not waiting:
                    del line[caller.host]

    def on_ended_well(self, host: str) -> None:
        """A handshake of this address ended as it should."""
        self._known[host] = None
        self._known.move_to_end(host)
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)

    def check_invariants(self) -> None:
        lines = (self._first, self._others)
        assert self._size == sum(len(waiting) for line in lines for waiting in line.values()), (
            "all are counted"
        )
        assert not self._first.keys() & self._others.keys(), "an address is in one line"
        assert all(waiting for line in lines for waiting in line.values()), (
            "one without callers is not listed"
        )
