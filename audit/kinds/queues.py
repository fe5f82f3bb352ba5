"""Places of queues, and messages that stand twice.

``queue_gap``, ``queue_order``, ``dup_queue_offset``, ``dup_message``.
"""

from __future__ import annotations

import pyarrow as pa

from audit.findings import ERROR, WARN, Finding
from audit.kinds.facts import Facts
from audit.queues import Place, explain
from audit.tables import View

Queues = dict[tuple[str, int], list[Place]]


def places(table: pa.Table) -> Queues:
    """The places of every broken queue, in log order."""
    by_queue: Queues = {}
    for row in table.to_pylist():
        by_queue.setdefault((row["topic"], row["queue_id"]), []).append(
            Place(row["offset"], row["queue_offset"], row["advance"], row["uniq_key"])
        )
    return by_queue


def queues(facts: Facts, by_queue: Queues, view: View, *, whole: bool) -> list[Finding]:
    """Places of queues that are skipped, taken twice or out of order along one log."""
    found = []
    for (topic, queue_id), places in sorted(by_queue.items()):
        for fault in explain(places, whole=whole):
            found.append(
                facts.at(
                    fault.kind,
                    WARN if fault.doubtful else ERROR,
                    _holder(facts, view, fault.offset),
                    fault.offset,
                    fault.until,
                    topic=topic,
                    queue_id=queue_id,
                    queue_offset=fault.queue_offset,
                    uniq_key=fault.uniq_key,
                    expected=fault.expected,
                    found=fault.found,
                    records=fault.records,
                )
            )
    return found


def _holder(facts: Facts, view: View, offset: int) -> int:
    """The replica whose record at ``offset`` was looked at."""
    return view.base if facts.replicas[view.base].covers(offset, offset + 1) else view.replica


def duplicates(facts: Facts, table: pa.Table, view: View) -> list[Finding]:
    """One row for each further copy of a message: at-least-once senders make them, so a warning."""
    first: dict[tuple[str, str], int] = {}
    found = []
    for row in table.to_pylist():
        key = (row["topic"], row["uniq_key"])
        if key not in first:
            first[key] = row["offset"]
            continue
        found.append(
            facts.at(
                "dup_message",
                WARN,
                _holder(facts, view, row["offset"]),
                row["offset"],
                row["until"],
                topic=row["topic"],
                queue_id=row["queue_id"],
                queue_offset=row["queue_offset"],
                uniq_key=row["uniq_key"],
                expected=f"once, at {first[key]}",
                found=f"again at {row['offset']}",
                records=1,
            )
        )
    return found
