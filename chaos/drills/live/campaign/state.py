"""What of a campaign is done, what is missing, and what comes next? A directory keeps a result of each run.

    DIR/campaign.json   the release that it is of, and the commands that carried it out
    DIR/runs/           ROW-SEED.json, as drill run --json writes it; .jsonl: the history of a violation
    DIR/refused/        results that are not counted: of other code than the campaign's, or of any;
                        none replaces another (.2, .3), and what they say of promises stays said
    DIR/log/            what each run printed
    DIR/next/           the plans of the runs that are under way, and what they leave until it is looked at

Results of two releases are never in one campaign. A file in DIR/runs that is no result of it is named, and
not counted.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Final, Self

from chaos.drills import verdict
from chaos.drills.live.campaign.goals import Row
from chaos.drills.live.names import OURS
from chaos.drills.live.results import Result, broke, counts, read_one, row_name, struck
from model.errors import ConfigError

FILE: Final = "campaign.json"
REFUSED: Final = "refused"
PUT_ASIDE: Final = "put_aside"
"""The member of such a result that says why."""
BROKE: Final = "and it broke a promise"


@dataclass(frozen=True, slots=True)
class Cell:
    """One run: so many strikes of a row, drawn from a seed."""

    row: Row
    seed: int
    strikes: int

    @property
    def name(self) -> str:
        return f"{self.row.name}-{self.seed}"


class Campaign:
    """The results of one directory, by row. Make it by ``open``."""

    def __init__(self, directory: Path, rows: Sequence[Row], release: str) -> None:
        self.directory, self.rows = directory, rows
        self.release = release
        """"": it has not begun."""
        self.commands: list[str] = []
        self.refused: list[str] = []
        """Files that are not counted, and why."""
        self.aside: list[Result] = []
        """The results among them: what they say of promises stays said."""
        self._results: dict[str, list[Result]] = {row.name: [] for row in rows}
        self._aside: Counter[str] = Counter()

    @classmethod
    def open(cls, directory: Path, rows: Sequence[Row]) -> Self:
        """Raises ConfigError for what is no campaign."""
        path = directory / FILE
        try:
            found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"release": ""}
            campaign = cls(directory, rows, str(found["release"]))
            campaign.commands = list(map(str, found.get("commands", ())))
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise ConfigError(f"{path} is no campaign's: {error}") from None
        for place in sorted((directory / "runs").glob("*.json")):
            campaign._keep(place)
        for place in sorted((directory / REFUSED).glob("*.json")):
            campaign._look_at_refused(place)
        return campaign

    def narrow(self, chosen: Collection[Row]) -> None:
        """Of other rows nothing is asked: they are left out, but for those that have results."""
        others = (
            replace(row, strikes=0) for row in self.rows if row not in chosen and self._results[row.name]
        )
        self.rows = [*chosen, *others]

    def _keep(self, path: Path) -> None:
        try:
            result = read_one(path)
        except ConfigError as error:
            self.refused.append(f"{path.relative_to(self.directory)}: {error}")
            return
        if (why := self.why_not(result, path.stem)) is None:
            self.add(result)
        else:
            self._refuse(f"{path.relative_to(self.directory)}", why, result)

    def _look_at_refused(self, path: Path) -> None:
        name = f"{REFUSED}/{path.name}"
        try:
            result = read_one(path)
        except ConfigError as error:
            self.refused.append(f"{name}: {error}")
            return
        why = result.get(PUT_ASIDE) or self.why_not(result, path.stem) or "put aside"
        self._refuse(name, str(why), result)

    def _refuse(self, name: str, why: str, result: Result) -> None:
        self.refused.append(f"{name}: {with_verdict(why, result)}")
        self.aside.append(result)

    def begin(self, release: str, command: str = "") -> None:
        """Runs of ``release`` are to come. Raises ConfigError when there are others."""
        if self.release not in ("", release):
            raise ConfigError(
                f"{self.directory} is a campaign of {self.release}, and this is {release}: "
                "check that one out, or give another directory"
            )
        for name in ("runs", "log", "next"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        if command and command not in self.commands:
            self.commands.append(command)
        draft = self.directory / f"{FILE}.new"
        draft.write_text(json.dumps({"release": release, "commands": self.commands}) + "\n", encoding="utf-8")
        os.replace(draft, self.directory / FILE)
        self.release = release

    def why_not(self, result: Result, name: str) -> str | None:
        """Why a result of that file's name is not counted; None: it is. A run counts once, under its own
        name; only one that never began says nothing of its code."""
        release = result.get("release")
        if not release and result.get("faults") is not None:
            return "its code has no name"
        if release and release != self.release:
            return f"it is of {release}"
        own = f"{row_name(result)}-{result.get('seed')}"
        return None if name == own else f"the results of that run are called {own}.json"

    def add(self, result: Result) -> None:
        """One that ``why_not`` has nothing against."""
        self._results.setdefault(row_name(result), []).append(result)

    def put_aside(self, name: str, why: str, result: Result | None, file: str) -> None:
        """The result of a run is not counted: the same seed is struck again, but not for ever. ``result``:
        None when its file holds none; ``file``: where that lies, without its ending."""
        if result is None:
            self.refused.append(f"{REFUSED}/{file}.json: {why}")
        else:
            self._refuse(f"{REFUSED}/{file}.json", why, result)
        self._aside[name.rpartition("-")[0]] += 1

    def broken_aside(self, targets: Collection[str]) -> int:
        """How many results of these systems are not counted, and broke a promise."""
        return sum(broke(one) and one.get("target", OURS) in targets for one in self.aside)

    def results(self, rows: Sequence[Row] | None = None) -> list[Result]:
        """Of these rows, or of all."""
        return [one for row in (self.rows if rows is None else rows) for one in self._results[row.name]]

    def counted(self, row: Row) -> int:
        """Its strikes that say something: those of runs which came to their end and were judged, or broke a
        promise."""
        return sum(struck(one) for one in self._results[row.name] if counts(one))

    def missing(self, row: Row, running: Collection[Cell] = ()) -> int:
        """Strikes that are not there, and not under way."""
        under_way = sum(cell.strikes for cell in running if cell.row == row)
        return max(0, row.strikes - self.counted(row) - under_way)

    def given_up(self, row: Row, running: Collection[Cell] = ()) -> bool:
        """So often strikes missed, or runs did not finish, that no more are begun than are under way."""
        begun = (
            len(self._results[row.name]) + self._aside[row.name] + sum(cell.row == row for cell in running)
        )
        return begun >= row.runs_max

    def next(self, rows: Sequence[Row], running: Collection[Cell] = ()) -> Cell | None:
        """Of the rows that lack strikes, that which had the fewest runs: whatever time there is, all are met
        alike."""
        open_rows = [r for r in rows if self.missing(r, running) and not self.given_up(r, running)]
        row = min(open_rows, key=lambda one: len(self._seeds(one, running)), default=None)
        if row is None:
            return None
        strikes = min(row.per_run, self.missing(row, running))
        taken = self._seeds(row, running)
        return Cell(row, next(seed for seed in count(row.seed) if seed not in taken), strikes)

    def _seeds(self, row: Row, running: Collection[Cell]) -> set[int]:
        """Of its runs that are there, or under way."""
        there = {int(one["seed"]) for one in self._results[row.name]}
        return there | {cell.seed for cell in running if cell.row == row}

    def left_s(self, rows: Sequence[Row]) -> float | None:
        """How long what is missing takes, one run after the other, by what such strikes took so far. None:
        of some kind that is not known."""
        total_s = 0.0
        for row in rows:
            missing = 0 if self.given_up(row) else self.missing(row)
            alike = [one for one in self.rows if (one.target, one.kind) == (row.target, row.kind)]
            took_s = [(sum(one.get("spent_s", {}).values()), struck(one)) for one in self.results(alike)]
            strikes = sum(number for _, number in took_s)
            if missing and not strikes:
                return None
            total_s += missing * sum(spent for spent, _ in took_s) / max(1, strikes)
        return total_s


def with_verdict(why: str, result: Result) -> str:
    """Why a result is not counted, and which promises it broke all the same."""
    counts = ", ".join(f"{name} {count}" for name, count in sorted(verdict.broken(result).items()))
    return f"{why}, {BROKE}: {counts}" if counts and BROKE not in why else why
