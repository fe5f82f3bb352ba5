"""How many replicas must have a record before its producer is told OK? Pure.

``confirmed`` is what consumers may read, ``replicated`` what producers are told OK for. Two rules hold in
every mode: consumers read only what every replica has that could be elected, and OK means ``copies_min``
copies (``ASYNC_MASTER`` excepted, which waits for no replica).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from model.config import BrokerConfig


class Wait(enum.Enum):
    """Whose acknowledgement an answer waits for."""

    NOBODY = "nobody"  # the master alone
    ALL = "all"  # every member of the SyncStateSet, and every replica that is joining or proposed
    COUNT = "count"  # so many members
    MAJORITY = "majority"  # members that are a majority of all replicas, in the set or not


@dataclass(frozen=True, slots=True)
class AckPolicy:
    """One broker's mode, as its configuration says."""

    wait: Wait = Wait.ALL
    count: int = 1
    """Members an answer waits for at least, the master included (``inSyncReplicas``)."""
    replicas: int = 0
    """With MAJORITY: how many replicas the group has at least (``totalReplicas``)."""
    copies_min: int = 1
    """``minInSyncReplicas``."""
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
            count=1 if asynchronous else config.in_sync_replicas,
            replicas=config.total_replicas if config.majority_ack else 0,
            copies_min=config.min_in_sync_replicas,
            synced=config.flush_disk_type == "SYNC_FLUSH",
        )

    def quorum(self, known: int) -> int:
        """Copies a record needs before consumers read it, beside that of every member. ``known``: how many
        replicas the master knows."""
        if self.wait is Wait.MAJORITY:
            return max(self.count, max(self.replicas, known) // 2 + 1)
        return self.count if self.wait is Wait.COUNT else 1

    def copies(self, known: int) -> int:
        """Copies that OK means at least, the master's included."""
        return 1 if self.wait is Wait.NOBODY else max(self.quorum(known), self.copies_min)

    def members_needed(self, known: int) -> int:
        """Members without which no write is taken."""
        return max(self.copies_min, self.quorum(known) if self.wait is Wait.MAJORITY else 1)

    def own_end(self, end: int, flushed: int) -> int:
        """How far the master's own copy counts. With SYNC_FLUSH the master is a replica like the others: what
        only its memory holds is gone when all of them lose power."""
        return min(end, flushed) if self.synced else end

    def watermarks(self, own: int, slowest: int, ends: Sequence[int], known: int) -> tuple[int, int]:
        """How far consumers may read and producers are told OK; -1: nothing more than before.

        ``own``: the master's copy. ``slowest``: what every replica has that could be elected. ``ends``: of
        the slaves that are members, whatever the Controllers answer to open proposals.
        """
        copies = self.copies(known)
        if self.wait is Wait.ALL:
            # The set may have shrunk while answers waited. Consumers may read what is left: all that can be
            # elected have it.
            return slowest, slowest if 1 + len(ends) >= copies else -1
        have = (own, *ends)
        return min(slowest, nth_end(have, self.quorum(known))), nth_end(have, copies)


def nth_end(ends: Iterable[int], count: int) -> int:
    """The offset that ``count`` of the logs reach; -1: there are not so many."""
    highest = sorted(ends, reverse=True)
    return highest[count - 1] if len(highest) >= count else -1
