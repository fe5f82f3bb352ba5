"""How much work may the SQL92 expressions of all consumers be in one turn of the loop?

What an expression costs depends on a message as well: its terms, and the lengths of properties times those of
what is searched in them. It is counted in steps before it is done, and paid from one budget, whoever asks:
a pull, a pop over all queues of its topic, the pulls and pops that wait. What does not fit goes on in a later
turn, where connections take turns. A message whose evaluation is more than a whole turn is searched over
several of them; what was found so far is kept here meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from broker.state.clients import SQL92, Subscription
from model.sql92 import Filter, Texts, is_compiled
from runtime.turns import Peer, Turns

TURN_STEPS: Final = 4_000_000
"""A step takes about a nanosecond."""
TURN_MS: Final = 5.0
RECORD_STEPS: Final = 8_000
"""Of reading a record and its properties."""
BYTES_A_STEP: Final = 4
"""Of a record, where it is copied."""
COMPILE_STEPS: Final = 600
"""Of making an expression of a character."""
BEGUN_MAX: Final = 8
"""Evaluations that go on in a later turn; who waits for one keeps its turn. The eldest of more begin anew."""
ANSWERS_MAX: Final = 256
ANSWERS_CHARS_MAX: Final = 4 << 20
DEAR_STEPS: Final = 20_000
"""The outcome of so much is kept for those who ask the same: many pulls may wait with one expression."""


ROUND: Final = 16
"""Turns of the loop; then the next connection goes on, unless an evaluation does."""

T = TypeVar("T")


class NoRoom(Exception):
    """This turn has no room for what is asked; a later one has. ``subscription``: what was read of it."""

    def __init__(self, subscription: Subscription | None = None) -> None:
        super().__init__("in a later turn")
        self.subscription = subscription


class Own:
    """Stands for this broker's own work among the connections that take turns."""

    closed = False
    goes_first = True


class _Begun:
    """An evaluation that goes on."""

    __slots__ = ("searches", "texts")

    def __init__(self, texts: Texts, searches: Iterator[int]) -> None:
        self.texts = texts
        self.searches = searches


class Effort:
    """Holds: in one turn of the loop no more than ``TURN_STEPS`` are done, and one record or search."""

    def __init__(self, clock_ms: Callable[[], float]) -> None:
        self.own: Peer = Own()
        self.left = TURN_STEPS
        self._clock_ms = clock_ms
        self._until_ms = 0.0
        self._turned = asyncio.Event()
        self._turns = Turns(clock_ms)
        self._begun: OrderedDict[tuple[str, str], _Begun] = OrderedDict()
        self._goes_on = False
        """Whether the last evaluation does, in a later turn."""
        self._answers: dict[tuple[str, str], bool] = {}
        self._answers_chars = 0

    @property
    def is_fresh(self) -> bool:
        """Whether nothing was done in this turn."""
        return self.left == TURN_STEPS

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to begin in this turn."""
        return self.left <= 0 or (not self.is_fresh and self._clock_ms() >= self._until_ms)

    @property
    def is_busy(self) -> bool:
        """Whether who comes now has to wait."""
        return self._turns.is_taken or self.is_over

    @asynccontextmanager
    async def turn(self, peer: Peer, *, begun: bool = False) -> AsyncIterator[None]:
        """Wait until it is the peer's turn, and for a turn of the loop in which nothing was done; nobody else
        begins before it ends. Raises as ``Turns.take``."""
        async with self._turns.take(peer, begun=begun):
            await self.next_turn()
            yield

    def forget(self, peer: Peer) -> None:
        """It has left."""
        self._turns.forget(peer)

    async def through(self, peer: Peer, steps: Generator[None, None, T]) -> T:
        """The result of ``steps``, in as many turns of the peer as they need. Raises as ``turn``, and what
        they raise."""
        found: list[T] = []

        def run() -> Iterator[None]:
            found.append((yield from steps))

        left, begun = run(), False
        while not found:
            async with self.turn(peer, begun=begun):
                await self.go_on(left)
            begun = True
        return found[0]

    async def go_on(self, steps: Iterator[None]) -> bool:
        """In a turn of a peer: some of ``steps``, each in a turn of the loop in which nothing was done;
        whether there are more. Who waits for an evaluation that goes on keeps its turn."""
        self._goes_on = False
        for number, _ in enumerate(steps, 1):
            goes_on = self._goes_on
            await asyncio.sleep(0)
            if number >= ROUND and not goes_on:
                return True
            await self.next_turn()
            self._goes_on = False  # of this step alone: the next one may evaluate nothing
        return False

    async def next_turn(self) -> None:
        """Wait for a turn of the loop in which nothing was done."""
        while not self.is_fresh:
            await self._turned.wait()

    def read(self, expression: str, kind: str) -> None:
        """An expression is to be compiled."""
        if kind == SQL92 and not is_compiled(expression):
            self.spend(COMPILE_STEPS * len(expression))

    def spend(self, steps: int) -> None:
        if self.is_fresh:
            self._until_ms = self._clock_ms() + TURN_MS
            asyncio.get_running_loop().call_soon(self._new_turn)
        self.left -= max(steps, 1)

    def _new_turn(self) -> None:
        self.left = TURN_STEPS
        self._turned.set()
        self._turned = asyncio.Event()

    def chooses(self, chooses: Filter, record_bytes: int, text: str) -> bool | None:
        """Whether a message with these properties is chosen; None: that is known in a later turn."""
        self.spend(RECORD_STEPS + min(record_bytes // BYTES_A_STEP, TURN_STEPS // 4))
        self._goes_on = False
        key = (chooses.expression, text)
        known = self._answers.get(key)
        if known is not None:
            return known
        begun = self._begun.pop(key, None)
        if begun is None:
            texts = Texts.parse(text)
            steps = chooses.steps(texts)
            if steps <= self.left:
                self.spend(steps)
                found = chooses.of(texts)
                if steps >= DEAR_STEPS:
                    self._keep(key, found)
                return found
            if steps <= TURN_STEPS // 2 or self.left <= 0:
                return None  # in a turn of its own
            begun = _Begun(texts, chooses.search(texts))
        for done in begun.searches:
            self.spend(done)
            if self.left <= 0:
                break
        else:
            self.spend(chooses.terms_steps)
            found = chooses.of(begun.texts)
            self._keep(key, found)
            return found
        self._begun[key] = begun
        self._goes_on = True
        if len(self._begun) > BEGUN_MAX:
            self._begun.popitem(last=False)
        return None

    def _keep(self, key: tuple[str, str], found: bool) -> None:
        chars = sum(map(len, key))
        self._answers_chars += chars
        if len(self._answers) >= ANSWERS_MAX or self._answers_chars > ANSWERS_CHARS_MAX:
            self._answers.clear()
            self._answers_chars = chars
        self._answers[key] = found
