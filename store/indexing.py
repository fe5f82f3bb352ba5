"""How does the index follow the queues, without a start waiting for it?

Queues first: consumers need them at once, a look-up by key can wait a moment. What is dispatched while the
index is level goes into it from the same batch. After a start the index may be behind, and its slots (20 MB
by default) are not in memory yet: then a task reads them off the loop and parses the log from where the
index ends, a slice at a time, until both are level. A small backlog recovery makes up itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from model.errors import DiskError
from runtime.env import Env
from store.commit_log import CommitLog
from store.health import Health
from store.index_file import Index
from store.record import BadRecord, Dispatch
from store.walker import Walker

log = logging.getLogger(__name__)

WRITING_INDEX: Final = "writing the index"
AT_ONCE_BYTES: Final = 1 << 20
"""A backlog up to this size is made up by recovery itself, if the slots are few."""
AT_ONCE_SLOTS: Final = 1 << 16


class Indexer:
    """``at``: the messages that end at or below this log offset (bytes) are in the index."""

    def __init__(self, commit_log: CommitLog, index: Index | None, walker: Walker, health: Health) -> None:
        self.at = 0
        self.caught_up = True  # is the index level with the queues, and its slots in memory?
        self.on_bad: Callable[[int, BadRecord], int] = lambda at, bad: at
        """Told of bytes at an offset that are no record; says where good records go on."""
        self._log = commit_log
        self._index = index
        self._walker = walker
        self._health = health
        self._waiters: list[asyncio.Future[None]] = []

    def start_at(self, offset: int, *, behind: bool = False) -> None:
        """Where the index was found to end; ``behind``: ``run`` makes up what lacks."""
        self.at = offset
        self.caught_up = self._index is None or not behind

    def move_back(self, offset: int) -> None:
        """The log was cut to ``offset``."""
        self.at = min(self.at, offset)

    def take(self, batch: Sequence[Dispatch], end: int) -> None:
        """The messages of ``batch``, up to log offset ``end``, are in their queues now."""
        if self.caught_up:
            self._put(batch)
            self.at = end

    def _put(self, batch: Sequence[Dispatch]) -> None:
        if self._index is None or not batch:
            return
        try:
            self._index.put_many(batch)
        except OSError as error:  # found by its queue meanwhile; the index keeps what it could not place
            if self._health.writable is None:
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
            self._step(until)

    def _step(self, until: int) -> None:
        self.at = max(self.at, self._log.min_offset)
        for found, end in self._walker.parsed(self.at, until, stop_bad=True):
            self._put(found)
            self.at = end
            return
        if self.at < until:
            self.at = self.on_bad(self.at, BadRecord("unreadable_region", f"no record starts at {self.at}"))

    async def run(self, env: Env, dispatched: Callable[[], int], stopped: Callable[[], bool]) -> None:
        """Make the index level with ``dispatched()``, then end. Raises DiskError."""
        if self.caught_up or self._index is None:
            return
        begin = self.at
        await self._read_slots(env, self._index)
        while not stopped() and self._health.broken is None:
            if self.at >= dispatched():
                self.caught_up = True
                break
            self._step(dispatched())
            await asyncio.sleep(0)
        if self.at > begin:
            log.info("indexed [%d, %d)", begin, self.at)
        self._tell()

    async def _read_slots(self, env: Env, index: Index) -> None:
        while True:
            files = list(index.files)
            try:
                index.take_slots(await env.offload(index.read_slots))
                return
            except OSError as error:
                if files == index.files:
                    raise DiskError(f"reading the index failed: {error.strerror or error}") from error
                # A cut removed the file that was read: look at what is left.

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
