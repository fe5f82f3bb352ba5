"""What does a person see of an audit? One HTML page without outside parts: the verdict first, then why."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

from audit.earlier.incremental import Trusted
from audit.findings import ERROR, INFO, KINDS, UNLISTED, Finding, new_of, write
from audit.pages import html, sentence
from audit.pages.html import number, size
from audit.reading.layout import Replica
from audit.results.evidence import stamp
from audit.results.steps.repair import Step, steps
from audit.run import Report
from runtime.version import version

ROWS_MAX: Final = 200
"""Findings shown per kind and replica; the files hold all of them."""

WINDOWS_MAX: Final = 100

_NOT_READ: Final = (
    "It could not be read, and why stands above: put that right (its path or URL, disk or mount, rights, "
    "server or host; a STORE is the folder that holds commitlog), and audit again before any other step. "
    "This one may hold what the others lack."
)

FILES: Final = (UNLISTED, "findings.parquet", "findings.jsonl", "summary.json", "index.html")
"""Of a report. ``UNLISTED`` is there only if there are rows that are not listed."""


def save(report: Report, directory: Path) -> None:
    """Replace findings.jsonl, findings.parquet, summary.json, index.html and, by what the audit left beside
    it, unlisted.parquet: all are written before the first is replaced. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    write(report.findings, directory)
    summary = json.dumps(report.to_json(), indent=2, ensure_ascii=False)
    new_of(directory / "summary.json").write_text(f"{summary}\n", errors="backslashreplace")
    new_of(directory / "index.html").write_text(page(report), errors="backslashreplace")
    for name in FILES:
        if new_of(directory / name).exists():
            new_of(directory / name).replace(directory / name)
        else:  # of the report before
            (directory / name).unlink(missing_ok=True)


def page(report: Report) -> str:
    """The whole page."""
    counts = Counter((f.kind, f.replica) for f in report.findings)
    shown: Counter[tuple[str, str]] = Counter()
    rows = []
    for f in report.findings:
        shown[f.kind, f.replica] += 1
        if shown[f.kind, f.replica] <= ROWS_MAX:
            rows.append(f)
    return html.page(
        "audit.html",
        {
            "report": report,
            "tone": report.verdict,
            "word": report.verdict,
            "headline": _headline(report),
            "story": " ".join(_story(report)),
            "started": stamp(report.started_ms),
            "version": version(),
            "numbers": _numbers(report),
            "steps": [*_first_of_all(report), *steps(report.findings, report.replicas)],
            "windows_max": WINDOWS_MAX,
            "replicas": _replicas(report),
            "rows": rows,
            "ids": {f.id: at for at, f in reversed(list(enumerate(rows, 1)))},
            "choices": _choices(rows),
            "hidden": [(*key, count - ROWS_MAX) for key, count in counts.items() if count > ROWS_MAX],
            "legend": [(kind, text) for kind, text in KINDS.items() if any(f.kind == kind for f in rows)],
            "legend_of": KINDS,
            "compared": _compared(report),
        },
    )


def _headline(report: Report) -> str:
    return sentence.of(report.verdict, report.windows, report.unreadable, none_lost=report.none_lost)


def _first_of_all(report: Report) -> list[Step]:
    """What could not be read may hold what the steps for the others look for elsewhere."""
    return [Step(name, "", _NOT_READ, 0) for name in report.unreadable]


def _choices(rows: list[Finding]) -> list[tuple[str, list[str]]]:
    """What each filter offers."""
    return [
        (name, sorted({getattr(f, name) for f in rows} - {""}))
        for name in ("severity", "kind", "replica", "topic")
    ]


def _story(report: Report) -> list[str]:
    severities = Counter(f.severity for f in report.findings)
    repairable = sum(1 for f in report.findings if f.severity == ERROR and f.copies > 0)
    told = []
    if severities[ERROR]:
        rest = severities[ERROR] - repairable
        parts = []
        if repairable:
            parts.append(f"{repairable} can be repaired from another copy")
        if rest:
            parts.append(f"of {rest} no copy is good, or no vote says which one is")
        what = "error" if severities[ERROR] == 1 else "errors"
        told.append(f"{severities[ERROR]} {what}: {'; '.join(parts)}.")
    if report.ledger and not report.lost:
        told.append(f"{number(report.ledger_lines)} acknowledged messages were looked up.")
    return told + [f"{name} could not be read: {why}" for name, why in report.unreadable.items()]


def _numbers(report: Report) -> list[tuple[str, str]]:
    return [
        (number(len(report.replicas)), "replicas"),
        (number(report.records), "records scanned"),
        (size(report.digest_bytes + report.scan_bytes), "read"),
        (size(report.differing_bytes), "in ranges that differ"),
        (number(report.ledger_lines) if report.ledger else "none", "acknowledgements"),
        (f"{report.seconds:.1f} s", f"engine {report.engine}"),
    ]


def _replicas(report: Report) -> list[tuple[Replica, list[dict[str, Any]], int]]:
    """Each replica with the parts of its bar and the number of its findings that count."""
    low = min((r.start for r in report.replicas), default=0)
    span = max(1, max((r.end for r in report.replicas), default=0) - low)

    def part(begin: int, end: int, kind: str) -> dict[str, Any]:
        left = min(100 * (begin - low) / span, 99.4)
        width = max(0.6 if kind else 0, 100 * (end - begin) / span)
        return {"kind": kind, "left": f"{left:.2f}", "width": f"{width:.2f}"}

    def bars(r: Replica, findings: list[Finding]) -> list[dict[str, Any]]:
        whole = [part(r.start, r.end, "")] if not r.empty else []
        placed = [f for f in findings[:ROWS_MAX] if f.phys_offset >= 0 and f.severity != INFO]
        return whole + [part(f.phys_offset, f.until, "off") for f in placed]

    found = []
    for r in report.replicas:
        own = [f for f in report.findings if f.replica in (r.name, "*")]
        found.append((r, bars(r, own), sum(f.severity != INFO for f in own)))
    return found


def _compared(report: Report) -> list[str]:
    items: list[str] = []
    if report.compared:
        ranges = ", ".join(f"[{number(a)}, {number(b)})" for a, b in report.compared[:8])
        items.append(
            f"Bytes held by at least two replicas were compared by xxh3-128 digests of 1 MiB: {ranges}."
        )
        items.append(
            f"{size(report.differing_bytes)} lay in ranges that differ and were compared record by record."
        )
    elif len(report.replicas) < 2:
        items.append(
            "One replica only: its own records were checked; damage that keeps the CRC right cannot be seen."
        )
    items.append(
        f"Every record of {report.reference or 'the log'} was read: lengths, CRC, offsets, queue places. "
        "What is proved equal to it elsewhere was not read twice."
    )
    if report.ledger:
        items.append(_looked_up(report))
        if report.expired:
            items.append(f"{number(report.expired)} of them are older than any log: retention removed them.")
    else:
        items.append("No ledger was given: what was acknowledged is unknown.")
    items += _trusted(report.trust)
    items += [
        f"{r.name} ends in half a record at {number(r.torn[0])}, as a crash or a live writer leaves it."
        for r in report.replicas
        if r.torn
    ]
    return items


_OF_LEDGER: Final = {
    "acked_missing": "missing",
    "acked_unknown": "of a transaction that ended nobody knows how",
    "acked_mismatch": "there with another body or place",
    "acked_out_of_order": "in another order",
    "dup_message": "more than once there",
}


def _looked_up(report: Report) -> str:
    """What was asked of the ledger's lines, and what came out."""
    text = f"Each of {number(report.ledger_lines)} lines of {report.ledger} was looked up"
    kinds = {f.kind for f in report.findings}
    wrong = [words for kind, words in _OF_LEDGER.items() if kind in kinds]
    if any(f.kind == "short_tail" and f.records for f in report.findings):
        wrong.append("behind the end of a log that is too short")
    if not wrong:
        return f"{text}: there once, same body, same place, same order."
    lost = f" {number(report.lost)} {'is' if report.lost == 1 else 'are'} lost." if report.lost else ""
    named = f"The findings name those {' or '.join(wrong)}."
    return f"{text}: is it there once, with the same body, place and order? Not each is.{lost} {named}"


def _trusted(trust: Trusted) -> list[str]:
    """What an incremental audit took from earlier ones."""
    items = []
    if trust.segments:
        items.append(
            f"Trusted from audits since {trust.since}: no record before {number(trust.border)} was read, nor "
            f"entries and indexes of such. Carried from there: {number(trust.queues)} ends of queues, "
            f"{number(trust.keys)} keys of messages. Segments: {', '.join(trust.segments)}."
        )
    if trust.digests:
        items.append(f"Compared by digests of earlier audits, not read again: {', '.join(trust.digests)}.")
    if trust.segments or trust.digests:
        items.append("Bytes that change while a file keeps its size and time are found by --full only.")
    return items + [f"{file} changed after an earlier audit ({how})." for file, how in trust.changed.items()]


def lines(report: Report) -> list[str]:
    """The result for a terminal: findings that count, then one verdict line."""
    out = []
    for f in report.findings[:ROWS_MAX]:
        # What is about a file and no place in the log has to name the file.
        place = f" [{f.phys_offset}, {f.until})" if f.phys_offset >= 0 else f" {f.segment}".rstrip()
        message = f" {f.topic}/{f.queue_id}@{f.queue_offset} {f.uniq_key}" if f.topic else ""
        cause = f" (follows from {f.caused_by})" if f.caused_by else ""
        told = (("expected", f.expected), ("found", f.found))
        detail = ", ".join(f"{word} {text}" for word, text in told if text)
        out.append(
            f"{f.severity:5} {f.kind} {f.replica}{place}{message.rstrip()}{detail and ': ' + detail}{cause}"
        )
    if len(report.findings) > ROWS_MAX:
        out.append(f"... {len(report.findings) - ROWS_MAX} more in findings.jsonl")
    for name, why in report.unreadable.items():
        out.append(f"error {name} could not be read: {why}")
    out += _trusted(report.trust)
    if report.windows:
        out.append(_headline(report))
    counts = Counter(f.severity for f in report.findings)
    summary = ", ".join(f"{n} {word}" for word, n in sorted(counts.items())) or "no findings"
    out.append(
        f"{report.verdict.upper()}: {len(report.replicas)} replicas, {number(report.records)} records, "
        f"{size(report.digest_bytes + report.scan_bytes)} read in {report.seconds:.1f} s, {summary}"
    )
    return out
