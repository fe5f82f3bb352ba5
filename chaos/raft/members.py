"""Machines that have, or had, a seat among the members, and which of them reach each other.

A machine dials where its own log, or else its configuration, says that a member is, and the two look at each
other with the real ``controller.links.roster``: the rest of a handshake needs no schedule.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from chaos.sim.disk import Machine
from chaos.sim.loop import Life
from controller.links.handshake import dials
from controller.links.roster import Roster
from controller.raft.disk.journal import Journal
from controller.raft.node import Node
from model.errors import PeerError


class Broken(Exception):
    """A promise does not hold any more."""


@dataclass(slots=True)
class Member:
    """One machine over its lives. ``seat``: the member's id it was made for; ``configured``: seat -> address,
    in its own files. ``replaced``: another machine has the seat, and this one may come back. ``moved``: seats
    that were replaced, by its log."""

    name: str
    seat: str
    configured: dict[str, str]
    machine: Machine
    life: Life
    roster: Roster = field(init=False)
    node: Node | None = None
    journal: Journal | None = None
    applied: list[bytes] = field(default_factory=list)
    paused: bool = False
    suspect: bool = False  # empty or damaged, and not admitted since
    replaced: bool = False
    moved: dict[str, tuple[int, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.new_roster()

    def new_roster(self) -> None:
        """What it knows of the others when its process begins."""

        def incarnation() -> int | None:
            return None if self.journal is None else self.journal.incarnation

        self.moved = {}
        self.roster = Roster(self.seat, self.configured, incarnation)

    @property
    def address(self) -> str:
        return self.configured[self.seat]

    @property
    def cut(self) -> bool:
        """Whether the end of its journal was damaged, and it has had no vote since."""
        return self.suspect and self.journal is not None and self.journal.incarnation is not None

    @property
    def blank(self) -> bool:
        """Whether its directory holds no decision."""
        return self.journal is None or self.journal.blank

    @property
    def runs(self) -> bool:
        return self.node is not None and not self.paused

    @property
    def leads(self) -> bool:
        return self.node is not None and not self.paused and self.node.leads()

    def follow_seats(self) -> list[str]:
        """Seats that changed, by its log: links to them end (``controller.raft.raft`` does the same)."""
        if self.node is None:
            return []
        if not (seats := self.node.seats.current) and not self.moved:
            return []
        self.moved = {seat.node_id: (seat.incarnation, seat.raft_address) for seat in seats.values()}
        return self.roster.update(self.moved)


def has_to_end(former: Member, members: Iterable[Member]) -> bool:
    """Whether the operator ends this machine, which is being replaced, for good: no rule could tell it from
    one that counts (docs/raft.md, "What has to be ended"). Its end was cut, or so many replaced ones hold no
    decision that, with a minority of empty members, they would be a new group."""
    blank = {member.seat for member in members if member.replaced and member.blank} | {former.seat}
    return former.cut or (former.blank and len(blank) * 2 >= len(former.configured))


def open_to(one: Member, other: Member) -> bool:
    """Whether the one that dials finds the other, and both take each other for members."""
    if one.seat == other.seat:
        return False
    dialer, acceptor = (one, other) if dials(one.seat, other.seat) else (other, one)
    if dialer.roster.addresses[acceptor.seat] != acceptor.address:
        return False
    if not acceptor.roster.is_wanted(dialer.roster.label_of(acceptor.seat)):
        return False
    try:
        acceptor.roster.check_claim(dialer.roster.own_label(), dialer.roster.own_address())
    except PeerError:
        return False
    return True
