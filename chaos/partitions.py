"""Which links does a partition cut? The shapes of ``faults.Partition``, for both worlds.

A node is a name and a kind: ``namesrv`` (with its Controller), ``broker``, ``learner``, ``neighbour`` (a
broker of the second group), ``client``.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final

NEIGHBOUR: Final = "neighbour"
BROKERS: Final = ("broker", "learner")
ALL_BROKERS: Final = (*BROKERS, NEIGHBOUR)
SHAPES: Final = (
    "clients",
    "controllers",
    "slaves",
    "servers",
    "peers",
    "halves",
    "minority",
    "bridge",
    "ring",
)

_KINDS_CUT_OFF: Final = {
    "clients": ("client",),
    "controllers": ("namesrv",),
    "servers": ("namesrv", *ALL_BROKERS),
}


def links_to_cut(
    shape: str, name: str, kinds: Mapping[str, str], chance: random.Random
) -> list[tuple[str, str]]:
    """Pairs of nodes that a partition of this shape cuts; ``name``: its target, ``kinds``: of every node."""
    off = _kinds_cut_off(shape, kinds[name])
    if off is not None:
        return [(name, node) for kind in off for node in _of(kinds, kind) if node != name]
    servers = [node for kind in ("namesrv", *ALL_BROKERS) for node in _of(kinds, kind)]
    chance.shuffle(servers)
    pairs = [(one, other) for at, one in enumerate(servers) for other in servers[at + 1 :]]
    if shape == "ring":
        return _without_a_ring(servers, pairs)
    assert shape in SHAPES, f"no shape {shape}"
    room = (
        _minority(name, kinds, chance)
        if shape == "minority"
        else set(servers[: chance.randint(1, len(servers) - 1)])
    )
    return [
        (one, other)
        for one, other in pairs
        if (one in room) != (other in room) and not (shape == "bridge" and name in (one, other))
    ]


def _of(kinds: Mapping[str, str], kind: str) -> list[str]:
    return [name for name, own in kinds.items() if own == kind]


def _minority(name: str, kinds: Mapping[str, str], chance: random.Random) -> set[str]:
    """A node, some brokers, not all, and fewer than half of the Controllers."""
    brokers = [node for kind in ALL_BROKERS for node in _of(kinds, kind) if node != name]
    controllers = _of(kinds, "namesrv")
    few = chance.randint(0, (len(controllers) - 1) // 2)
    near = chance.sample(brokers, chance.randint(0, max(0, len(brokers) - 1)))
    return {name, *near, *(() if name in controllers else chance.sample(controllers, few))}


def _kinds_cut_off(shape: str, kind: str) -> tuple[str, ...] | None:
    """Which nodes a node of ``kind`` no longer hears; None: the shape is another than that."""
    if shape == "peers":
        return BROKERS if kind in BROKERS else (kind,)
    if shape == "slaves":
        return {NEIGHBOUR: (NEIGHBOUR,), "namesrv": ALL_BROKERS}.get(kind, BROKERS)
    return _KINDS_CUT_OFF.get(shape)


def _without_a_ring(servers: list[str], pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """All links but those between neighbours of a ring."""
    count = len(servers)
    return [
        (one, other)
        for one, other in pairs
        if (servers.index(other) - servers.index(one)) % count not in (1, count - 1)
    ]
