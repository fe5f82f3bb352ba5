"""What does Prometheus' node exporter read of the last audit? A file for its textfile collector."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from audit.findings import ERROR, EXIT_CODES, INFO, KINDS, WARN, as_text
from audit.run import Report


class Running:
    """The file of an audit that goes on: it tells the last pass, and when the stores were looked at. Raises
    OSError."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._last: tuple[Report | None, float] | None = None

    def looked(self) -> None:
        """The stores were looked at. Before the first pass ended there is nothing to tell."""
        if self._last is not None:
            report, ended_s = self._last
            write(self._file, report, ended_s)

    def ended(self, report: Report | None) -> None:
        """A pass ended; without a report it broke."""
        self._last = report, datetime.now(UTC).timestamp()
        self.looked()


def write(file: Path, report: Report | None, ended_s: float | None = None) -> None:
    """Replace the file; without a report the audit broke. ``ended_s``: when it ended [now]. Its label
    ``audit`` is the file's name, so that several audits of one machine stand side by side. Raises OSError."""
    registry = CollectorRegistry(auto_describe=False)

    def gauge(name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"keelmq_audit_{name}", text, ["audit", *labels], registry=registry)

    of, now = as_text(file.stem), datetime.now(UTC).timestamp()
    result = report.verdict if report is not None else "unfinished"
    verdict = gauge("verdict", "1 for the verdict of the last audit, 0 for the others", "verdict")
    for name in EXIT_CODES:
        verdict.labels(of, name).set(name == result)
    gauge("finished_timestamp_seconds", "when the last audit ended").labels(of).set(
        now if ended_s is None else ended_s
    )
    gauge("looked_timestamp_seconds", "when the stores were last looked at").labels(of).set(now)
    if report is not None:
        findings = gauge("findings", "rows of the last audit", "severity", "kind")
        for (severity, kind), count in sorted(_counts(report).items()):
            findings.labels(of, severity, kind).set(count)
        lost = gauge("lost_messages", "acknowledged messages of the ledger on no replica")
        lost.labels(of).set(report.lost)
        gauge("replicas", "stores that were read").labels(of).set(len(report.replicas))
        gauge("unreadable_replicas", "stores that could not be read").labels(of).set(len(report.unreadable))
        gauge("records", "records that were scanned").labels(of).set(report.records)
        gauge("read_bytes", "bytes that were read").labels(of).set(report.digest_bytes + report.scan_bytes)
        gauge("trusted_until_bytes", "the log before this offset was trusted").labels(of).set(
            report.trust.border
        )
        gauge("duration_seconds", "how long the last audit took").labels(of).set(report.seconds)
    write_to_textfile(str(file), registry)


def _counts(report: Report) -> dict[tuple[str, str], int]:
    """Every kind is there, as 0 if nothing was found, or no alert could tell that from a missing file."""
    counts = Counter((f.severity, f.kind) for f in report.findings)
    return {(s, kind): counts[s, kind] for s in (ERROR, WARN, INFO) for kind in KINDS}
