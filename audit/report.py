"""What does a person see of an audit? One HTML page without outside parts: the verdict first, then why."""

from __future__ import annotations

import json
from collections import Counter
from html import escape
from pathlib import Path
from typing import Final

from audit.findings import ERROR, INFO, KINDS, Finding, write
from audit.layout import Replica
from audit.run import Report

ROWS_MAX: Final = 200
"""Findings shown per kind and replica; the files hold all of them."""

HEADLINES: Final = {
    "clean": "The replicas hold the same log.",
    "warnings": "The replicas hold the same log, with something to look at.",
    "diverged": "The replicas differ, or something acknowledged is missing.",
    "unfinished": "Not everything could be read, so this is no clean bill.",
}

STYLE: Final = Path(__file__).with_name("report.css").read_text()


def number(value: int) -> str:
    return f"{value:,}".replace(",", " ")


def size(value: int) -> str:
    """Bytes for people: 1.5 GiB."""
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def save(report: Report, directory: Path) -> None:
    """Write findings.jsonl, findings.parquet, summary.json and index.html. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    write(report.findings, directory)
    (directory / "summary.json").write_text(json.dumps(report.to_json(), indent=2, ensure_ascii=False) + "\n")
    (directory / "index.html").write_text(page(report))


def page(report: Report) -> str:
    """The whole page."""
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>Audit: {escape(report.verdict)}</title><style>{STYLE}</style></head><body><main>"
        f"{_verdict(report)}{_numbers(report)}{_replicas(report)}{_findings(report)}{_compared(report)}"
        "</main></body></html>\n"
    )


def _verdict(report: Report) -> str:
    severities = Counter(f.severity for f in report.findings)
    lost = [f for f in report.findings if f.kind == "acked_missing" and f.copies == 0]
    repairable = sum(1 for f in report.findings if f.severity == ERROR and f.copies > 0)
    lines = []
    if severities[ERROR]:
        rest = severities[ERROR] - repairable
        parts = []
        if repairable:
            parts.append(f"{repairable} can be repaired from another copy")
        if rest:
            parts.append(f"{rest} leave no good copy, or no vote says which copy is good")
        lines.append(f"{severities[ERROR]} errors: {'; '.join(parts)}.")
    if lost:
        lines.append(f"{len(lost)} acknowledged messages are on no replica.")
    elif report.ledger:
        lines.append(f"{number(report.ledger_lines)} acknowledged messages were looked up.")
    for name, why in report.unreadable.items():
        lines.append(f"{name} could not be read: {why}")
    text = " ".join(escape(line) for line in lines)
    return (
        f'<section class="verdict {report.verdict}"><div class=word>{escape(report.verdict)}</div>'
        f"<h1>{escape(HEADLINES[report.verdict])}</h1><p class=soft>{text}</p></section>"
    )


def _numbers(report: Report) -> str:
    cells = [
        (number(len(report.replicas)), "replicas"),
        (number(report.records), "records scanned"),
        (size(report.digest_bytes + report.scan_bytes), "read"),
        (size(report.differing_bytes), "in ranges that differ"),
        (number(report.ledger_lines) if report.ledger else "none", "acknowledgements"),
        (f"{report.seconds:.1f} s", f"engine {report.engine}"),
    ]
    return (
        "<div class=numbers>"
        + "".join(f"<div><b>{escape(a)}</b><span>{escape(b)}</span></div>" for a, b in cells)
        + "</div>"
    )


def _replicas(report: Report) -> str:
    low = min((r.start for r in report.replicas), default=0)
    high = max((r.end for r in report.replicas), default=0)
    rows = []
    for r in report.replicas:
        own = [f for f in report.findings if f.replica in (r.name, "*")]
        errors = sum(f.severity != INFO for f in own)
        marks = " (most advanced)" if r.name == report.reference and len(report.replicas) > 1 else ""
        rows.append(
            f"<tr><td><b>{escape(r.name)}</b><span class=soft>{marks}</span>"
            f"<br><code>{escape(r.location)}</code></td><td>{_bar(r, own, low, high)}</td>"
            f"<td class=n>{number(r.start)}</td><td class=n>{number(r.end)}</td>"
            f"<td class=n>{number(r.confirmed) if r.confirmed else '–'}</td>"
            f"<td class=n>{len(r.segments)} × {size(r.segment_bytes)}</td>"
            f"<td class=mono>{escape(' '.join(f'{e}@{s}' for e, s in r.epochs[-4:]) or '–')}</td>"
            f"<td>{'orderly' if r.clean else 'running or killed'}</td><td class=n>{errors}</td></tr>"
        )
    return (
        "<h2>Replicas</h2><div class=scroll><table><tr><th>replica<th>log<th class=n>start<th class=n>end"
        "<th class=n>confirmed<th class=n>segments<th>epochs<th>stopped<th class=n>to look at</tr>"
        + "".join(rows)
        + "</table></div>"
    )


def _bar(r: Replica, findings: list[Finding], low: int, high: int) -> str:
    span = max(1, high - low)

    def part(begin: int, end: int, kind: str) -> str:
        left = 100 * (begin - low) / span
        width = max(0.6 if kind else 0, 100 * (end - begin) / span)
        return f'<i class="{kind}" style="left:{min(left, 99.4):.2f}%;width:{width:.2f}%"></i>'

    marks = [part(r.start, r.end, "")] if not r.empty else []
    marks += [
        part(f.phys_offset, f.until, "off")
        for f in findings[:ROWS_MAX]
        if f.phys_offset >= 0 and f.severity != INFO
    ]
    return f"<div class=bar>{''.join(marks)}</div>"


def _findings(report: Report) -> str:
    if not report.findings:
        return "<h2>Findings</h2><p>None.</p>"
    shown: Counter[tuple[str, str]] = Counter()
    rows = []
    for f in report.findings:
        shown[f.kind, f.replica] += 1
        if shown[f.kind, f.replica] <= ROWS_MAX:
            rows.append(_row(f))
    hidden = [(k, n - ROWS_MAX) for k, n in shown.items() if n > ROWS_MAX]
    more = "".join(
        f"<li>{number(n)} more of {escape(kind)} on {escape(replica)}</li>" for (kind, replica), n in hidden
    )
    legend = "".join(
        f"<li><b>{escape(kind)}</b>: {escape(KINDS[kind])}</li>"
        for kind in KINDS
        if any(f.kind == kind for f in report.findings)
    )
    return (
        "<h2>Findings</h2><div class=scroll><table><tr><th><th>kind<th>replica<th class=n>from<th class=n>to"
        "<th>message<th>expected<th>found<th class=n>good copies<th>follows from</tr>"
        + "".join(rows)
        + "</table></div>"
        + (f"<ul class=soft>{more}</ul><p class=soft>All rows: findings.parquet.</p>" if more else "")
        + f"<h2>What the kinds mean</h2><ul>{legend}</ul>"
    )


def _row(f: Finding) -> str:
    message = ""
    if f.topic:
        message = f"{f.topic}/{f.queue_id}" + (f"@{f.queue_offset}" if f.queue_offset >= 0 else "")
    if f.uniq_key:
        message = f"{message} {f.uniq_key}".strip()
    name = "every replica" if f.replica == "*" else f.replica
    count = f" × {number(f.records)}" if f.records > 1 else ""
    doubt = " (which copy is right is open)" if f.ambiguous else ""
    return (
        f"<tr><td><span class='tag {f.severity}'>{f.severity}</span></td><td>{escape(f.kind)}{count}</td>"
        f"<td>{escape(name)}</td><td class=n>{_offset(f.phys_offset)}</td><td class=n>{_offset(f.until)}</td>"
        f"<td class=mono>{escape(message)}</td><td>{escape(f.expected)}{doubt}</td><td>{escape(f.found)}</td>"
        f"<td class=n>{f.copies}</td><td class=mono>{escape(f.caused_by)}</td></tr>"
    )


def _offset(value: int) -> str:
    return number(value) if value >= 0 else "–"


def _compared(report: Report) -> str:
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
        items.append(
            f"Each of {number(report.ledger_lines)} lines of {report.ledger} was looked up: there once, "
            "same body, same place, same order."
        )
        if report.expired:
            items.append(f"{number(report.expired)} of them are older than any log: retention removed them.")
    else:
        items.append("No ledger was given: what was acknowledged is unknown.")
    items += [f"Trusted from an earlier audit, not read again: {name}." for name in report.trusted]
    items += [
        f"{r.name} ends in half a record at {number(r.torn[0])}, as a crash or a live writer leaves it."
        for r in report.replicas
        if r.torn
    ]
    return "<h2>What was compared</h2><ul>" + "".join(f"<li>{escape(i)}</li>" for i in items) + "</ul>"


def lines(report: Report) -> list[str]:
    """The result for a terminal: findings that count, then one verdict line."""
    out = []
    for f in report.findings[:ROWS_MAX]:
        place = f" [{f.phys_offset}, {f.until})" if f.phys_offset >= 0 else ""
        message = f" {f.topic}/{f.queue_id}@{f.queue_offset} {f.uniq_key}" if f.topic else ""
        cause = f" (follows from {f.caused_by})" if f.caused_by else ""
        detail = f": expected {f.expected}, found {f.found}" if f.expected or f.found else ""
        out.append(f"{f.severity:5} {f.kind} {f.replica}{place}{message.rstrip()}{detail}{cause}")
    if len(report.findings) > ROWS_MAX:
        out.append(f"... {len(report.findings) - ROWS_MAX} more in findings.jsonl")
    for name, why in report.unreadable.items():
        out.append(f"error {name} could not be read: {why}")
    counts = Counter(f.severity for f in report.findings)
    summary = ", ".join(f"{n} {word}" for word, n in sorted(counts.items())) or "no findings"
    out.append(
        f"{report.verdict.upper()}: {len(report.replicas)} replicas, {number(report.records)} records, "
        f"{size(report.digest_bytes + report.scan_bytes)} read in {report.seconds:.1f} s, {summary}"
    )
    return out
