"""Which part of a schedule does its violation need? The smallest one found within so many runs.

Steps go first (delta debugging), then what only makes the run larger, then time between the steps. A smaller
schedule counts when one of the same checkers complains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from chaos.faults import Step
from chaos.scenarios import Plan

RUNS_MAX: Final = 120
GAPS_MS: Final = (1000, 300, 100, 20)
LEAD_MS: Final = 300


class Shrinking:
    """``run`` says which checkers complain of a plan; ``plan`` is the smallest of which one still does."""

    def __init__(
        self,
        run: Callable[[Plan], set[str]],
        plan: Plan,
        *,
        tell: Callable[[str], object] = print,
        runs_max: int = RUNS_MAX,
    ) -> None:
        self._run = run
        self._tell = tell
        self._left = runs_max
        self.plan = plan
        self._wanted = run(plan)

    def shrink(self) -> Plan:
        """A plan without violations comes back as it is."""
        if self._wanted:
            self._drop_steps()
            self._drop_size()
            self._drop_time()
            self._drop_steps()
        return self.plan

    def _fails(self, plan: Plan) -> bool:
        if self._left <= 0:
            return False
        self._left -= 1
        if not self._wanted & self._run(plan):
            return False
        self.plan = plan
        return True

    def _drop_steps(self) -> None:
        """From halves down to single steps, and again until nothing goes."""
        size = max(1, len(self.plan.steps) // 2)
        while self._left > 0:
            if self._drop_pieces(size):
                self._tell(f"{len(self.plan.steps)} steps left")
            elif size == 1:
                return
            else:
                size //= 2

    def _drop_pieces(self, size: int) -> bool:
        dropped, at = False, 0
        while at < len(self.plan.steps):
            steps = list(self.plan.steps)
            if self._fails(replace(self.plan, steps=[*steps[:at], *steps[at + size :]])):
                dropped = True
            else:
                at += size
        return dropped

    def _drop_size(self) -> None:
        plain = Plan([])
        changes: tuple[dict[str, Any], ...] = (
            {"learners": 0},
            {"extras": False},
            {"neighbour": False},
            {"shuffle_tasks": False},
            {"network": {}},
            {"offload_ms": plain.offload_ms},
            {"load": replace(self.plan.load, producers=1)},
            {"load": replace(self.plan.load, queues=1, producers=1)},
        )
        for change in changes:
            self._fails(replace(self.plan, **change))

    def _drop_time(self) -> None:
        """Shorter from the start to the first step, between two steps, and from the last to the end."""
        for gap_ms in GAPS_MS:
            for at in range(len(self.plan.steps) + 1):
                shorter = self._shorter(at, gap_ms)
                if shorter is not None and self._fails(shorter):
                    self._tell(f"{self.plan.load_ms} ms left")

    def _shorter(self, at: int, gap_ms: int) -> Plan | None:
        steps = self.plan.steps
        before_ms = steps[at - 1].at_ms if at else 0
        after_ms = steps[at].at_ms if at < len(steps) else self.plan.load_ms
        less_ms = after_ms - before_ms - (gap_ms if at else max(gap_ms, LEAD_MS))
        if less_ms <= 0:
            return None
        later = [replace(step, at_ms=step.at_ms - less_ms) for step in steps[at:]]
        return replace(self.plan, steps=[*steps[:at], *later], load_ms=self.plan.load_ms - less_ms)


def readable(steps: Sequence[Step]) -> Iterator[str]:
    """One line a step. The name of what it strikes is shown where another step strikes that, too."""
    used = {str(value)[1:] for step in steps for value in step.fault.to_json().values() if _is_name(value)}
    for step in steps:
        said = step.fault.to_json()
        name, target = said.pop("fault"), said.pop("target")
        values = "".join(f" {key}={value}" for key, value in said.items())
        yield f"{step.at_ms:6} ms  {name} {target}{values}" + (
            f"  (={step.bind})" if step.bind in used else ""
        )


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value.startswith("=")
