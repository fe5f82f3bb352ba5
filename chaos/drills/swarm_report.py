"""What have all parts of a long swarm run shown so far? One file that grows from part to part."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from chaos.drills.sim_run import Result
from chaos.faults import FAULTS

TRANSITIONS: Final = (
    "slave>master",
    "master>slave",
    "down>slave",
    "down>master",
    "slave>down",
    "master>down",
)
"""Changes of a broker's role that a swarm has to meet."""
KIND: Final = "keelmq drill sim --swarm"


class SwarmReport:
    """Seeds that were run, violations with what repeats them, and how often each fault and change was met."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []
        self.violations: list[dict[str, Any]] = []
        self.coverage: Counter[str] = Counter()
        self.wall_s = 0.0
        self.cpu_s = 0.0
        self.virtual_s = 0.0

    @property
    def seeds(self) -> int:
        return sum(end - begin for begin, end in self.ranges)

    @classmethod
    def load(cls, path: Path) -> SwarmReport:
        """The report of former parts; an empty one when there is no file. Raises ValueError for another
        file."""
        report = cls()
        if not path.exists():
            return report
        try:
            data = json.loads(path.read_text())
            if data["kind"] != KIND:
                raise ValueError(f"its kind is {data['kind']!r}")
            report.ranges = [(int(begin), int(end)) for begin, end in data["ranges"]]
            report.violations = list(data["violations"])
            report.coverage = Counter(data["coverage"])
            report.wall_s, report.cpu_s = float(data["wall_s"]), float(data["cpu_s"])
            report.virtual_s = float(data["virtual_s"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is no report of the swarm: {error}") from None
        return report

    def missing(self, seeds: Iterable[int]) -> Iterator[int]:
        """Those of ``seeds`` that no part has run."""
        for seed in seeds:
            if not any(begin <= seed < end for begin, end in self.ranges):
                yield seed

    def add(self, result: Result) -> None:
        self._note_seed(result.seed)
        self.coverage.update(result.coverage)
        self.cpu_s += result.cpu_s
        self.virtual_s += result.virtual_s
        self.violations += result.told()

    def _note_seed(self, seed: int) -> None:
        ranges = sorted([*self.ranges, (seed, seed + 1)])
        joined = [ranges[0]]
        for begin, end in ranges[1:]:
            if begin <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
            else:
                joined.append((begin, end))
        self.ranges = joined

    def not_met(self) -> list[str]:
        """Faults and changes of role that no seed has met."""
        names = [*(f"fault.{name}" for name in FAULTS), *(f"role.{change}" for change in TRANSITIONS)]
        return [name for name in names if not self.coverage[name]]

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": KIND,
            "seeds": self.seeds,
            "ranges": [list(part) for part in self.ranges],
            "violations": self.violations,
            "schedules_per_second": round(self.seeds / self.wall_s, 3) if self.wall_s else 0.0,
            "schedules_per_cpu_second": round(self.seeds / self.cpu_s, 3) if self.cpu_s else 0.0,
            "wall_s": round(self.wall_s, 1),
            "cpu_s": round(self.cpu_s, 1),
            "virtual_s": round(self.virtual_s, 1),
            "not_met": self.not_met(),
            "coverage": dict(sorted(self.coverage.items())),
        }

    def write(self, path: Path) -> None:
        """Replace the file at once: a part that is cut off leaves the former state."""
        draft = path.with_name(path.name + ".new")
        draft.write_text(json.dumps(self.to_json(), indent=2) + "\n")
        os.replace(draft, path)
