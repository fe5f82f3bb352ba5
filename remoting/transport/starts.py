"""How many requests begin in one turn of the event loop, over all connections of a server?

One read may bring thousands of small requests, and forty connections forty reads: begun all at once they
would hold up the lease, heartbeats and replication, which run on the same loop. At most ``A_TURN`` begin in
one, and half as many in the next when a turn took longer than ``TURN_MS``: what a request costs is not known
before. Once a turn has been that long, none begins in it beyond ``LEAST``. The other frames wait, and their
connections are read no further and take turns, a request each.

Those that proved to be peers or operators, and where nothing can be proven those that asked for what peers
ask for, have a line and a share of their own, ``OF_PEERS`` and halved in the same way: the other line is not
on their way, nor can they take what it has.

What the fast path takes never waits as a request: of that, and of taking frames apart at all, so many bytes
are read in a turn (``Reads``). A consumer's pull that is answered at once has to begin as any request, but
``KNOWN`` of them count as one. While such pulls are few and quick, and no turn was long lately, no turn is
told from the next for their sake: that takes a step of the loop, and a look for events, of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from remoting.long_bodies import LongBodies

A_TURN: Final = 50
OF_PEERS: Final = 16
LEAST: Final = 4
"""So many begin in any turn: on a machine that is busy with something else every turn is long."""
KNOWN: Final = 3
"""Requests that need neither task nor parsing (a consumer's next pull): so many count as one. The pull of 32
that is known takes 20 us, another 65."""
TURN_MS: Final = 10.0
UNTOLD_MS: Final = TURN_MS / 2
"""Known ones that took less in all, and less than half a share, may have begun in one turn."""
WOKEN_BYTES_A_TURN: Final = 96 << 10
"""Of those whose turn came in the line: 4 KiB of each, also when the loop reads others before."""
READ_BYTES_A_TURN: Final = (512 << 10) - WOKEN_BYTES_A_TURN
"""With the former two full reads: 4 ms of the smallest sends."""
COPIED_PART: Final = 16
"""A byte of a long frame costs so much less than one of the smallest sends: as many parts as a turn has leave
others a quarter of its share."""
READ_BYTES_LEAST: Final = 64 << 10
APART_MS: Final = 100.0
"""What began, or was read, over so long was not of one turn."""


class Waiting(Protocol):
    """A connection with frames that wait."""

    @property
    def goes_first(self) -> bool: ...

    def go_on(self) -> bool:
        """Begin the request of the first frame; whether more wait."""


def share_after(share: int, took_ms: float, most: int) -> int:
    """How many may begin in a turn, when ``share`` could in the one before and it took so long."""
    return max(LEAST, share // 2) if took_ms > TURN_MS else min(most, share + LEAST)


class Starts:
    """Holds: a connection that waits is in the line once, and the line moves in every turn.

    ``now_ms``: a clock that counts while code runs. Under simulation none does, and no turn is ever long.
    """

    def __init__(self, now_ms: Callable[[], float]) -> None:
        self.bodies = LongBodies()
        """What is looked at before a request with a long body goes on."""
        self._now_ms = now_ms
        self._share = self._left = A_TURN
        self._first_share = self._first_left = OF_PEERS
        self._begun = 0  # of clients in this turn, and of known ones that no turn was told for
        self._known_left = 0  # known ones that a start of this turn still has room for
        self._known_ms = 0.0  # what known ones took before this turn was told from others
        self._untold_ms = now_ms()  # when the first of these began
        self._armed_ms: float | None = None
        self._line: dict[Waiting, None] = {}  # in order of arrival
        self._first: dict[Waiting, None] = {}
        self._at_next_turn: list[Callable[[], None]] = []

    def at_next_turn(self, what: Callable[[], None]) -> None:
        """Call it once, when the next turn begins: one call of the loop serves all of these."""
        self._at_next_turn.append(what)
        self._arm()

    def take(self, *, first: bool = False) -> bool:
        """Whether one more request, ``first``: of one that goes first, may begin in this turn; it counts."""
        if self._armed_ms is None:
            self._arm()
        if first:
            found = self._first_left > 0
            self._first_left -= found
            return found
        if not self._left or self._is_long():
            return False
        self._left -= 1
        self._begun += 1
        return True

    def take_known(self) -> bool:
        """``take`` for one of which ``KNOWN`` count as one."""
        if self._known_left and not self._is_long():
            self._known_left -= 1
            self._begun += 1
            return True
        if self._known_left or not self.take():
            return False
        self._known_left = KNOWN - 1
        return True

    def known_room(self) -> int:
        """So many known ones, ``LEAST`` at most, may begin until the clock is looked at again;
        ``begun_known`` counts them."""
        if self._armed_ms is None:
            if self._share == A_TURN:
                return LEAST  # half of it is left
            self._arm()
        if self._is_long():
            return 0
        most = LEAST - self._begun if self._begun < LEAST else LEAST
        return min(most, self._known_left + KNOWN * self._left)

    def begun_known(self, count: int, took_ms: float, now_ms: float) -> None:
        """So many of ``known_room`` began, and took so long until now."""
        if self._armed_ms is None and now_ms - self._untold_ms >= APART_MS:
            self._forget_old(now_ms)
        self._begun += count
        self._known_left -= count
        if self._known_left < 0:
            starts = -(self._known_left // KNOWN)
            self._left -= starts
            self._known_left += starts * KNOWN
        if self._armed_ms is None:
            self._known_ms += took_ms
            if self._known_ms > UNTOLD_MS or self._left < A_TURN // 2:
                self._arm()

    def wait(self, connection: Waiting) -> None:
        """Its frames wait from now on; one that waits already keeps its place in its line."""
        line, other = self._line, self._first
        if connection.goes_first:
            line, other = other, line
        other.pop(connection, None)
        line.setdefault(connection)
        self._arm()

    def _is_long(self) -> bool:
        """Whether nothing more is to begin in this turn, as it has lasted for ``TURN_MS``."""
        if self._begun < LEAST or self._armed_ms is None:
            return False
        return self._now_ms() - self._armed_ms > TURN_MS

    def _arm(self) -> None:
        if self._armed_ms is None:
            now_ms = self._now_ms()
            self._forget_old(now_ms)
            self._armed_ms = now_ms - self._known_ms
            asyncio.get_running_loop().call_soon(self._turn)

    def _forget_old(self, now_ms: float) -> None:
        """What began ``APART_MS`` ago without a turn of its own is not of this one."""
        if now_ms - self._untold_ms >= APART_MS:
            self._untold_ms = now_ms
            self._begun = self._known_left = 0
            self._known_ms = 0.0
            self._left, self._first_left = self._share, self._first_share

    def _turn(self) -> None:
        assert self._armed_ms is not None, "somebody waits for this turn"
        now_ms = self._now_ms()
        took_ms = now_ms - self._armed_ms
        if took_ms > TURN_MS or self._share < A_TURN or self._first_share < OF_PEERS:
            self._share = share_after(self._share, took_ms, A_TURN)
            self._first_share = share_after(self._first_share, took_ms, OF_PEERS)
        self._armed_ms = None
        self._untold_ms = float("-inf")
        self._forget_old(now_ms)
        due, self._at_next_turn = self._at_next_turn, []
        for what in due:
            what()
        line, first = self._line, self._first
        if line or first:
            self._arm()
        while first and self._first_left:
            self._first_left -= 1
            self._go_on(first)
        while line and self._left and not self._is_long():
            self._left -= 1
            self._begun += 1
            self._go_on(line)

    def _go_on(self, line: dict[Waiting, None]) -> None:
        connection = next(iter(line))
        del line[connection]
        if connection.go_on():
            self.wait(connection)


class Reads:
    """How many bytes of clients are read in one turn of the loop? ``left`` of them.

    Who reads counts ``left`` down, and asks ``is_spent`` once that is below ``low``: only then a turn is told
    from the next, and when reads come slowly not even then. So one turn has between half a share and a share
    and one read; the first after ``APART_MS`` of few reads half a share more. As with ``Starts`` a share is
    halved after a long turn. Parts of long frames have a line of their own (``remoting/transport/inbox``),
    and count as what they cost (``COPIED_PART``).
    """

    __slots__ = ("_armed_ms", "_now_ms", "_share", "_since_ms", "left", "low")

    def __init__(self, now_ms: Callable[[], float]) -> None:
        self._now_ms = now_ms
        self._armed_ms: float | None = None
        self._since_ms = now_ms()
        self._share = self.left = READ_BYTES_A_TURN
        self.low = self._share // 2

    def copied(self, size: int) -> None:
        """Part of a long frame was read, and put aside."""
        size //= COPIED_PART
        self.left -= size
        if self.left < self.low:
            self.is_spent(size)

    def is_spent(self, size: int) -> bool:
        """Whether nothing more is to be read in this turn, after a read of ``size`` bytes. The next turn has
        a whole share."""
        if self._armed_ms is None:
            now_ms = self._now_ms()
            if now_ms - self._since_ms >= APART_MS:
                self._since_ms = now_ms
                self.left = self._share - size
                if self.left > 0:
                    return False
            self._armed_ms = now_ms
            asyncio.get_running_loop().call_soon(self._turn)
        return self.left <= 0

    def _turn(self) -> None:
        assert self._armed_ms is not None, "somebody read in the turn before"
        self._since_ms = self._now_ms()
        took_ms, self._armed_ms = self._since_ms - self._armed_ms, None
        if took_ms > TURN_MS:
            self._share = max(READ_BYTES_LEAST, self._share // 2)
        else:
            self._share = min(READ_BYTES_A_TURN, self._share + READ_BYTES_LEAST)
        self.left, self.low = self._share, self._share // 2
