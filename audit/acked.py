"""Is every acknowledged message there, once, with its body, on every replica that should hold it?

The base's log is joined with the ledger; a replica proved equal shares the result, another one is asked for
the part in which it differs. What a log is too short for belongs to its ``short_tail``; what retention
removed from every log is counted, not reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from audit.explain import Facts
from audit.findings import ERROR, Finding
from audit.layout import Replica
from audit.plan import own_parts
from audit.tables import Again, ScannedLog, View


@dataclass(slots=True)
class AckedResult:
    findings: list[Finding]
    expired: int  # ledger lines older than any log


def check(
    facts: Facts, log: ScannedLog, ledger: pa.Table, views: dict[int, View], again: tuple[Again, ...]
) -> AckedResult:
    """Join the ledger with every log; one row for a message on all replicas (``*``), else one a replica."""
    reference = facts.reference
    shared = [
        at
        for at, view in views.items()
        if at != reference and adds_nothing(facts.replicas[at], view) and not facts.replicas[at].holes
    ]
    own = [at for at in views if at != reference and at not in shared]
    faults = {
        at: log.acked(ledger, views[at], facts.replicas[at].start, again).to_pylist()
        for at in [reference, *own]
    }
    missing_keys = sorted(
        {r["uniq_key"] for rows in faults.values() for r in rows if r["fault"] == "missing"}
    )
    places = _places(log, views, [reference, *own], missing_keys)
    starts = _queue_starts(log, views[reference]) if any(faults.values()) else {}
    wrong: dict[tuple[str, int], dict[int, dict[str, Any]]] = {}
    expired: set[int] = set()
    for at, rows in faults.items():
        for row in rows:
            where = _where(row, places)
            for replica in [at, *(shared if at == reference else [])]:
                r = facts.replicas[replica]
                told = int(row["phys_offset"])
                if row["fault"] == "missing" and _expired(facts, row, where, starts):
                    expired.add(row["line"])
                elif row["fault"] == "mismatch" and _expired(facts, row, told, starts):
                    expired.add(row["line"])  # what is there is a copy: delivered later, or sent again
                elif row["fault"] == "mismatch" and 0 <= told < r.start:
                    continue
                elif _held(row, places) and not r.start <= where < r.end:
                    # Retention took it from this log, or the log ends before it: its tail is a row already.
                    continue
                else:
                    wrong.setdefault((row["fault"], row["line"]), {})[replica] = row
    findings = []
    every = set(views)
    for (fault, _), rows_of in wrong.items():
        row = next(iter(rows_of.values()))
        where = _where(row, places)
        holders = every - set(rows_of)
        covering = {
            at for at in every if where < 0 or facts.replicas[at].start <= where < facts.replicas[at].end
        }
        if covering <= set(rows_of):
            name = "*" if len(facts.replicas) > 1 else facts.replicas[reference].name
            findings.append(_finding(facts, fault, name, reference, row, where, 0))
        else:
            for replica, own_row in sorted(rows_of.items()):
                name = facts.replicas[replica].name
                findings.append(
                    _finding(facts, fault, name, replica, own_row, where, len(holders & covering))
                )
    return AckedResult(_swapped(findings), len(expired))


def _swapped(findings: list[Finding]) -> list[Finding]:
    """A right body in a wrong place, in a queue whose order is wrong: the order is why."""
    wrong_order: dict[tuple[str, str, int], Finding] = {}
    for f in findings:
        if f.kind == "acked_out_of_order":
            wrong_order.setdefault((f.replica, f.topic, f.queue_id), f)
    out = []
    for f in findings:
        cause = wrong_order.get((f.replica, f.topic, f.queue_id))
        same_body = f.expected.rpartition(" crc ")[2] == f.found.rpartition(" crc ")[2]
        moved = f.kind == "acked_mismatch" and same_body
        out.append(f.follows(cause) if cause is not None and moved else f)
    return out


def fold(findings: list[Finding]) -> list[Finding]:
    """One row with a count for the skipped places, and the messages others hold, that follow from one cause.

    A message no replica holds keeps its own row, whatever the cause.
    """
    out: list[Finding] = []
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for f in findings:
        folds = f.kind == "queue_gap" or (f.kind.startswith("acked_") and f.copies > 0)
        if f.caused_by and folds:
            groups.setdefault((f.kind, f.replica, f.caused_by), []).append(f)
        else:
            out.append(f)
    for rows in groups.values():
        first = min(rows, key=lambda f: f.phys_offset)
        if len(rows) == 1:
            out.append(first)
            continue
        out.append(
            Finding(
                **{
                    **{k: v for k, v in first.to_json().items() if k != "id"},
                    "until": max(f.until for f in rows),
                    "copies": min(f.copies for f in rows),
                    "records": sum(f.records for f in rows),
                }
            )
        )
    return out


def adds_nothing(replica: Replica, view: View) -> bool:
    """Whether all that a replica holds was proved equal to the reference's."""
    return not own_parts(replica, view)


def _places(
    log: ScannedLog, views: dict[int, View], which: list[int], keys: list[str]
) -> dict[str, tuple[int, int]]:
    places: dict[str, tuple[int, int]] = {}
    if keys:
        for at in which:
            table = log.positions(keys, views[at])
            for key, offset, until in zip(
                table["uniq_key"].to_pylist(),
                table["offset"].to_pylist(),
                table["until"].to_pylist(),
                strict=True,
            ):
                places.setdefault(key, (offset, until))
    return places


def _queue_starts(log: ScannedLog, view: View) -> dict[tuple[str, int], int]:
    return {(r["topic"], r["queue_id"]): r["queue_offset"] for r in log.queue_starts(view).to_pylist()}


def _where(row: dict[str, Any], places: dict[str, tuple[int, int]]) -> int:
    """Where the message stands or should stand; -1 when nothing tells."""
    if row["offset"] >= 0:
        return int(row["offset"])
    if row["uniq_key"] in places:
        return places[row["uniq_key"]][0]
    return int(row["phys_offset"])


def _held(row: dict[str, Any], places: dict[str, tuple[int, int]]) -> bool:
    """Whether any log holds the message at all."""
    return row["offset"] >= 0 or row["uniq_key"] in places


def _expired(facts: Facts, row: dict[str, Any], where: int, starts: dict[tuple[str, int], int]) -> bool:
    begin = min(r.start for r in ([r for r in facts.replicas if not r.empty] or facts.replicas))
    if begin == 0:
        return False
    if where >= 0:
        return where < begin
    first = starts.get((row["topic"], row["queue_id"]))
    return first is not None and int(row["queue_offset"]) < first


def _finding(
    facts: Facts, fault: str, name: str, replica: int, row: dict[str, Any], where: int, copies: int
) -> Finding:
    kind = {"missing": "acked_missing", "mismatch": "acked_mismatch", "order": "acked_out_of_order"}[fault]
    r = facts.replicas[replica]
    until = row["until"] if row["offset"] >= 0 else (where + 1 if where >= 0 else -1)
    told = f"{row['topic']}/{row['queue_id']}@{row['queue_offset']} crc {row['body_crc']}"
    have = "nothing"
    if row["offset"] >= 0:
        have = (
            f"{row['found_topic']}/{row['found_queue_id']}@{row['found_queue_offset']} crc {row['found_crc']}"
        )
    return Finding(
        kind,
        ERROR,
        name,
        r.segment_name(where) if where >= 0 else "",
        r.epoch_at(where) if where >= 0 else -1,
        where,
        until,
        row["topic"],
        row["queue_id"],
        row["queue_offset"],
        row["uniq_key"],
        told,
        have,
        copies=copies,
        records=1,
    )
