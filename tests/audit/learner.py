"""A learner beside three replicas: behind, or cut, and what an audit must say of it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from audit.run import Report
from audit.tables import Engine
from tests.audit.plants import MESSAGES, make, run_with
from tests.audit.stores import write_checkpoint

LEARNER = 3
"""Of four replicas: nothing in its store tells that it counts for no acknowledgement."""


class Behind(NamedTuple):
    """A learner that lacks the last messages. ``confirmed``: by how many messages the checkpoint of the
    others ends before their logs, and the learner's behind its log's end. ``noted``: its broker noted a
    longer log."""

    lacks: int
    severity: str
    running: bool = True
    confirmed: tuple[int, int] = (6, 0)
    noted: bool = False
    ledger: bool = False


CASES = {
    "lag": Behind(5, "info"),
    "lag of a stopped group": Behind(5, "warn", running=False),
    "lag below what others confirmed": Behind(9, "warn"),
    "a whole segment behind": Behind(40, "warn", confirmed=(50, 0)),
    "no log": Behind(80, "warn", confirmed=(80, 0)),
    "cut below its own confirm offset": Behind(5, "error", confirmed=(6, 2)),
    "cut, by its own note": Behind(5, "warn", noted=True),
    "cut by its own note, stopped": Behind(5, "warn", running=False, noted=True),
    "acknowledged messages behind its end": Behind(5, "error", ledger=True),
}


def behind(case: Behind, root: Path) -> tuple[list[Path], Path | None]:
    stores, writer, ledger = make(root, 4)
    rows = writer.rows
    ends = [*(int(str(row["phys_offset"])) for row in rows), writer.end]
    end = ends[MESSAGES - case.lacks]
    for at, store in enumerate(stores):
        others, own = case.confirmed
        until = ends[MESSAGES - others] if at != LEARNER else ends[MESSAGES - case.lacks + own]
        write_checkpoint(store, until)
        if case.running:
            (store / "abort").touch()
    learner = stores[LEARNER]
    for segment in sorted((learner / "commitlog").iterdir()):
        if int(segment.name) >= end:
            segment.unlink()
        elif int(segment.name) + 4096 > end:
            segment.write_bytes(segment.read_bytes()[: end - int(segment.name)].ljust(4096, b"\0"))
    if case.noted:
        (learner / "logWasLonger").write_text(str(ends[MESSAGES - case.lacks + 2]))
    return stores, ledger if case.ledger else None


def check(engine: Engine, case: Behind, root: Path) -> Report:
    report = run_with(engine, *behind(case, root))
    assert [(f.kind, f.severity, f.replica) for f in report.findings if not f.caused_by] == [
        ("short_tail", case.severity, f"r{LEARNER}")
    ]
    assert report.verdict == {"info": "clean", "warn": "warnings", "error": "diverged"}[case.severity]
    return report
