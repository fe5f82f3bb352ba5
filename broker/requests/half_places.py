"""Where is a half message that was written anew? Offsets in, offsets out.

A half moves to the end of its queue each time its producer is asked about it, and when it is in the way. An
end of the transaction names one of the places that the producer was told of: the first, and those asked at.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from model.ids import is_number
from runtime.turns import Slice
from store.files.record import Record
from store.message_store import MessageStore

_NOWHERE: Final = 1 << 63


def first_behind(store: MessageStore, topic: str, physical_offset: int) -> int:
    """The first of queue 0 whose record lies behind a place in the log: places are read, no record."""

    def place(at: int) -> int:
        found = store.place_of(topic, 0, at)
        return _NOWHERE if found is None else found

    span = range(store.min_queue_offset(topic, 0), store.max_queue_offset(topic, 0))
    return span.start + bisect_right(span, physical_offset, key=place)


def ended_by(op: Record) -> list[int]:
    """The halves, by queue offset, that an op record says have ended."""
    return [int(word) for word in op.body.split(b",") if is_number(word)]


class HalfPlaces:
    """Holds: of one half only the places that were told, and its newest one, are remembered."""

    def __init__(self) -> None:
        self._newest: dict[int, tuple[int, int]] = {}  # a former place -> the newest: queue, physical offset
        self._former: dict[int, list[int]] = {}  # the newest place -> the former ones that were told
        self._untold: set[int] = set()  # newest places of which no producer was told

    def newest(self, place: int) -> int | None:
        """The physical offset of the copy that took the place of a half; None: none did."""
        found = self._newest.get(place)
        return None if found is None else found[1]

    def on_moved(self, place: int, copy: tuple[int, int], *, told: bool) -> None:
        """``copy`` (queue offset, physical offset) took the place of a half, which is ``told`` to its
        producer."""
        former = self._former.pop(place, [])
        if place not in self._untold:  # else nobody can name it
            former.append(place)
        self._untold.discard(place)
        if not told:
            self._untold.add(copy[0])
        self._former[copy[0]] = former
        self._newest.update(dict.fromkeys(former, copy))

    async def forget(self, below: int, slice_: Slice) -> None:
        """Halves whose newest place is below ``below`` have ended."""
        for place, (newest, _) in list(self._newest.items()):
            if newest < below:
                self._newest.pop(place, None)
                self._former.pop(newest, None)
                self._untold.discard(newest)
            await slice_.breathe()

    def clear(self) -> None:
        self._newest.clear()
        self._former.clear()
        self._untold.clear()
