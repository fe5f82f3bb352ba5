"""What became of the steps of a plan, and what did servers do that nobody told them to?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from admin.local.cluster import LocalCluster
from admin.local.layout import Node
from chaos.checks.liveness import FULL
from chaos.faults import Fault, Partition
from chaos.history import Happened
from chaos.live.means import makes_end
from model.errors import MqError


@dataclass(slots=True)
class Outcome:
    """What became of the steps. ``done``: by kind; ``missed``: nobody held the role, or there was nothing to
    change; ``refused``: what cannot be done here, with ``at_ms``, ``fault`` and ``reason``; ``errors``:
    servers that ended by themselves, or did not end when told to, without a fault that explains it;
    ``injected``: system calls that were changed, by kind; ``shapes``: of partitions that were made."""

    done: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    refused: list[dict[str, Any]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    injected: Counter[str] = field(default_factory=Counter)
    shapes: Counter[str] = field(default_factory=Counter)
    step_ms: int = 0
    """Of the step that is carried out now, in the plan."""
    emptied_now: set[str] = field(default_factory=set)
    """Whose disk the operator began to empty in the course of what is under way."""

    def struck(self, fault: Fault) -> None:
        self.done[fault.name] += 1
        if isinstance(fault, Partition):
            self.shapes[fault.shape] += 1

    def refuse(self, at_ms: int, fault: Fault, why: Exception) -> None:
        known = isinstance(why, MqError | OSError | NotImplementedError)
        reason = str(why) if known else f"it raised {why!r}"
        self.refused.append({"at_ms": at_ms, "fault": fault.name, "reason": reason})

    def traced(self, fault: str, calls: int) -> None:
        """So many calls of a server were changed for this fault; none: it was told to, and never struck."""
        self.injected[fault] += calls
        if not calls:
            self.done[fault] -= 1
            self.missed[fault] += 1

    def to_json(self) -> dict[str, Any]:
        return {
            "done": dict(+self.done),
            "missed": dict(self.missed),
            "refused": self.refused,
            "errors": self.errors,
            "injected": dict(self.injected),
            "shapes": dict(self.shapes),
        }


def unexplained(cluster: LocalCluster, happened: Iterable[Happened], node: Node, what: str) -> str | None:
    """What a server did that was not told to, with the end of its log; None: since the group was full last,
    it was hit by what makes servers end."""
    hit: set[str] = set()
    for event in happened:
        if event.name == FULL:
            hit.clear()
        elif event.node == node.name:
            hit.add(event.name)
    if any(map(makes_end, hit)):
        return None
    return f"{node.name} {what}; the last of its log:\n{cluster.log_tail(node).strip()}"
