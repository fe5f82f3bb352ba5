"""What is wrong, where, how bad, and because of what? Rows of ``findings.jsonl``, and their verdict."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

T = TypeVar("T")

INFO: Final = "info"
WARN: Final = "warn"
ERROR: Final = "error"
RANK: Final = {ERROR: 0, WARN: 1, INFO: 2}

UNLISTED: Final = "unlisted.parquet"
"""The file of the rows that are only counted."""

KINDS: Final = {
    "crc_mismatch": "a record's bytes do not match the CRC stored with it",
    "bytes_differ": "replicas hold different bytes for the same record, each of them readable",
    "unreadable_region": "no record can be read here although the log goes on behind",
    "phys_offset_mismatch": "a record names another place than where it stands",
    "file_unreadable": "a file cannot be read: its disk or its rights fail; the rest was audited without it",
    "missing_segment": "a file is missing between the first and the last one",
    "same_file": "two replicas have one file, not a copy each: that they agree says nothing",
    "missing_start": "the oldest segments are gone since the broker stopped: not by retention",
    "cq_wrong": "a queue's entry names another record, size or tag than the log has at this place",
    "cq_missing": "records, a queue or all queues have no entries: no consumer finds them",
    "cq_dangling": "a queue's entry names a place that the log has no record for",
    "index_wrong": "an IndexFile names another record or key than the log has, or cannot be right",
    "index_missing": "records are in no IndexFile: no look-up by key finds them",
    "timer_wrong": "a unit of the timer log, or a slot of the wheel, names another message or time",
    "divergent_suffix": "from here to its end the log is another one than the others'",
    "short_tail": "the log ends before the others'",
    "extra_tail": "whole records stand behind the others' end; they come back at the next start",
    "epoch_mismatch": "the epoch file gives another epoch than the others'",
    "epoch_file_corrupt": "the epoch file cannot be right",
    "file_corrupt": "a file beside the log is not as it was written: its CRC, its form or its copy tells",
    "file_missing": "a file beside the log is gone: its copy, or all other replicas have it",
    "files_unseen": "commitlog has more files of other names than an audit looks at",
    "consumer_offset_beyond": "a consumer group is further than its queue ends on any replica",
    "dup_queue_offset": "two records claim the same place in a queue",
    "queue_gap": "a queue skips places",
    "queue_order": "a queue's places do not ascend along the log",
    "dup_message": "one message stands more than once in its topic",
    "phantom": "a message that nobody sent, or whose send was refused; a history tells",
    "acked_missing": "an acknowledged message is not there, or no copy of it can be read",
    "acked_unknown": "only the half of an acknowledged message is there, and its transaction ended: nothing "
    "tells whether it was committed, and the message is lost",
    "acked_mismatch": "an acknowledged message is there with another body or in another place",
    "acked_out_of_order": "acknowledged messages stand in an order their acknowledgements exclude",
}
"""The severity is the finding's own: ``audit/kinds/`` sets it, docs/audit.md has a table."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One row. Offsets are physical, bytes. -1 and empty text: a column does not apply; null in files."""

    kind: str
    severity: str
    replica: str
    segment: str = ""
    epoch: int = -1
    phys_offset: int = -1
    until: int = -1
    topic: str = ""
    queue_id: int = -1
    queue_offset: int = -1
    uniq_key: str = ""
    expected: str = ""
    found: str = ""
    ambiguous: bool = False  # the bytes differ and nothing tells which copy is right
    copies: int = 0  # replicas that hold the right bytes: 0 = data lost, 1 = one copy left
    records: int = 0
    caused_by: str = ""  # ``id`` of the finding this one follows from

    @property
    def id(self) -> str:
        return f"{self.kind}@{self.replica}:{self.phys_offset}"

    def to_json(self) -> dict[str, Any]:
        row = {"schema_version": SCHEMA_VERSION, "id": self.id, **without_absent(asdict(self))}
        return {name: as_text(value) if isinstance(value, str) else value for name, value in row.items()}

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Finding:
        """Raises TypeError on a row that is none."""
        told: dict[str, Any] = {n: value for n, value in row.items() if n not in ("schema_version", "id")}
        for field in fields(cls):
            if field.name in told and told[field.name] is None:
                told[field.name] = "" if field.type == "str" else -1
        return cls(**told)

    @property
    def counted(self) -> bool:
        """Does it stand for rows that are not listed?"""
        return self.found.endswith(UNLISTED)

    def follows(self, cause: Finding) -> Finding:
        return replace(self, severity=INFO, caused_by=cause.id)

    def overlaps(self, begin: int, end: int) -> bool:
        return self.phys_offset < max(end, begin + 1) and begin < self.until


def without_absent(row: dict[str, Any]) -> dict[str, Any]:
    """A row for others to read: what does not apply, or is not known, is None."""
    return {name: None if value in ("", -1) else value for name, value in row.items()}


class Spans(Generic[T]):
    """Stretches of one log, asked for the first that overlaps another: thousands of each are no surprise."""

    def __init__(self, items: Iterable[tuple[int, int, T]]) -> None:
        rows = sorted(items, key=lambda row: row[:2])
        self._items = [item for _, _, item in rows]
        self._begins = [begin for begin, _, _ in rows]
        self._reach = list(accumulate((end for _, end, _ in rows), max))

    def first(self, begin: int, end: int) -> T | None:
        """The first item of all that overlap [begin, end); an empty stretch counts as one byte."""
        at = bisect_right(self._reach, begin)
        return self._items[at] if at < bisect_left(self._begins, max(end, begin + 1)) else None


def spans_of(findings: Iterable[Finding]) -> dict[str, Spans[Finding]]:
    """By replica."""
    of: dict[str, list[Finding]] = {}
    for f in findings:
        of.setdefault(f.replica, []).append(f)
    return {name: Spans((f.phys_offset, f.until, f) for f in rows) for name, rows in of.items()}


SCHEMA_VERSION: Final = 2
"""Of findings and summaries. It counts up when a name changes its meaning or goes, not when one comes."""

SCHEMA: Final = pa.schema(
    [
        ("schema_version", pa.int32()),
        ("id", pa.string()),
        ("kind", pa.string()),
        ("severity", pa.string()),
        ("replica", pa.string()),
        ("segment", pa.string()),
        ("epoch", pa.int64()),
        ("phys_offset", pa.int64()),
        ("until", pa.int64()),
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("uniq_key", pa.string()),
        ("expected", pa.string()),
        ("found", pa.string()),
        ("ambiguous", pa.bool_()),
        ("copies", pa.int32()),
        ("records", pa.int64()),
        ("caused_by", pa.string()),
    ],
    metadata={"keelmq.audit.schema_version": str(SCHEMA_VERSION)},
)


class Merging:
    """Joins rows of ``kinds`` that touch: one damaged stretch is one row, however many records it holds.

    Rows of one kind come replica by replica, or of all in log order."""

    def __init__(self, kinds: frozenset[str]) -> None:
        self._kinds = kinds
        self._last: dict[tuple[str, str, bool], Finding] = {}

    def take(self, f: Finding) -> Iterator[Finding]:
        """What no further row can touch."""
        if f.kind not in self._kinds:
            yield f
            return
        about = (f.kind, f.replica, f.ambiguous)
        last = self._last.get(about)
        if last is not None and _touch(last, f):
            self._last[about] = replace(last, until=f.until, records=last.records + f.records)
            return
        self._last[about] = f
        if last is not None:
            yield last

    def rest(self) -> Iterator[Finding]:
        yield from self._last.values()
        self._last.clear()


def _touch(last: Finding, f: Finding) -> bool:
    alike = (last.severity, last.copies, last.segment) == (f.severity, f.copies, f.segment)
    return alike and last.until == f.phys_offset


def order(findings: Iterable[Finding]) -> list[Finding]:
    """Worst first, causes before what follows from them, then by replica and place. Doubles are dropped."""
    kinds = {kind: at for at, kind in enumerate(KINDS)}
    return sorted(
        dict.fromkeys(findings),
        key=lambda f: (
            RANK[f.severity],
            bool(f.caused_by),
            kinds[f.kind],
            f.replica,
            f.phys_offset,
            f.topic,
            f.queue_id,
            f.queue_offset,
            f.uniq_key,
        ),
    )


def verdict(findings: Iterable[Finding], *, unfinished: bool) -> str:
    """clean, warnings, diverged or unfinished. What could not be read is unknown, never clean."""
    severities = Counter(f.severity for f in findings)
    if severities[ERROR]:
        return "diverged"
    if unfinished:
        return "unfinished"
    return "warnings" if severities[WARN] else "clean"


EXIT_CODES: Final = {"clean": 0, "warnings": 1, "diverged": 2, "unfinished": 3}


def write(findings: list[Finding], directory: Path) -> None:
    """``findings.jsonl.new`` and ``findings.parquet.new``: every row, never capped."""
    rows = [f.to_json() for f in findings]
    with new_of(directory / "findings.jsonl").open("w") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    with new_of(directory / "findings.parquet").open("wb") as sink:  # a path need not be text for Arrow
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), sink)


def as_text(told: str) -> str:
    """What names and tables tell may be no text; no file takes that."""
    return told.encode(errors="backslashreplace").decode()


def new_of(path: Path) -> Path:
    """Where a file of a report waits for the others."""
    return path.with_name(f"{path.name}.new")
