"""What have all parts of a long swarm run shown so far? One file that grows from part to part.

    python -m chaos.drills.swarm_report 43ca2ab=a.json 31974dc=b.json --bugs docs/results/swarm-bugs.json \
        --out docs/results

writes ``swarm.md`` and ``swarm.json`` of the parts, each with the commit it ran on. ``swarm-bugs.json``: the
seed that found each planted bug, and how many schedules were run for it. ``--former
docs/results/swarm.json``: after those that are told there already; alone, the page is written again.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from admin.outfile import write_whole
from chaos.bugs import BUGS
from chaos.drills.simulated.run import Result
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
NOT_DRAWN: Final = frozenset(
    {
        *("lose_packets", "double_packets", "reorder_packets", "narrow_links", "no_descriptors"),
        *("snapshot", "put_back"),
    }
)
"""Faults of other scenarios or of the matrix: no seed of the swarm has them."""
KIND: Final = "keelmq drill sim --swarm"


class SwarmReport:
    """Seeds that were run, violations with what repeats them, and how often each fault and change was met."""

    def __init__(self, commit: str | None = None) -> None:
        self.commit = commit
        """Of which code all of it is (``chaos.live.releases.named``); None: the file does not say it."""
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
            report.commit = None if data.get("commit") is None else str(data["commit"])
            report.ranges = [(int(begin), int(end)) for begin, end in data["ranges"]]
            report.violations = [dict(violation) for violation in data["violations"]]
            for violation in report.violations:
                int(violation["seed"])
            report.coverage = Counter({str(name): int(count) for name, count in data["coverage"].items()})
            report.wall_s, report.cpu_s = float(data["wall_s"]), float(data["cpu_s"])
            report.virtual_s = float(data["virtual_s"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is no report of the swarm: {error}") from None
        return report

    @classmethod
    def grown(cls, path: Path, commit: str) -> SwarmReport:
        """The report in a file, to be added to by the code of this name. Raises ValueError where what is
        there is of other code: one sum of both would be of neither."""
        report = cls.load(path)
        if report.ranges and report.commit != commit:
            of = (
                f"of other code: {report.commit}"
                if report.commit
                else "of a keelmq that did not note its code"
            )
            raise ValueError(f"{path} is {of}; this is {commit}. Name another file, or check that code out")
        report.commit = commit
        return report

    def missing(self, seeds: Iterable[int]) -> Iterator[int]:
        """Those of ``seeds`` that no part has run."""
        for seed in seeds:
            if not any(begin <= seed < end for begin, end in self.ranges):
                yield seed

    def add(self, result: Result) -> None:
        self.note(result.seed, result.seed + 1)
        self.coverage.update(result.coverage)
        self.cpu_s += result.cpu_s
        self.virtual_s += result.virtual_s
        self.violations += result.told()

    def note(self, first: int, until: int) -> None:
        """These seeds were run, again or not."""
        ranges = sorted([*self.ranges, (first, until)])
        joined = [ranges[0]]
        for begin, end in ranges[1:]:
            if begin <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
            else:
                joined.append((begin, end))
        self.ranges = joined

    def not_met(self) -> list[str]:
        """Faults and changes of role that no seed has met."""
        names = [
            *(f"fault.{name}" for name in FAULTS if name not in NOT_DRAWN),
            *(f"role.{change}" for change in TRANSITIONS),
        ]
        return [name for name in names if not self.coverage[name]]

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": KIND,
            "commit": self.commit,
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
        """Replace the file at once: a part that is cut off leaves the former state. Raises CannotWrite."""
        write_whole(path, json.dumps(self.to_json(), indent=2) + "\n")


Part = tuple[str, SwarmReport]
"""A commit, and what ran on it."""


def told_before(path: Path) -> tuple[list[Part], dict[int, str]]:
    """The parts of a former ``swarm.json``, and what came of violations. It has one coverage for all of
    them: the first part bears it."""
    former = json.loads(path.read_text())
    parts = []
    for told in former["parts"]:
        report = SwarmReport()
        report.ranges = [(begin, end) for begin, end in told["ranges"]]
        report.violations = told["violations"]
        report.wall_s, report.cpu_s, report.virtual_s = told["wall_s"], told["cpu_s"], told["virtual_s"]
        parts.append((told["commit"], report))
    parts[0][1].coverage.update(former["coverage"])
    return parts, {int(seed): text for seed, text in former.get("notes", {}).items()}


def merged(parts: Sequence[Part]) -> dict[str, Any]:
    """The JSON of all parts together, and of each."""
    whole = SwarmReport()
    for _, part in parts:
        whole.coverage.update(part.coverage)
        whole.wall_s += part.wall_s
        whole.cpu_s += part.cpu_s
        whole.virtual_s += part.virtual_s
        whole.violations += part.violations
    schedules = sum(part.seeds for _, part in parts)
    for begin, end in sorted(seeds for _, part in parts for seeds in part.ranges):
        whole.note(begin, end)
    found = whole.to_json()
    del found["ranges"], found["commit"]
    return found | {
        "seeds": whole.seeds,
        "schedules": schedules,
        "schedules_per_second": round(schedules / whole.wall_s, 3) if whole.wall_s else 0.0,
        "schedules_per_cpu_second": round(schedules / whole.cpu_s, 3) if whole.cpu_s else 0.0,
        "parts": [
            {
                key: value
                for key, value in part.to_json().items()
                if key not in ("coverage", "not_met", "kind")
            }
            | {"commit": commit}
            for commit, part in parts
        ],
    }


def markdown(
    parts: Sequence[Part], notes: Mapping[int, str], bugs: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    """The page docs/results/swarm.md, line by line. ``notes``: what came of a seed's violations. ``bugs``:
    the seed that found each planted bug."""
    whole = merged(parts)
    yield "# The swarm: what was run, met and found"
    yield ""
    yield "Made by `python -m chaos.drills.swarm_report`; the numbers are in `swarm.json` beside this page."
    newest = whole["parts"][-1]["commit"]
    yield from _headline([part for part in whole["parts"] if part["commit"] == newest])
    yield ""
    yield (
        f"Over all commits: {whole['seeds']} distinct seeds in {whole['schedules']} schedules, as most seeds "
        "ran again on other code. What was found is of the code of its row alone."
    )
    yield "A commit that this repository does not have is of its former history."
    yield ""
    yield "| commit | schedules | which | a second | a CPU second | wall s | CPU s | virtual s | violations |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for part in [*whole["parts"], whole | {"commit": "all", "ranges": [], "seeds": whole["schedules"]}]:
        cells = [
            part["commit"],
            part["seeds"],
            _which(part["ranges"]),
            part["schedules_per_second"],
            part["schedules_per_cpu_second"],
            part["wall_s"],
            part["cpu_s"],
            part["virtual_s"],
            len({violation["seed"] for violation in part["violations"]}),
        ]
        yield _row(*cells)
    yield ""
    yield f"Not met: {', '.join(whole['not_met']) or 'nothing, every fault and change of role was'}."
    yield from _violations(whole["violations"], notes)
    yield from _coverage(whole["coverage"])
    yield from _bugs(bugs)


def _headline(newest: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """``newest``: the parts of the last commit."""
    seeds = SwarmReport()
    for part in newest:
        for begin, end in part["ranges"]:
            seeds.note(begin, end)
    broken = {violation["seed"] for part in newest for violation in part["violations"]}
    yield (
        f"**On the newest commit here, {newest[0]['commit']}: {seeds.seeds} seeds ({_which(seeds.ranges)}), "
        f"{len(broken)} with violations.**"
    )


def _which(ranges: Iterable[Sequence[int]]) -> str:
    return ", ".join(f"{begin}..{end - 1}" for begin, end in ranges)


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _violations(violations: Sequence[Mapping[str, Any]], notes: Mapping[int, str]) -> Iterator[str]:
    yield from ("", "## Violations", "")
    if not violations:
        yield "None."
        return
    yield "| seed | checker | what it said | what came of it |"
    yield "|---|---|---|---|"
    told: set[int] = set()
    for violation in violations:
        seed = int(violation["seed"])
        if seed not in told:
            told.add(seed)
            text = str(violation["text"]).splitlines()[0].replace("|", "/")[:160]
            yield _row(seed, violation["checker"], text, notes.get(seed, "not looked into"))


def _coverage(coverage: Mapping[str, int]) -> Iterator[str]:
    for title, prefix in (
        ("Faults carried out", "fault."),
        ("Changes of role", "role."),
        ("Events", "event."),
    ):
        yield from ("", f"## {title}", "", "| what | how often |", "|---|---|")
        for name, count in coverage.items():
            if name.startswith(prefix):
                yield f"| {name.removeprefix(prefix)} | {count} |"
    yield from ("", "## What clients did", "", "| what | how often |", "|---|---|")
    for name, count in coverage.items():
        if name.startswith(("send.", "extra.")) or "." not in name:
            yield f"| {name} | {count} |"


def _bugs(bugs: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    if not bugs:
        return
    known = sum(found.get("seed") is not None for found in bugs.values())
    yield from ("", "## Planted bugs", "")
    yield f"{known} of {len(bugs)} that were tried are found ([swarm-bugs.json](swarm-bugs.json))."
    left = sorted(set(BUGS) - set(bugs))
    if left:
        yield f"Not tried in the swarm: {', '.join(left)}."
    yield ""
    yield "| bug | found by seed | schedules run | checker |"
    yield "|---|---|---|---|"
    for name, found in bugs.items():
        seed = found.get("seed")
        by = seed if seed is not None else "NOT FOUND" if found["tried"] else "not tried"
        yield _row(name, by, found["tried"], found.get("checker", ""))


def _part(text: str) -> Part:
    """``COMMIT=FILE``. Raises ValueError for a file of another commit, by its own word."""
    commit, _, path = text.partition("=")
    report = SwarmReport.load(Path(path))
    if report.commit is not None and not (commit and report.commit.startswith(commit)):
        raise ValueError(f"{path} is of {report.commit}, not of {commit or 'no commit'}")
    return commit, report


def main(arguments: Sequence[str] | None = None) -> None:
    """The command in this module's text."""
    parser = argparse.ArgumentParser(prog="swarm_report")
    parser.add_argument("parts", nargs="*", metavar="COMMIT=FILE", help="By time: the newest one last.")
    parser.add_argument("--bugs", type=Path)
    parser.add_argument("--note", action="append", default=[], metavar="SEED=TEXT")
    parser.add_argument("--out", type=Path, required=True, metavar="DIRECTORY")
    parser.add_argument("--former", type=Path)
    given = parser.parse_args(arguments)
    if not given.parts and given.former is None:
        parser.error("give a part, COMMIT=FILE, or --former")
    parts, notes = told_before(given.former) if given.former else ([], {})
    try:
        parts += map(_part, given.parts)
    except ValueError as error:
        parser.error(str(error))
    notes |= {int(seed): text for seed, _, text in (note.partition("=") for note in given.note)}
    bugs = {} if given.bugs is None else json.loads(given.bugs.read_text())
    whole = merged(parts) | {"bugs": bugs, "notes": {str(seed): notes[seed] for seed in sorted(notes)}}
    (given.out / "swarm.json").write_text(json.dumps(whole, indent=2) + "\n")
    (given.out / "swarm.md").write_text("\n".join(markdown(parts, notes, bugs)) + "\n")


if __name__ == "__main__":
    main()
