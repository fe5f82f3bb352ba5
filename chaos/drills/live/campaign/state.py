"""What of a campaign is done, what is missing, and what comes next? A directory keeps a result of each run.

    DIR/campaign.json   the release that it is of
    DIR/runs/           ROW-SEED.json, as drill run --json writes it; .jsonl: the history of a violation
    DIR/log/            what each run printed
    DIR/next/           the plans of the runs that are under way

Results of two releases are never in one campaign.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final, Self

from admin.outfile import write_whole
from chaos.drills.live.campaign.goals import Row
from chaos.drills.live.counted import pair, releases, struck
from chaos.drills.live.matrix import read
from chaos.drills.live.scenario import OURS, SWITCH
from model.errors import ConfigError

FILE: Final = "campaign.json"


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
        self._results: dict[str, list[Mapping[str, Any]]] = {row.name: [] for row in rows}

    @classmethod
    def open(cls, directory: Path, rows: Sequence[Row]) -> Self:
        """Raises ConfigError for what is no campaign, or one of several releases."""
        path = directory / FILE
        try:
            found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"release": ""}
            campaign = cls(directory, rows, str(found["release"]))
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise ConfigError(f"{path} is no campaign's: {error}") from None
        for result in read(directory / "runs"):
            campaign.add(result)
        return campaign

    def begin(self, release: str) -> None:
        """Runs of ``release`` are to come. Raises ConfigError when there are others."""
        if self.release not in ("", release):
            raise ConfigError(
                f"{self.directory} is a campaign of {self.release}, and this is {release}: "
                "check that one out, or give another directory"
            )
        for name in ("runs", "log", "next"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        write_whole(self.directory / FILE, json.dumps({"release": release}) + "\n")
        self.release = release

    def add(self, result: Mapping[str, Any]) -> None:
        """Raises ConfigError for one of another release."""
        for other in releases([result]):
            if other != self.release:
                raise ConfigError(
                    f"{self.directory} is a campaign of {self.release}, and its run {result['scenario']}, "
                    f"seed {result['seed']}, is of {other}"
                )
        kind, mode = pair(result)
        target, links = str(result.get("target", OURS)), str(result.get("links", SWITCH))
        row = Row(goal="", kind=kind, mode=mode, strikes=0, per_run=1, target=target, links=links)
        self._results.setdefault(row.name, []).append(result)

    def results(self, rows: Sequence[Row] | None = None) -> list[Mapping[str, Any]]:
        """Of these rows, or of all."""
        return [one for row in (self.rows if rows is None else rows) for one in self._results[row.name]]

    def counted(self, row: Row) -> int:
        """Its strikes that say something: those of runs which came to their end, or broke a promise."""
        return sum(struck(one) for one in self._results[row.name] if not one.get("unfinished_total"))

    def missing(self, row: Row, running: Collection[Cell] = ()) -> int:
        """Strikes that are not there, and not under way."""
        under_way = sum(cell.strikes for cell in running if cell.row == row)
        return max(0, row.strikes - self.counted(row) - under_way)

    def given_up(self, row: Row) -> bool:
        """So often strikes missed, or runs did not finish, that no more are begun."""
        return len(self._results[row.name]) >= row.runs_max

    def next(self, rows: Sequence[Row], running: Collection[Cell] = ()) -> Cell | None:
        """Of the rows that lack strikes, that which had the fewest runs: whatever time there is, all are met
        alike."""
        open_rows = [row for row in rows if self.missing(row, running) and not self.given_up(row)]
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
