"""How does an audit go? Ledger, bounds, digests, ranges that differ, one scan, questions, verdict."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from time import perf_counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from audit import incremental, plan
from audit.bounded import Unlisted
from audit.carried import Carried
from audit.compare import Ranges, compare_digests, drill_down, same_bytes
from audit.findings import INFO, SCHEMA_VERSION, Finding, order, verdict
from audit.incremental import Trusted
from audit.intervals import Interval, in_both
from audit.kinds import acked, beside, causes, derived, entries, index, queues
from audit.kinds import tails as tail_kinds
from audit.kinds.damage import damage
from audit.kinds.differences import differences
from audit.kinds.epochs import epochs
from audit.kinds.facts import Facts
from audit.kinds.files import files
from audit.ledger import Ledger, read_ledger
from audit.queues import RUNS_MAX, begins_again
from audit.reading.beside import Beside, look_beside
from audit.reading.index_files import IndexTask
from audit.reading.layout import Replica, find_ends, leave_out_removed, leave_out_unreadable, load
from audit.reading.queue_files import Queue, QueueFolder, look
from audit.reading.storage import StoreSpec, open_storage, shown, without_secrets
from audit.results.evidence import Evidence, evidence
from audit.results.losses import Window, windows
from audit.sources import unpacked
from audit.tables import (
    DIGEST,
    Engine,
    EngineError,
    EntryBounds,
    ScannedLog,
    Tail,
    Task,
    View,
    each_alone,
)
from model.errors import MqError
from runtime.version import version

log = logging.getLogger(__name__)

SEAM_ROUNDS_MAX = 4
ATTEMPTS_MAX = 3
"""One for a file that cannot be read or went, and one more for what retention takes meanwhile."""
DERIVED = ("consumequeue", "batchconsumequeue", "consumequeue_ext", "timerlog", "timerwheel")
NO_TAIL = Tail(0, -1, -1, "")


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
            "ledger": {"file": self.ledger or None, "lines": self.ledger_lines, "expired": self.expired},
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
    ledger = read_ledger(ledger_path) if ledger_path else None
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


def conclude(report: Report) -> None:
    """Verdict, windows and evidence, from the findings."""
    with unpacked.using():
        report.verdict = verdict(report.findings, unfinished=bool(report.unreadable) or not report.replicas)
        report.windows = windows(report.findings, report.replicas)
        report.evidence = evidence(report.windows, report.replicas)


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
    if replicas:
        try:
            with Unlisted(unlisted) as rest:
                attempt = partial(_audit, replicas, engine, ledger, report, state, rest, progress)
                _without_unreadable(replicas, report, attempt, progress)
        except (OSError, EngineError) as error:
            text = str(error)
            for spec in specs:
                text = without_secrets(text, spec.location)
            if isinstance(error, EngineError):
                raise EngineError(text) from error
            raise AuditError(f"reading failed half-way: {text}") from error
    return report


def _load(specs: list[StoreSpec]) -> tuple[list[Replica], dict[str, str]]:
    replicas: list[Replica] = []
    unreadable: dict[str, str] = {}
    for spec in specs:
        try:
            replicas.append(load(spec))
        except OSError as error:
            unreadable[spec.name] = without_secrets(str(error), spec.location)
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
        except (OSError, EngineError):
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
    find_ends(replicas)
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
        table = _digests(engine, planned, trust, report)
        trust.learn(planned, table.select(DIGEST.names))
    reference = plan.reference_of(replicas, table)
    report.reference = replicas[reference].name
    if table is not None:
        ranges = compare_digests(table, reference)
    report.differing_bytes = sum(b - a for rows in ranges.differ.values() for a, b in rows)
    facts = Facts(replicas, reference, ranges)

    views = plan.views(replicas, reference, ranges)
    # Acknowledgements are asked of every record.
    border = trust.carry((i for rows in ranges.differ.values() for i in rows), ledger=ledger is not None)
    report.trust = trust.said
    wanted = {
        at: in_both(plan.own_parts(replicas[at], view), [(border, 1 << 62)]) for at, view in views.items()
    }
    progress("scanning records")
    scanned = _scan(engine, replicas, wanted, chunk, report, plain=ledger is not None)
    try:
        progress("asking the questions")
        report.records = scanned.record_count()
        unions = plan.unions(replicas, reference)
        before = Before(looked, border, trust.carried)
        questions = _Questions(facts, engine, scanned, views, unions, ledger, before, unlisted)
        report.findings = questions.ask()
        if not scanned.asked_all():
            raise EngineError(
                "the workers' copy of the ledger changed meanwhile: give one that nobody writes"
            )
        report.expired = questions.expired
        trust.save(report.findings, scanned, unions)
    finally:
        scanned.close()


def _digests(engine: Engine, planned: list[Task], trust: incremental.Trust, report: Report) -> pa.Table:
    known, todo = trust.split(planned)
    report.digest_bytes = sum(t.end - t.start for t in todo)
    if trust.keeps:
        table = each_alone(pa.concat_tables([known, engine.digests(todo) if todo else DIGEST.empty_table()]))
    else:
        table = engine.compared(todo)
    if pc.count_distinct(pc.binary_length(table["digest"])).as_py() > 1:
        # Some workers, or an audit before, had no fast hashes: these say nothing of the others'.
        report.digest_bytes += sum(t.end - t.start for t in planned)
        again = [replace(t, everywhere=True) for t in planned]
        table = each_alone(engine.digests(again)) if trust.keeps else engine.compared(again)
    return table


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


@dataclass(frozen=True, slots=True)
class Before:
    """What was known before the log was read, which begins at ``border``; what is trusted before it left
    ``carried``."""

    looked: dict[int, Beside]
    border: int
    carried: Carried


class _Questions:
    """What is asked of the logs, in the order in which one answer needs another."""

    def __init__(
        self,
        facts: Facts,
        engine: Engine,
        scanned: ScannedLog,
        views: dict[int, View],
        unions: list[View],
        ledger: Ledger | None,
        before: Before,
        unlisted: Unlisted,
    ) -> None:
        self.facts, self.engine, self.scanned = facts, engine, scanned
        self.views, self.ledger = views, ledger
        self.unions = unions  # the log, as far back as any replica holds it
        self.looked, self.border, self.carried = before.looked, before.border, before.carried
        self.unlisted = unlisted
        self.expired = 0

    def ask(self) -> list[Finding]:
        facts = self.facts
        found = files(facts) + epochs(facts) + damage(facts, self.scanned.damage())
        looked = self.looked
        found += beside.beside(facts, looked)
        found += self._differences(found)
        found += self._tails(found, looked)
        folders = self._folders()
        broken: queues.Queues = {}
        asked: dict[tuple[object, ...], Finding] = {}
        before = {
            ((row["topic"], row["queue_id"]), row["queue_offset"]): row["offset"]
            for row in self.carried.queues.to_pylist()
        }
        for view in self.unions:
            begin = min(self.facts.replicas[at].start for at in (view.base, view.replica))
            table = self.scanned.broken_queues(view, self.carried.queues, RUNS_MAX, whole=begin == 0)
            broken_here = queues.runs(table, list(folders.values()))
            rows = queues.queues(facts, self.scanned, broken_here, view, before)
            rows += queues.duplicates(facts, self._copies(view), view, self.unlisted.add)
            if self.ledger is not None and self.ledger.topics:
                strangers = self.scanned.strangers(self.ledger, view)
                rows += queues.phantoms(facts, strangers, view, self.unlisted.add)
            for row in rows:
                asked.setdefault((row.kind, row.phys_offset, row.topic, row.queue_id, row.queue_offset), row)
            broken = broken_here | broken
        found += asked.values()
        found += self._entries(folders, broken, found)
        found += beside.offsets_beyond(facts, looked, self._queue_ends(looked))
        found += self._index(looked)
        found += self._derived(looked)
        found += self._acked(broken)
        linked = causes.link(causes.gaps_of_missing(found), [r.name for r in facts.replicas])
        found = index.joined(entries.joined(causes.fold(linked)))
        if all(f.severity == INFO for f in found) and not self.border:
            found += tail_kinds.nothing(self.scanned.record_count())
        return found

    def _queue_ends(self, looked: dict[int, Beside]) -> dict[Queue, int]:
        """Where each queue ends in the log in which it ends last; of no use without offsets of consumers."""
        ends: dict[Queue, int] = {}
        for view in self.views.values() if any(own.offsets for own in looked.values()) else ():
            for row in self.scanned.queue_ends(view).to_pylist():
                queue = (row["topic"], row["queue_id"])
                ends[queue] = max(ends.get(queue, 0), row["queue_offset"])
        for row in self.carried.queues.to_pylist():
            ends.setdefault((row["topic"], row["queue_id"]), row["queue_offset"] + row["advance"])
        return ends

    def _copies(self, view: View) -> Iterator[pa.Table]:
        """What stands twice in what was read, or once there and once in what is trusted."""
        if not self.carried.of_keys:
            yield from self.scanned.copies(view)
            return
        size = self.facts.replicas[view.base].segment_bytes
        end = max(r.end for r in self.facts.replicas)
        carried: set[int] = set()
        for begin in range(self.border, end, size):
            table = self.carried.copies(self.scanned.keyed(view, begin, begin + size))
            carried.update(table["offset"].to_pylist())
            yield table
        for table in self.scanned.copies(view):
            known = pc.is_in(table["offset"], value_set=pa.array(carried, pa.int64()))
            yield table.filter(pc.invert(known))

    def _index(self, looked: dict[int, Beside]) -> list[Finding]:
        """Does each replica's index name what its log has? Files of trusted records only are not read."""
        try:
            return self._index_findings(self._index_tasks(looked), looked)
        except FileNotFoundError:
            log.info("a file of an index was removed meanwhile: planning again")
        return self._index_findings(self._index_tasks(looked), looked)

    def _index_findings(self, planned: list[IndexTask], looked: dict[int, Beside]) -> list[Finding]:
        """Raises FileNotFoundError when one of the files was removed since they were planned."""
        try:
            return index.findings(self.facts, self.engine.index(planned), looked) if planned else []
        except EngineError as error:  # of Spark: a worker's error, in words
            if index.removed(planned):
                raise FileNotFoundError(str(error)) from error
            raise

    def _index_tasks(self, looked: dict[int, Beside]) -> list[IndexTask]:
        # One that brings no record behind the file before may have lost its entries: it is always read.
        return [
            task
            for task in index.tasks(self.facts.replicas, self._open(looked, "index"))
            if task.until > self.border or task.until <= task.begin or not task.slots
        ]

    def _derived(self, looked: dict[int, Beside]) -> list[Finding]:
        """Do the other files that RocketMQ makes of its log name what the log has?"""

        def ends(at: int) -> dict[Queue, int]:
            rows = self.scanned.queue_ends(self.views[at]).to_pylist() if at in self.views else []
            return {(row["topic"], row["queue_id"]): row["queue_offset"] for row in rows}

        planned = derived.tasks(self.facts.replicas, self._open(looked, *DERIVED), lru_cache(ends))
        return derived.findings(self.facts, self.engine.derived(planned)) if planned else []

    def _open(self, looked: dict[int, Beside], *folders: str) -> dict[int, Beside]:
        """Without the replicas of which a file there cannot be read: that is said, and the rest of them would
        look as if it lacked what that file has."""
        closed = {
            at
            for at, r in enumerate(self.facts.replicas)
            if {f.partition("/")[0] for f in r.closed} & {*folders}
        }
        return {at: own for at, own in looked.items() if at not in closed}

    def _folders(self) -> dict[int, QueueFolder]:
        """The queues of each replica that keeps them in files."""
        replicas = self.facts.replicas
        there = [at for at in self._open(self.looked, "consumequeue") if at in self.views]
        looked = {at: look(replicas[at].location) for at in there if replicas[at].queues}
        return {at: folder for at, folder in looked.items() if folder is not None}

    def _entries(
        self, folders: dict[int, QueueFolder], broken: queues.Queues, roots: list[Finding]
    ) -> list[Finding]:
        """Does each replica's log stand in its own queues?"""
        again = {queue: max(begins_again(runs), default=0) for queue, runs in broken.items()}
        found = []
        for at, folder in sorted(folders.items()):
            r, view = self.facts.replicas[at], self.views[at]
            found += entries.sizes(self.facts, at, folder)
            if folder.files:
                cuts = entries.cuts(r, roots, causes.CAUSES["cq_missing"], again)
                bounds = EntryBounds(max(r.start, self.border), 1 << 62 if r.clean else r.end, cuts)
                found += entries.entries(
                    self.facts, at, self.scanned.entered(view, folder.files, bounds), again
                )
            others = {queue for b, other in folders.items() if b != at for queue in other.queues}
            if folder.queues_of or others - folder.queues:
                extents = self.scanned.queue_extents(view).to_pylist()
                extents += self.carried.extents({(row["topic"], row["queue_id"]) for row in extents})
                found += entries.absent(self.facts, at, folder, others, extents)
        return found

    def _differences(self, roots: list[Finding]) -> list[Finding]:
        replicas = self.facts.replicas
        rows = {
            (base, other): drill_down(replicas, base, other, intervals)
            for (base, other), intervals in self.facts.ranges.differ.items()
        }
        return differences(
            self.facts,
            rows,
            roots,
            _crc_lookup(self.ledger),
            lambda at, begin, lacking: self._acked_behind(at, begin, lacking).records,
            same_bytes(replicas),
        )

    def _tails(self, roots: list[Finding], looked: dict[int, Beside]) -> list[Finding]:
        replicas = self.facts.replicas
        ends = [r.end for r in replicas if not r.empty]
        acked_end = -1
        apart: list[int] = []
        if self.ledger is not None:
            # A replica proved equal to the reference as far as both reach holds nothing it does not.
            apart = [
                at
                for at, view in self.views.items()
                if at == self.facts.reference or not acked.adds_nothing(replicas[at], view)
            ]
            if ends and (min(ends) < max(ends) or len(apart) > 1):
                acked_end = max(self._acked_behind(at, min(ends)).until for at in apart)

        def missing_behind(at: int) -> Tail:
            """Acknowledged messages any other log holds behind this one's end."""
            held = [self._acked_behind(other, replicas[at].end) for other in apart if other != at]
            return max(held, key=lambda tail: tail.records, default=NO_TAIL)

        def rotten(at: int) -> bool:
            return tail_kinds.rotten(replicas[at], [r for r in replicas if r is not replicas[at]])

        def noted(at: int) -> int:
            return looked[at].was_longer

        return tail_kinds.tails(self.facts, missing_behind, acked_end, roots, rotten, noted)

    def _acked_behind(self, at: int, offset: int, lacking: int | None = None) -> Tail:
        """``lacking``: those only that this replica's log has nowhere."""
        if self.ledger is None or at not in self.views:
            return NO_TAIL
        other = self.views.get(lacking) if lacking is not None else None
        return self.scanned.acked_behind(self.ledger, self.views[at], offset, other)

    def _acked(self, broken: queues.Queues) -> list[Finding]:
        if self.ledger is None:
            return []
        again = tuple((*queue, at) for queue, runs in sorted(broken.items()) for at in begins_again(runs))
        views = self.views, self.unions
        result = acked.check(self.facts, self.scanned, self.ledger, *views, again, self.unlisted.add)
        self.expired = result.expired
        return result.findings + acked.mostly_expired(result.expired, len(self.ledger))


def _crc_lookup(ledger: Ledger | None) -> Callable[[str], int | None]:
    return lambda uniq_key: ledger.body_crc(uniq_key) if ledger is not None and uniq_key else None
