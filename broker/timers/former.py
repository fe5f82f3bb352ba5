"""Which timer messages did former masters deliver without a note of it? Their copies are in the log."""

from __future__ import annotations

import asyncio
from typing import Final, Self

from broker.requests.moving import records_of
from broker.timers.core import Entry, Note
from broker.upkeep.copies import INT64_DIGITS, copies_begin
from model.ids import PhysicalOffset
from model.message import DELAYED_AS, TIMER_TOPIC, property_of
from store.flow.reading import GetStatus
from store.message_store import MessageStore

COUNT: Final = 32
BYTES: Final = 1 << 20
_MOVED_ON: Final = (GetStatus.OFFSET_TOO_SMALL, GetStatus.NO_MATCHED)


_KIND: Final = "timer:"


def mark_of(entry: Entry) -> str:
    """What a copy says it is of, in its property ``DELAYED_AS``."""
    return f"{_KIND}{entry.queue_offset}"


def source_of(properties: str) -> int | None:
    """The queue offset of the timer topic at which the message lay that this is a copy of."""
    mark = property_of(properties, DELAYED_AS) or ""
    at = mark.removeprefix(_KIND)
    return int(at) if at != mark and at.isascii() and at.isdigit() and len(at) < INT64_DIGITS else None


class FormerCopies:
    """``queue_end``: where the timer topic ended when this one took over, and ``log_end`` the log.

    A queue is read once, from when the first of its messages that may be there was due: later ones are due
    later, and a copy was never stored before its message was due. Where clocks went back, from the place of
    the first message that waits. How far the former master said it was does not matter here: its clock may
    have been ahead when it said so.
    """

    def __init__(
        self,
        store: MessageStore,
        queue_end: int,
        log_end: PhysicalOffset,
        source: PhysicalOffset | None,
    ) -> None:
        """``source``: where the first message lies that may wait; None: none does."""
        self.queue_end = queue_end
        self._store = store
        self._log_end = log_end
        self._source = source
        # Also of messages due long after the takeover: the former master's clock may have been ahead. Where
        # it was not, a search by time passes over all that was there then.
        self._marks: dict[tuple[str, int], frozenset[str]] = {}

    @classmethod
    async def of(cls, store: MessageStore, noted: Note, queue_end: int, log_end: PhysicalOffset) -> Self:
        """``noted``: how far the former master said it was. Raises OSError when it cannot be told now which
        message is the first that may wait."""
        offset = noted.first
        while offset < queue_end:
            got = store.get(TIMER_TOPIC, 0, offset, 1, BYTES, None)
            if got.status is GetStatus.FOUND:
                first = next(records_of(got.chunks))
                return cls(store, queue_end, log_end, PhysicalOffset(first.physical_offset))
            emptied = got.status is GetStatus.NO_MESSAGE_IN_QUEUE  # all have expired
            if not (emptied or got.status in _MOVED_ON) or got.next_offset <= offset:
                raise OSError(f"the timer topic gives {got.status.name} at {offset}")
            offset = got.next_offset  # what cannot be read cannot be delivered either
            await asyncio.sleep(0)
        return cls(store, queue_end, log_end, None)

    async def has(self, entry: Entry, queue: tuple[str, int]) -> bool:
        """Whether the message of ``entry``, which is for ``queue``, is there."""
        if entry.queue_offset >= self.queue_end:
            return False
        marks = self._marks.get(queue)
        if marks is None:
            marks = self._marks[queue] = await self._read(queue, entry.due_ms)
        return mark_of(entry) in marks

    async def _read(self, queue: tuple[str, int], since_ms: int) -> frozenset[str]:
        if self._source is None:
            return frozenset()
        marks: set[str] = set()
        offset = await copies_begin(self._store, queue, self._source, since_ms, self._log_end)
        while True:
            got = self._store.get(*queue, offset, COUNT, BYTES, None)
            if got.status is GetStatus.FOUND:
                for record in records_of(got.chunks):
                    if record.physical_offset >= self._log_end:
                        return frozenset(marks)
                    mark = property_of(record.properties, DELAYED_AS)
                    if mark is not None:
                        marks.add(mark)
            elif got.status not in _MOVED_ON:
                return frozenset(marks)
            offset = got.next_offset
            await asyncio.sleep(0)
