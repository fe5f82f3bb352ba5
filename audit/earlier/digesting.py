"""Which digests are asked for, and which are known?

Of segments of which something is kept between audits, those of all ranges as one are compared first, and each
range only where these differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from audit.earlier.folding import Folded, Stretch, stretches
from audit.earlier.incremental import Trust
from audit.tables import COMPARED, Engine, Task


def compared(engine: Engine, planned: list[Task], trust: Trust) -> tuple[pa.Table, int]:
    """COMPARED rows, and how many bytes were read for them."""
    whole, rest = stretches(planned) if trust.keeps else ([], planned)
    done = _ask(engine, trust, whole, rest)
    read_bytes = done.read_bytes
    if len(done.sizes()) > 1:
        # Some workers, or an audit before, had no fast hashes: these say nothing of the others'.
        done = _ask(engine, trust, whole, rest, everywhere=True)
        read_bytes += done.read_bytes
    trust.learn(done.found, read={*done.asked, *done.differing}, rest=rest)
    return pa.concat_tables([done.table, pa.Table.from_pylist([*done.alike()], schema=COMPARED)]), read_bytes


@dataclass(frozen=True, slots=True)
class _Done:
    found: dict[Stretch, Folded]
    asked: list[Stretch]  # those that were not known
    differing: list[Stretch]  # those of segments whose copies are not alike, of which each range was asked
    table: pa.Table  # COMPARED rows of these, and of what is no stretch
    read_bytes: int

    def sizes(self) -> set[int]:
        """Of digests, in bytes."""
        found = {size for one in self.found.values() for size in (one.shortest, one.longest)}
        return found.union(pc.unique(pc.binary_length(self.table["digest"])).to_pylist())

    def alike(self) -> Iterator[dict[str, Any]]:
        """COMPARED rows of segments whose copies are alike."""
        bases = {one.base for one in self.differing}
        for one, folded in self.found.items():
            if one.base not in bases:
                yield folded.compared(one)


def _ask(
    engine: Engine, trust: Trust, whole: list[list[Stretch]], rest: list[Task], *, everywhere: bool = False
) -> _Done:
    kept = {} if everywhere else trust.kept(whole)
    asked = [one for of in whole for one in of if one not in kept]
    found = kept | _folded(engine, asked, trust.segment_bytes, everywhere=everywhere)
    differing = [one for of in whole if not _alike(of, found) for one in of]
    again = _told([task for one in differing for task in one.tasks] + rest, everywhere=everywhere)
    table = engine.compared(again) if again else COMPARED.empty_table()
    read_bytes = sum(one.bytes for one in asked) + sum(t.end - t.start for t in again)
    return _Done(found, asked, differing, table, read_bytes)


def _alike(of: list[Stretch], found: dict[Stretch, Folded]) -> bool:
    return len({found[one].digest for one in of}) == 1


def _folded(
    engine: Engine, asked: list[Stretch], segment_bytes: int, *, everywhere: bool
) -> dict[Stretch, Folded]:
    tasks = _told([task for one in asked for task in one.tasks], everywhere=everywhere)
    rows = engine.folded(tasks, segment_bytes).to_pylist() if tasks else []
    by_place = {(row["replica"], row["start"]): row for row in rows}
    return {one: Folded.of(by_place[one.replica, one.start]) for one in asked}


def _told(tasks: list[Task], *, everywhere: bool) -> list[Task]:
    return [replace(task, everywhere=True) for task in tasks] if everywhere else tasks
