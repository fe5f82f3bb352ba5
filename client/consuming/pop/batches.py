"""Which messages does a consumer have in flight, and what becomes of them when it stops?"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from client.consuming.pop.acks import Acks
from client.consuming.pop.calls import Popped
from client.consuming.pop.handling import Handler
from client.consuming.pop.in_flight import Holding
from runtime.tasks import Tasks

log = logging.getLogger(__name__)

RETURN_S: Final = 1.0
"""How long a stop tries to return what it could not handle any more."""


class Batches:
    """Each batch in flight is a task of its own, until its messages have come to their end."""

    def __init__(self, handler: Handler, batch_max: int) -> None:
        self._handler = handler
        self._batch_max = batch_max
        self._ends = Tasks("popped")
        self._held: dict[Popped, None] = {}
        self._freed = asyncio.Event()

    @property
    def stopping(self) -> bool:
        return self._handler.stopping

    async def freed(self) -> None:
        """Wait until there is more room than now."""
        self._freed.clear()
        await self._freed.wait()

    def on_room(self) -> None:
        self._freed.set()

    def take(self, found: Sequence[Popped], wanted: Sequence[str], acks: Acks, holding: Holding) -> None:
        """Hand over those with a tag that is ``wanted`` (empty: all); ``holding`` hears of each end."""
        self._held.update(dict.fromkeys(found))
        chosen = [one for one in found if not wanted or one.message.tags in wanted]
        for begin in range(0, len(chosen), self._batch_max):
            batch = chosen[begin : begin + self._batch_max]
            self._ends.spawn(self._end(batch, acks, holding), name="batch")
        others = [one for one in found if wanted and one.message.tags not in wanted]
        for one in others:  # the broker compares hashes of tags
            self._ends.spawn(self._pass(one, acks, holding), name="other")

    async def finish(self, grace_s: float) -> bool:
        """Hand nothing over any more, and wait for what is under way; False when that was said before."""
        if self.stopping:
            return False
        self._handler.stopping = True
        self._freed.set()
        try:
            async with asyncio.timeout(grace_s):
                await self._handler.drain()
                await self._ends.join()
        except TimeoutError:
            log.info("%d messages are not handled after %.1f s: they go back", len(self._held), grace_s)
        return True

    async def give_back(self) -> None:
        """Break off what is under way: it comes to another member now, not when its time is over."""
        held = list(self._held)
        await self._handler.stop()
        await self._ends.cancel()
        left = [one for one in held if not one.settled]
        if not left:
            return
        try:
            async with asyncio.timeout(RETURN_S):
                await asyncio.gather(*(self._handler.give_back(one) for one in left))
        except TimeoutError:
            log.info("not all messages went back, they come again by themselves")

    async def _end(self, batch: Sequence[Popped], acks: Acks, holding: Holding) -> None:
        try:
            await self._handler.handle(batch, acks)
        finally:
            self._ended(batch, holding)

    async def _pass(self, popped: Popped, acks: Acks, holding: Holding) -> None:
        try:
            await acks.ack(popped)
        finally:
            self._ended([popped], holding)

    def _ended(self, batch: Sequence[Popped], holding: Holding) -> None:
        for one in batch:
            del self._held[one]
            holding.on_end(one.message.size_bytes)
        self._freed.set()
