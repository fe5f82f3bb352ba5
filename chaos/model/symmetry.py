"""Which states are the same but for the brokers' ids? One of them stands for all.

No rule looks at an id but to break a tie between equal logs; there the explorer takes every outcome
(``controllers.outcomes``). So what is true of one state is true of the same state with other ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import permutations, product

from chaos.model.parts.controllers import group_of, renamed
from chaos.model.world import Broker, Lead, Open, Request, Sent, World

Names = tuple[int, ...]
"""Broker ``i`` shall have the id ``names[i - 1]``."""


def key(world: World) -> int:
    """Equal for states that differ by ids only. Two states of one key are taken for one: of 2**61 keys, among
    ten million states, that happens with a chance of about one in fifty thousand."""
    return min(hash(with_names(world, names)) for names in _orders(world))


def _orders(world: World) -> Iterator[Names]:
    """The names that put the brokers in the order of what they are; where several are alike, each order."""
    group = group_of(world.table)
    alike: dict[int, list[int]] = {}
    for i, broker in enumerate(world.brokers, 1):
        replica = group.replicas.get(i)
        what = hash(
            (
                broker._replace(follows=0, lead=None),
                world.granted[i - 1],
                group.master == i,
                group.led == i,
                i in group.members,
                i in group.suspect,
                i in group.before,
                i in group.holders,
                i in group.quorum_members,
                None if replica is None else replica.incarnation,
            )
        )
        alike.setdefault(what, []).append(i)
    classes = [alike[what] for what in sorted(alike)]
    for arranged in product(*map(permutations, classes)):
        names = [0] * len(world.brokers)
        for name, i in enumerate((i for part in arranged for i in part), 1):
            names[i - 1] = name
        yield tuple(names)


@lru_cache(100)
def _olds(names: Names) -> Names:
    """Which broker has which id now: the other way round."""
    return tuple(names.index(name) + 1 for name in range(1, len(names) + 1))


def with_names(world: World, names: Names) -> World:
    """The same state with other ids."""
    if names == tuple(range(1, len(names) + 1)):
        return world
    olds = _olds(names)
    return world._replace(
        table=renamed(world.table, names),
        granted=tuple(world.granted[i - 1] for i in olds),
        requests=tuple(
            sorted(Request(names[r.master - 1], r.epoch, _open(r.proposal, names)) for r in world.requests)
        ),
        brokers=tuple(_broker(world.brokers[i - 1], names, olds) for i in olds),
        sent=tuple(sorted(Sent(names[s.to - 1], renamed(s.table, names)) for s in world.sent)),
        previous=renamed(world.previous, names) if world.previous else b"",
    )


def _broker(broker: Broker, names: Names, olds: Names) -> Broker:
    if not broker.follows and broker.lead is None:
        return broker
    return broker._replace(
        follows=names[broker.follows - 1] if broker.follows else 0,
        lead=None if broker.lead is None else _lead(broker.lead, names, olds),
    )


def _lead(lead: Lead, names: Names, olds: Names) -> Lead:
    return Lead(
        members=_ids(lead.members, names),
        set_epoch=lead.set_epoch,
        open=tuple(sorted(_open(proposal, names) for proposal in lead.open)),
        acked=tuple(lead.acked[i - 1] for i in olds),
        flying=tuple(lead.flying[i - 1] for i in olds),
        noted=tuple(lead.noted[i - 1] for i in olds),
        began=tuple(lead.began[i - 1] for i in olds),
        forgot=tuple(lead.forgot[i - 1] for i in olds),
    )


def _open(proposal: Open, names: Names) -> Open:
    return Open(
        _ids(proposal.members, names),
        proposal.base,
        tuple(sorted((names[i - 1], times) for i, times in proposal.incarnations)),
    )


def _ids(ids: tuple[int, ...], names: Names) -> tuple[int, ...]:
    return tuple(sorted(names[i - 1] for i in ids))
