"""The promise of each shape: who hears whom, whatever chance draws."""

from __future__ import annotations

import random

import pytest

from chaos.partitions import SHAPES, links_to_cut

KINDS = {
    **{f"n{at}": "namesrv" for at in range(3)},
    **{f"b{at}": "broker" for at in range(3)},
    "clients": "client",
}
SERVERS = [name for name in KINDS if name != "clients"]


def hears(shape: str, target: str, seed: int) -> dict[str, set[str]]:
    """Whom each node still hears."""
    cut = {frozenset(pair) for pair in links_to_cut(shape, target, KINDS, random.Random(seed))}
    return {a: {b for b in KINDS if b != a and frozenset((a, b)) not in cut} for a in KINDS}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_cuts_something_and_nobody_twice(shape: str, seed: int) -> None:
    pairs = links_to_cut(shape, "b1", KINDS, random.Random(seed))
    assert len({frozenset(pair) for pair in pairs}) == len(pairs)
    assert pairs or shape in ("bridge", "minority")  # rooms of one, with the bridge itself in it


def test_a_target_is_cut_from_the_kind_it_is_named_for() -> None:
    assert set(KINDS) - hears("slaves", "b0", 1)["b0"] == {"b0", "b1", "b2"}
    assert set(KINDS) - hears("controllers", "b0", 1)["b0"] == {"b0", "n0", "n1", "n2"}
    assert hears("servers", "b0", 1)["b0"] == {"clients"}
    assert set(KINDS) - hears("clients", "b0", 1)["b0"] == {"b0", "clients"}
    assert set(KINDS) - hears("peers", "n0", 1)["n0"] == {"n0", "n1", "n2"}


@pytest.mark.parametrize("seed", range(20))
def test_rooms_bridges_and_rings(seed: int) -> None:
    ring = hears("ring", "b0", seed)
    assert all(len(ring[name] & set(SERVERS)) == 2 for name in SERVERS)
    bridge = hears("bridge", "b0", seed)
    assert bridge["b0"] == set(KINDS) - {"b0"}
    halves = hears("halves", "b0", seed)
    assert 1 <= len({frozenset(halves[name] & set(SERVERS) | {name}) for name in SERVERS}) == 2
    few = hears("minority", "b0", seed)["b0"] & {"n0", "n1", "n2"}
    assert len(few) <= 1
