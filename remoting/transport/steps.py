"""Which requests that have begun go on in this turn of the loop?

A request waits, for its turn, a thread or a copy, and goes on. What many wait for may come to all of them at
once, and fifty that began in one turn (``starts``) may each hold the loop for 10 ms. So a turn has so much
time for all their steps, each a piece between two waits: once ``TURN_MS`` are used up, the others wait for
later turns, and connections take turns. Peers wait for nobody; who merely says that it is one waits in a line
of its own, from which every second one is called.

Under simulation the clock stands still while code runs: nobody waits there.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any, Final, Protocol, TypeVar

from remoting.transport.order import WAITS
from runtime.report.slow_turns import SLOW_MS, SlowTurns

TURN_MS: Final = 10.0
NOTED_MS: Final = 1.0
"""What the steps of a few turns take together without being told from one."""
CALLED_LEAST: Final = 4
CALLED_MAX: Final = 256
"""So many look at the same time whether the turn has time left; the others wait for these."""

T = TypeVar("T")


class Standing(Protocol):
    """What a connection is to its server. ``reads``: None of a peer, and of one that this side dialled."""

    @property
    def reads(self) -> object | None: ...

    @property
    def goes_first(self) -> bool: ...


class Asking(Protocol):
    """A connection whose requests have begun."""

    remote: str
    attributes: dict[str, Any]

    @property
    def share(self) -> Standing: ...

    def hold(self, held: bool) -> None:
        """Nothing more of it is read or begins."""


class Steps:
    """Of the requests of one server. Holds: until the loop has gone round, clients' steps take less than
    ``TURN_MS`` and one step more, and one of them is taken at least."""

    def __init__(self, slow: SlowTurns) -> None:
        self._slow = slow
        self._used_ms = 0.0
        self._armed = False
        self._called = 0
        self._most = CALLED_LEAST  # that are called at once
        self._vain = False  # some of these found no time
        self._waiting: Counter[Asking] = Counter()  # those called among them
        self._line: dict[Asking, deque[asyncio.Future[None]]] = {}
        self._first: dict[Asking, deque[asyncio.Future[None]]] = {}
        self._first_is_next = True

    @coroutine
    def run(self, connection: Asking, work: Coroutine[Any, Any, T], what: str) -> Generator[Any, Any, T]:
        """Run ``work`` step by step, and time each; its result."""
        now_ms = self._slow.now_ms
        thrown: BaseException | None = None
        while True:
            try:
                if thrown is None and (self._called or self._line or self._first or self._used_ms >= TURN_MS):
                    yield from self._turn(connection)
            except GeneratorExit:
                work.close()
                raise
            except BaseException as error:  # noqa: BLE001 - handed on to the work, as await does
                thrown = error
            began_ms = now_ms()
            try:
                waits_for = work.send(None) if thrown is None else work.throw(thrown)
            except StopIteration as stop:
                result: T = stop.value
                return result
            finally:
                took_ms = now_ms() - began_ms
                self._took(took_ms)
                if took_ms >= SLOW_MS:
                    self._slow.note(took_ms, what, connection.remote)
            thrown = None
            try:
                yield waits_for
            except GeneratorExit:
                work.close()
                raise
            except BaseException as error:  # noqa: BLE001 - handed on to the work, as await does
                thrown = error

    def _took(self, took_ms: float) -> None:
        self._used_ms += took_ms
        if self._used_ms >= NOTED_MS and not self._armed:
            self._armed = True
            asyncio.get_running_loop().call_soon(self._turned)

    def _turned(self) -> None:
        self._used_ms, self._armed = 0.0, False

    def _turn(self, connection: Asking) -> Generator[Any, Any, None]:
        """Return when a step may be taken. A peer waits for what it asked for as a client alone.

        Of one whose sends wait (``order``) nothing is read meanwhile: all it sent would take the ordinary way
        behind them, and fill the turns that follow.
        """
        if connection.share.reads is None and connection not in self._waiting:
            return
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        is_first = connection.share.goes_first and connection not in self._line
        (self._first if is_first else self._line).setdefault(connection, deque()).append(mine)
        self._waiting[connection] += 1
        is_held = WAITS in connection.attributes
        try:
            if is_held:
                connection.hold(True)
            self._call()
            yield from mine.__await__()
            while self._used_ms >= TURN_MS and connection.share.reads is not None:
                self._vain = True
                yield
        finally:
            self._went_on(connection, mine)
            if is_held:
                connection.hold(False)  # last: it may raise, and all others wait for the turn

    def _went_on(self, connection: Asking, mine: asyncio.Future[None]) -> None:
        """It goes on, or was cancelled, or its connection could not be held."""
        self._waiting[connection] -= 1
        if not self._waiting[connection]:
            del self._waiting[connection]
        if not mine.cancel() and not mine.cancelled():
            self._called -= 1
            if not self._called:
                most = self._most // 2 if self._vain else self._most * 2
                self._most, self._vain = max(CALLED_LEAST, min(CALLED_MAX, most)), False
                self._call()

    def _call(self) -> None:
        """Once all that were called have gone on, call the next ones."""
        if self._called:
            return
        while (self._line or self._first) and self._called < self._most:
            is_first = bool(self._first) and (self._first_is_next or not self._line)
            self._first_is_next = not is_first
            line = self._first if is_first else self._line
            connection = next(iter(line))
            waiting = line.pop(connection)
            mine = waiting.popleft()
            if waiting:
                line[connection] = waiting  # behind the other connections
            if not mine.done():
                self._called += 1
                mine.set_result(None)
