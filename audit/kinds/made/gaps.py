"""Which damage explains a place that a queue skips? Not one where a sound copy skips the place as well.

Such a copy shows what stood there, and that the place did not. What stood under damage of which no other copy
is sound nobody knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import pyarrow as pa

from audit.findings import Finding, Spans
from audit.kinds.causes import CAUSES, Gap, gap_of
from audit.kinds.facts import Facts
from audit.kinds.logs.damage import Sound
from audit.kinds.logs.witnesses import Taken
from audit.tables import TAKEN

Place = tuple[str, int, int, int]
"""A row of TAKEN."""

_PLACES_MAX: Final = 1000
"""Of one gap that are looked for."""
_ASKED_MAX: Final = 100_000
"""Of all gaps. The rest of them follows from any damage there."""


class _Damage:
    """What may explain a gap of one replica's log: all of it, and what no other copy is sound under."""

    def __init__(self, of: Sequence[Finding], alone: Sequence[Finding]) -> None:
        self.of, self.alone = (Spans((f.phys_offset, f.until, f) for f in own) for own in (of, alone))
        self.is_counted = any(f.counted for f in of)  # not all of it is listed


def apart(
    facts: Facts,
    gaps: Sequence[tuple[Finding, Iterable[str]]],
    roots: Sequence[Finding],
    sound: Sound,
    taken: Taken,
) -> frozenset[Gap]:
    """Of gaps, each with the replicas whose logs were read: those that damage of a replica does not explain.
    ``roots``: what was found of the logs."""
    damages = _damages(facts, roots, sound) if gaps else {}
    asked = [(f, name) for f, names in gaps for name in {f.replica, *names} if _may_explain(damages, f, name)]
    if not asked:
        return frozenset()
    stands = _stands(facts, [place for f, _ in asked for place in _places(f)], taken)
    return frozenset(gap_of(f, name) for f, name in asked if not _explains(damages[name], f, name, stands))


Stands = dict[str, dict[Place, int]]
"""Of each replica: where the places stand in its log, -1 is nowhere; of those that were asked."""


def _stands(facts: Facts, places: Iterable[Place], taken: Taken) -> Stands:
    rows = list(dict.fromkeys(places))[:_ASKED_MAX]
    table = pa.Table.from_pylist([dict(zip(TAKEN.names, row, strict=True)) for row in rows], schema=TAKEN)
    stands: Stands = {}
    for at, r in enumerate(facts.replicas):
        stands[r.name] = dict.fromkeys(rows, -1)
        for row in taken(at, table):
            place = (row["topic"], row["queue_id"], row["queue_offset"], row["since"])
            stands[r.name][place] = row["offset"]
    return stands


def _explains(damage: _Damage, f: Finding, name: str, stands: Stands) -> bool:
    """Does a replica's damage explain each place of a gap?"""
    others = [found for other, found in stands.items() if other != name]
    asked = [place for place in _places(f) if place in stands[name]]
    return all(_is_explained(damage, f, [found[place] for found in others]) for place in asked)


def _damages(facts: Facts, roots: Sequence[Finding], sound: Sound) -> dict[str, _Damage]:
    found = {}
    for at, r in enumerate(facts.replicas):
        of = [
            f for f in roots if f.replica == r.name and f.kind in CAUSES["queue_gap"] and f.phys_offset >= 0
        ]
        found[r.name] = _Damage(of, [f for f in of if not _copies(facts, at, f, sound)])
    return found


def _copies(facts: Facts, at: int, f: Finding, sound: Sound) -> list[int]:
    """The others that are sound there. What a log has alone, no other has."""
    if f.kind == "divergent_suffix":
        return []
    span = f.phys_offset, max(f.until, f.phys_offset + 1)
    return sound(facts.copies(at, *span), *span)


def _may_explain(damages: Mapping[str, _Damage], f: Finding, name: str) -> bool:
    damage = damages.get(name)
    return (
        damage is not None and not damage.is_counted and damage.of.first(f.phys_offset, f.until) is not None
    )


def _places(f: Finding) -> list[Place]:
    """Of a gap: each with where it may have stood at the least."""
    count = min(f.records, _PLACES_MAX)
    return [(f.topic, f.queue_id, f.queue_offset + n, f.phys_offset) for n in range(count)]


def _is_explained(damage: _Damage, f: Finding, elsewhere: list[int]) -> bool:
    """Does the record in a place of a gap stand under damage in the other logs, or may it have stood where no
    other copy is sound? ``elsewhere``: where it stands in each of them; -1: nowhere."""
    there = [at for at in elsewhere if f.phys_offset <= at < f.until]
    if there:
        return any(damage.of.first(at, at + 1) is not None for at in there)
    return damage.alone.first(f.phys_offset, f.until) is not None
