"""Damage that the scan of one log met: ``crc_mismatch``, ``phys_offset_mismatch``, ``unreadable_region``."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from audit.findings import ERROR, Finding, Spans, merge
from audit.kinds.facts import Facts

DAMAGE: Final = frozenset(
    {"crc_mismatch", "phys_offset_mismatch", "unreadable_region", "missing_segment", "file_unreadable"}
)
"""Only a row of these kinds says all that is wrong with the bytes under it."""

MERGED: Final = frozenset({"crc_mismatch", "bytes_differ", "phys_offset_mismatch", "unreadable_region"})
"""Rows of these kinds that touch are one row."""


def damage(facts: Facts, table: pa.Table) -> list[Finding]:
    """Damage the scans met. What the reference holds, every replica proved equal there holds as well."""
    by_replica: dict[int, dict[tuple[str, int], dict[str, Any]]] = {}
    for row in table.to_pylist():
        by_replica.setdefault(row["replica"], {})[row["kind"], row["offset"]] = row
    for (kind, offset), row in list(by_replica.get(facts.reference, {}).items()):
        for at in range(len(facts.replicas)):
            if at != facts.reference and facts.equal_to_reference(at, offset, row["until"]):
                by_replica.setdefault(at, {}).setdefault((kind, offset), row)
    damaged = {
        at: Spans((offset, int(row["until"]), True) for (_, offset), row in rows.items())
        for at, rows in by_replica.items()
    }
    found = [_damaged(facts, at, row, damaged) for at, rows in by_replica.items() for row in rows.values()]
    return merge(found, MERGED)


def _damaged(facts: Facts, at: int, row: dict[str, Any], damaged: dict[int, Spans[bool]]) -> Finding:
    offset, until = row["offset"], int(row["until"])
    holders = facts.holders(offset, until)
    sound = [h for h in holders if h not in damaged or not damaged[h].first(offset, until)]
    columns = ("topic", "queue_id", "queue_offset", "uniq_key", "expected", "found", "records")
    return facts.at(
        row["kind"], ERROR, at, offset, until, copies=len(sound), **{name: row[name] for name in columns}
    )
