"""Which handshake begins next? Addresses take turns.

- An address with a thousand that wait has its turn as everybody else. Within it, as among addresses, the
  newest goes first while more wait than may be under way: who floods keeps its own waiting.
- Addresses from which a handshake ended well lately have every second turn, when others wait as well.
- Who is only looked at, and finds no place, keeps its turn. Who has no place to wait in ends: one of the
  address that has most waiting.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, Generic, Protocol, TypeVar

KNOWN_MAX: Final = 4096
"""Addresses that are remembered."""


class Caller(Protocol):
    """A connection that wants a handshake."""

    @property
    def host(self) -> str: ...


C = TypeVar("C", bound=Caller)


class _Line(Generic[C]):
    """Addresses in order of their turns. Holds: each of ``hosts`` is in ``sizes`` at the number of its
    callers, and none of these is empty."""

    def __init__(self) -> None:
        self.hosts: OrderedDict[str, dict[C, None]] = OrderedDict()
        self.sizes: dict[int, OrderedDict[str, None]] = {}
        self.greatest = 0

    def add(self, caller: C) -> None:
        waiting = self.hosts.setdefault(caller.host, {})
        waiting[caller] = None
        self._grew(caller.host, len(waiting) - 1, len(waiting))

    def remove(self, caller: C) -> bool:
        """Whether it was there."""
        waiting = self.hosts.get(caller.host)
        if waiting is None or caller not in waiting:
            return False
        del waiting[caller]
        if not waiting:
            del self.hosts[caller.host]
        self._grew(caller.host, len(waiting) + 1, len(waiting))
        return True

    def in_turn(self, most: int) -> Iterator[str]:
        """The addresses, while ``most`` may be under way."""
        return reversed(self.hosts) if len(self.hosts) > most else iter(self.hosts)

    def first_of(self, host: str, most: int) -> C:
        """Its caller whose turn it is."""
        waiting = self.hosts[host]
        return next(reversed(waiting) if len(waiting) > most else iter(waiting))

    def last(self, most: int) -> C:
        """The caller of the address with most whose turn would come last."""
        if len(self.hosts) > most:
            waiting = self.hosts[next(iter(self.sizes[self.greatest]))]
        else:
            waiting = next(found for found in reversed(self.hosts.values()) if len(found) == self.greatest)
        return next(iter(waiting) if len(waiting) > most else reversed(waiting))

    def check_invariants(self) -> None:
        assert {host: len(waiting) for host, waiting in self.hosts.items()} == {
            host: size for size, hosts in self.sizes.items() for host in hosts
        }, "each address is listed with the number of those that wait"
        assert self.greatest == max(self.sizes, default=0), "the greatest number is known"
        assert all(self.sizes.values()), "a number that nobody has is not listed"

    def _grew(self, host: str, before: int, size: int) -> None:
        """By one, or it shrank by one."""
        if size:
            self.sizes.setdefault(size, OrderedDict())[host] = None
        if before:
            del self.sizes[before][host]
            if not self.sizes[before]:
                del self.sizes[before]
        if size > self.greatest or self.greatest not in self.sizes:
            self.greatest = size


class Queue(Generic[C]):
    """Those that wait; pure. Holds: each waits at its address once, and each address in one line."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, None] = OrderedDict()  # the one heard of last is the last
        self._first: _Line[C] = _Line()  # those that were known
        self._others: _Line[C] = _Line()
        self._known_next = True
        self._looked_at: set[str] = set()  # addresses, since one began
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, caller: C) -> None:
        host = caller.host
        is_first = host in self._first.hosts or (host in self._known and host not in self._others.hosts)
        (self._first if is_first else self._others).add(caller)
        self._size += 1

    def next(self, most: int) -> C:
        """Who is to begin next, while ``most`` may be under way."""
        line = self._lines()[0]
        return line.first_of(next(line.in_turn(most)), most)

    def look(self, most: int) -> C | None:
        """The next one of those that were not looked at since one began, or since this said None: all were,
        or so many as may be under way."""
        lines = self._lines()
        if len(self._looked_at) < most:
            for line in reversed(lines) if len(self._looked_at) % 2 else lines:
                host = next((host for host in line.in_turn(most) if host not in self._looked_at), None)
                if host is not None:
                    self._looked_at.add(host)
                    return line.first_of(host, most)
        self._looked_at.clear()
        return None

    def look_anew(self) -> None:
        """The first one is looked at first again."""
        self._looked_at.clear()

    def take(self, caller: C, most: int) -> None:
        """It begins; others are before its address now."""
        line = self._first if caller.host in self._first.hosts else self._others
        self._known_next = line is self._others
        line.hosts.move_to_end(caller.host, last=len(line.hosts) <= most)
        self._looked_at.clear()
        self.remove(caller)

    def last(self, most: int) -> C:
        """Who ends where there is no place to wait: one of the address that has most waiting."""
        first, others = self._first, self._others
        return (others if others.greatest >= first.greatest else first).last(most)

    def remove(self, caller: C) -> None:
        """It waits no more, if it did."""
        if self._first.remove(caller) or self._others.remove(caller):
            self._size -= 1

    def on_ended_well(self, host: str) -> None:
        """A handshake of this address ended as it should."""
        self._known[host] = None
        self._known.move_to_end(host)
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)

    def check_invariants(self) -> None:
        lines = (self._first, self._others)
        assert self._size == sum(len(waiting) for line in lines for waiting in line.hosts.values()), (
            "all are counted"
        )
        assert not self._first.hosts.keys() & self._others.hosts.keys(), "an address is in one line"
        assert all(waiting for line in lines for waiting in line.hosts.values()), (
            "one without callers is not listed"
        )
        for line in lines:
            line.check_invariants()

    def _lines(self) -> tuple[_Line[C], ...]:
        """The line whose turn it is, and the other one; of these, those where anybody waits."""
        lines = (self._first, self._others) if self._known_next else (self._others, self._first)
        return tuple(line for line in lines if line.hosts)
