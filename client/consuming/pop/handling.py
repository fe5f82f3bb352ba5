"""What becomes of messages in flight? Handed over, kept hidden meanwhile, then acknowledged or returned.

A message ends in one of four ways: acknowledged; returned, to come again after a while; a dead letter, stored
as such before it is acknowledged; or left, when the broker could not be told: then it comes again by itself.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from client.consuming.calling import is_taken
from client.consuming.pop.acks import AGAIN_S, Acks, surely
from client.consuming.pop.calls import PopCalls, Popped
from client.consuming.pop.options import PopOptions
from client.trace import Listener
from model.errors import MqError
from runtime.env import Env
from runtime.tasks import Tasks

log = logging.getLogger(__name__)

RENEW_PART: Final = 0.5
"""Of the time a message is hidden: when so much is left, it is kept for longer."""


class Verdict(enum.Enum):
    """What the listener said. LATE: nothing, others may have the message already; UNASKED: it was not asked,
    the consumer stops."""

    DONE = "done"
    FAILED = "failed"
    LATE = "late"
    UNASKED = "unasked"


class Handler:
    """Handles the messages of one consumer; ``concurrency`` calls at once, all sources together."""

    def __init__(self, env: Env, calls: PopCalls, listener: Listener, options: PopOptions) -> None:
        self.stopping = False
        self._env = env
        self._calls = calls
        self._listener = listener
        self._options = options
        self._slots = asyncio.Semaphore(options.concurrency)
        self._tasks = Tasks("pop listener")

    async def handle(self, batch: Sequence[Popped], acks: Acks) -> None:
        """Returns when all of ``batch`` have come to their end."""
        call = self._tasks.spawn(self._call(batch), name="call")
        try:
            verdict = await self._keep(batch, call)
        except asyncio.CancelledError:
            call.cancel()
            raise
        if verdict is Verdict.LATE:
            log.info("%d messages waited too long for the listener: they come again", len(batch))
            return
        for popped in batch:
            popped.settled = True
        await asyncio.gather(*(self._end(popped, verdict, acks) for popped in batch))

    async def fail(self, popped: Popped, after_ms: int) -> None:
        """Let it come again after ``after_ms``, to any member."""
        await self._return(popped, lambda: self._calls.change(popped, after_ms))

    async def give_back(self, popped: Popped) -> None:
        """Let it come again at once, to any member, as one that did not fail."""
        await self._return(popped, lambda: self._calls.change(popped, 0, suspend=True))

    async def _return(self, popped: Popped, change: Callable[[], Awaitable[None]]) -> None:
        why = await surely(self._env, self._calls, popped, change)
        if why:
            log.info("message %s comes again by itself: %s", popped.message.msg_id, why)

    async def drain(self) -> None:
        """Wait for the calls under way."""
        await self._tasks.join()

    async def stop(self) -> None:
        await self._tasks.cancel()

    async def _call(self, batch: Sequence[Popped]) -> Verdict:
        async with self._slots:
            if self.stopping:
                return Verdict.UNASKED
            if min(one.until_ms for one in batch) <= self._env.monotonic_ms():
                return Verdict.LATE
            taken = await is_taken(self._listener, [one.message for one in batch])
        return Verdict.DONE if taken else Verdict.FAILED

    async def _keep(self, batch: Sequence[Popped], call: asyncio.Task[Verdict]) -> Verdict:
        """Keep ``batch`` hidden while ``call`` runs."""
        invisible_ms = int(self._options.invisible_s * 1000)
        give_up_ms = self._env.monotonic_ms() + self._options.keep_s * 1000
        again_s = 0.0
        while True:
            now_ms = self._env.monotonic_ms()
            hidden = [one for one in batch if one.until_ms > now_ms]
            if not hidden or now_ms >= give_up_ms:
                return await call  # others may have it now; what the listener says counts all the same
            left_ms = min(one.until_ms for one in hidden) - now_ms
            wait_s = max(again_s, left_ms / 1000 - self._options.invisible_s * RENEW_PART)
            await asyncio.wait((call,), timeout=wait_s)
            if call.done():
                return call.result()
            again_s = AGAIN_S
            await asyncio.gather(*(self._renew(one, invisible_ms) for one in hidden))

    async def _renew(self, popped: Popped, invisible_ms: int) -> None:
        try:
            await self._calls.change(popped, invisible_ms)
        except (OSError, MqError) as error:
            log.info("message %s not kept yet: %s", popped.message.msg_id, error or type(error).__name__)

    async def _end(self, popped: Popped, verdict: Verdict, acks: Acks) -> None:
        if verdict is Verdict.DONE:
            await self._acknowledge(popped, acks)
        elif verdict is Verdict.FAILED:
            await self._fail(popped, acks)
        else:
            await self.give_back(popped)

    async def _acknowledge(self, popped: Popped, acks: Acks) -> None:
        why = await acks.ack(popped)
        if why:
            log.info("message %s is handled and comes again: %s", popped.message.msg_id, why)

    async def _fail(self, popped: Popped, acks: Acks) -> None:
        failures = popped.message.reconsume_times + 1
        if failures <= self._options.retry_max:
            await self.fail(popped, self._options.retry_after_ms(failures))
            return
        why = await surely(self._env, self._calls, popped, lambda: self._calls.bury(popped))
        if why:
            log.warning("message %s is no dead letter yet: %s", popped.message.msg_id, why)
            await self.fail(popped, self._options.retry_after_ms(failures))
        else:
            await self._acknowledge(popped, acks)
