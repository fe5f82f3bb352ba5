"""How is one queue consumed: pull, hand over, give back what failed, and know how far all is done?"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

from client.consuming.calling import is_taken
from client.consuming.pull import Pulled, PullStatus
from client.message import Queue, Received
from client.trace import Listener
from model.errors import MqError
from runtime.tasks import Tasks

log = logging.getLogger(__name__)

HELD_MAX: Final = 256
HELD_BYTES_MAX: Final = 64 << 20
AGAIN_S: Final = 0.2
"""After a pull that failed."""
SUSPEND_S: Final = 1.0
"""RocketMQ's ``suspendCurrentQueueTimeMillis``."""
GIVE_BACK_AGAIN_S: Final = 1.0
GIVE_BACK_LONGEST_S: Final = 60.0
"""At most, between two tries of a message that the broker does not take back; twice as long each time."""
EMPTY_S: Final = 0.05
"""A broker without long polling answers at once that nothing is there: do not spin."""


@dataclass(frozen=True, slots=True)
class Limits:
    """``concurrency`` calls per queue at once, ``batch_max`` messages per call, ``retry_max`` returns of one
    message; in order as many tries more, ``suspend_s`` apart. ``held_max`` messages, ``held_bytes_max`` bytes
    of bodies: pulled and not yet handled, per queue; beyond it the queue is not asked for more.
    """

    concurrency: int
    batch_max: int
    retry_max: int
    held_max: int = HELD_MAX
    held_bytes_max: int = HELD_BYTES_MAX
    suspend_s: float = SUSPEND_S


class Progress:
    """How far is a queue handled, when messages end in any order?

    Holds: ``handled`` is the smallest offset not yet done, and never moves back.
    """

    def __init__(self, offset: int) -> None:
        self.held_bytes = 0  # of bodies
        self._open: dict[int, None] = {}  # offsets handed out, ascending
        self._next = offset

    def took(self, offsets: list[int], next_offset: int) -> None:
        """``offsets`` (ascending) were pulled; everything else below ``next_offset`` needs no handling."""
        self._open.update(dict.fromkeys(offsets))
        self._next = max(self._next, next_offset)

    def done(self, offset: int) -> None:
        self._open.pop(offset, None)

    def restart(self, offset: int) -> None:
        """The broker moved us: what is open stays open, the rest begins at ``offset``."""
        self._next = offset

    @property
    def next(self) -> int:
        return self._next

    @property
    def held(self) -> int:
        return len(self._open)

    @property
    def handled(self) -> int:
        return next(iter(self._open), self._next)


class QueueWorker:
    """Consumes one queue until stopped. ``handled`` is the offset to commit."""

    def __init__(
        self,
        queue: Queue,
        offset: int,
        limits: Limits,
        *,
        orderly: bool,
        pull: Callable[[int], Awaitable[Pulled]],
        listener: Listener,
        give_back: Callable[[Received], Awaitable[None]],
        allowed: Callable[[], bool],
    ) -> None:
        self.queue = queue
        self.committed = -1
        self._progress = Progress(offset)
        self._limits = limits
        self._orderly = orderly
        self._pull = pull
        self._listener = listener
        self._give_back = give_back
        self._allowed = allowed
        self._stopped = False
        self._room = asyncio.Event()
        self._slots = asyncio.Semaphore(limits.concurrency)
        self._pulling = Tasks(f"pull {queue.topic}:{queue.broker_name}:{queue.queue_id}")
        self._calls = Tasks(f"consume {queue.topic}:{queue.broker_name}:{queue.queue_id}")

    @property
    def handled(self) -> int:
        return self._progress.handled

    def start(self) -> None:
        self._pulling.spawn(self._run(), name="pull")

    async def stop(self, grace_s: float = 3.0) -> None:
        """Pull no more; let the calls under way end within ``grace_s``; what did not end comes again
        elsewhere.
        """
        self._stopped = True
        await self._halt(grace_s)

    async def seek(self, offset: int, grace_s: float = 3.0) -> None:
        """Go on at ``offset``, and let that be how far all is handled at once: calls under way end first, as
        with ``stop``, and count no more."""
        self._progress = Progress(offset)
        await self._halt(grace_s)
        if self._stopped:
            return
        self._progress = Progress(offset)
        self._slots = asyncio.Semaphore(self._limits.concurrency)
        self.start()

    async def _halt(self, grace_s: float) -> None:
        await self._pulling.cancel()
        deadline = asyncio.get_running_loop().time() + grace_s
        for _ in range(self._limits.concurrency):
            try:
                async with asyncio.timeout_at(deadline):
                    await self._slots.acquire()
            except TimeoutError:
                break
        await self._calls.cancel()

    async def _run(self) -> None:
        while True:
            if not self._allowed():
                await asyncio.sleep(AGAIN_S)
                continue
            at = self._progress.next
            try:
                pulled = await self._pull(at)
            except (OSError, MqError) as error:
                log.debug("pull of %s at %d: %s", self.queue, at, error)
                await asyncio.sleep(AGAIN_S)
                continue
            if pulled.status is PullStatus.MOVED:
                log.warning("offset %d of %s moved to %d by the broker", at, self.queue, pulled.next_offset)
                self._progress.restart(pulled.next_offset)
                self.committed = -1  # what the broker has is another one now
                continue
            if pulled.status is PullStatus.NO_NEW:
                await asyncio.sleep(EMPTY_S)
                continue
            await self._hand_out(pulled)

    @property
    def _full(self) -> bool:
        progress, limits = self._progress, self._limits
        return progress.held >= limits.held_max or progress.held_bytes >= limits.held_bytes_max

    async def _hand_out(self, pulled: Pulled) -> None:
        self._progress.took([message.queue_offset for message in pulled.messages], pulled.next_offset)
        self._progress.held_bytes += sum(len(message.body) for message in pulled.messages)
        size = self._limits.batch_max
        for begin in range(0, len(pulled.messages), size):
            part = pulled.messages[begin : begin + size]
            await self._slots.acquire()
            self._calls.spawn(self._consume(part), name="call")
        while self._full:
            self._room.clear()
            await self._room.wait()

    async def _consume(self, messages: list[Received]) -> None:
        waiting: list[Received] = []
        try:
            if self._orderly:
                await self._in_order(messages)
            elif not await is_taken(self._listener, messages):
                waiting = [message for message in messages if not await self._is_given_back(message)]
            later = {message.queue_offset for message in waiting}
            for message in messages:
                if message.queue_offset not in later:
                    self._done(message)
        finally:
            self._slots.release()
        for message in waiting:
            self._calls.spawn(self._later(message), name="later")

    async def _in_order(self, messages: list[Received]) -> None:
        """Return when each was handled, or is a dead letter: nothing behind them may pass. Counts the tries
        as RocketMQ's orderly consumers do."""
        while True:
            if not self._allowed():
                await asyncio.sleep(AGAIN_S)
                continue
            if await is_taken(self._listener, messages):
                return
            left = []
            for message in messages:
                if message.reconsume_times < self._limits.retry_max or not await self._is_given_back(message):
                    left.append(replace(message, reconsume_times=message.reconsume_times + 1))
            if not left:
                return
            messages = left
            await asyncio.sleep(self._limits.suspend_s)

    def _done(self, message: Received) -> None:
        self._progress.done(message.queue_offset)
        self._progress.held_bytes -= len(message.body)
        self._room.set()

    async def _later(self, message: Received) -> None:
        """Handle again, here, what the broker does not take back, and let the others of the queue go on.

        Not given back means not done: the offset stays below it until one of both works.
        """
        wait_s = GIVE_BACK_AGAIN_S
        while True:
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, GIVE_BACK_LONGEST_S)
            async with self._slots:
                if await is_taken(self._listener, [message]) or await self._is_given_back(message):
                    break
        self._done(message)

    async def _is_given_back(self, message: Received) -> bool:
        try:
            await self._give_back(message)
        except (OSError, MqError) as error:
            log.warning("message %s not given back yet: %s", message.msg_id, error)
            return False
        return True
