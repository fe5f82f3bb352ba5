"""Was each damage named, where it was done, and nothing else?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from audit.findings import INFO, Finding
from audit.run import Report
from tests.audit.recall.damages import Damage
from tests.audit.recall.group import Group, Touched


class Done(NamedTuple):
    """A damage, and where it was done."""

    name: str
    damage: Damage
    replica: str
    touched: Touched

    def explains(self, f: Finding) -> bool:
        here = self.damage.everywhere or f.replica == self.replica
        return here and f.kind in self.damage.kinds | self.damage.also and self.touched.has(f)


def do(group: Group, name: str, damage: Damage) -> Done:
    """To the replica and message that the group aims at."""
    damage.do(group)
    return Done(name, damage, group.name, group.touched)


def misses(report: Report, done: Sequence[Done]) -> list[str]:
    """What is wrong with a report; empty if each damage was named and all the rest follows from them."""
    roots = [f for f in report.findings if not f.caused_by and f.severity != INFO]
    wrong = []
    for one in done:
        if not any(f.kind in one.damage.kinds and one.explains(f) for f in roots):
            wrong.append(f"{one.name}: not named; verdict {report.verdict}")
    for f in roots:
        if not any(one.explains(f) for one in done):
            wrong.append(f"{f.kind}@{f.replica} unexplained, at {f.phys_offset}")
    return wrong if report.verdict != "clean" else [*wrong, "clean"]


def alarms(report: Report) -> list[str]:
    """What is said of a group in which nothing is wrong."""
    return [f"{f.kind}@{f.replica}" for f in report.findings if f.severity != INFO]
