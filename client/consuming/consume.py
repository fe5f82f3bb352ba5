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
GRACE_S: Final = 3.0
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
    of bodies: pulled and not yet handled, per queue; beyond it the queue is not asked for more. ``grace_s``:
    calls under way may take so long yet, when the queue goes or is read from elsewhere on.
    """

    concurrency: int
    batch_max: int
    retry_max: int
    held_max: int = HELD_MAX
    held_bytes_max: int = HELD_BYTES_MAX
    suspend_s: float = SUSPEND_S
    grace_s: float = GRACE_S


class Progress:
    """How far is a queue handled, when messages end in any order?

    Holds: ``handled`` is the smallest offset not yet done, and never moves back. ``over``: what is still
    under way counts no more, as the queue is read from elsewhere on, or not at all.
    """

    def __init__(self, offset: int) -> None:
        self.over = asyncio.Event()
        self.held_bytes = 0  # of bodies
        self._open: dict[int, None] = {}  # offsets handed out, ascending
        self._next = offset

    def took(self, offsets: list[int], next_offset: int) -> None:
        """``offsets`` (ascending) were pulled; everything else below ``next_offset`` needs no handling."""
        self._open.update(dict.fromkeys(offsets))
        self._next = max(self._next, next_offset)

    def done(self, offset: int) -> None:
        self._open.pop(offset, None)

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
        self._room = asyncio.Event()
        self._slots = asyncio.Semaphore(limits.concurrency)
        self._pulling = Tasks(f"pull {queue.topic}:{queue.broker_name}:{queue.queue_id}")
        self._calls = Tasks(f"consume {queue.topic}:{queue.broker_name}:{queue.queue_id}")
        self._moves = Tasks(f"move {queue.topic}:{queue.broker_name}:{queue.queue_id}")
        self._turn = asyncio.Lock()

    @property
    def handled(self) -> int:
        return self._progress.handled

    @property
    def stopped(self) -> bool:
        return self._progress.over.is_set()

    def start(self) -> None:
        self._pulling.spawn(self._run(self._progress), name="pull")

    async def stop(self) -> None:
        """Pull no more; let the calls under way end within ``grace_s``; what did not end comes again
        elsewhere. May be broken off, and called again.
        """
        self._progress.over.set()
        await self._moves.join()
        await self._halt()

    def seek(self, offset: int) -> None:
        """Let ``offset`` be how far all is handled, and go on there: calls under way end first, as with
        ``stop``, and count no more."""
        if self.stopped:
            return
        self._progress.over.set()
        self._progress = progress = Progress(offset)
        self.committed = -1  # where the broker moved the queue, it may have moved the group's offset
        self._moves.spawn(self._move(progress), name="move")

    async def _move(self, progress: Progress) -> None:
        async with self._turn:
            await self._halt()
            if not progress.over.is_set():  # else another move follows, or none
                self._slots = asyncio.Semaphore(self._limits.concurrency)
                self.start()

    async def _halt(self) -> None:
        await self._pulling.cancel()
        taken = 0
        try:
            async with asyncio.timeout(self._limits.grace_s):
                while taken < self._limits.concurrency:
                    await self._slots.acquire()
                    taken += 1
        except TimeoutError:
            log.info("calls for %s are broken off after %.1f s", self.queue, self._limits.grace_s)
        finally:
            for _ in range(taken):
                self._slots.release()
        await self._calls.cancel()

    async def _run(self, progress: Progress) -> None:
        while True:
            if not self._allowed():
                await asyncio.sleep(AGAIN_S)
                continue
            at = progress.next
            try:
                pulled = await self._pull(at)
            except (OSError, MqError) as error:
                log.debug("pull of %s at %d: %s", self.queue, at, error)
                await asyncio.sleep(AGAIN_S)
                continue
            if pulled.status is PullStatus.MOVED:
                log.warning("offset %d of %s moved to %d by the broker", at, self.queue, pulled.next_offset)
                if pulled.reset or pulled.next_offset < at:
                    self.seek(pulled.next_offset)
                    return
                progress.took([], pulled.next_offset)
                continue
            if pulled.status is PullStatus.NO_NEW:
                await asyncio.sleep(EMPTY_S)
                continue
            await self._hand_out(pulled, progress)

    def _is_full(self, progress: Progress) -> bool:
        limits = self._limits
        return progress.held >= limits.held_max or progress.held_bytes >= limits.held_bytes_max

    async def _hand_out(self, pulled: Pulled, progress: Progress) -> None:
        progress.took([message.queue_offset for message in pulled.messages], pulled.next_offset)
        progress.held_bytes += sum(len(message.body) for message in pulled.messages)
        size = self._limits.batch_max
        for begin in range(0, len(pulled.messages), size):
            part = pulled.messages[begin : begin + size]
            await self._slots.acquire()
            self._calls.spawn(self._consume(part, progress), name="call")
        while self._is_full(progress):
            self._room.clear()
            await self._room.wait()

    async def _consume(self, messages: list[Received], progress: Progress) -> None:
        left: list[Received] = []
        try:
            if self._orderly:
                left = await self._in_order(messages, progress)
            elif not await is_taken(self._listener, messages):
                left = [message for message in messages if not await self._is_given_back(message)]
            later = {message.queue_offset for message in left}
            for message in messages:
                if message.queue_offset not in later:
                    self._done(message, progress)
        finally:
            self._slots.release()
        if not self._orderly:
            for message in left:
                self._calls.spawn(self._later(message, progress), name="later")

    async def _in_order(self, messages: list[Received], progress: Progress) -> list[Received]:
        """Return when each was handled, or is a dead letter: nothing behind them may pass. Counts the tries
        as RocketMQ's orderly consumers do. What is left when it is ``over``."""
        while not progress.over.is_set():
            if not self._allowed():
                await _sleep(AGAIN_S, progress.over)
                continue
            if await is_taken(self._listener, messages):
                return []
            left = []
            for message in messages:
                if message.reconsume_times < self._limits.retry_max or not await self._is_given_back(message):
                    left.append(replace(message, reconsume_times=message.reconsume_times + 1))
            messages = left
            if not left:
                break
            await _sleep(self._limits.suspend_s, progress.over)
        return messages

    def _done(self, message: Received, progress: Progress) -> None:
        progress.done(message.queue_offset)
        progress.held_bytes -= len(message.body)
        self._room.set()

    async def _later(self, message: Received, progress: Progress) -> None:
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
        self._done(message, progress)

    async def _is_given_back(self, message: Received) -> bool:
        try:
            await self._give_back(message)
        except (OSError, MqError) as error:
            log.warning("message %s not given back yet: %s", message.msg_id, error)
            return False
        return True


async def _sleep(seconds: float, over: asyncio.Event) -> None:
    """Until ``over``, ``seconds`` at most."""
    try:
        async with asyncio.timeout(seconds):
            await over.wait()
    except TimeoutError:
        return
