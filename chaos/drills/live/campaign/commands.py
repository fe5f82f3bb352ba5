"""``keelmq drill campaign``: every fault so often as asked, in every mode, resumable; one page."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from admin import ending
from admin.exits import DONE, FAILED, UNFINISHED, WARNINGS
from admin.numbers import Number
from admin.outfile import OutFile, on_stdout, write_whole
from chaos.drills.live.campaign import goals, left
from chaos.drills.live.campaign.goals import Row
from chaos.drills.live.campaign.page import page
from chaos.drills.live.campaign.runs import Runs, Say, alone
from chaos.drills.live.campaign.state import Campaign
from chaos.drills.live.commands import PREVIOUS
from chaos.drills.live.kept import kept_code
from chaos.drills.live.names import OURS, THEIRS, TOXIPROXY
from chaos.drills.live.results import broke
from chaos.links.server import find_toxiproxy
from chaos.live.means import refusal
from chaos.live.releases import exact
from chaos.scenarios.matrix import plan
from chaos.worlds import rocketmq

COMMAND: Final = "keelmq drill campaign DIR"


@click.command("campaign")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--jobs", type=click.IntRange(1, 8), default=2, show_default=True, help="Runs side by side.")
@click.option(
    "--their-jobs",
    type=click.IntRange(1, 8),
    default=1,
    show_default=True,
    help="Of RocketMQ's runs, six JVMs each.",
)
@click.option("--only", help="Carry out only these kinds, or systems, by commas [all].")
@click.option("--at-most", type=click.IntRange(1), help="A rehearsal: so many strikes of each row at most.")
@click.option("--limit", "limit_s", type=Number(0), help="Begin no run after so many seconds; 0: none.")
@PREVIOUS
@click.option("--page", "out", type=OutFile(), help="Write the page here [DIR/campaign.md].")
def campaign(
    directory: Path,
    jobs: int,
    their_jobs: int,
    only: str | None,
    at_most: int | None,
    limit_s: float | None,
    previous: Path | None,
    out: Path | None,
) -> int:
    """Strike keelmq, and RocketMQ beside it, as often as its plan asks for, and write one page.

    DIRECTORY keeps the result of each run; the same command once more carries out what is missing, of the
    same commit. Exit code 2: keelmq broke a promise. 3: strikes are missing that the same command carries
    out. 1: nothing is left to begin, but strikes were given up, faults skipped, or results put aside. With
    --only what was not chosen is not missing.

    \b
    Example: keelmq drill campaign campaign --page docs/results/live.md
    """
    rows = [*goals.ours(), *goals.theirs()]
    rows = rows if at_most is None else goals.at_most(rows, at_most)
    chosen = _chosen(rows, only)
    console = Console(stderr=on_stdout(out))

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    command = _command(
        jobs=jobs, their_jobs=their_jobs, only=only, at_most=at_most, limit_s=limit_s, previous=previous
    )
    found = _opened(directory, rows, chosen)
    works = limit_s != 0 and found.next(chosen) is not None
    release = ""
    if works:
        _ready(chosen)
        release = exact()
    try:
        if works:
            with alone(directory) as lock, ending.in_order():
                found = _opened(directory, rows, chosen)  # as it is now that nobody else works there
                found.begin(release, command)
                # What runs of an interrupted campaign left would take time from these.
                left.heal(directory, say)
                until_s = None if limit_s is None else time.monotonic() + limit_s
                for target, count in ((OURS, jobs), (THEIRS, their_jobs)):
                    runs = Runs(found, count, lock, say, previous, until_s)
                    runs.take_in()
                    runs.carry_out([row for row in chosen if row.target == target])
    finally:
        _write(found, command, at_most, directory, out)
        _told(found, say)
    return _code(found)


def _opened(directory: Path, rows: Sequence[Row], chosen: Sequence[Row]) -> Campaign:
    found = Campaign.open(directory, rows)
    if len(chosen) < len(rows):
        found.narrow(chosen)
    return found


def _command(**options: object) -> str:
    """What repeats this one, without the paths of this machine."""
    told = [COMMAND]
    defaults = {one.name: one.default for one in campaign.params}
    for name, value in options.items():
        if value != defaults[name] and value is not None:
            shown = "PATH" if isinstance(value, Path) else f"{value:g}" if isinstance(value, float) else value
            told.append(f"--{name.removesuffix('_s').replace('_', '-')} {shown}")
    return " ".join(told)


def _code(found: Campaign) -> int:
    """A promise that was broken is one, whether or not the run counts."""
    ours = [one for one in found.results() if one.get("target", OURS) == OURS]
    if any(map(broke, ours)) or found.broken_aside({OURS}):
        return FAILED
    if found.next(found.rows) is not None:
        return UNFINISHED
    left = any(map(found.missing, found.rows)) or found.refused or any(map(kept_code, ours))
    return WARNINGS if left else DONE


def _chosen(rows: Sequence[Row], only: str | None) -> list[Row]:
    if only is None:
        return list(rows)
    names = [name.strip() for name in only.split(",") if name.strip()]
    known = dict.fromkeys(name for row in rows for name in (row.kind, row.target))
    for name in names:
        if name not in known:
            raise click.UsageError(f"nothing is called {name}; there are {', '.join(known)}")
    kinds, targets = {row.kind for row in rows} & {*names}, {OURS, THEIRS} & {*names}
    return [
        row for row in rows if (not kinds or row.kind in kinds) and (not targets or row.target in targets)
    ]


def _ready(rows: Sequence[Row]) -> None:
    """What this machine lacks is said before hours are spent. Raises UsageError."""
    lacks: dict[str, str] = {}
    for row in rows:
        for step in plan(row.kind, row.mode, row.seed, 1, row.target).steps:
            if (why := refusal(type(step.fault))) is not None:
                lacks[step.fault.name] = why
    if any(row.links == TOXIPROXY for row in rows) and find_toxiproxy() is None:
        lacks["partitions by Toxiproxy"] = "needs toxiproxy-server: make toxiproxy"
    if any(row.target == THEIRS for row in rows) and (why := rocketmq.unavailable()) is not None:
        lacks["RocketMQ"] = why
    if lacks:
        told = "; ".join(f"{what}: {why}" for what, why in lacks.items())
        raise click.UsageError(f"not on this machine: {told} (--only chooses the others)")


def _write(found: Campaign, command: str, at_most: int | None, directory: Path, out: Path | None) -> None:
    if out is None and not directory.is_dir():
        return
    path = out or directory / "campaign.md"
    beside = [] if on_stdout(path) else [one.name for one in path.parent.glob(f"{path.stem}-*.md")]
    text = page(found, command, beside, at_most)
    if on_stdout(path):
        click.echo(text, nl=False)
    else:
        write_whole(path, text)


def _told(found: Campaign, say: Say) -> None:
    """What is done, and what is missing."""
    asked_of = [row for row in found.rows if row.strikes]
    done, asked = sum(map(found.counted, asked_of)), sum(row.strikes for row in asked_of)
    for row in found.rows:
        if missing := found.missing(row):
            given_up = ", given up" if found.given_up(row) else ""
            say(f"missing: {row.name}: {missing} of {row.strikes}{given_up}")
    for told in found.refused:
        say(f"not counted: {told}")
    say(f"{done:,} of {asked:,} strikes are done, of {found.release or 'no commit yet'}")
