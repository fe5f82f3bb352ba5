"""What changed between two audits? Their findings, told apart by what they are about, not by their counts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from audit.findings import ERROR, EXIT_CODES, INFO, SCHEMA_VERSION, WARN
from model.errors import ConfigError

Row = dict[str, Any]

_ABOUT: Final = (
    "kind",
    "replica",
    "segment",
    "phys_offset",
    "topic",
    "queue_id",
    "queue_offset",
    "uniq_key",
)
_RANK: Final = {INFO: 0, WARN: 1, ERROR: 2}


@dataclass(frozen=True, slots=True)
class Audit:
    """What an audit left in its folder."""

    summary: Row
    findings: list[Row]


@dataclass(slots=True)
class Change:
    """From an older audit to a newer one."""

    old: Audit
    new: Audit
    appeared: list[Row] = field(default_factory=list)
    gone: list[Row] = field(default_factory=list)
    unread: list[Row] = field(default_factory=list)  # of replicas that the newer one did not read
    changed: list[tuple[Row, Row]] = field(default_factory=list)
    same: int = 0

    @property
    def exit_code(self) -> int:
        """By what is new or worse: 0, 1 for warnings, 2 for errors; 3 when the newer audit did not finish."""
        worse = self.appeared + [b for a, b in self.changed if _RANK[b["severity"]] > _RANK[a["severity"]]]
        rank = max((_RANK[row["severity"]] for row in worse), default=0)
        if rank < _RANK[ERROR] and self.new.summary["verdict"] == "unfinished":
            return EXIT_CODES["unfinished"]
        return rank

    def to_json(self) -> Row:
        return {
            "schemaVersion": SCHEMA_VERSION,
            "old": {"verdict": self.old.summary["verdict"], "findings": len(self.old.findings)},
            "new": {"verdict": self.new.summary["verdict"], "findings": len(self.new.findings)},
            "appeared": self.appeared,
            "gone": self.gone,
            "unread": self.unread,
            "changed": [{"old": old, "new": new} for old, new in self.changed],
            "same": self.same,
        }


def read(directory: Path) -> Audit:
    """The audit whose report is in a folder. Raises ConfigError when there is none, or one whose columns may
    mean something else."""
    try:
        summary = json.loads((directory / "summary.json").read_text())
        _same_version(directory / "summary.json", summary)
        lines = (directory / "findings.jsonl").read_text().split("\n")
        findings = [json.loads(line) for line in lines if line]
        for row in findings:
            _same_version(directory / "findings.jsonl", row)
        whole = summary["verdict"] in EXIT_CODES and all(
            row["severity"] in _RANK and all(name in row for name in (*_ABOUT, "until")) for row in findings
        )
    except FileNotFoundError as error:
        raise ConfigError(f"{directory}: no report of an audit: {error.filename} is missing") from None
    except OSError as error:
        raise ConfigError(f"{directory}: the report of an audit cannot be read: {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{directory}: not the report of an audit: {error}") from None
    if not whole:
        raise ConfigError(f"{directory}: not the report of an audit")
    return Audit(summary, findings)


def _same_version(file: Path, row: Row) -> None:
    found = row.get("schemaVersion", row.get("schema_version"))
    if found != SCHEMA_VERSION:
        told = "no schema version" if found is None else f"schema version {found}"
        raise ConfigError(
            f"{file}: {told}, this keelmq compares version {SCHEMA_VERSION}: audit again, or compare by the "
            "release that wrote it"
        )


def compare(old: Audit, new: Audit) -> Change:
    """Findings about the same place, message or file are one; they changed if anything else of them did."""
    change = Change(old, new)
    before, after = by_subject(old.findings), by_subject(new.findings)
    for about, row in after.items():
        former = before.get(about)
        if former is None:
            change.appeared.append(row)
        elif former != row:
            change.changed.append((former, row))
        else:
            change.same += 1
    unread = set(new.summary.get("unreadable") or ()) | (_replicas(old) - _replicas(new))
    for about, row in before.items():
        if about not in after:
            (change.unread if row["replica"] in unread else change.gone).append(row)
    return change


def _replicas(audit: Audit) -> set[str]:
    return {replica["name"] for replica in audit.summary.get("replicas") or ()}


def subject(row: Row) -> tuple[Any, ...]:
    """What a finding is about: the same in several audits."""
    return tuple(row[name] for name in _ABOUT)


def by_subject(rows: Iterable[Row]) -> dict[tuple[Any, ...], Row]:
    """Several rows about one thing are told apart by their order."""
    found: dict[tuple[Any, ...], Row] = {}
    seen: dict[tuple[Any, ...], int] = {}
    for row in rows:
        about = subject(row)
        seen[about] = seen.get(about, 0) + 1
        found[*about, seen[about]] = row
    return found


def lines(change: Change) -> list[str]:
    """The change for a terminal: what is new first, then one line that sums up."""
    out = [f"+ {line(row)}" for row in change.appeared]
    out += [f"! {line(new)} ({_differences(old, new)})" for old, new in change.changed]
    out += [f"- {line(row)}" for row in change.gone]
    out += [f"? {line(row)}" for row in change.unread]
    verdicts = f"{change.old.summary['verdict']} -> {change.new.summary['verdict']}"
    out.append(
        f"{verdicts}: {len(change.appeared)} new, {len(change.gone)} gone, "
        f"{len(change.changed)} changed, {change.same} as before"
        + (f", {len(change.unread)} of what was not read" if change.unread else "")
    )
    return out


def line(row: Row) -> str:
    """One finding for a terminal."""
    words = {name: "" if value is None else value for name, value in row.items()}
    place = " [{phys_offset}, {until})" if row["phys_offset"] is not None else " {segment}"
    message = " {topic}/{queue_id}@{queue_offset} {uniq_key}" if row["topic"] else ""
    place, message = place.format_map(words), message.format_map(words)
    return f"{row['severity']:5} {row['kind']} {row['replica']}{place.rstrip()}{message.rstrip()}"


def _differences(old: Row, new: Row) -> str:
    names = [name for name in new if old.get(name) != new[name]]
    return ", ".join(f"{name} {old.get(name)} -> {new[name]}" for name in names)
