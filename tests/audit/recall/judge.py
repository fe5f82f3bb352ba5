"""Was the damage named, and nothing else?"""

from __future__ import annotations

from audit.findings import INFO
from audit.run import Report
from tests.audit.recall.damages import Damage
from tests.audit.recall.group import Group


def misses(report: Report, group: Group, damage: Damage) -> list[str]:
    """What is wrong with a report; empty if the damage was named and all the rest follows from it."""
    roots = [f for f in report.findings if not f.caused_by and f.severity != INFO]
    named = [f for f in roots if f.kind in damage.kinds]
    if not damage.everywhere:
        named = [f for f in named if f.replica == group.name]
    wrong = [] if named else [f"not named; verdict {report.verdict}"]
    wrong += [
        f"{f.kind}@{f.replica} unexplained" for f in roots if f not in named and f.kind not in damage.also
    ]
    return wrong if report.verdict != "clean" else [*wrong, "clean"]
