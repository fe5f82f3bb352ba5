"""What is one state of a small broker group, as a value that can be compared and hashed?

A record is ``(epoch of its writer, number)``; a log is a tuple of records, an offset is an index into it.
Broker ids begin at 1. Times do not exist: whatever may be late may be late for ever, and a lease may end at
any moment, at the broker before at the Controllers.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

Record = tuple[int, int]
Epoch = tuple[int, int]
Change = int
"""Number of one change of the tables (topics, groups)."""


class Phase(enum.IntEnum):
    """What a broker's process is."""

    DOWN = 0
    REGISTERED = 1
    SLAVE = 2
    MASTER = 3


class Open(NamedTuple):
    """A SyncStateSet the master proposed whose fate it does not know; ``incarnations`` of the linked members,
    as they were when their links began."""

    members: tuple[int, ...]
    base: int
    incarnations: tuple[tuple[int, int], ...] = ()


class Mode(NamedTuple):
    """What a broker's configuration says. ``wait``: ``all``, ``count`` or ``majority``; ``acks``:
    inSyncReplicas where ``wait`` is ``count``; ``copies_min``: minInSyncReplicas."""

    wait: str = "all"
    acks: int = 2
    copies_min: int = 1

    @property
    def majority(self) -> bool:
        return self.wait == "majority"

    @property
    def all_ack(self) -> bool:
        return self.wait == "all"


class Sent(NamedTuple):
    """What the Controllers told a broker of its group; it may arrive late, or never."""

    to: int
    table: bytes


class Request(NamedTuple):
    """A proposal on its way to the Controllers; it may arrive at any time, or never."""

    master: int
    epoch: int
    proposal: Open


class Handover(NamedTuple):
    """The Controllers' leader had this master asked to step down for ``target``. ``drained``: it said that
    the target has all."""

    master: int
    epoch: int
    target: int
    drained: bool = False


class Lead(NamedTuple):
    """What a master knows of its slaves. Tuples have one place a broker; -1: nothing.

    ``acked``: ends it heard of. ``flying``: acknowledgements on their way. ``noted``: slaves that have noted
    this epoch and all of the log before it. ``forgot``: incarnations it heard of;
    ``began``: those of the links.
    """

    members: tuple[int, ...]
    set_epoch: int
    open: tuple[Open, ...]
    acked: tuple[int, ...]
    flying: tuple[int, ...]
    noted: tuple[bool, ...]
    began: tuple[int, ...]
    forgot: tuple[int, ...]


class Broker(NamedTuple):
    """``follows``: the master its HA link goes to, 0 = none. ``lease``: the epoch its lease is for, 0 = none.
    ``leased``: it knows that in its epoch its members' word is not enough.
    ``asked``: it asked the Controllers anew since its start. ``tables``: the changes of the tables it has;
    ``tables_epoch``: of the last master that served with these.
    ``mode``: which of the setting's modes its configuration says. ``hands``: as master it takes no writes,
    another is to lead. What names other brokers comes last."""

    phase: Phase = Phase.SLAVE
    epoch: int = 1
    log: tuple[Record, ...] = ()
    epochs: tuple[Epoch, ...] = ((1, 0),)
    confirmed: int = 0
    suspect: bool = False
    asked: bool = True
    lease: int = 0
    leased: bool = False
    tables: frozenset[Change] = frozenset()
    tables_epoch: int = 1
    mode: int = 0
    hands: bool = False
    follows: int = 0
    lead: Lead | None = None

    @property
    def up(self) -> bool:
        return self.phase is not Phase.DOWN

    def stopped(self) -> Broker:
        """Its process ended; the log, its epochs and the suspicion are on the disk."""
        return self._replace(
            phase=Phase.DOWN, epoch=0, asked=False, follows=0, lease=0, leased=False, hands=False, lead=None
        )


class Budget(NamedTuple):
    """How often each thing may still happen. What is not bounded here happens as often as it can."""

    writes: int = 1
    elections: int = 1
    kills: int = 0
    powers: int = 0
    wipes: int = 0
    proposals: int = 0
    leases: int = 0
    starts: int = 99
    changes: int = 0
    modes: int = 0
    forgets: int = 0
    cuts: int = 0
    views: int = 0
    twice: int = 0
    leaders: int = 0
    clocks: int = 0
    keys: int = 0
    stops: int = 0
    strands: int = 0
    handovers: int = 0


class World(NamedTuple):
    """``table``: the group as the Controllers have it, encoded. ``granted``: whose lease may run still, by
    the Controllers' clock. ``acked``: ``(offset, record)`` of every answered send; ``read``: of every record
    a consumer may have read; ``answered``: changes of the tables that were answered. ``sent``: views on their
    way. ``outsiders``: the Controllers may elect a broker from outside of the set now. ``previous``: the
    table before the last command, where a Controllers' leader may lose that. ``handover``: under way."""

    table: bytes
    granted: tuple[bool, ...]
    requests: tuple[Request, ...]
    brokers: tuple[Broker, ...]
    acked: frozenset[tuple[int, Record]]
    read: frozenset[tuple[int, Record]]
    answered: frozenset[Change]
    left: Budget
    sent: tuple[Sent, ...] = ()
    previous: bytes = b""
    outsiders: bool = False
    handover: Handover | None = None

    def broker(self, broker_id: int) -> Broker:
        return self.brokers[broker_id - 1]

    def with_broker(self, broker_id: int, broker: Broker) -> World:
        at = broker_id - 1
        return self._replace(brokers=(*self.brokers[:at], broker, *self.brokers[at + 1 :]))

    def spending(self, **what: int) -> World:
        """The world with so much less of these budgets."""
        left = {name: getattr(self.left, name) - cost for name, cost in what.items()}
        return self._replace(left=self.left._replace(**left))


class Setting(NamedTuple):
    """What is explored. ``wait``, ``acks`` and ``copies_min``: the mode, see ``Mode``. ``then``: another one,
    which restarted brokers may have. ``unclean``: the Controllers elect an outsider rather than nobody, from
    the beginning, or once an operator set that key where the budget has ``keys``. ``start``: how the group
    begins, see ``chaos.model.begin``."""

    brokers: int = 3
    wait: str = "all"
    acks: int = 2
    copies_min: int = 1
    unclean: bool = False
    then: Mode | None = None
    start: str = "full"
    budget: Budget = Budget()

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(range(1, self.brokers + 1))

    @property
    def modes(self) -> tuple[Mode, ...]:
        first = Mode(self.wait, self.acks, self.copies_min)
        return (first,) if self.then is None else (first, self.then)

    def mode_of(self, broker: Broker) -> Mode:
        return self.modes[broker.mode]


def put(places: tuple, broker_id: int, value: object) -> tuple:  # type: ignore[type-arg]
    """``places`` with ``value`` at the place of a broker."""
    return (*places[: broker_id - 1], value, *places[broker_id:])
