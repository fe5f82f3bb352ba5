"""Which states are the same but for the brokers' ids? One of them stands for all.

No rule looks at an id but to break a tie between equal logs; there the explorer takes every outcome
(``controllers.outcomes``). So what is true of one state is true of the same state with other ids.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import chain, permutations, product
from typing import Final

from chaos.model.parts.controllers import group_of, renamed
from chaos.model.world import Broker, Handover, Lead, Open, Request, Sent, World

Names = tuple[int, ...]
"""Broker ``i`` shall have the id ``names[i - 1]``."""
_SAME: Final = tuple(tuple(range(1, count + 1)) for count in range(8))


def key(world: World) -> int:
    """Equal for states that differ by ids only. Two states of one key are taken for one: of 2**61 keys, among
    ten million states, that happens with a chance of about one in fifty thousand."""
    return standing_for_all(world)[0]


def standing_for_all(world: World) -> tuple[int, World]:
    """The key, and the one of all states of this key that the explorer goes on with."""
    orders = _orders(world)
    if len(orders) == 1:
        same = with_names(world, orders[0])
        return hash(same), same
    found = [with_names(world, names) for names in orders]
    keys = list(map(hash, found))
    first = min(keys)
    return first, found[keys.index(first)]


def _orders(world: World) -> list[Names]:
    """The names that put the brokers in the order of what they are; where several are alike, each order."""
    marks = _marks(world.table, len(world.brokers))
    whats = [
        hash((broker[:-2], granted, mark))
        for broker, granted, mark in zip(world.brokers, world.granted, marks, strict=True)
    ]
    ordered = sorted(range(len(whats)), key=whats.__getitem__)
    alike: list[list[int]] = []
    for at in ordered:
        if alike and whats[alike[-1][0]] == whats[at]:
            alike[-1].append(at)
        else:
            alike.append([at])
    if len(alike) == len(whats):
        return [_names(tuple(ordered))]
    return [_names(tuple(chain.from_iterable(parts))) for parts in product(*map(permutations, alike))]


@lru_cache(100)
def _names(ordered: tuple[int, ...]) -> Names:
    """The first of these places becomes broker 1, and so on."""
    names = [0] * len(ordered)
    for name, at in enumerate(ordered, 1):
        names[at] = name
    return tuple(names)


@lru_cache(400_000)
def _marks(table: bytes, brokers: int) -> tuple[tuple[object, ...], ...]:
    """What the Controllers know of each broker, without its id."""
    group = group_of(table)
    return tuple(
        (
            group.master == i,
            group.led == i,
            i in group.members,
            i in group.suspect,
            i in group.before,
            i in group.holders,
            i in group.quorum_members,
            None if i not in group.replicas else group.replicas[i].incarnation,
        )
        for i in range(1, brokers + 1)
    )


@lru_cache(100)
def _olds(names: Names) -> Names:
    """Which broker has which id now: the other way round."""
    return tuple(names.index(name) + 1 for name in range(1, len(names) + 1))


def with_names(world: World, names: Names) -> World:
    """The same state with other ids."""
    if names == _SAME[len(names)]:
        return world
    olds = _olds(names)
    return World(
        renamed(world.table, names),
        tuple([world.granted[i - 1] for i in olds]),
        tuple(
            sorted(Request(names[r.master - 1], r.epoch, _open(r.proposal, names)) for r in world.requests)
        ),
        tuple([_broker(world.brokers[i - 1], names, olds) for i in olds]),
        world.acked,
        world.read,
        world.answered,
        world.left,
        tuple(sorted(Sent(names[s.to - 1], renamed(s.table, names)) for s in world.sent)),
        renamed(world.previous, names) if world.previous else b"",
        world.outsiders,
        None if world.handover is None else _handover(world.handover, names),
    )


@lru_cache(200_000)
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


def _handover(handover: Handover, names: Names) -> Handover:
    return handover._replace(master=names[handover.master - 1], target=names[handover.target - 1])


def _open(proposal: Open, names: Names) -> Open:
    return Open(
        _ids(proposal.members, names),
        proposal.base,
        tuple(sorted((names[i - 1], times) for i, times in proposal.incarnations)),
    )


def _ids(ids: tuple[int, ...], names: Names) -> tuple[int, ...]:
    return tuple(sorted(names[i - 1] for i in ids))
