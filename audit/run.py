"""How does an audit go? Ledger, bounds, digests, ranges that differ, one scan, questions, verdict."""

from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from audit import acked, explain, incremental, plan
from audit.compare import Difference, Interval, Ranges, compare_digests, drill_down
from audit.explain import Facts
from audit.findings import Finding, order, verdict
from audit.layout import Replica, find_ends, load
from audit.ledger import read_ledger
from audit.queues import begins_again
from audit.storage import StoreSpec, open_storage
from audit.tables import DIGEST, Engine, ScannedLog, Tail, View
from model.errors import MqError

log = logging.getLogger(__name__)

SEAM_ROUNDS_MAX = 4


class AuditError(MqError):
    """The audit could not finish: a read failed, or an engine did."""


@dataclass(slots=True)
class Report:
    """All of an audit's result; what is written and shown comes from here."""

    verdict: str
    engine: str
    findings: list[Finding]
    replicas: list[Replica]
    unreadable: dict[str, str]  # replica -> why
    reference: str
    compared: list[Interval]  # ranges at least two replicas hold
    differing_bytes: int
    digest_bytes: int  # bytes read for digests
    scan_bytes: int
    records: int
    ledger: str = ""
    ledger_lines: int = 0
    expired: int = 0
    trusted: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """``summary.json``."""
        return {
            "verdict": self.verdict,
            "findings": dict(sorted(Counter(f.kind for f in self.findings).items())),
            "severities": dict(sorted(Counter(f.severity for f in self.findings).items())),
            "replicas": [
                {
                    "name": r.name,
                    "store": r.location,
                    "start": r.start,
                    "end": r.end,
                    "confirmOffset": r.confirmed,
                    "segments": len(r.segments),
                    "segmentBytes": r.segment_bytes,
                    "cleanStop": r.clean,
                    "epochs": [{"epoch": e, "start": s} for e, s in r.epochs],
                    "findings": sum(1 for f in self.findings if f.replica in (r.name, "*")),
                }
                for r in self.replicas
            ],
            "unreadable": self.unreadable,
            "reference": self.reference,
            "bytes": self.digest_bytes + self.scan_bytes,
            "digestBytes": self.digest_bytes,
            "scanBytes": self.scan_bytes,
            "differingBytes": self.differing_bytes,
            "records": self.records,
            "ledger": {"file": self.ledger, "lines": self.ledger_lines, "expired": self.expired},
            "trusted": self.trusted,
            "engine": self.engine,
            "seconds": round(self.seconds, 3),
        }


def audit(
    specs: list[StoreSpec],
    engine: Engine,
    *,
    ledger_path: str | None = None,
    state: Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Report:
    """Audit the stores of one broker group. ``state``: a file of digests to trust for sealed segments.

    Raises ConfigError on a bad ledger or URL, AuditError when reading fails half-way. A store that cannot
    be read at all is listed in ``unreadable``; the rest is audited.
    """
    started = perf_counter()
    # The ledger first: what it lists was acknowledged before the bounds below are taken.
    ledger = read_ledger(ledger_path) if ledger_path else None
    progress("looking at the stores")
    replicas, unreadable = _load(specs)
    report = Report("", engine.name, [], replicas, unreadable, "", [], 0, 0, 0, 0)
    if ledger is not None and ledger_path:
        report.ledger, report.ledger_lines = ledger_path, len(ledger)
    if replicas:
        try:
            _audit(replicas, engine, ledger, report, state, progress)
        except OSError as error:
            raise AuditError(f"reading failed half-way: {error}") from error
    report.findings = order(report.findings)
    report.verdict = verdict(report.findings, unfinished=bool(unreadable) or not replicas)
    report.seconds = perf_counter() - started
    return report


def _load(specs: list[StoreSpec]) -> tuple[list[Replica], dict[str, str]]:
    replicas: list[Replica] = []
    unreadable: dict[str, str] = {}
    for spec in specs:
        try:
            replicas.append(load(spec))
        except OSError as error:
            unreadable[spec.name] = str(error)
    try:
        find_ends(replicas)
    except OSError as error:
        raise AuditError(f"cannot find where a log ends: {error}") from error
    return replicas, unreadable


def _audit(
    replicas: list[Replica],
    engine: Engine,
    ledger: pa.Table | None,
    report: Report,
    state: Path | None,
    progress: Callable[[str], None],
) -> None:
    cores = os.cpu_count() or 1
    chunk = plan.chunk_bytes(sum(r.end - r.start for r in replicas), cores)

    shared = plan.shared(replicas)
    report.compared = sorted({i for intervals in shared.values() for i in intervals})
    trust = incremental.Trust(state, replicas)
    ranges = Ranges([], {}, {})
    table = None
    if shared:
        progress("comparing digests")
        planned = plan.tasks(replicas, shared, chunk=chunk, cuts=plan.digest_cuts(replicas))
        known, todo = trust.split(planned)
        report.digest_bytes = sum(t.end - t.start for t in todo)
        table = pa.concat_tables([known, engine.digests(todo) if todo else DIGEST.empty_table()])
        trust.learn(planned, table)
    reference = plan.reference_of(replicas, table)
    report.reference = replicas[reference].name
    if table is not None:
        ranges = compare_digests(table, reference)
    report.differing_bytes = sum(b - a for rows in ranges.differ.values() for a, b in rows)
    facts = Facts(replicas, reference, ranges)

    views = plan.views(replicas, reference, ranges)
    wanted = {at: plan.own_parts(replicas[at], view) for at, view in views.items()}
    if ledger is None and reference in wanted:
        wanted[reference], report.trusted = trust.skip(reference, wanted[reference])
    progress("scanning records")
    scanned = _scan(engine, replicas, wanted, chunk, report, plain=ledger is not None)
    try:
        progress("asking the questions")
        report.records = scanned.record_count()
        report.findings = _explain(facts, scanned, views, ledger, report, trusted=bool(report.trusted))
    finally:
        scanned.close()
    trust.save(report.findings)


def _scan(
    engine: Engine,
    replicas: list[Replica],
    wanted: dict[int, list[Interval]],
    chunk: int,
    report: Report,
    *,
    plain: bool,
) -> ScannedLog:
    planned = plan.tasks(replicas, wanted, chunk=chunk, plain=plain)
    for _ in range(SEAM_ROUNDS_MAX):
        report.scan_bytes += sum(t.end - t.start for t in planned)
        scanned = engine.scan(planned)
        joined = plan.broken_seams(planned, scanned.chunks())
        if not joined:
            return scanned
        log.info("the seams of %d tasks do not meet: reading them as one", len(planned) - len(joined))
        scanned.close()
        planned = joined
    # Every stretch as one task, from its known start: there are no seams left.
    size = max((r.segment_bytes for r in replicas), default=1) or 1
    return engine.scan(plan.tasks(replicas, wanted, chunk=size, plain=plain))


def _explain(
    facts: Facts,
    scanned: ScannedLog,
    views: dict[int, View],
    ledger: pa.Table | None,
    report: Report,
    *,
    trusted: bool,
) -> list[Finding]:
    replicas, reference = facts.replicas, facts.reference
    found = explain.files(facts) + explain.epochs(facts)
    damaged = explain.damage(facts, scanned.damage())
    confirmed = max((min(r.confirmed, r.end) for r in replicas), default=0)

    def tail_of(at: int, behind: int | None = None) -> Tail:
        if ledger is None or at not in views:
            return Tail(0, -1, -1, "")
        return scanned.acked_behind(ledger, views[at], replicas[at].end if behind is None else behind)

    rows: dict[tuple[int, int], list[Difference]] = {
        (base, other): drill_down(replicas, base, other, intervals)
        for (base, other), intervals in facts.ranges.differ.items()
    }
    found += damaged
    found += explain.differences(
        facts,
        rows,
        found,
        confirmed,
        _crc_lookup(ledger),
        lambda at, begin, end: tail_of(at, begin).records,
        _same_bytes(replicas),
    )
    whole = replicas[reference].start == 0 and not trusted
    view = views[reference]
    ends = [r.end for r in replicas if not r.empty]
    acked_end = -1
    apart: list[int] = []
    if ledger is not None:
        # A replica proved equal to the reference as far as both reach holds nothing the reference does not.
        apart = [at for at, v in views.items() if at == reference or not acked.adds_nothing(replicas[at], v)]
        if ends and (min(ends) < max(ends) or len(apart) > 1):
            acked_end = max(tail_of(at, min(ends)).until for at in apart)
    found += explain.tails(facts, lambda at: _missing_behind(tail_of, apart, replicas, at), acked_end, found)
    broken = explain.places(scanned.broken_queues(view, whole=whole))
    found += explain.queues(facts, broken, reference, whole=whole)
    found += explain.duplicates(facts, scanned.duplicates(view), reference)
    if ledger is not None:
        again = tuple((*queue, at) for queue, places in sorted(broken.items()) for at in begins_again(places))
        result = acked.check(facts, scanned, ledger, views, again)
        report.expired = result.expired
        found += result.findings
    return acked.fold(explain.link(_gaps_of_missing(found), [r.name for r in replicas]))


def _missing_behind(
    tail_of: Callable[[int, int | None], Tail], holders: list[int], replicas: list[Replica], at: int
) -> Tail:
    """Acknowledged messages any other log holds behind this one's end."""
    tails = [tail_of(other, replicas[at].end) for other in holders if other != at]
    return max(tails, key=lambda t: t.records, default=Tail(0, -1, -1, ""))


def _gaps_of_missing(found: list[Finding]) -> list[Finding]:
    """A queue skips a place because its acknowledged message is gone: the message is the cause."""
    gone = {
        (f.topic, f.queue_id, f.queue_offset): f for f in found if f.kind == "acked_missing" and f.copies == 0
    }
    out = []
    for f in found:
        if f.kind == "queue_gap":
            inside = (
                gone.get((f.topic, f.queue_id, f.queue_offset + n)) for n in range(min(f.records, 100_000))
            )
            cause = next((g for g in inside if g is not None), None)
            if cause is not None:
                f = f.follows(cause)
        out.append(f)
    return out


def _crc_lookup(ledger: pa.Table | None) -> Callable[[str], int | None]:
    def lookup(uniq_key: str) -> int | None:
        if ledger is None or not uniq_key:
            return None
        hits = ledger.filter(pc.equal(ledger["uniq_key"], uniq_key))["body_crc"].to_pylist()
        return hits[0] if hits else None

    return lookup


def _same_bytes(replicas: list[Replica]) -> explain.SameBytes:
    def digest(at: int, span: Interval) -> bytes:
        storage = open_storage(replicas[at].location)
        hasher = hashlib.blake2b(digest_size=16)
        try:
            position = span[0]
            while position < span[1]:
                segment = replicas[at].segment_at(position)
                if segment is None:
                    return b""
                size = min(1 << 22, span[1] - position, replicas[at].segment_end(segment) - position)
                hasher.update(storage.read(segment.file, position - segment.base, size))
                position += size
        finally:
            storage.close()
        return hasher.digest()

    def same(a: int, b: int, span: Interval) -> bool:
        return digest(a, span) == digest(b, span)

    return same
