"""Is a changed store reported, proven to be read as before, or missed?

Reported: the verdict is not clean, and a finding that counts names the replica and the file, or the place in
it. Everything else must be proven by ``readers``: what every reader gets is as it was.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from audit.findings import INFO, Finding
from audit.reading.storage import parse_stores
from audit.run import Report
from tests.audit.mutations import readers
from tests.audit.mutations.change import Change, kind_of
from tests.audit.mutations.group import LEDGER

REPORTED: Final = "reported"
NO_EFFECT: Final = "without effect"
MISSED: Final = "missed"
Audit = Callable[[list[Path], Path | None], Report]
Files = dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Outcome:
    """``why``: the finding's kind, the rule by which nothing changed, or the reason of a miss.
    ``blamed``: other replicas that findings name as well."""

    verdict: str
    why: str
    blamed: str = ""


def files_of(store: Path) -> Files:
    return {str(p.relative_to(store)): p.read_bytes() for p in sorted(store.rglob("*")) if p.is_file()}


class Judge:
    """Applies one change at a time to links of a group's files, audits the group, and puts the file back.

    Files are never written in place: the links' other ends, the group itself, stay as they are.
    """

    def __init__(self, group: Path, work: Path, audit: Audit) -> None:
        self._audit = audit
        self._ledger = group / LEDGER
        self._group = group
        self.stores = {p.name: files_of(p) for p in sorted(group.iterdir()) if p.is_dir()}
        self._work = work
        self._paths = [work / name for name in self.stores]
        for name, files in self.stores.items():
            for file in files:
                target = work / name / file
                target.parent.mkdir(parents=True, exist_ok=True)
                os.link(group / name / file, target)
        self._keys = readers.keys_of(next(iter(self.stores.values())))
        self._before: dict[tuple[str, str], readers.Readings] = {}
        report = audit(self._paths, self._ledger)
        if report.verdict != "clean":
            raise RuntimeError(f"the group is not clean before any change: {report.findings[:3]}")

    def judge(self, change: Change) -> Outcome:
        data = change.of(self.stores[change.replica][change.file])
        target = self._work / change.replica / change.file
        target.unlink()
        try:
            if data is not None:
                target.write_bytes(data)
            report = self._audit(self._paths, self._ledger)
        finally:
            target.unlink(missing_ok=True)
            os.link(self._group / change.replica / change.file, target)
        named = [f for f in report.findings if names(f, change)]
        others = {f.replica for f in report.findings if f.severity != INFO} - {change.replica, "*"}
        if report.verdict != "clean" and named:
            return Outcome(REPORTED, named[0].kind, ",".join(sorted(others)))
        if self._unchanged(change, data):
            return Outcome(NO_EFFECT, place_of(change, self.stores[change.replica]))
        told = sorted({f"{f.kind}@{f.replica}" for f in report.findings})
        return Outcome(MISSED, f"verdict {report.verdict}, found {', '.join(told) or 'nothing'}")

    def _unchanged(self, change: Change, data: bytes | None) -> bool:
        """Whether every reader gets what it got before."""
        kind, files = kind_of(change.file), self.stores[change.replica]
        known = (change.replica, kind)
        if known not in self._before:
            self._before[known] = readers.read(files, kind, self._keys)
        changed = {path: held for path, held in files.items() if path != change.file}
        if data is not None:
            changed[change.file] = data
        try:
            return readers.read(changed, kind, self._keys) == self._before[known]
        except Exception:
            # A reader that fails reads something else than before, however it fails.
            logging.getLogger(__name__).exception("reading behind %s failed", change)
            return False


def names(f: Finding, change: Change) -> bool:
    """Whether a finding that counts names the changed replica, and the file or the place."""
    if f.severity == INFO or f.replica not in (change.replica, "*"):
        return False
    kind, parts = kind_of(change.file), change.file.split("/")
    if f.segment == change.file:
        return True
    if kind == "commitlog":
        base = int(parts[1])
        begin = base + change.begin
        end = 1 << 62 if change.moves else base + max(change.until, change.begin + 1)
        return f.phys_offset < end and begin < max(f.until, f.phys_offset + 1)
    if kind == "consumequeue":
        return f.kind.startswith("cq_") and f.topic in (parts[1], "")
    if kind == "index" and change.kind == "remove":
        return f.kind == "index_missing"  # the messages are named: there is no file any more
    if kind == "epochs":
        return f.kind.startswith("epoch_")
    return False


def place_of(change: Change, files: Files) -> str:
    """Where a change lies that nobody notices, in words that fit a rule."""
    kind = kind_of(change.file)
    data = files[change.file]
    begin = change.begin
    if change.kind == "remove":
        return "a file that a start makes again"
    if kind == "commitlog":
        last = max(path for path in files if path.startswith("commitlog/"))
        return "behind the log's end" if change.file == last else "filler behind a blank record"
    if kind in ("checkpoint", "timercheck") and begin >= (88 if kind == "checkpoint" else 112):
        return "bytes that nobody reads"
    if kind == "checkpoint":
        return "the checkpoint is only a hint where recovery begins"
    if begin >= len(data.rstrip(b"\0")):
        return f"{'places' if kind == 'consumequeue' else 'bytes'} behind the last one used"
    return "what a start makes again from the rest, or from the other copy"


def in_process(stores: list[Path], ledger: Path | None) -> Report:
    """The local engine, in this process."""
    from audit.engines.local import LocalEngine
    from audit.run import audit

    engine = LocalEngine()
    try:
        specs = parse_stores([str(store) for store in stores])
        return audit(specs, engine, ledger_path=str(ledger) if ledger else None)
    finally:
        engine.close()
