"""Who becomes master of a broker group?

The rules are RocketMQ's ``DefaultElectPolicy``, with offsets compared as whole numbers (the original casts a
difference of longs to an int, which is wrong for logs more than 2 GiB apart), with those preferred that still
answer, and with the smallest id winning a tie, so that every Controller comes to the same answer.
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


class Quorum(msgspec.Struct, frozen=True, kw_only=True):
    """What an election in majority mode needs. ``of``: replicas, registered or not, of which a majority has
    every acknowledged record; ``voters``: the registered ones that count (no learners); ``answered``: those
    that said, after the former master could confirm nothing more, how far their logs are."""

    of: int
    voters: tuple[int, ...]
    answered: tuple[int, ...]


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
    doubtful: Collection[int] = (),
    quorum: Quorum | None = None,
    answered: Collection[int] = (),
    all_ack: bool = False,
) -> int | None:
    """The id of the broker that shall be master, or None when no broker may be.

    ``members``: the SyncStateSet; ``replicas``: all registered ids; ``presumed``: brokers a new Controller
    leader has not heard yet, and must not take for dead: they may stay master, but not become it.
    ``preferred``: this one or none. ``unclean``: also brokers outside the SyncStateSet, at the price of
    acknowledged messages. ``doubtful``: brokers whose machine lost its memory, and with it perhaps the end of
    their logs, since they last met a master: they count only when there is nobody else to wait for.
    ``quorum``: in majority mode the SyncStateSet does not matter, what a majority says does.
    ``answered``: those that said just now how far their logs are. Who did not may have died a moment ago, and
    would leave the group to wait for it alone: of equal logs one that answered wins, and where each member
    has all that was acknowledged (``all_ack``) it wins over longer ones, too.
    """
    if quorum is None:
        chosen = _among(members, alive, presumed, master, preferred, ends, doubtful, answered, all_ack)
    else:
        chosen = _of_majority(quorum, alive, presumed, master, preferred, ends, doubtful)
    if chosen is None and unclean:
        chosen = _among(replicas, alive, presumed, master, preferred, ends, (), answered)
    return chosen


def enough(answered: Collection[int], replicas: int) -> bool:
    """Whether so many answers contain one of every majority of so many replicas."""
    return len(answered) > replicas // 2


def furthest(answered: Collection[int], ends: Mapping[int, End]) -> list[int]:
    """Those whose logs end last: by the epoch of the end, then by offset. Sorted."""

    def reach(broker_id: int) -> tuple[int, int]:
        end = ends.get(broker_id, _NOTHING_KNOWN)
        return end.epoch, end.max_offset

    last = max(map(reach, answered), default=None)
    return sorted(broker_id for broker_id in answered if reach(broker_id) == last)


def further(than: int, others: Collection[int], ends: Mapping[int, End]) -> int | None:
    """One of ``others`` whose log ends later than the one of ``than``: the furthest; None = there is none."""
    best = furthest({than, *others}, ends)
    return None if than in best else best[0]


def trusted(candidates: Collection[int], able: Collection[int], doubtful: Collection[int]) -> list[int]:
    """Those of ``able`` who may be elected: the ones without a doubt; or, when every candidate is there and
    in doubt, all of them, because more than they have is nowhere."""
    sure = [broker_id for broker_id in able if broker_id not in doubtful]
    return sure if sure or not set(candidates) <= set(able) else list(able)


def _of_majority(
    quorum: Quorum,
    alive: Collection[int],
    presumed: Collection[int],
    master: int | None,
    preferred: int | None,
    ends: Mapping[int, End],
    doubtful: Collection[int],
) -> int | None:
    if master is not None and (master in alive or master in presumed) and preferred in (None, master):
        return master
    heard = [b for b in sorted(quorum.voters) if b in quorum.answered and b in alive]
    sure = [b for b in heard if b not in doubtful]
    if not enough(sure, quorum.of):
        # With every replica there is nothing to wait for; one in doubt may lack what it once acknowledged.
        if len(heard) < quorum.of:
            return None
        sure = heard
    best = furthest(sure, ends)
    if preferred is not None:
        return preferred if preferred in best else None
    return min(best, key=lambda b: (ends.get(b, _NOTHING_KNOWN).priority, b), default=None)


def _among(
    candidates: Collection[int],
    alive: Collection[int],
    presumed: Collection[int],
    master: int | None,
    preferred: int | None,
    ends: Mapping[int, End],
    doubtful: Collection[int],
    answered: Collection[int],
    all_ack: bool = False,
) -> int | None:
    able = [b for b in sorted(candidates) if b in alive or (b == master and b in presumed)]
    if master in able and preferred in (None, master):
        return master
    able = trusted(candidates, able, doubtful)
    if preferred is not None:
        return preferred if preferred in able else None
    if all_ack and not set(able) & set(doubtful):
        able = [b for b in able if b in answered] or able

    def rank(broker_id: int) -> tuple[int, int, bool, int, int]:
        end = ends.get(broker_id, _NOTHING_KNOWN)
        return -end.epoch, -end.max_offset, broker_id not in answered, end.priority, broker_id

    return min(able, key=rank, default=None)
