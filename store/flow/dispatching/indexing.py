"""How does the index follow the queues, without a start waiting for it?

Queues first: consumers need them at once, a look-up by key can wait a moment. What is dispatched while the
index is level goes into it from the same batch. After a start the index may be behind, and its slots (20 MB
by default) are not in memory yet: then a task reads them off the loop and parses the log from where the
index ends, STEP_BYTES at a time, until both are level. It pauses between two steps (upkeep/throttle), as the
broker may be elected meanwhile; what grows under load is made up too, or it would never be level. What was
made up is written back at once (upkeep/housekeeping): a broker that is killed again and again begins each
time where it was, not ever further behind. A small backlog recovery makes up itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from model.errors import DiskError
from model.ids import PhysicalOffset
from runtime.env import Env
from store.files.index import Index
from store.files.index_file import CHECKED_AT_ONCE
from store.files.record import BadRecord, Dispatch
from store.files.store_files import StoreFiles
from store.flow.dispatching.walker import READ_BYTES, Walker
from store.flow.upkeep.throttle import Throttle

if TYPE_CHECKING:
    from runtime.native._native import Block

log = logging.getLogger(__name__)

WRITING_INDEX: Final = "writing the index"
AT_ONCE_BYTES: Final = 1 << 20
"""A backlog up to this size is made up by recovery itself, if the slots are few."""
AT_ONCE_SLOTS: Final = 1 << 16
STEP_BYTES: Final = 1 << 14
"""Of the log, between two turns of the loop: at most a millisecond even of the shortest records."""
KEYS_AT_ONCE: Final = 4096
"""So many keys are placed in one go: about 10 ms in Python."""
KEYS_A_MESSAGE: Final = 2
"""What messages have as a rule is placed with them, however many they are: to read them from the log once
more would cost more, and a file gets full under any load."""
PACKED_KEYS_AT_ONCE: Final = 1 << 15
"""The same for the compiled path."""
GROWN_BYTES_MAX: Final = 1 << 16
"""Up to so much more when more is dispatched than a step makes up: else it would never be level."""


class Indexer:
    """``at``: the messages that end at or below this log offset (bytes) are in the index."""

    def __init__(self, files: StoreFiles, walker: Walker, throttle: Throttle) -> None:
        self.at = PhysicalOffset(0)
        self.caught_up = True  # is the index level with the queues, and its slots in memory?
        self.on_bad: Callable[[int, BadRecord], int] = lambda at, bad: at
        """Told of bytes at an offset that are no record; says where good records go on."""
        self.on_level: Callable[[], None] = lambda: None
        """Called once what lacked after a start is made up."""
        self._log = files.log
        self._index = files.index
        self._walker = walker
        self._health = files.health
        self._throttle = throttle
        self._waiters: list[asyncio.Future[None]] = []
        self._fell_behind = asyncio.Event()
        self._stopped = False

    def start_at(self, offset: int, *, behind: bool = False) -> None:
        """Where the index was found to end; ``behind``: ``run`` makes up what lacks."""
        self.at = PhysicalOffset(offset)
        self.caught_up = self._index is None or not behind

    def move_back(self, offset: int) -> None:
        """The log was cut to ``offset``."""
        self.at = min(self.at, PhysicalOffset(offset))

    def take(self, batch: Sequence[Dispatch], end: int) -> None:
        """The messages of ``batch``, up to log offset ``end``, are in their queues now."""
        if self.caught_up:
            self._take(batch, end)

    def _take(self, batch: Sequence[Dispatch], end: int) -> None:
        if _within(batch, max(KEYS_AT_ONCE, KEYS_A_MESSAGE * len(batch))) < len(batch) > 1:
            # What was dispatched is for the task of ``run``.
            self.caught_up = False
            self._fell_behind.set()
            return
        self._put(batch)
        self.at = PhysicalOffset(end)

    def take_packed(self, block: Block, first: int, until: int, end: int) -> None:
        """``take`` of the messages in these places of ``block``."""
        if not self.caught_up:
            return
        if self._index is None or self._index.put_packed(block, first, until, PACKED_KEYS_AT_ONCE):
            self.at = PhysicalOffset(end)
        else:  # the newest file has no room for all, or there are too many
            self._take(block.items(first, until), end)

    def _put(self, batch: Sequence[Dispatch]) -> None:
        if self._index is not None and batch:
            self._try(self._index.put_many, batch)

    def _try(self, put: Callable[[Sequence[Dispatch]], None], batch: Sequence[Dispatch]) -> None:
        try:
            put(batch)
        except OSError as error:  # found by its queue meanwhile; the index keeps what it could not place
            if self._health.why_not_writable is None:
                log.error("indexing the record at %d failed: %s", batch[0].offset, error)
            self._health.failed(error, WRITING_INDEX)

    def is_small(self, until: int) -> bool:
        """Is what lacks up to log offset ``until`` done sooner than a task is started?"""
        return self._index is None or (
            until - self.at <= AT_ONCE_BYTES and self._index.slots <= AT_ONCE_SLOTS
        )

    def catch_up(self, until: int) -> None:
        """Index everything up to log offset ``until`` now: recovery. Raises DiskError."""
        while self.at < until:
            self._step(until, READ_BYTES)

    def _step(self, until: int, size: int) -> None:
        """Index about ``size`` bytes of the log, none behind ``until``."""
        self.at = max(self.at, self._log.min_offset)
        for found, end in self._walker.parsed(self.at, until, stop_bad=True, read_bytes=size):
            fit = max(_within(found, KEYS_AT_ONCE), 1)
            self._complete(found[:fit])
            self._put(found[:fit])
            self.at = PhysicalOffset(end if fit >= len(found) else found[fit].offset)
            return
        if self.at < until:
            bad = BadRecord("unreadable_region", f"no record starts at {self.at}")
            self.at = PhysicalOffset(self.on_bad(self.at, bad))

    def _complete(self, batch: Sequence[Dispatch]) -> None:
        """The last message that is indexed may lack keys: a crash took the next file, which had them."""
        if self._index is not None and batch and batch[0].offset <= self._index.end_offset:
            end = self._index.end_offset
            self._try(self._index.add_late, [item for item in batch if item.offset == end])

    async def run(
        self, env: Env, dispatched: Callable[[], int], pause: Callable[[float], Awaitable[bool]]
    ) -> None:
        """Make the index level with ``dispatched()`` whenever it is behind, until ``stop`` or until
        ``pause`` (seconds) says that the store closes. Raises DiskError."""
        while self._index is not None and not self._stopped:
            self._fell_behind.clear()
            if not self.caught_up or self._index.unproven:
                await self._make_level(env, self._index, dispatched, pause)
            if not self.caught_up:
                return  # the store closes, or is broken
            await self._fell_behind.wait()

    def stop(self) -> None:
        """Let ``run`` end."""
        self._stopped = True
        self._fell_behind.set()

    async def _make_level(
        self,
        env: Env,
        index: Index,
        dispatched: Callable[[], int],
        pause: Callable[[float], Awaitable[bool]],
    ) -> None:
        begin = self.at
        if not await self._read_slots(env, index, pause):
            self._tell()
            return
        clock = asyncio.get_running_loop().time
        seen = dispatched()
        while self._health.broken is None:
            begun_s, until = clock(), dispatched()
            if self.at < until:
                self._step(until, STEP_BYTES + min(max(2 * (until - seen), 0), GROWN_BYTES_MAX))
                seen = until
            if self.at >= until:  # before the rest: behind it there may be more again
                self.caught_up = True
                break
            if not await self._throttle.wait(pause, begun_s):
                break
        if self.at > begin:
            log.info("indexed [%d, %d)", begin, self.at)
        self._tell()
        if self.caught_up:
            self.on_level()

    async def _read_slots(self, env: Env, index: Index, pause: Callable[[float], Awaitable[bool]]) -> bool:
        clock = asyncio.get_running_loop().time
        while (file := index.in_need()) is not None:
            try:
                table = await env.offload(file.read_slots)
                wrong: list[int] = []
                # Not off the loop: it would keep the interpreter from it for longer than that takes.
                for first in range(0, len(table), CHECKED_AT_ONCE):
                    begun_s = clock()
                    wrong += file.wrong_slots(table, first, min(first + CHECKED_AT_ONCE, len(table)))
                    if not await self._throttle.wait(pause, begun_s):
                        return False
                if index.in_need() is file:
                    file.take_slots(table, wrong)
            except OSError as error:
                if index.in_need() is file:
                    raise DiskError(f"reading the index failed: {error.strerror or error}") from error
                # A cut removed the file that was read: look at what is left.
        return True

    async def level(self) -> None:
        """Return once look-ups by key see all that is dispatched. Raises DiskError when they never will."""
        while not self.caught_up:
            if self._health.broken is not None:
                raise DiskError(self._health.broken)
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def _tell(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def _within(batch: Sequence[Dispatch], most: int) -> int:
    """How many messages, from the first on, have at most ``most`` keys together."""
    total = 0
    for at, item in enumerate(batch):
        total += 1 + (item.keys.count(" ") + 1 if item.keys else 0)
        if total > most:
            return at
    return len(batch)
