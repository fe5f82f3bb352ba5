"""How does an audit go? Ledger, bounds, digests, ranges that differ, one scan, questions, verdict."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from audit import plan, room
from audit.compare import Ranges, compare_digests
from audit.earlier import incremental
from audit.earlier.digesting import compared
from audit.earlier.incremental import Trusted
from audit.findings import INFO, SCHEMA_VERSION, Finding, order, verdict
from audit.kinds.facts import Facts
from audit.ledgers.ledger import Ledger, read_ledger
from audit.questions import Before, Questions
from audit.reading.aside import settle
from audit.reading.layout import Replica, leave_out_removed, leave_out_unreadable, load
from audit.reading.reachable import refuse_unreachable
from audit.reading.small.beside import look_beside
from audit.reading.storage import StoreSpec, open_storage, shown, without_secrets
from audit.results.evidence import Evidence, evidence
from audit.results.losses import Window, windows
from audit.rows.bounded import Unlisted
from audit.rows.intervals import Interval, in_both
from audit.sources import unpacked
from audit.tables import Engine, EngineError, ScannedLog
from model.errors import MqError
from runtime.version import version

log = logging.getLogger(__name__)

SEAM_ROUNDS_MAX = 4
ATTEMPTS_MAX = 3
"""One for a file that cannot be read or went, and one more for what retention takes meanwhile."""


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
    trust: Trusted = field(default_factory=Trusted)
    seconds: float = 0.0
    started_ms: int = 0  # since 1970
    command: str = ""  # as it was given; secrets left out
    windows: list[Window] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)

    @property
    def lost(self) -> int:
        """Acknowledged messages that no replica holds."""
        gone = [f for f in self.findings if f.kind == "acked_missing" and f.copies == 0 and f.topic]
        return sum(f.records for f in gone)

    @property
    def none_lost(self) -> bool:
        """Does a replica hold each message of the ledger right, but for those that retention removed?"""
        gone = any(f.kind.startswith("acked_") and f.copies == 0 for f in self.findings)
        # A copy, or the last one; or nobody looked.
        beside = any(len(r.misnamed) > len(r.moved) or r.unseen for r in self.replicas)
        return bool(self.ledger and self.replicas) and not (gone or beside)

    def to_json(self) -> dict[str, Any]:
        """``summary.json``."""
        return {
            "schemaVersion": SCHEMA_VERSION,
            "version": version(),
            "command": self.command,
            "startedMs": self.started_ms,
            "verdict": self.verdict,
            "findings": dict(sorted(Counter(f.kind for f in self.findings).items())),
            "severities": dict(sorted(Counter(f.severity for f in self.findings).items())),
            "replicas": [
                {
                    "name": r.name,
                    "store": shown(r.location),
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
            "reference": self.reference or None,
            "bytes": self.digest_bytes + self.scan_bytes,
            "digestBytes": self.digest_bytes,
            "scanBytes": self.scan_bytes,
            "differingBytes": self.differing_bytes,
            "records": self.records,
            "ledger": {
                "file": self.ledger or None,
                "lines": self.ledger_lines,
                "expired": self.expired,
                "lost": self.lost if self.ledger else None,
            },
            "trusted": self.trust.segments,
            "trust": self.trust.to_json(),
            "windows": [w.to_json() for w in self.windows],
            "engine": self.engine,
            "seconds": round(self.seconds, 3),
        }


def audit(
    specs: list[StoreSpec],
    engine: Engine,
    *,
    ledger_path: str | None = None,
    state: Path | None = None,
    unlisted: Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Report:
    """Audit the stores of one broker group. ``state``: a file of digests to trust for sealed segments;
    ``unlisted``: where findings go that are only counted.

    Raises ConfigError on a bad ledger or URL, AuditError when reading fails half-way. A store that cannot
    be read at all is listed in ``unreadable``; the rest is audited.
    """
    started, started_ms = perf_counter(), int(datetime.now(UTC).timestamp() * 1000)
    # The ledger first: what it lists was acknowledged before the bounds below are taken.
    ledger = _ledger(ledger_path) if ledger_path else None
    with unpacked.using():
        try:
            report = _report(specs, engine, ledger, shown(ledger_path or ""), state, unlisted, progress)
        finally:
            if ledger is not None:
                ledger.close()
        report.findings = order(report.findings)
        conclude(report)
    report.started_ms = started_ms
    report.seconds = perf_counter() - started
    return report


def _ledger(path: str) -> Ledger:
    """Raises ConfigError, AuditError, OSError."""
    try:
        return read_ledger(path)
    except OSError as error:
        if room.is_full(error):
            raise AuditError(without_secrets(room.why(error), path)) from error
        raise


def conclude(report: Report) -> None:
    """Verdict, windows and evidence, from the findings."""
    with unpacked.using():
        report.verdict = verdict(report.findings, unfinished=bool(report.unreadable) or not report.replicas)
        report.windows = windows(report.findings, report.replicas)
        report.evidence = evidence(report.windows, report.replicas, report.findings)


def _report(
    specs: list[StoreSpec],
    engine: Engine,
    ledger: Ledger | None,
    ledger_path: str,
    state: Path | None,
    unlisted: Path | None,
    progress: Callable[[str], None],
) -> Report:
    progress("looking at the stores")
    replicas, unreadable = _load(specs)
    report = Report("", engine.name, [], replicas, unreadable, "", [], 0, 0, 0, 0)
    if ledger is not None:
        report.ledger, report.ledger_lines = ledger_path, len(ledger)
    # Also without a replica: what an earlier audit left there is not this one's.
    with Unlisted(unlisted) as rest:
        if not replicas:
            return report
        try:
            attempt = partial(_audit, replicas, engine, ledger, report, state, rest, progress)
            _without_unreadable(replicas, report, attempt, progress)
        except (OSError, EngineError) as error:
            text = room.why(error, unlisted.parent if unlisted is not None else None)
            for spec in specs:
                text = without_secrets(text, spec.location)
            if isinstance(error, EngineError):
                raise EngineError(text) from error
            raise AuditError(text if room.is_full(error) else f"reading failed half-way: {text}") from error
    return report


def _load(specs: list[StoreSpec]) -> tuple[list[Replica], dict[str, str]]:
    replicas: list[Replica] = []
    unreadable: dict[str, str] = {}
    for spec in specs:
        try:
            refuse_unreachable(spec.location)
            replicas.append(load(spec))
        except OSError as error:
            unreadable[spec.name] = without_secrets(room.why(error), spec.location)
    return replicas, unreadable


def _without_unreadable(
    replicas: list[Replica],
    report: Report,
    attempt: Callable[[], None],
    progress: Callable[[str], None],
) -> None:
    """One file that cannot be read is a finding, and all others are audited without it. One that was removed
    while it was read is none: the log is judged as if it had been removed before."""
    for _ in range(ATTEMPTS_MAX - 1):
        try:
            attempt()
        except (OSError, EngineError) as error:
            if room.is_full(error):
                raise  # no file of a store is wrong
            progress("a read failed: looking for the file")
            left_out = [leave_out_unreadable(r) for r in replicas]
            if not any(left_out):
                raise
        else:
            left_out = [_told_of_removed(r, report) and leave_out_removed(r) for r in replicas]
            if not any(left_out):
                return
            progress("segments were removed meanwhile: reading again what is left")
        report.findings = []
        report.digest_bytes = report.scan_bytes = 0
    attempt()


def _told_of_removed(replica: Replica, report: Report) -> bool:
    """May a finding follow from a segment that went, for instance from queues that went with it?"""
    reach = 0
    storage = open_storage(replica.location)
    try:
        for segment in replica.segments:
            if not storage.exists(segment.file):
                reach = replica.segment_end(segment)
    finally:
        storage.close()
    return any(
        f.severity != INFO and f.replica in (replica.name, "*") and f.phys_offset < reach
        for f in report.findings
    )


def _audit(
    replicas: list[Replica],
    engine: Engine,
    ledger: Ledger | None,
    report: Report,
    state: Path | None,
    unlisted: Unlisted,
    progress: Callable[[str], None],
) -> None:
    unlisted.begin()
    # Before the ends: a consumer was no further then than the log, which goes on meanwhile.
    looked = {at: look_beside(r.location) for at, r in enumerate(replicas)}
    settle(replicas)
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
        table, report.digest_bytes = compared(engine, planned, trust)
    reference = plan.reference_of(replicas, table)
    report.reference = replicas[reference].name
    if table is not None:
        ranges = compare_digests(table, reference)
    facts = Facts(replicas, reference, ranges)
    report.differing_bytes = facts.differing_bytes

    views = plan.views(replicas, reference, ranges)
    unions = plan.unions(replicas, reference)
    # Acknowledgements are asked of every record.
    differing = (i for rows in ranges.differ.values() for i in rows)
    border = trust.carry(differing, engine, ledger=ledger is not None)
    report.trust = trust.said
    wanted = {
        at: in_both(plan.own_parts(replicas[at], view), [(border, 1 << 62)]) for at, view in views.items()
    }
    progress("scanning records")
    told = {"cuts": plan.view_cuts([*views.values(), *unions]), "plain": ledger is not None}
    scanned = _scan(engine, replicas, wanted, chunk, report, told)
    try:
        progress("asking the questions")
        report.records = scanned.record_count()
        before = Before(looked, border, trust.carried, trust.files)
        questions = Questions(facts, engine, scanned, views, unions, ledger, before, unlisted)
        report.findings = questions.ask()
        if not scanned.asked_all():
            raise EngineError(
                "the workers' copy of the ledger changed meanwhile: give one that nobody writes"
            )
        report.expired = questions.expired
        trust.save(report.findings, scanned, unions, questions.waits)
    finally:
        scanned.close()


def _scan(
    engine: Engine,
    replicas: list[Replica],
    wanted: dict[int, list[Interval]],
    chunk: int,
    report: Report,
    told: dict[str, Any],
) -> ScannedLog:
    """``told``: what ``plan.tasks`` tells the tasks besides."""
    planned = plan.tasks(replicas, wanted, chunk=chunk, **told)
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
    return engine.scan(plan.tasks(replicas, wanted, chunk=size, **told))
