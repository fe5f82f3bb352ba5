"""Who becomes master of a broker group?

The rules are RocketMQ's ``DefaultElectPolicy``, with offsets compared as whole numbers (the original casts a
difference of longs to an int, which is wrong for logs more than 2 GiB apart) and with the smallest id winning
a tie, so that every Controller comes to the same answer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

PRIORITY_LAST: Final = 2**31 - 1


class End(msgspec.Struct, frozen=True, array_like=True):
    """How far a broker's log reaches, by its newest heartbeat. Of equal logs the lower ``priority`` wins."""

    epoch: int = -1
    max_offset: int = -1
    priority: int = PRIORITY_LAST


_NOTHING_KNOWN: Final = End()


def choose(
    *,
    members: Collection[int],
    replicas: Collection[int],
    alive: Collection[int],
    presumed: Collection[int] = (),
    master: int | None,
    preferred: int | None,
    ends: Mapping[int, End],
    unclean: bool,
) -> int | None:
    """The id of the broker that shall be master, or None when no broker may be.

    ``members``: the SyncStateSet; ``replicas``: all registered ids; ``presumed``: brokers a new Controller
    leader has not heard yet, and must not take for dead: they may stay master, but not become it.
    ``preferred``: this one or none. ``unclean``: also brokers outside the SyncStateSet, at the price of
    acknowledged messages.
    """
    chosen = _among(members, alive, presumed, master, preferred, ends)
    if chosen is None and unclean:
        chosen = _among(replicas, alive, presumed, master, preferred, ends)
    return chosen


def _among(
    candidates: Collection[int],
    alive: Collection[int],
    presumed: Collection[int],
    master: int | None,
    preferred: int | None,
    ends: Mapping[int, End],
) -> int | None:
    able = [b for b in sorted(candidates) if b in alive or (b == master and b in presumed)]
    if master in able and preferred in (None, master):
        return master
    if preferred is not None:
        return preferred if preferred in able else None

    def rank(broker_id: int) -> tuple[int, int, int, int]:
        end = ends.get(broker_id, _NOTHING_KNOWN)
        return -end.epoch, -end.max_offset, end.priority, broker_id

    return min(able, key=rank, default=None)
