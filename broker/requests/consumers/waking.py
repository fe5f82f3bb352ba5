"""Which of those that wait is looked at next?

Pulls, pops and notifications wait for messages. What may have become of use to somebody is noted, each key
once, and gone through a slice a turn of the loop. Keys take turns: one that very many wait for does not hold
up the others. Neither does a search by an expression: searches have a line of their own.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Final, Generic, TypeVar

from broker.state.effort import Effort
from model.codes import Response
from model.errors import MqError, Refused
from remoting.codec import Command
from runtime.tasks import Tasks
from runtime.turns import Slice

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

ROUND: Final = 32
"""Steps of one key; then the next one goes on."""


def failed(request: Command, what: str, error: Exception) -> Command:
    """The answer to one that waited when a look at it failed, also by a mistake of ours: it waits no more,
    and those beside it go on."""
    if isinstance(error, Refused):
        return request.reply(error.code, remark=error.remark)
    if isinstance(error, (MqError, OSError, ValueError, struct.error)):
        log.warning("%s: %s", what, error)
        return request.reply(Response.SYSTEM_ERROR, remark=str(error))
    log.error("%s failed", what, exc_info=error)
    return request.reply(Response.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")


class Waking(Generic[K]):
    """Goes through ``steps(key)`` of each key that was noted. An error is the key's own: the others go on.

    Holds: who notes a key has all its steps gone through after that, from the first one on, also while they
    are being gone through. The loop is kept a slice and one step long.
    """

    def __init__(
        self, tasks: Tasks, clock_ms: Callable[[], float], steps: Callable[[K], Iterator[None]]
    ) -> None:
        self._tasks = tasks
        self._clock_ms = clock_ms
        self._steps = steps
        self._line: OrderedDict[K, Iterator[None] | None] = OrderedDict()
        """None: nobody began with it."""
        self._again: set[K] = set()
        self._working: asyncio.Task[None] | None = None

    def note(self, key: K) -> None:
        if self._line.setdefault(key) is not None:
            self._again.add(key)
        if self._working is None or self._working.done():
            # One turn later: what comes together is looked at together.
            self._working = self._tasks.spawn(self._go_on(), name="wake")

    def is_noted(self, key: K) -> bool:
        """Whether to note it would change nothing."""
        return key in self._again or (key in self._line and self._line[key] is None)

    def clear(self) -> None:
        self._line.clear()
        self._again.clear()

    async def _go_on(self) -> None:
        slice_, line = Slice(self._clock_ms), self._line
        while line:
            key = next(iter(line))
            steps = line[key]
            if steps is None:
                steps = line[key] = self._steps(key)
            left = ROUND
            try:
                for _ in steps:
                    left -= 1
                    if slice_.is_over():
                        await slice_.pause()
                    if not left:
                        break
            except Exception:
                log.exception("those that wait for %s: a look at them failed", key)
            if line.get(key) is not steps:  # it was cleared meanwhile
                continue
            if not left:
                line.move_to_end(key)
                continue
            del line[key]
            if key in self._again:
                self._again.remove(key)
                line[key] = None
            if left == ROUND and slice_.is_over():
                await slice_.pause()


class Searches(Generic[K]):
    """Goes through ``search(key)`` of each key that was noted, in turns of all searches
    (``broker/state/effort``), as a client does. An error is the key's own.

    Holds: who notes a key has all its steps gone through after that, also while they are being gone through.
    """

    def __init__(self, tasks: Tasks, effort: Effort, search: Callable[[K], Iterator[None]]) -> None:
        self._tasks = tasks
        self._effort = effort
        self._search = search
        self._line: OrderedDict[K, None] = OrderedDict()
        self._begun: dict[K, Iterator[None]] = {}
        """What is left of those that go on in a later turn: each is in the line."""
        self._again: set[K] = set()
        self._working: asyncio.Task[None] | None = None

    def note(self, key: K) -> None:
        if key in self._begun:
            self._again.add(key)
        self._line.setdefault(key)
        if self._working is None or self._working.done():
            self._working = self._tasks.spawn(self._go_on(), name="search")

    def forget(self, key: K) -> None:
        """Nobody waits for its search any more."""
        self._line.pop(key, None)
        self._begun.pop(key, None)
        self._again.discard(key)

    def clear(self) -> None:
        self._line.clear()
        self._begun.clear()
        self._again.clear()

    async def _go_on(self) -> None:
        effort, line = self._effort, self._line
        while line:
            async with effort.turn(effort.own):
                if not line:
                    return  # it was cleared meanwhile
                key = line.popitem(last=False)[0]
                steps = self._begun.pop(key, None) or self._search(key)
                has_more = False
                try:
                    has_more = await effort.go_on(steps)
                except Exception:
                    log.exception("those that wait for %s: a search for them failed", key)
            self._went_on(key, steps if has_more else None)

    def _went_on(self, key: K, left: Iterator[None] | None) -> None:
        """It goes on with what is left behind the others, and once more if it was noted meanwhile."""
        if left is not None:
            if key in self._line:
                self._again.add(key)
            self._begun[key] = left
            self._line.setdefault(key)
        elif key in self._again:
            self._again.remove(key)
            self._line.setdefault(key)
