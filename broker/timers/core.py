"""When is a timer message due, and which of them wait? Values in, values out.

A timer message waits in ``rmq_sys_wheel_timer``, queue 0, with ``TIMER_OUT_MS``: the slot before its time, so
that it leaves when its slot is over, never early and at most ``timerPrecisionMs`` late. One that would wait
longer than the roll window is written to the end of that queue in between: the log keeps nothing for ever.
A recall is a message of its own in the slot of the one it takes away.

Rules and names: Apache RocketMQ 5.x, ``HookUtils`` and ``TimerMessageStore``. Here a roll depends only on the
record (its store time), so that every replica finds the same.
"""

from __future__ import annotations

import hashlib
import heapq
import re
from array import array
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Final

from model.config import BrokerConfig
from model.message import (
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
    UNIQ_KEY,
    property_of,
)

LONG_MAX: Final = 2**63 - 1
PRECISIONS_MS: Final = (100, 200, 500, 1000)
WHEEL_SLOTS: Final = 7 * 24 * 3600
BLANK_SLOTS: Final = 60
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Rules:
    """What the configuration says of timer messages."""

    enabled: bool
    precision_ms: int
    delay_max_ms: int
    roll_slots: int
    per_slot: int

    @classmethod
    def of(cls, config: BrokerConfig) -> Rules:
        most = WHEEL_SLOTS - BLANK_SLOTS
        slots = config.timer_roll_window_slots
        fitting = [ms for ms in PRECISIONS_MS if ms <= config.timer_precision_ms]
        return cls(
            enabled=config.timer_wheel_enable,
            precision_ms=fitting[-1] if fitting else PRECISIONS_MS[0],
            delay_max_ms=config.timer_delay_max_s * 1000,
            roll_slots=slots if 2 <= slots <= most else most,
            per_slot=config.timer_per_slot_max,
        )

    def floor(self, at_ms: int) -> int:
        return at_ms // self.precision_ms * self.precision_ms

    def out_ms(self, deliver_ms: int) -> int:
        """The slot of a message for ``deliver_ms``: what ``TIMER_OUT_MS`` says."""
        return self.floor(deliver_ms - 1)


def is_timer(properties: str) -> bool:
    """Whether a message without a delay level is to wait for a time of its own. One that did has an out
    time already."""
    if "TIMER_DEL" not in properties or property_of(properties, TIMER_OUT_MS) is not None:
        return False
    names = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)
    return any(property_of(properties, name) is not None for name in names)


def deliver_ms(properties: str, now_ms: int) -> int | None:
    """When a timer message is to be delivered; None where that is no number."""
    seconds = property_of(properties, TIMER_DELAY_SEC)
    if seconds is not None:
        delay = _long(seconds)
        return None if delay is None else now_ms + delay * 1000
    text = property_of(properties, TIMER_DELAY_MS)
    if text is not None:
        delay = _long(text)
        return None if delay is None else now_ms + delay
    return _long(property_of(properties, TIMER_DELIVER_MS) or "")


def _long(text: str) -> int | None:
    """As ``Long.parseLong``."""
    if _NUMBER.fullmatch(text) is None:
        return None
    value = int(text)
    return value if -LONG_MAX - 1 <= value <= LONG_MAX else None


def delete_key(topic: str, uniq_key: str) -> str:
    return f"{topic}+{uniq_key}"


RECALL_CHARS_MAX: Final = 128
"""A longer topic and id of what is recalled are remembered by their hash: a client chooses their length."""


def _recall_key(topic: str, named: str) -> str:
    """What a recall in ``topic`` takes away, whichever way it names it: a matter of a broker's version and
    configuration. Never a message of another topic: a right to send to one is none to take from others."""
    key = f"{topic}\x01{named.removeprefix(delete_key(topic, ''))}"
    if len(key) <= RECALL_CHARS_MAX:
        return key
    return hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Entry:
    """A record of the timer topic, as the wheel sees it."""

    queue_offset: int
    due_ms: int  # it leaves once the slot of this moment is over
    rolls: bool  # to the end of the timer topic, not to its own
    deletes: str | None  # what it recalls, where it is a recall that has come to its slot
    enqueued_ms: int
    topic: str  # its own
    roll: tuple[str, int]  # (unique key, how often it rolled)
    out_ms: int  # when it is to be in its own topic, whatever it waits for first

    def is_recalled_by(self, keys: Container[str]) -> bool:
        uniq_key = self.roll[0]
        return bool(uniq_key) and _recall_key(self.topic, uniq_key) in keys


def entry_of(properties: str, queue_offset: int, stored_ms: int, rules: Rules) -> Entry | None:
    """None for a record that says no time it could wait for."""
    out_ms = _long(property_of(properties, TIMER_OUT_MS) or "")
    if out_ms is None:
        return None
    enqueued_ms = rules.floor(stored_ms)
    window_ms = rules.roll_slots * rules.precision_ms
    beyond_ms = out_ms - enqueued_ms - window_ms
    rolls = beyond_ms >= 0
    due_ms = out_ms
    if rolls:
        # Not a whole window where little is left behind it: the last roll needs its time, too. It is never in
        # the slot of the message itself, where a recall that rolls would be too late.
        short = beyond_ms < max(1, rules.roll_slots // 3) * rules.precision_ms
        due_ms = enqueued_ms + (rules.roll_slots // 2 * rules.precision_ms if short else window_ms)
    rolled = _long(property_of(properties, TIMER_ROLL_TIMES) or "") or 0
    topic = property_of(properties, REAL_TOPIC) or ""
    deletes = None if rolls else property_of(properties, TIMER_DEL_UNIQKEY)
    return Entry(
        queue_offset,
        due_ms,
        rolls,
        None if deletes is None else _recall_key(topic, deletes),
        enqueued_ms,
        topic,
        (property_of(properties, UNIQ_KEY) or "", rolled),
        out_ms,
    )


@dataclass(frozen=True, slots=True)
class Note:
    """How far timer messages are: those below ``queue_offset`` of the timer topic that were due before
    ``read_ms`` are delivered, and none below ``first`` waits."""

    read_ms: int = 0
    queue_offset: int = 0
    first: int = 0

    def is_delivered(self, entry: Entry) -> bool:
        return entry.queue_offset < self.queue_offset and entry.due_ms < self.read_ms


@dataclass(slots=True)
class _Slot:
    offsets: array[int] = field(default_factory=lambda: array("q"))
    head: int = 0
    # Made when there is something: a client may fill each slot with one message.
    keys: set[str] | None = None
    late: set[int] | None = None


class Wheel:
    """The queue offsets of what waits, by the slot in which it is due: 8 bytes a message, and 0.4 KB a slot.

    Holds: the offsets of a slot are in the order they were added; ``first`` is not above any that waits.
    """

    def __init__(self) -> None:
        self._slots: dict[int, _Slot] = {}
        self._order: list[int] = []  # a heap of slots
        self._heads: list[tuple[int, int]] = []  # a heap of (a slot's first offset, slot)
        self.count = 0

    def add(self, slot_ms: int, queue_offset: int, *, deletes: str | None = None, late: bool = False) -> None:
        slot = self._slots.get(slot_ms)
        if slot is None:
            slot = self._slots[slot_ms] = _Slot()
            heapq.heappush(self._order, slot_ms)
            heapq.heappush(self._heads, (queue_offset, slot_ms))
        elif queue_offset < slot.offsets[slot.head]:
            heapq.heappush(self._heads, (queue_offset, slot_ms))
        slot.offsets.append(queue_offset)
        self.count += 1
        if deletes is not None:
            slot.keys = slot.keys or set()
            slot.keys.add(deletes)
        if late:
            slot.late = slot.late or set()
            slot.late.add(queue_offset)

    @property
    def next_slot(self) -> int | None:
        return self._order[0] if self._order else None

    @property
    def first(self) -> int | None:
        """The lowest offset that waits, or one below it; None when none does."""
        while self._heads and self._heads[0][1] not in self._slots:
            heapq.heappop(self._heads)
        return self._heads[0][0] if self._heads else None

    def front(self, slot_ms: int, most: int) -> list[int]:
        """The next offsets of a slot."""
        slot = self._slots[slot_ms]
        return slot.offsets[slot.head : slot.head + most].tolist()

    def pop(self, slot_ms: int) -> None:
        """The next offset of a slot left. The slot stays until ``close``: others may need its recalls."""
        self._slots[slot_ms].head += 1
        self.count -= 1

    def close(self, slot_ms: int) -> None:
        """All of the first slot left."""
        left = heapq.heappop(self._order)
        assert left == slot_ms, "slots leave in their order"
        slot = self._slots.pop(slot_ms)
        assert slot.head == len(slot.offsets), "nothing is forgotten"

    def recalls(self, slot_ms: int) -> set[str]:
        return self._slots[slot_ms].keys or set()

    def is_late(self, slot_ms: int, queue_offset: int) -> bool:
        return queue_offset in (self._slots[slot_ms].late or ())

    def waiting(self, slot_ms: int) -> int:
        """Messages in a slot, less those that are recalled there: what ``timerCongestNumEachSlot`` bounds."""
        slot = self._slots.get(slot_ms)
        return 0 if slot is None else len(slot.offsets) - slot.head - 2 * len(slot.keys or ())

    def offsets(self) -> list[tuple[int, int]]:
        """(queue offset, slot) of all that wait, in the order of the timer topic."""
        return sorted((q, at) for at, slot in self._slots.items() for q in slot.offsets[slot.head :])

    def check_invariants(self) -> None:
        if not self._slots:
            assert not self._order, "each slot has its turn"
            assert not self.count, "the count is that of what waits"
            return
        assert set(self._order) == set(self._slots), "each slot has its turn"
        left = [q for slot in self._slots.values() for q in slot.offsets[slot.head :]]
        assert len(left) == self.count, "the count is that of what waits"
        assert not left or (self.first or 0) <= min(left), "first is not above any that waits"


class RollsDone:
    """Which of the messages that were to roll did? Told by what rolled: it lies behind them in the topic.

    Where another broker wrote, the time alone does not say it: RocketMQ's rolls depend on its clock.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], list[Entry]] = {}  # several messages may have one unique key
        self.closed = False
        """``left`` was asked."""
        self.rolled_on = RolledOn()

    def on_record(self, entry: Entry, seems_done: bool, source: int | None = None) -> None:
        """``source``: the queue offset that a copy says it is of; None: it says nothing, as RocketMQ's."""
        uniq_key, times = entry.roll
        found = self._open.get((uniq_key, times - 1), [])
        at = next((n for n, one in enumerate(found) if source in (None, one.queue_offset)), None)
        if at is not None:
            del found[at]
        if entry.rolls and seems_done and uniq_key:
            self._open.setdefault(entry.roll, []).append(entry)

    def left(self) -> list[Entry]:
        """Those that did not roll, once all of the topic was seen."""
        found, self._open = [entry for entries in self._open.values() for entry in entries], {}
        self.closed = True
        self.rolled_on.close()
        return found


class RolledOn:
    """Which of the messages that wait have rolled, whatever the rules of now say of them? Told by what
    rolled, which names the queue offset it lay at.

    After a restart with another window or precision a message is due where it is, by its own time, that was
    written to the end of the timer topic before.
    """

    def __init__(self) -> None:
        self._base: int | None = None
        self._waits = bytearray()  # from ``_base`` on, whether a record is in the wheel
        self._rolled: dict[int, tuple[str, int]] = {}

    def on_record(self, entry: Entry, source: int | None, *, waits: bool) -> None:
        """In the order of the topic; ``source``: what this one is a copy of."""
        if self._base is None:
            self._base = entry.queue_offset
        at = -1 if source is None else source - self._base
        if source is not None and 0 <= at < len(self._waits) and self._waits[at]:
            self._rolled[source] = (entry.topic, entry.out_ms)
        self._waits.extend(bytes(entry.queue_offset - self._base - len(self._waits)))
        self._waits.append(waits)

    def close(self) -> None:
        """All that a former master wrote was seen."""
        self._waits = bytearray()

    def has(self, entry: Entry) -> bool:
        return self._rolled.get(entry.queue_offset) == (entry.topic, entry.out_ms)
