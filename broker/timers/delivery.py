"""When does a timer message come back to its own topic?

On the master one task takes up what was written to ``rmq_sys_wheel_timer``, keeps its queue offsets in a
wheel, and puts what is due into its topic, slot by slot. How far it is stands in a note
(``broker/timers/progress``). The wheel itself is in no file: it is what the log holds from the note's
``first`` on, less what the note says is delivered, so a successor makes the same from its copy of the log.

A message is never lost: the note moves only when the delivered copies before it are confirmed. It comes once:
a copy says which record it is of (``DELAYED_AS``), and a broker that takes over looks for such copies in its
log before it delivers what may have been. A recall that was answered holds: before a slot leaves, all that
was in the log when the slot was over is read.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from broker.context import BrokerContext
from broker.requests.moving import destination_of, fits, moved, records_of
from broker.requests.properties import changed, int_property
from broker.requests.send import SendProcessor
from broker.state.resting import Rest
from broker.timers.core import LONG_MAX, Entry, Note, RollsDone, Rules, Wheel, entry_of
from broker.timers.figures import TimerFigures
from broker.timers.former import FormerCopies, mark_of, source_of
from broker.timers.leaving import Leaving
from broker.timers.progress import NotesInWaiting, TimerCounts, TimerProgress
from model.ids import PhysicalOffset
from model.message import (
    DELAYED_AS,
    TIMER_DEL_UNIQKEY,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_ROLL_TIMES,
    TIMER_TOPIC,
    property_of,
)
from runtime.backoff import Backoff
from runtime.loops import level_triggered
from runtime.report.lasting import lasting
from runtime.turns import Slice
from store.files.record import NewMessage, Record
from store.flow.reading import GetStatus

log = logging.getLogger(__name__)

STEP_S: Final = 0.1
RETRY_FIRST_MS: Final = 100
RETRY_MAX_MS: Final = 1000
BATCH: Final = 32
BATCH_BYTES: Final = 1 << 20
DEQUEUED: Final = "TIMER_DEQUEUE_NUMS"
"""The counter of what left the wheel for a topic, by the timer topic."""
UNCONFIRMED_MAX: Final = 64  # batches that wait for confirmation
_MOVED_ON: Final = (GetStatus.OFFSET_TOO_SMALL, GetStatus.NO_MATCHED, GetStatus.NO_MESSAGE_IN_QUEUE)


class TimerService:
    """Delivers while this broker is master; ``run`` is one task."""

    def __init__(
        self, context: BrokerContext, progress: TimerProgress, sender: SendProcessor, rest: Rest
    ) -> None:
        self.counts = TimerCounts(context.env.now_ms)
        self._figures = TimerFigures(context.stats.counters)
        self.wheel = Wheel()
        self.read = 0  # queue offset of the timer topic up to which the wheel has all
        self._context = context
        self._rest = rest
        self._progress = progress
        self._sender = sender
        self._begins_at = PhysicalOffset(0)  # where the log ended at the promotion
        self._former: FormerCopies | None = None  # what former masters delivered; None: not begun
        self._rolls = RollsDone()
        self._leaving = Leaving()
        self._passed_ms = 0  # slots before it that are not in the wheel have left
        self._notes = NotesInWaiting()
        self._noted = Note()

    @lasting
    async def run(self) -> None:
        """Deliver what is due, for ever. Started on promotion, cancelled on demotion."""
        self._forget()
        self._begins_at = self._context.store.log.end
        retry = Backoff(self._context.env.random, RETRY_FIRST_MS, RETRY_MAX_MS)
        try:
            await level_triggered(self._turn, self._rest.wake, STEP_S, retry, "delivering timer messages")
        finally:
            self._forget()

    @property
    def begun(self) -> bool:
        """Whether the wheel has what waited at the promotion."""
        return self._former is not None and self.read >= self._former.queue_end

    def waiting(self, slot_ms: int) -> int:
        return self.wheel.waiting(slot_ms)

    def behind_ms(self) -> int:
        """How late the next message is."""
        slot_ms = self.wheel.next_slot
        rules = Rules.of(self._context.config)
        return 0 if slot_ms is None else max(0, self._context.env.now_ms() - slot_ms - rules.precision_ms)

    def behind_messages(self) -> int:
        """How many are not in the wheel yet."""
        return max(0, self._context.store.max_queue_offset(TIMER_TOPIC, 0) - self.read)

    def status(self) -> dict[str, Any]:
        """JSON-ready: how many wait, by topic, how late the first of them is (ms), and what there was so far;
        of the master how many are not in the wheel yet."""
        waiting = {topic: count for topic, (count, _) in self.counts.table.items()}
        behind = None if self._former is None else self.behind_messages()
        told = self._figures.to_json(waiting)
        return {**told, "behindMs": self.behind_ms(), "behindMessages": behind}

    def check_invariants(self) -> None:
        self.wheel.check_invariants()
        self._notes.check_invariants()

    def _forget(self) -> None:
        self.wheel = Wheel()
        self.counts.clear()
        self._former = None
        self._rolls = RollsDone()
        self._notes = NotesInWaiting()
        self._leaving = Leaving()
        self._passed_ms = 0

    # One turn

    async def _turn(self) -> float | None:
        store = self._context.store
        if store.dispatched < self._begins_at:
            return None  # the log that was taken over is not in the queues yet
        if self._former is None:
            await self._begin()
        self._note()
        if not self._context.config.timer_stop_enqueue:
            await self._take_up()
        if self.begun and not self._context.config.timer_stop_dequeue:
            await self._deliver()
        self._keep()
        self._note()
        return self._rest.begin() if self._is_idle() else None

    def _is_idle(self) -> bool:
        """Whether the wheel has all, holds nothing, and all that left it is confirmed."""
        all_left = self.begun and self.wheel.next_slot is None and not len(self._notes)
        return all_left and self.behind_messages() == 0

    async def _begin(self) -> None:
        store, note = self._context.store, self._progress.note
        end = store.max_queue_offset(TIMER_TOPIC, 0)
        self._noted = Note(note.read_ms, min(note.queue_offset, end), min(note.first, end))
        self.read = max(self._noted.first, store.min_queue_offset(TIMER_TOPIC, 0))
        self._passed_ms = self._noted.read_ms
        self._former = await FormerCopies.of(store, self._noted, end, self._begins_at)

    async def _take_up(self) -> None:
        """Read the timer topic up to where it ends now."""
        store = self._context.store
        end = store.max_queue_offset(TIMER_TOPIC, 0)
        rules = Rules.of(self._context.config)
        while self.read < end:
            got = store.get(TIMER_TOPIC, 0, self.read, BATCH, BATCH_BYTES, None)
            if got.status is GetStatus.FOUND:
                for record in records_of(got.chunks):
                    self._add(record, rules)
            elif got.status not in _MOVED_ON:
                return
            self.read = got.next_offset
            await asyncio.sleep(0)  # after a promotion there may be very many, and others serve on this loop
        if self.begun and not self._rolls.closed:
            for entry in self._rolls.left():
                self._wait(entry, rules, late=False)

    def _add(self, record: Record, rules: Rules) -> None:
        entry = entry_of(record.properties, record.queue_offset, record.store_timestamp_ms, rules)
        if entry is None:
            log.error("timer message at %d names no time: dropped", record.physical_offset)
            return
        done = self._noted.is_delivered(entry)
        if not self.begun:
            # One that rolled nowhere, and whose own time was over, was delivered by a wider window of then.
            source = source_of(record.properties)
            self._rolls.on_record(entry, done and entry.out_ms >= self._noted.read_ms, source)
            self._rolls.rolled_on.on_record(entry, source, waits=not done)
        if not done:
            new = entry.queue_offset >= self._noted.queue_offset
            late = new and entry.due_ms < rules.floor(self._context.env.now_ms())
            self._wait(entry, rules, late=late)
        self._count(record, entry)

    def _count(self, record: Record, entry: Entry) -> None:
        """What came since the promotion and is no recall; the former master counted what was there."""
        came = self._former is not None and record.queue_offset >= self._former.queue_end
        recalls = property_of(record.properties, TIMER_DEL_UNIQKEY) is not None
        if came and not recalls and entry.roll[1] == 0:
            delay_ms = entry.out_ms - record.store_timestamp_ms
            self._figures.taken_up(entry.topic, delay_ms, self._context.env.monotonic_ms())

    def _wait(self, entry: Entry, rules: Rules, *, late: bool) -> None:
        self.wheel.add(rules.floor(entry.due_ms), entry.queue_offset, deletes=entry.deletes, late=late)
        self.counts.add(entry.topic, -1 if entry.deletes is not None else 1)

    # What is due

    async def _deliver(self) -> None:
        rules, slot_ms = Rules.of(self._context.config), self.wheel.next_slot
        now_ms = rules.floor(self._context.env.now_ms())
        end = self._context.store.next_offset
        if not self._leaving.on_turn(LONG_MAX if slot_ms is None else slot_ms, now_ms, end(TIMER_TOPIC, 0)):
            return
        while slot_ms is not None:
            now_ms = rules.floor(self._context.env.now_ms())
            if not self._leaving.may(slot_ms, now_ms, self.read, end(TIMER_TOPIC, 0)):
                break
            if not await self._deliver_slot(slot_ms, rules):
                return
            slot_ms = self.wheel.next_slot
        self._passed_ms = max(self._passed_ms, self._leaving.before_ms)

    async def _deliver_slot(self, slot_ms: int, rules: Rules) -> bool:
        """All of a slot; False when it cannot go on now. What left it does not leave it again."""
        wheel, slice_ = self.wheel, Slice(self._context.env.monotonic_ms)
        while offsets := wheel.front(slot_ms, BATCH):
            self._note()
            if self._context.refuse_write() is not None or len(self._notes) >= UNCONFIRMED_MAX:
                return False
            if not self._leaving.is_over(slot_ms, rules.floor(self._context.env.now_ms())):
                return False
            found, count = self._records(offsets)
            for queue_offset in offsets[:count]:
                record = found.get(queue_offset)
                if record is None:
                    log.error("timer message %d is not in the log any more", queue_offset)
                else:
                    await self._one(record, slot_ms, rules)
                wheel.pop(slot_ms)
                if slice_.is_over():
                    break  # the rest is another turn's
            self._keep()
            await slice_.pause()
        wheel.close(slot_ms)
        return True

    def _records(self, offsets: list[int]) -> tuple[dict[int, Record], int]:
        """The records at the first of ``offsets``, those side by side in one read, and of how many these are:
        ``BATCH_BYTES`` together, but one at least. One that is gone is left out."""
        found: dict[int, Record] = {}
        at = size = 0
        while at < len(offsets) and size < BATCH_BYTES:
            run = 1
            while at + run < len(offsets) and offsets[at + run] == offsets[at] + run:
                run += 1
            got = self._context.store.get(TIMER_TOPIC, 0, offsets[at], run, BATCH_BYTES - size, None)
            if got.status is GetStatus.FOUND:
                found |= {record.queue_offset: record for record in records_of(got.chunks)}
                size += sum(map(len, got.chunks))
            elif got.status not in _MOVED_ON:
                raise OSError(f"the timer topic gives {got.status.name} at {offsets[at]}")
            at += max(1, min(run, got.next_offset - offsets[at]))
        return found, at

    async def _one(self, record: Record, slot_ms: int, rules: Rules) -> None:
        """Put one message where it belongs, unless it was recalled, or is there."""
        entry = entry_of(record.properties, record.queue_offset, record.store_timestamp_ms, rules)
        assert entry is not None, "it was taken up"
        if entry.deletes is None and not self._is_recalled(entry, slot_ms):
            queue = (TIMER_TOPIC, 0) if entry.rolls else destination_of(record)
            if queue is None:
                log.error("timer message at %d names no queue: dropped", record.physical_offset)
            elif not await self._is_done(record, entry, queue):
                copy = self._copy(record, entry, queue, slot_ms)
                put = self._sender.put([copy], stored_before=True)[0]
                now_ms = self._context.env.monotonic_ms()
                self._context.stats.counters.add(DEQUEUED, TIMER_TOPIC, 1, now_ms)
                if entry.rolls:
                    self._leaving.on_rolled(rules.floor(entry.out_ms))
                else:
                    over_ms = entry.due_ms + Rules.of(self._context.config).precision_ms
                    self._figures.delivered(entry.topic, self._context.env.now_ms() - over_ms, now_ms)
                self._notes.delivered(put.physical_offset + put.size)
        # A recall counted for the message it took away.
        self.counts.add(entry.topic, -1 if entry.deletes is None else 1)

    async def _is_done(self, record: Record, entry: Entry, queue: tuple[str, int]) -> bool:
        """Whether a former master put a message where it belongs, by its rules or by ours."""
        assert self._former is not None, "nothing leaves before the wheel has all"
        if self._rolls.rolled_on.has(entry) or await self._former.has(entry, queue):
            return True
        own = destination_of(record) if entry.rolls else None
        return own is not None and await self._former.has(entry, own)

    def _is_recalled(self, entry: Entry, slot_ms: int) -> bool:
        return not entry.rolls and entry.is_recalled_by(self.wheel.recalls(slot_ms))

    def _copy(self, record: Record, entry: Entry, queue: tuple[str, int], slot_ms: int) -> NewMessage:
        late = self.wheel.is_late(slot_ms, entry.queue_offset)
        put = {
            TIMER_ENQUEUE_MS: str(LONG_MAX if late else entry.enqueued_ms),
            TIMER_DEQUEUE_MS: str(self._context.env.now_ms()),
            DELAYED_AS: mark_of(entry),
        }
        if entry.rolls:
            put[TIMER_ROLL_TIMES] = str((int_property(record.properties, TIMER_ROLL_TIMES) or 0) + 1)
        text = changed(record.properties, put)
        if not fits(text):  # without room for where it comes from it may come twice, which is not never
            text = changed(text, {}, (DELAYED_AS,))
        if not fits(text):
            text = record.properties
        return moved(record, queue, text, self._context.store_host)

    # How far it is

    def _keep(self) -> None:
        """What is to be noted once all that was delivered so far is confirmed."""
        if not self.begun:
            return  # of what is not in the wheel yet, some may wait
        slot_ms, first = self.wheel.next_slot, self.wheel.first
        read_ms = self._passed_ms if slot_ms is None else min(self._passed_ms, slot_ms)
        self._notes.keep(Note(read_ms, self.read, self.read if first is None else first), self._progress.note)

    def _note(self) -> None:
        """Remember what is confirmed by now."""
        note = self._notes.confirmed(self._context.store.confirmed)
        if note is not None:
            self._progress.set(note)
