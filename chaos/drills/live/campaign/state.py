"""What of a campaign is done, what is missing, and what comes next? A directory keeps a result of each run.

    DIR/campaign.json   the release that it is of, and the commands that carried it out
    DIR/runs/           ROW-SEED.json, as drill run --json writes it; .jsonl: the history of a violation
    DIR/refused/        results that are not counted: of other code than the campaign's, or of any
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

from chaos.drills.live.campaign.goals import Row
from chaos.drills.live.results import Result, broke, counts, read_one, row_name, struck
from model.errors import ConfigError

FILE: Final = "campaign.json"
REFUSED: Final = "refused"
PUT_ASIDE: Final = "put_aside"
"""The member of such a result that says why."""


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
            campaign.refused.append(f"{REFUSED}/{place.name}: {_why(place)}")
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
            self.refused.append(f"{path.relative_to(self.directory)}: {why}")

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
        release, told = result.get("release"), ", and it broke a promise" if broke(result) else ""
        if not release and result.get("faults") is not None:
            return f"its code has no name{told}"
        if release and release != self.release:
            return f"it is of {release}{told}"
        own = f"{row_name(result)}-{result.get('seed')}"
        return None if name == own else f"the results of that run are called {own}.json"

    def add(self, result: Result) -> None:
        """One that ``why_not`` has nothing against."""
        self._results.setdefault(row_name(result), []).append(result)

    def put_aside(self, name: str, why: str) -> None:
        """The result of a run is not counted: the same seed is struck again, but not for ever."""
        self.refused.append(f"{REFUSED}/{name}.json: {why}")
        self._aside[name.rpartition("-")[0]] += 1

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


def _why(path: Path) -> str:
    """Of a result that was put aside."""
    try:
        return str(read_one(path).get(PUT_ASIDE, "put aside"))
    except ConfigError as error:
        return str(error)
