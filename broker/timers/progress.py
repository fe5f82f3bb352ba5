"""How far are timer messages delivered? The note that outlives a restart, and that slaves copy."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from broker.timers.core import Note
from model.message import TIMER_TOPIC
from model.topic import DataVersion


class TimerProgress:
    """One note. ``adopt`` takes a master's."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.note = Note()
        self.version = DataVersion()
        self.on_change: list[Callable[[], None]] = []

    def set(self, note: Note) -> None:
        if note != self.note:
            self.note = note
            self.version = self.version.next(self._now_ms())
            self._changed()

    def clamp(self, end: Callable[[str, int], int]) -> None:
        """Cut what lies beyond ``end(topic, queue)`` back to it: see ``OffsetTable.clamp``."""
        note, last = self.note, end(TIMER_TOPIC, 0)
        self.set(Note(note.read_ms, min(note.queue_offset, last), min(note.first, last)))

    def take(self, note: Note, version: DataVersion) -> bool:
        """What another broker, or the file, says; True when it differed."""
        if note == self.note:
            return False
        self.note, self.version = note, version
        self._changed()
        return True

    def adopt(self, wrapper: dict[str, Any]) -> bool:
        """Take a keelmq master's note."""
        note = Note(*(int(wrapper.get(name, 0)) for name in ("readMs", "queueOffset", "first")))
        return self.take(note, DataVersion.from_json(wrapper.get("dataVersion")))

    def adopt_rocketmq(self, note: Note, version: DataVersion) -> bool:
        """Take what a RocketMQ master says of itself. It does not tell its first waiting message: ours, of
        the same log, may be delivered by now, but none before it waits."""
        return self.take(Note(note.read_ms, note.queue_offset, self.note.first), version)

    def to_json(self) -> dict[str, Any]:
        note = self.note
        return {
            "dataVersion": self.version.to_json(),
            "first": note.first,
            "queueOffset": note.queue_offset,
            "readMs": note.read_ms,
        }

    def _changed(self) -> None:
        for hook in self.on_change:
            hook()


class NotesInWaiting:
    """Notes that count once what was delivered before them is confirmed. Pure.

    Holds: they wait in the order of the log, and the newest says all that is to be said.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Note]] = deque()
        self._end = 0  # where the last delivered copy ends ...
        self._kept_end = 0  # ... of those that a note waits for

    def __len__(self) -> int:
        return len(self._waiting)

    def delivered(self, end: int) -> None:
        self._end = end

    def keep(self, note: Note, noted: Note) -> None:
        """Let ``note`` wait, if it says more than the one before it; ``noted`` is the last that counted."""
        last = self._waiting[-1][1] if self._waiting else noted
        # Time alone is not worth a note: what is due in between, and delivered, moves the others.
        moved = (note.queue_offset, note.first) != (last.queue_offset, last.first)
        if moved or self._end > self._kept_end:
            self._kept_end = self._end
            self._waiting.append((self._end, note))

    def confirmed(self, offset: int) -> Note | None:
        """The newest note that counts now; None when no further one does."""
        note = None
        while self._waiting and self._waiting[0][0] <= offset:
            note = self._waiting.popleft()[1]
        return note

    def check_invariants(self) -> None:
        if not self._waiting:
            return
        ends = [end for end, _ in self._waiting]
        assert ends == sorted(ends), "notes wait in the order of the log"
        assert ends[-1] == self._kept_end <= self._end


class TimerCounts:
    """How many messages of each topic wait: the answer to GET_TIMER_METRICS."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.table: dict[str, tuple[int, int]] = {}
        self.version = DataVersion()

    def add(self, topic: str, messages: int) -> None:
        now_ms = self._now_ms()
        self.table[topic] = (self.table.get(topic, (0, 0))[0] + messages, now_ms)
        self.version = self.version.next(now_ms)

    def clear(self) -> None:
        self.table.clear()

    def to_json(self, topics: Callable[[str], bool]) -> dict[str, Any]:
        """``topics`` says which are still there."""
        return {
            "dataVersion": self.version.to_json(),
            "timingCount": {
                topic: {"count": count, "timeStamp": at_ms}
                for topic, (count, at_ms) in sorted(self.table.items())
                if topics(topic)
            },
        }
