"""Which machine is a member, after one was replaced?

The ids of the members never change; each is a seat. A replacement is an entry of the log: the seat's next
incarnation, and where it is. It takes effect where it is *appended*, not where it is committed, and is taken
back where it is cut: from its appending on the former occupant counts for nothing. So the entry is committed
by a majority of all members without that seat, which is a majority before the change and after it.

Pure. A journal knows its own incarnation (``raft.disk.journal``); 0 is a seat that nothing replaced.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from controller.packing import Limits, pack, unpack
from controller.raft.codec import Entry, Seat

SEAT: Final = b"\x10"  # first byte of an entry's command; PySyncObj's own kinds are below
_LIMITS: Final = Limits(bytes_max=0, text_max=4096, items_max=4)


def pack_seat(seat: Seat) -> bytes:
    return SEAT + pack(seat)


def read_seat(command: bytes) -> Seat | None:
    """The seat this entry is about; None for any other entry. Raises Malformed."""
    return unpack(command[1:], Seat, _LIMITS) if command[:1] == SEAT else None


def taken_port(old: str, wanted: Collection[str], ports: Mapping[str, tuple[str, str]]) -> str | None:
    """Why a new machine in the seat of ``old`` cannot have the addresses ``wanted``; None = it can.
    ``ports``: id -> (request port, Raft port)."""
    if len(set(wanted)) < len(wanted):
        return f"{' and '.join(wanted)} are one port: requests and Raft need one each"
    for node_id, own in sorted(ports.items()):
        for kind, at in zip(("request", "Raft"), own, strict=True):
            if node_id != old and at in wanted:
                return f"{at} is the {kind} port of {node_id}"
    return None


class Seats:
    """The seats that were replaced, by this member's log as it is now."""

    def __init__(self) -> None:
        self._log: list[tuple[int, Seat]] = []  # index -> the change made there; 0 = in a snapshot

    def load(self, kept: Iterable[Seat], last: int, entries: Iterable[Entry]) -> None:
        """Begin with what a snapshot up to ``last`` holds and the entries behind it."""
        self._log = [(0, seat) for seat in kept]
        for command, index, _ in entries:
            seat = read_seat(command)
            if index > last and seat is not None:
                self._log.append((index, seat))

    def add(self, index: int, seat: Seat) -> None:
        self._log.append((index, seat))

    def cut_from(self, index: int) -> None:
        """The entries from ``index`` on are gone."""
        self._log = [(at, seat) for at, seat in self._log if at < index]

    @property
    def none_replaced(self) -> bool:
        return not self._log

    @property
    def current(self) -> dict[str, Seat]:
        return {seat.node_id: seat for _, seat in self._log}

    def until(self, index: int) -> tuple[Seat, ...]:
        """The seats as they were at ``index``: for a snapshot."""
        newest = {seat.node_id: seat for at, seat in self._log if at <= index}
        return tuple(newest[node_id] for node_id in sorted(newest))

    def incarnation(self, node_id: str) -> int:
        """Which incarnation of ``node_id`` counts."""
        seat = self.current.get(node_id)
        return 0 if seat is None else seat.incarnation

    def index_of(self, node_id: str) -> int:
        """Where the newest change of this seat stands in the log; 0 = in a snapshot, or never changed."""
        return max((at for at, seat in self._log if seat.node_id == node_id), default=0)

    def open_change(self, commit: int) -> Seat | None:
        """A change that is not committed yet."""
        return next((seat for at, seat in self._log if at > commit), None)

    def next_of(self, node_id: str, address: str, raft_address: str) -> Seat:
        return Seat(node_id, self.incarnation(node_id) + 1, address, raft_address)
