"""How long may one request keep the event loop, and which of many long ones goes on next?

The lease, heartbeats and replication run on the same loop as clients' requests. Work that grows with what
a client sends, or with a table, is done in slices of ``SLICE_MS``, and one at a time: a thousand requests
with a slice each would hold the loop as long as one without slices.

    async with turns.take(connection) as turn:  # waits for the others; connections take turns, see Turns
        for item in many:
            ...
            await turn.breathe()  # lets the loop go round when the slice is used up

Under simulation the clock stands still while code runs, so nothing is sliced there and a seed replays.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import asynccontextmanager
from typing import Final, Generic, Protocol, TypeVar

from model.codes import Response
from model.errors import Refused
from runtime.tasks import Tasks

SLICE_MS: Final = 5.0
SHARE_BYTES: Final = 256 << 10
"""What may begin in one turn of the loop of all that was set free at once."""
SHORT_MS: Final = 1.0
"""A slice of work that nobody waits for."""
WAITING_MAX: Final = 8192
"""Requests of clients that wait for their turn. Beyond, an answer would come when nobody waits for it."""
WAITING_LEAST: Final = 4
"""So many of a connection while half of them wait."""


class PeerLeft(Refused):
    """The connection that asked has ended: nobody reads the answer."""

    def __init__(self) -> None:
        super().__init__("its sender left")


class Peer(Protocol):
    """Who waits. ``goes_first``: it is no client, and does not wait behind clients."""

    @property
    def closed(self) -> bool: ...

    @property
    def goes_first(self) -> bool: ...


class Slice:
    """The right of one long piece of work to the loop. Holds: it keeps the loop a slice and one step long."""

    def __init__(self, clock_ms: Callable[[], float]) -> None:
        self._clock_ms = clock_ms
        self._length_ms = SLICE_MS
        self._since_ms = clock_ms()

    async def breathe(self) -> None:
        """Let others run when the slice is used up."""
        if self.is_over():
            await self.pause()

    def is_over(self) -> bool:
        return self._clock_ms() - self._since_ms >= self._length_ms

    async def pause(self) -> None:
        """Let others run; the next slice begins."""
        await self._pause()
        self._since_ms = self._clock_ms()

    async def _pause(self) -> None:
        await asyncio.sleep(0)


class Unhurried(Slice):
    """Of work that nobody waits for: slices of ``SHORT_MS``, and between two of them the loop is the others'
    for as long. A message on its way takes a few turns of the loop: it meets one slice, and not one in each.
    """

    def is_over(self) -> bool:
        return self._clock_ms() - self._since_ms >= SHORT_MS

    async def _pause(self) -> None:
        await asyncio.sleep(SHORT_MS / 1000)


P = TypeVar("P", bound=Peer)
T = TypeVar("T")


class Turn(Slice):
    """A slice of a request: ``breathe`` raises PeerLeft once nobody waits for the answer."""

    def __init__(self, peer: Peer, clock_ms: Callable[[], float]) -> None:
        super().__init__(clock_ms)
        self._peer = peer

    async def _pause(self) -> None:
        await asyncio.sleep(0)
        if self._peer.closed:
            raise PeerLeft


class Late(Turn):
    """A slice of a request that begins at once. When ``SHORT_MS`` are used up it waits for its turn, and has
    slices as any other."""

    def __init__(self, turns: Turns, peer: Peer, clock_ms: Callable[[], float]) -> None:
        super().__init__(peer, clock_ms)
        self._turns = turns
        self._length_ms = SHORT_MS
        self.entered = False

    async def _pause(self) -> None:
        if not self.entered:
            await self._turns.enter(self._peer, begun=True)
            self.entered, self._length_ms = True, SLICE_MS
        await super()._pause()


class _Waiting:
    """Those of one line. Holds: ``size`` is their number, and nobody is listed without any."""

    def __init__(self) -> None:
        self.by: dict[Peer, deque[asyncio.Future[None]]] = {}
        self.size = 0

    def has_room(self, peer: Peer) -> bool:
        if self.size >= WAITING_MAX:
            return False
        return 2 * self.size < WAITING_MAX or len(self.by.get(peer, ())) < WAITING_LEAST

    def add(self, peer: Peer, mine: asyncio.Future[None]) -> None:
        self.by.setdefault(peer, deque()).append(mine)
        self.size += 1

    def next(self) -> asyncio.Future[None]:
        """The first of the next connection, which is behind the others then."""
        peer = next(iter(self.by))
        queue = self.by.pop(peer)
        self.size -= 1
        found = queue.popleft()
        if queue:
            self.by[peer] = queue
        return found

    def forget(self, peer: Peer) -> deque[asyncio.Future[None]]:
        found = self.by.pop(peer, deque())
        self.size -= len(found)
        return found


class Turns:
    """Lets one long request work at a time. Connections take turns; those of one connection go in order.

    Those that go first have a line of their own, and at least every second turn. Holds: between two requests
    the loop goes round at least once, and no more than ``WAITING_MAX`` of clients wait to begin.
    """

    def __init__(self, clock_ms: Callable[[], float]) -> None:
        self._clock_ms = clock_ms
        self._taken = False
        self._first = _Waiting()
        self._others = _Waiting()
        self._first_is_next = True

    @property
    def is_taken(self) -> bool:
        """Whether who comes now has to wait."""
        return self._taken

    @property
    def waiting(self) -> int:
        return self._first.size + self._others.size

    @asynccontextmanager
    async def take(self, peer: Peer, *, begun: bool = False) -> AsyncIterator[Turn]:
        """Raises PeerLeft when the peer has gone before its turn came, and Refused: too many wait. What has
        ``begun`` is refused no more."""
        await self.enter(peer, begun=begun)
        try:
            if peer.closed:
                raise PeerLeft
            yield Turn(peer, self._clock_ms)
        finally:
            self.leave()

    @asynccontextmanager
    async def late(self, peer: Peer) -> AsyncIterator[Turn]:
        """Of what is short as a rule, and waits for nobody then."""
        turn = Late(self, peer, self._clock_ms)
        try:
            yield turn
        finally:
            if turn.entered:
                self.leave()

    async def enter(self, peer: Peer, *, begun: bool = False) -> None:
        """Return when it is the turn of ``peer``, who is to ``leave`` then. Raises as ``take``; what has
        ``begun`` is refused no more."""
        if not self._taken:
            self._taken = True
            return
        if peer.closed:
            raise PeerLeft
        line = self._first if peer.goes_first else self._others
        if not begun and line is self._others and not line.has_room(peer):
            raise Refused("too many requests wait for their turn, try again", Response.SYSTEM_BUSY)
        mine = asyncio.get_running_loop().create_future()
        line.add(peer, mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled() and mine.exception() is None:
                self.leave()  # the turn came in the same moment
            raise

    def forget(self, peer: Peer) -> None:
        """It has left: what of it waits ends now, and keeps no body."""
        for line in (self._first, self._others):
            for mine in line.forget(peer):
                if not mine.done():
                    mine.set_exception(PeerLeft())

    def leave(self) -> None:
        """Hand the turn to the next connection's first request."""
        while self.waiting:
            is_first = self._first.size > 0 and (self._first_is_next or not self._others.size)
            following = (self._first if is_first else self._others).next()
            if not following.done():
                self._first_is_next = not is_first
                following.set_result(None)
                return
        self._taken = False


async def in_slices(turns: Turns, peer: Peer, steps: Generator[None, None, T]) -> T:
    """The result of ``steps``, at once if there are few. Raises PeerLeft, and what they raise."""
    found: list[T] = []

    def run() -> Iterator[None]:
        found.append((yield from steps))

    left = run()
    for _ in left:
        async with turns.late(peer) as turn:
            await turn.breathe()
            for _ in left:
                await turn.breathe()
    return found[0]


class Leaving(Generic[P]):
    """Takes away what those leave who have ended, a slice in a turn of the loop, however many they are.

    ``step(peer)`` takes away a little of what it left, and says whether there is more.
    """

    def __init__(self, owner: str, clock_ms: Callable[[], float], step: Callable[[P], bool]) -> None:
        self._clock_ms = clock_ms
        self._step = step
        self._peers: dict[P, None] = {}
        self._tasks = Tasks(owner)
        self._working: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        return len(self._peers)

    def begin(self, peer: P) -> None:
        """It has ended. One that leaves little is gone when this returns."""
        if self._step(peer):
            self._peers[peer] = None
            if self._working is None or self._working.done():
                self._working = self._tasks.spawn(self._go_on(), name="leaving")

    async def _go_on(self) -> None:
        slice_ = Slice(self._clock_ms)
        while self._peers:
            await slice_.pause()
            while self._peers and not slice_.is_over():
                peer = next(iter(self._peers))
                if not self._step(peer):
                    del self._peers[peer]


class Shares:
    """Lets what was set free at once (a client left that a thousand waited for) begin over many turns.

    Holds: between two turns of the loop less than ``SHARE_BYTES`` and one more begin, in order; who comes
    while there is room does not wait. Counted in bytes, and not in time: under simulation it does the same.
    """

    def __init__(self) -> None:
        self._left = SHARE_BYTES
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._armed = False
        self._shut = False

    def shut(self) -> None:
        """Nobody begins until ``open``."""
        self._shut = True

    def open(self) -> None:
        self._shut = False
        if self._waiting and not self._armed:
            self._next()

    async def take(self, size: int, *, in_line: bool = False) -> None:
        """Return when work over ``size`` bytes may begin. ``in_line``: behind those that may, and did not
        yet."""
        waiting = self._waiting
        if self._left > 0 and not waiting and not self._shut and not in_line:
            self._spend(size)
            return
        while waiting and waiting[0][0].done():
            waiting.popleft()  # gave up
        mine = asyncio.get_running_loop().create_future()
        waiting.append((mine, size))
        if not self._armed and not self._shut:
            self._armed = True
            asyncio.get_running_loop().call_soon(self._next)
        await mine

    def _spend(self, size: int) -> None:
        self._left -= size
        if not self._armed:
            self._armed = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """A turn of the loop is over."""
        self._left, self._armed = SHARE_BYTES, False
        while self._waiting and self._left > 0 and not self._shut:
            mine, size = self._waiting.popleft()
            if not mine.done():
                self._spend(size)
                mine.set_result(None)
