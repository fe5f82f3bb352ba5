"""How many replicas must have a record before its producer is told OK? Pure.

``confirmed`` is what consumers may read, ``replicated`` what producers are told OK for. Two rules hold in
every mode: consumers read only what every replica has that could be elected (without Controllers none
can: ``connected_set.py``), and OK means ``copies_min`` copies (``ASYNC_MASTER`` excepted, which waits for no
replica).

A *copy* is a log that has the record, the master's included. A *member* is a broker in the SyncStateSet.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from model.config import BrokerConfig
from model.ids import NOWHERE, PhysicalOffset


class Wait(enum.Enum):
    """Whose acknowledgement an answer waits for."""

    NOBODY = "nobody"  # the master alone
    ALL = "all"  # every member of the SyncStateSet, and every replica that is joining or proposed
    COUNT = "count"  # so many members
    MAJORITY = "majority"  # members that are a majority of all replicas, in the set or not


class Copies(NamedTuple):
    """How many logs must have a record."""

    to_read: int
    """Before consumers may read it; besides, every member has to have it."""
    to_ack: int
    """Before its producer is told OK."""


@dataclass(frozen=True, slots=True)
class AckPolicy:
    """One broker's mode, as its configuration says."""

    wait: Wait = Wait.ALL
    acks_min: int = 1
    """With COUNT and MAJORITY an answer waits for so many members at least (``inSyncReplicas``)."""
    replicas: int = 0
    """With MAJORITY: how many replicas the group has at least (``totalReplicas``)."""
    copies_min: int = 1
    """OK means so many copies at least (``minInSyncReplicas``)."""
    synced: bool = False
    """SYNC_FLUSH: the master's own copy counts as far as it is on its disk."""

    @classmethod
    def of(cls, config: BrokerConfig, *, controllers: bool) -> AckPolicy:
        """The mode of a broker that leads with or without Controllers."""
        asynchronous = config.broker_role == "ASYNC_MASTER"
        wait = Wait.COUNT
        if config.majority_ack:
            wait = Wait.MAJORITY
        elif asynchronous:
            wait = Wait.NOBODY
        elif controllers and config.all_ack_in_sync_state_set:
            wait = Wait.ALL
        return cls(
            wait,
            acks_min=1 if asynchronous else config.in_sync_replicas,
            replicas=config.total_replicas if config.majority_ack else 0,
            copies_min=config.min_in_sync_replicas,
            synced=config.flush_disk_type == "SYNC_FLUSH",
        )

    def copies(self, replicas_known: int) -> Copies:
        """``replicas_known``: how many replicas the master knows of, itself included and learners not. Only a
        majority depends on it."""
        match self.wait:
            case Wait.NOBODY:
                return Copies(1, 1)
            case Wait.ALL:
                return Copies(1, self.copies_min)
            case Wait.COUNT:
                to_read = self.acks_min
            case Wait.MAJORITY:
                to_read = max(self.acks_min, max(self.replicas, replicas_known) // 2 + 1)
        return Copies(to_read, max(to_read, self.copies_min))

    def members_to_write(self, replicas_known: int) -> int:
        """Members, the master included, that there are at least before a write is taken.
        ``replicas_known``: see ``copies``."""
        majority = self.copies(replicas_known).to_read if self.wait is Wait.MAJORITY else 1
        return max(self.copies_min, majority)

    def own_end(self, end: PhysicalOffset, flushed: PhysicalOffset) -> PhysicalOffset:
        """How far the master's own copy counts. With SYNC_FLUSH the master is a replica like the others: what
        only its memory holds is gone when all of them lose power."""
        return min(end, flushed) if self.synced else end

    def watermarks(
        self, own: PhysicalOffset, slowest: PhysicalOffset, ends: Sequence[PhysicalOffset], copies: Copies
    ) -> tuple[PhysicalOffset, PhysicalOffset]:
        """How far consumers may read and producers are told OK, as offsets in the CommitLog (bytes); -1:
        nothing more than before.

        ``own``: where the master's copy ends. ``slowest``: up to here every replica has the log that could be
        elected. ``ends``: where the copies of slaves end, one offset a connected slave that is a member
        whatever the Controllers answer to open proposals, in any order; -1 = it has not reported yet.
        ``copies``: by this policy.
        """
        if self.wait is Wait.ALL:
            return self.by_all(slowest, 1 + len(ends), copies)
        to_read, to_ack = copies
        highest = sorted((own, *ends), reverse=True)
        readable = highest[to_read - 1] if len(highest) >= to_read else NOWHERE
        replicated = highest[to_ack - 1] if len(highest) >= to_ack else NOWHERE
        return (readable if readable < slowest else slowest), replicated

    @staticmethod
    def by_all(
        slowest: PhysicalOffset, members: int, copies: Copies
    ) -> tuple[PhysicalOffset, PhysicalOffset]:
        """``watermarks`` in mode ALL. ``members``: how many there are, the master included."""
        # The set may have shrunk while answers waited. Consumers may read what is left: all that can be
        # elected have it.
        return slowest, slowest if members >= copies.to_ack else NOWHERE
