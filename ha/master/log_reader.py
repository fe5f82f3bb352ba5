"""What do the links to slaves share? What they may send a second, and what is read of the log in a turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Protocol

from ha.epochs import EpochStart
from model.ids import PhysicalOffset
from runtime.env import Buffer

if TYPE_CHECKING:
    from store.message_store import MessageStore

KEPT_BYTES_MIN: Final = 16 * 1024
"""Less is read from the log again: a frame of its own for each small append would cost the slave more."""


class Budget:
    """Log bytes all slaves together may be sent in a second (``maxHaTransferByteInSecond``); 0 = no limit.

    A burst of one tenth of a second may go at once.
    """

    def __init__(self, bytes_per_s: int, now_ms: Callable[[], float]) -> None:
        self._now_ms = now_ms
        self.limit(bytes_per_s)

    def limit(self, bytes_per_s: int) -> None:
        """From now on so many."""
        self.bytes_per_s = bytes_per_s
        self._burst = self._left = max(bytes_per_s / 10, 1.0)
        self._at_ms = self._now_ms()

    def take(self, wanted: int) -> int:
        """How many of ``wanted`` bytes may go now; they count as sent."""
        if not self.bytes_per_s:
            return wanted
        now_ms = self._now_ms()
        self._left = min(self._burst, self._left + (now_ms - self._at_ms) * self.bytes_per_s / 1000)
        self._at_ms = now_ms
        taken = min(wanted, int(self._left))
        self._left -= taken
        return taken

    def wait_s(self) -> float:
        """Seconds until something may be sent again."""
        return self._burst / 2 / self.bytes_per_s if self.bytes_per_s else 0.0


Framed = tuple[list[Buffer], PhysicalOffset, EpochStart | None]
"""Frames of the log, where they end, and the epoch of the last one."""
_Asked = tuple[PhysicalOffset, PhysicalOffset, EpochStart | None, PhysicalOffset, int]


class Pumped(Protocol):
    """A link to a slave."""

    def pump(self) -> None:
        """Send what the slave lacks."""


class LogReader:
    """The log as the links read it: what several slaves need in one turn of the loop is read once, and what
    was appended in it not at all.

    Nothing is kept beyond the turn: later a repair may have written other bytes, or a cut taken them away.
    """

    def __init__(self, store: MessageStore) -> None:
        self.damage = store.damage
        """What of the log is known to be damaged."""
        self._store = store
        self._held: dict[PhysicalOffset, Buffer] | None = None
        self.framed: dict[_Asked, Framed] | None = None
        """In a turn: the frames that were made for a link, by what they depend on."""
        self._appended: dict[PhysicalOffset, bytes] = {}
        self._generation = 0  # of the log that ``_appended`` belongs to

    def appended(self, data: Buffer) -> None:
        """The log ends with ``data`` now; a turn of the links follows."""
        if isinstance(data, bytes) and len(data) >= KEPT_BYTES_MIN:
            log_ = self._store.log
            if log_.generation != self._generation:
                self._appended.clear()
            self._generation = log_.generation
            self._appended[PhysicalOffset(log_.end - len(data))] = data

    def read(self, offset: PhysicalOffset, size: int) -> Buffer:
        """Bytes from ``offset`` as ``CommitLog.read`` gives them, with its errors; fewer also where an append
        ended."""
        if self._held is None:
            return self._store.log.read(offset, size)
        held = self._held.get(offset)
        if held is None or len(held) < size:
            held = self._appended.get(offset)
            if held is None or len(held) < size:  # else it goes on where the link is: nearly always
                # Also what ends with its segment, or ended with the log then: only the log knows.
                held = self._of_append(offset, size) or self._store.log.read(offset, size)
            self._held[offset] = held
        return held if len(held) <= size else memoryview(held)[:size]

    def _of_append(self, offset: PhysicalOffset, size: int) -> Buffer | None:
        for start, data in self._appended.items():
            if start <= offset and offset + min(size, KEPT_BYTES_MIN) <= start + len(data):
                return data if offset == start else memoryview(data)[offset - start :]
        return None

    def turn(self, links: Iterable[Pumped]) -> None:
        """Let each of ``links`` send what its slave lacks."""
        self._held, self.framed = {}, {}
        if self._store.log.generation != self._generation:
            self._appended.clear()
        try:
            for link in links:
                link.pump()
        finally:
            self._held = self.framed = None
            self._appended.clear()
