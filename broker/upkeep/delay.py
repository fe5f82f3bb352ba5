"""When does a delayed message come back to its own topic?

Each delay level is a queue of SCHEDULE_TOPIC_XXXX whose entries carry the due time as tags code. On the
master a task looks at every level, puts what is due back into its topic and remembers how far it got in
``config/delayOffset.json``: ``{"dataVersion", "offsetTable": {level: next queue offset}}``.

A message is never lost: the note moves only when the delivered copy is confirmed. It is delivered once: the
copy says which entry it is of (property ``DELAYED_AS``), and a broker that takes over, or comes back with an
old note, looks for copies in its log before it delivers.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from broker.context import BrokerContext
from broker.requests.moving import destination_of, fits, moved, records_of
from broker.requests.properties import changed
from broker.requests.send import SendProcessor
from broker.state.resting import Rest
from broker.timers.placing import TIMERS
from broker.upkeep.copies import copies_begin
from model.errors import MqError
from model.ids import PhysicalOffset
from model.message import (
    DELAYED_AS,
    SCHEDULE_TOPIC,
    WAIT,
    property_of,
)
from model.topic import DataVersion
from runtime.backoff import Backoff
from runtime.loops import level_triggered
from runtime.report.lasting import lasting
from store.files.record import Record, delay_levels_ms
from store.flow.reading import GetStatus
from store.flow.writing import CLOCK_BACK_MAX_MS

log = logging.getLogger(__name__)

STEP_S: Final = 0.1
RETRY_FIRST_MS: Final = 100
RETRY_MAX_MS: Final = 1000
BATCH: Final = 32
BATCH_BYTES: Final = 1 << 20
UNCONFIRMED_MAX: Final = 1024  # deliveries of one level waiting for confirmation
_ELSEWHERE: Final = (GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.NO_MATCHED)


class DelayOffsets:
    """level -> next queue offset to deliver; what the file holds and slaves copy."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.table: dict[int, int] = {}
        self.version = DataVersion()
        self.on_change: list[Callable[[], None]] = []

    def load(self, stored: dict[str, Any] | None) -> None:
        if stored is not None:
            self.table = {int(k): int(v) for k, v in (stored.get("offsetTable") or {}).items()}
            self.version = DataVersion.from_json(stored.get("dataVersion"))

    def set(self, level: int, offset: int) -> None:
        if self.table.get(level) != offset:
            self.table[level] = offset
            self.version = self.version.next(self._now_ms())
            for hook in self.on_change:
                hook()

    def clamp(self, end: Callable[[str, int], int]) -> None:
        """Cut what lies beyond ``end(topic, queue)`` back to it: see ``OffsetTable.clamp``."""
        for level, offset in list(self.table.items()):
            self.set(level, min(offset, end(SCHEDULE_TOPIC, level - 1)))

    def adopt(self, wrapper: dict[str, Any]) -> bool:
        """Take a master's table (answer of 45); True when it differed."""
        table = {int(k): int(v) for k, v in (wrapper.get("offsetTable") or {}).items()}
        if table == self.table:
            return False
        self.table = table
        self.version = DataVersion.from_json(wrapper.get("dataVersion"))
        for hook in self.on_change:
            hook()
        return True

    def to_json(self) -> dict[str, Any]:
        return {"dataVersion": self.version.to_json(), "offsetTable": dict(self.table)}


class DelayService:
    """Delivers while this broker is master; ``run`` is one task for all levels."""

    def __init__(
        self, context: BrokerContext, offsets: DelayOffsets, sender: SendProcessor, rest: Rest
    ) -> None:
        self._rest = rest
        self._context = context
        self._offsets = offsets
        self._sender = sender
        self._levels_ms = delay_levels_ms(context.config.delay_levels)
        self._next: dict[int, int] = {}
        self._begun: set[int] = set()  # levels whose copies in the log were looked for
        self._begins_at = PhysicalOffset(0)  # where the log ended at the promotion
        self._unconfirmed: dict[int, deque[tuple[int, int]]] = {}

    @lasting
    async def run(self) -> None:
        """Deliver what is due, for ever. Started on promotion, cancelled on demotion."""
        self._unconfirmed = {}
        self._begun.clear()
        self._begins_at = self._context.store.log.end
        retry = Backoff(self._context.env.random, RETRY_FIRST_MS, RETRY_MAX_MS)
        await level_triggered(self._turn, self._rest.wake, STEP_S, retry, "delivering delayed messages")

    async def _turn(self) -> float | None:
        if self._context.store.dispatched < self._begins_at:
            return None  # the log that was taken over is not in the queues yet
        if not self._begun:
            self._next = dict(self._offsets.table)
            self._tell_of_removed()
        for level in range(1, len(self._levels_ms)):
            try:
                await self._level(level)
            except (MqError, OSError, ValueError, struct.error) as error:
                # Whatever is wrong with one message or its page of the disk: the other levels go on.
                log.warning("delay level %d: cannot deliver, trying again: %s", level, error)
            except Exception:
                # A mistake of ours. A master that delivered no more would look well, and hold all of them.
                log.exception("delay level %d: cannot deliver, trying again", level)
        levels = range(1, len(self._levels_ms))
        if self._begun.issuperset(levels) and all(map(self._is_idle, levels)):
            return self._rest.begin()
        return None

    def _tell_of_removed(self) -> None:
        """Messages wait at levels that the configuration had and has no more."""
        store = self._context.store
        for queue_id in store.queues_of(SCHEDULE_TOPIC):
            level, end = queue_id + 1, store.max_queue_offset(SCHEDULE_TOPIC, queue_id)
            done = max(self._offsets.table.get(level, 0), store.min_queue_offset(SCHEDULE_TOPIC, queue_id))
            if level >= len(self._levels_ms) and end > done:
                log.warning(
                    "%d delayed messages of level %d do not come: messageDelayLevel has %d levels",
                    end - done,
                    level,
                    len(self._levels_ms) - 1,
                )

    def _is_idle(self, level: int) -> bool:
        """Whether all of a level is delivered, and confirmed: of most levels, nearly always."""
        end = self._context.store.max_queue_offset(SCHEDULE_TOPIC, level - 1)
        return not self._unconfirmed.get(level) and end == self._next.get(level, 0)

    async def _level(self, level: int) -> None:
        """All that is due of one level. Raises what ``step`` raises."""
        if level not in self._begun:
            # The former master may have delivered more than it could tell us. That stands in the log that was
            # taken over, and is in the queues once it is confirmed.
            await self._skip_delivered(level)
            self._begun.add(level)
        if self._is_idle(level):
            return
        for _ in range(UNCONFIRMED_MAX // BATCH):
            before = self._next.get(level)
            more = self.step(level)
            if self._next.get(level) != before:
                await asyncio.sleep(0)  # after a standstill much is due, and others serve on this loop
            if not more:
                return

    def step(self, level: int) -> bool:
        """Deliver up to ``BATCH`` messages that are due of one level; whether there may be more.

        Raises Refused or DiskError; what was delivered is remembered.
        """
        context = self._context
        self._note(level)
        waiting = self._unconfirmed.setdefault(level, deque())
        if context.refuse_write() is not None or len(waiting) >= UNCONFIRMED_MAX:
            return False
        offset = self._next.get(level, 0)
        got = context.store.get(SCHEDULE_TOPIC, level - 1, offset, BATCH, BATCH_BYTES, None)
        if got.status is not GetStatus.FOUND:
            if got.status in _ELSEWHERE:
                # Records before it were deleted, or the log was cut: go on where the queue is.
                self._next[level] = got.next_offset
                if waiting:
                    waiting[-1] = (waiting[-1][0], got.next_offset)  # not before those are confirmed
                else:
                    self._remember(level, got.next_offset)
            return False
        for record in records_of(got.chunks):
            if not self._due(record, level):
                return False
            end = self._deliver(record, level)
            self._next[level] = record.queue_offset + 1
            waiting.append((end, record.queue_offset + 1))
        self._note(level)
        return True

    async def _skip_delivered(self, level: int) -> None:
        """Move the note behind every message whose copy is in the log.

        Copies of a level come in its order, so the first message without a copy ends the search. Due times do
        not matter here: the clock of the former master may have been ahead of ours.
        """
        copies: dict[tuple[str, int], set[str]] = {}
        while True:
            offset = self._next.get(level, 0)
            got = self._context.store.get(SCHEDULE_TOPIC, level - 1, offset, BATCH, BATCH_BYTES, None)
            if got.status in (GetStatus.OFFSET_TOO_SMALL, GetStatus.NO_MATCHED):
                self._next[level] = got.next_offset  # deleted, or damaged: those behind may be delivered, too
                continue
            if got.status is not GetStatus.FOUND:
                return
            for record in records_of(got.chunks):
                queue = destination_of(record)
                if queue is not None and queue not in copies:
                    stored_ms, place = record.store_timestamp_ms, PhysicalOffset(record.physical_offset)
                    due_ms, store = stored_ms + self._levels_ms[level], self._context.store
                    # The former master's levels may have been shorter.
                    begin = await copies_begin(
                        store, queue, place, due_ms, self._begins_at, earliest_ms=stored_ms
                    )
                    copies[queue] = {mark async for mark in self._copies_from(*queue, begin)}
                if queue is not None and f"{level}:{record.queue_offset}" not in copies[queue]:
                    return
                self._next[level] = record.queue_offset + 1
                self._remember(level, record.queue_offset + 1)

    async def _copies_from(self, topic: str, queue_id: int, offset: int) -> AsyncIterator[str]:
        """What the copies in a queue from ``offset`` on are copies of."""
        store = self._context.store
        while True:
            got = store.get(topic, queue_id, offset, BATCH, BATCH_BYTES, None)
            if got.status is GetStatus.FOUND:
                for record in records_of(got.chunks):
                    found = property_of(record.properties, DELAYED_AS)
                    if found is not None:
                        yield found
            elif got.status not in (GetStatus.OFFSET_TOO_SMALL, GetStatus.NO_MATCHED):
                return
            offset = got.next_offset
            await asyncio.sleep(0)  # there may be very many, and others serve on this loop

    def _note(self, level: int) -> None:
        """Remember what is confirmed by now."""
        waiting = self._unconfirmed.get(level)
        done = None
        while waiting and waiting[0][0] <= self._context.store.confirmed:
            done = waiting.popleft()[1]
        if done is not None:
            self._remember(level, done)

    def _remember(self, level: int, offset: int) -> None:
        self._offsets.set(level, offset)

    def _due(self, record: Record, level: int) -> bool:
        now_ms = self._context.env.now_ms()
        # A store time is ahead of a successor's clock by at most so much. One that is further ahead comes
        # from a wrong clock, and must not hold its message until then.
        if record.store_timestamp_ms > now_ms + CLOCK_BACK_MAX_MS:
            return True
        return record.store_timestamp_ms + self._levels_ms[level] <= now_ms

    def _deliver(self, record: Record, level: int) -> int:
        """Put a due message into its topic; returns the end of the record it became."""
        properties = record.properties
        queue = destination_of(record)
        if queue is None:
            log.error("delayed message at %d names no queue: dropped", record.physical_offset)
            return record.physical_offset + record.size
        text = _of_copy(properties, f"{level}:{record.queue_offset}")
        message = moved(record, queue, text, self._context.store_host)
        put = self._sender.put([message], stored_before=True)[0]
        return put.physical_offset + put.size


def _of_copy(properties: str, source: str) -> str:
    """The level stays, as RocketMQ leaves it."""
    own = changed(properties, {WAIT: "false"}, TIMERS)
    # Without room for its source a copy may come twice. That is better than never, for it and for all that
    # wait behind it. As the log holds it it always fits.
    fitting = (text for text in (changed(own, {DELAYED_AS: source}), own) if fits(text))
    return next(fitting, changed(properties, {}, TIMERS))
