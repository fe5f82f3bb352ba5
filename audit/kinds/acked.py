"""Is every acknowledged message there, once, with its body, on every replica that should hold it?

``acked_missing``, ``acked_mismatch``, ``acked_out_of_order``. The base's log is joined with the ledger; a
replica proved equal shares the result, another one is asked for the part in which it differs. What a log is
too short for belongs to its ``short_tail``; what retention removed from every log is counted, not reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from audit.findings import ERROR, WARN, Finding
from audit.kinds.facts import Facts
from audit.plan import own_parts
from audit.reading.layout import Replica
from audit.tables import Again, ScannedLog, View

KINDS: Final = {"missing": "acked_missing", "mismatch": "acked_mismatch", "order": "acked_out_of_order"}
Row = dict[str, Any]


@dataclass(slots=True)
class AckedResult:
    findings: list[Finding]
    expired: int  # ledger lines older than any log


@dataclass(frozen=True, slots=True)
class _Places:
    """Where messages stand in any log (``of_key``: from, until), and at which place each queue begins."""

    facts: Facts
    of_key: dict[str, tuple[int, int]]
    queue_starts: dict[tuple[str, int], int]

    def where(self, row: Row) -> int:
        """Where the message stands or should stand; -1 when nothing tells."""
        if row["offset"] >= 0:
            return int(row["offset"])
        if row["uniq_key"] in self.of_key:
            return self.of_key[row["uniq_key"]][0]
        return int(row["phys_offset"])

    def held(self, row: Row) -> bool:
        """Whether any log holds the message at all."""
        return row["offset"] >= 0 or row["uniq_key"] in self.of_key

    def expired(self, row: Row) -> bool:
        """Whether retention took the message from every log."""
        if row["fault"] == "missing":
            return self._before_all(row, self.where(row))
        # what is there is a copy: delivered later, or sent again
        return row["fault"] == "mismatch" and self._before_all(row, int(row["phys_offset"]))

    def lacks(self, row: Row, r: Replica) -> bool:
        """Whether this log need not have the message: retention took it, or the log ends before it, which its
        own row says already."""
        if row["fault"] == "mismatch" and 0 <= int(row["phys_offset"]) < r.start:
            return True
        return self.held(row) and not r.start <= self.where(row) < r.end

    def _before_all(self, row: Row, where: int) -> bool:
        replicas = self.facts.replicas
        begin = min(r.start for r in ([r for r in replicas if not r.empty] or replicas))
        if begin == 0:
            return False
        if where >= 0:
            return where < begin
        first = self.queue_starts.get((row["topic"], row["queue_id"]))
        return first is not None and int(row["queue_offset"]) < first


def check(
    facts: Facts, log: ScannedLog, ledger: pa.Table, views: dict[int, View], again: tuple[Again, ...]
) -> AckedResult:
    """Join the ledger with every log; one row for a message on all replicas (``*``), else one a replica."""
    shared = _sharing(facts, views)
    asked = [facts.reference, *(at for at in views if at != facts.reference and at not in shared)]
    faults: dict[int, list[Row]] = {
        at: log.acked(ledger, views[at], facts.replicas[at].start, again).to_pylist() for at in asked
    }
    places = _find_places(facts, log, views, faults)
    wrong: dict[tuple[str, int], dict[int, Row]] = {}
    expired: set[int] = set()
    for at, rows in faults.items():
        for row in rows:
            if places.expired(row):
                expired.add(row["line"])
                continue
            for replica in [at, *(shared if at == facts.reference else [])]:
                if not places.lacks(row, facts.replicas[replica]):
                    wrong.setdefault((row["fault"], row["line"]), {})[replica] = row
    findings = [f for rows_of in wrong.values() for f in _of_message(places, set(views), rows_of)]
    return AckedResult(_swapped(findings), len(expired))


def _sharing(facts: Facts, views: dict[int, View]) -> list[int]:
    """The replicas that the reference's answers hold for as well."""
    return [
        at
        for at, view in views.items()
        if at != facts.reference and adds_nothing(facts.replicas[at], view) and not facts.replicas[at].holes
    ]


def _find_places(
    facts: Facts, log: ScannedLog, views: dict[int, View], faults: dict[int, list[Row]]
) -> _Places:
    rows = [row for rows in faults.values() for row in rows]
    keys = sorted({row["uniq_key"] for row in rows if row["fault"] == "missing"})
    of_key: dict[str, tuple[int, int]] = {}
    for at in faults if keys else ():
        table = log.positions(keys, views[at])
        columns = (table[name].to_pylist() for name in ("uniq_key", "offset", "until"))
        for key, offset, until in zip(*columns, strict=True):
            of_key.setdefault(key, (offset, until))
    starts = log.queue_starts(views[facts.reference]).to_pylist() if rows else []
    return _Places(facts, of_key, {(r["topic"], r["queue_id"]): r["queue_offset"] for r in starts})


def _of_message(places: _Places, every: set[int], rows_of: dict[int, Row]) -> list[Finding]:
    """One row when no replica that should hold the message has it right, else one a replica."""
    facts = places.facts
    row = next(iter(rows_of.values()))
    where = places.where(row)
    covering = {at for at in every if where < 0 or facts.replicas[at].start <= where < facts.replicas[at].end}
    if covering <= set(rows_of):
        name = "*" if len(facts.replicas) > 1 else facts.replicas[facts.reference].name
        return [_finding(facts, name, facts.reference, row, where, 0)]
    copies = len(covering - set(rows_of))
    return [
        _finding(facts, facts.replicas[at].name, at, row_of, where, copies)
        for at, row_of in sorted(rows_of.items())
    ]


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


def mostly_expired(expired: int, lines: int) -> list[Finding]:
    """A warning when most of a ledger is older than any log: what is asked of so little is no answer."""
    if expired * 2 <= lines:
        return []
    text = f"{expired} of {lines} messages are older than any log"
    return [Finding("acked_missing", WARN, "*", expected="most of the ledger", found=text, records=expired)]


def adds_nothing(replica: Replica, view: View) -> bool:
    """Whether all that a replica holds was proved equal to the reference's."""
    return not own_parts(replica, view)


def _finding(facts: Facts, name: str, replica: int, row: Row, where: int, copies: int) -> Finding:
    r = facts.replicas[replica]
    until = row["until"] if row["offset"] >= 0 else (where + 1 if where >= 0 else -1)
    told = f"{row['topic']}/{row['queue_id']}@{row['queue_offset']} crc {row['body_crc']}"
    have = "nothing"
    if row["offset"] >= 0:
        have = (
            f"{row['found_topic']}/{row['found_queue_id']}@{row['found_queue_offset']} crc {row['found_crc']}"
        )
    return Finding(
        KINDS[row["fault"]],
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
