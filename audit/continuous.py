"""A running group under audit: what is wrong with a segment soon after it was sealed, until it is stopped.

Each pass is an incremental audit, made when a segment was sealed or a sealed one changed. A log may be cut
while it is read, so a finding counts when a second pass says the same. What was found stands in ``HISTORY``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from audit.findings import ERROR, INFO, Finding, new_of, verdict
from audit.reading.storage import StoreSpec, open_storage
from audit.results import diff
from audit.rows.bounded import UNLISTED
from audit.run import AuditError, Report, audit, conclude
from audit.tables import Engine, EngineError
from model.errors import ConfigError

HISTORY: Final = "continuous.jsonl"
AGAIN_S: Final = 2.0
"""Between the two passes of which both must say it: a checkpoint is written once a second."""
ENDS: Final = frozenset({"divergent_suffix", "short_tail", "extra_tail"})
"""How the log of a replica that is down ends; a rejoin mends it."""
GONE_MAX: Final = 10_000
"""Findings that are no more, of which is known that they were."""
_HEAD_BYTES: Final = 8

Stamps = tuple[object, ...]


@dataclass(slots=True)
class Seen:
    """A finding as it was last, and when: texts of UTC. ``gone``: since when it is no more; empty: it is."""

    row: dict[str, Any]
    since: str
    gone: str = ""

    @property
    def counts(self) -> bool:
        """Damage that was mended was damage. A warning that went, or a log that was behind or apart until its
        replica rejoined, was a group on its way."""
        return not self.gone or (self.row["severity"] == ERROR and self.row["kind"] not in ENDS)


class Continuous:
    """``make_engine``: for each pass. ``wait(s)`` returns whether to stop. ``say`` is told each change,
    ``keep`` what a pass found, None when it could not finish. ``looked`` is called at each look."""

    def __init__(
        self,
        specs: list[StoreSpec],
        make_engine: Callable[[], Engine],
        directory: Path,
        wait: Callable[[float], bool],
        say: Callable[[str], None],
        keep: Callable[[Report | None], None],
        looked: Callable[[], None] = lambda: None,
    ) -> None:
        self._specs, self._make_engine, self._directory = specs, make_engine, directory
        self._wait, self._say, self._keep, self._looked = wait, say, keep, looked
        self._seen = _read(directory / HISTORY)

    def run(self, every_s: float) -> str:
        """Audit until told to stop, and once more then. Returns the verdict, of all that counts."""
        self._directory.mkdir(parents=True, exist_ok=True)
        known: Stamps | None = None
        while True:
            stamps = sealed(self._specs)
            self._looked()
            if stamps != known and self._pass() is not None:
                known = stamps
            if self._wait(every_s):
                break
        last = self._pass()
        counted = [Finding.from_json(seen.row) for seen in self._seen.values() if seen.counts]
        return verdict(counted, unfinished=last is None or last.verdict == "unfinished")

    def _pass(self) -> Report | None:
        """What two audits say; None when reading failed, as it may while files come and go."""
        try:
            report = self._audit()
            if any(f.severity != INFO for f in report.findings):
                self._wait(AGAIN_S)
                report = _both(report, self._audit())
        except (AuditError, EngineError, OSError) as error:
            self._say(f"this pass could not finish: {error}")
            self._keep(None)
            return None
        self._note(report)
        self._keep(report)
        return report

    def _audit(self) -> Report:
        engine = self._make_engine()
        state = self._directory / "trusted.parquet"
        try:
            return audit(self._specs, engine, state=state, unlisted=new_of(self._directory / UNLISTED))
        finally:
            engine.close()

    def _note(self, report: Report) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        found = diff.by_subject(f.to_json() for f in report.findings if f.severity != INFO)
        for subject, row in found.items():
            seen = self._seen.get(subject)
            if seen is None or seen.gone:
                self._say(f"+ {diff.line(row)}")
            self._seen[subject] = Seen(row, seen.since if seen is not None else now)
        for subject, seen in self._seen.items():
            if subject not in found and not seen.gone:
                self._say(f"- {diff.line(seen.row)}")
                seen.gone = now
        self._forget()
        rows = [{**seen.row, "since": seen.since, "gone": seen.gone} for seen in self._seen.values()]
        temporary = self._directory / f"{HISTORY}.new"
        temporary.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        temporary.replace(self._directory / HISTORY)

    def _forget(self) -> None:
        """What went long ago, and first what does not count: of what does, enough stays for the verdict."""
        gone = [(seen.counts, seen.gone, subject) for subject, seen in self._seen.items() if seen.gone]
        for _, _, subject in sorted(gone, key=lambda row: row[:2])[: max(0, len(gone) - GONE_MAX)]:
            del self._seen[subject]


def sealed(specs: Sequence[StoreSpec]) -> Stamps:
    """Name, size and time of each segment behind which the log goes on."""
    found: list[object] = []
    for spec in specs:
        try:
            found.append((spec.name, *_sealed(spec)))
        except OSError as error:
            found.append((spec.name, str(error)))
    return tuple(found)


def _sealed(spec: StoreSpec) -> list[tuple[str, int, int]]:
    storage = open_storage(spec.location)
    try:
        names = [f"commitlog/{name}" for name in storage.listdir("commitlog") if len(name) == 20]
        # Files are reserved before they are written.
        while names and not any(storage.read(names[-1], 0, _HEAD_BYTES)):
            names.pop()
        return [(name, storage.size(name), storage.mtime_ns(name)) for name in names[:-1]]
    finally:
        storage.close()


def _subject(finding: Finding) -> tuple[Any, ...]:
    return diff.subject(finding.to_json())


def _both(first: Report, second: Report) -> Report:
    """The second without what the first did not say."""
    said = {_subject(f) for f in first.findings}
    second.findings = [f for f in second.findings if f.severity == INFO or _subject(f) in said]
    conclude(second)
    return second


def _read(path: Path) -> dict[tuple[Any, ...], Seen]:
    """Raises ConfigError on what is no history."""
    found: dict[tuple[Any, ...], Seen] = {}
    try:
        for text in filter(None, path.read_text().split("\n")):  # a key may hold what else ends a line
            row = json.loads(text)
            since, gone = row.pop("since"), row.pop("gone")
            row = Finding.from_json(row).to_json()
            about, number = diff.subject(row), 1
            while (*about, number) in found:
                number += 1
            found[*about, number] = Seen(row, since, gone)
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: not the history of a continuous audit: {error!r}") from None
    return found
