"""A slave's log as ``ha.slave.follow`` sees it: without a broker, a disk or a link."""

from __future__ import annotations

from ha.slave.follow import (
    Action,
    Append,
    CannotGoOn,
    Confirm,
    EpochsCoverLog,
    ForgetEpochs,
    LearnEpochs,
    NoteDamage,
    NoteEpoch,
    OwnLog,
    Reach,
    Truncate,
)
from ha.slave.tail import Piece
from model.ids import PhysicalOffset
from tests.plain import epoch_starts


class Slave:
    """A log of plain bytes that carries out what the decider says, and holds it to its promises."""

    def __init__(
        self, data: bytes, epochs: tuple[tuple[int, int], ...], confirmed: int, flushed: int
    ) -> None:
        self.begin = 0
        self.dispatched: int | None = None  # None: up to the end
        self.data = bytearray(data)
        self.epochs: list[tuple[int, int]] = list(epochs)
        self.confirmed = confirmed
        self.flushed = flushed
        self.classic_from: PhysicalOffset | None = None
        self.epochs_lost = False
        self.reseed: CannotGoOn | None = None
        self.cut_to: int | None = None
        self.noted: list[int] = []
        self.damaged: set[int] = set()
        """Bytes known to be damaged."""

    @property
    def end(self) -> int:
        return self.begin + len(self.data)

    @property
    def own(self) -> OwnLog:
        return OwnLog(
            PhysicalOffset(self.begin),
            PhysicalOffset(self.end),
            PhysicalOffset(self.flushed),
            PhysicalOffset(self.confirmed),
            PhysicalOffset(self.end if self.dispatched is None else self.dispatched),
            epoch_starts(self.epochs),
            self.epochs_lost,
            self.classic_from,
        )

    @property
    def reach(self) -> Reach:
        return Reach(*self.own[:3], self.own.epochs)

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self.data[offset - self.begin : offset - self.begin + size])

    def is_damaged(self, begin: int, until: int) -> bool:
        return any(begin <= at < until for at in self.damaged)

    def pieces(self, data: bytes, offset: int) -> list[Piece]:
        """Records of ten bytes; the last one may end behind ``data``. One of zeros is a blank, one with "!"
        does not match its CRC."""
        return [
            Piece(PhysicalOffset(offset + at), PhysicalOffset(offset + at + 10), any(data[at : at + 10]))
            for at in range(-offset % 10, len(data), 10)
            if b"!" not in data[at : at + 10]
        ]

    def damaged_until(self, offset: int) -> PhysicalOffset:
        while offset in self.damaged:
            offset += 1
        return PhysicalOffset(offset)

    def carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            assert self.reseed is None, "nothing is done after the end was said"
            match action:
                case Append(offset, body):
                    assert offset == self.end or not self.data, "bytes are appended at the end only"
                    assert body
                    self.begin = self.begin if self.data else offset
                    self.data += body
                case Truncate(to, _, _):
                    assert self.begin <= to <= self.end, "a cut is inside of the log"
                    self.cut_to = to
                    del self.data[to - self.begin :]
                    self.confirmed, self.flushed = min(self.confirmed, to), min(self.flushed, to)
                case NoteDamage(offset):
                    self.noted.append(offset)
                case Confirm(offset):
                    assert offset <= self.end, "nothing is confirmed that is not here"
                    self.confirmed = max(self.confirmed, offset)
                case NoteEpoch(epoch, start):
                    assert start <= self.end or not self.data, (
                        "an epoch is noted behind all that is before it"
                    )
                    assert not self.epochs or (epoch > self.epochs[-1][0] and start >= self.epochs[-1][1])
                    self.epochs.append((epoch, start))
                case LearnEpochs(entries, _):
                    self.epochs, self.epochs_lost, self.classic_from = list(entries), False, None
                case ForgetEpochs(start):
                    self.epochs = [entry for entry in self.epochs if entry[1] < start]
                case EpochsCoverLog():
                    self.classic_from = None
                case CannotGoOn():
                    self.reseed = action
