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
    """Goes through ``search(key)`` of each key that was noted, in a turn of all searches
    (``broker/state/effort``): a step in a turn of the loop, and nobody else meanwhile. An error is the key's
    own."""

    def __init__(self, tasks: Tasks, effort: Effort, search: Callable[[K], Iterator[None]]) -> None:
        self._tasks = tasks
        self._effort = effort
        self._search = search
        self._line: OrderedDict[K, None] = OrderedDict()
        self._working: asyncio.Task[None] | None = None

    def note(self, key: K) -> None:
        self._line[key] = None
        if self._working is None or self._working.done():
            self._working = self._tasks.spawn(self._go_on(), name="search")

    def forget(self, key: K) -> None:
        """Nobody waits for its search any more."""
        self._line.pop(key, None)

    def clear(self) -> None:
        self._line.clear()

    async def _go_on(self) -> None:
        effort, line = self._effort, self._line
        while line:
            async with effort.turn(effort.own):
                if not line:
                    return  # it was cleared meanwhile
                key = line.popitem(last=False)[0]
                try:
                    for _ in self._search(key):
                        await asyncio.sleep(0)
                        await effort.next_turn()
                except Exception:
                    log.exception("those that wait for %s: a search for them failed", key)
