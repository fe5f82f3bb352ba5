"""``keelmq drill model``: explore every interleaving of a small group, and say what was complete."""

from __future__ import annotations

import json
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from admin.outfile import CannotWrite, OutFile, write_whole
from chaos.live.releases import named
from chaos.model.explore import Explored, explore
from chaos.model.plants import PLANTS
from chaos.model.report import bound, group, markdown, of_row
from chaos.model.rows import LARGE, SMALL
from chaos.model.rules import AS_KEELMQ, Rules
from chaos.model.world import Setting

VIOLATED: Final = 2
UNFINISHED: Final = 3


class Limits(NamedTuple):
    """Where a row ends, complete or not: CPU seconds, states, MiB of the process."""

    seconds: int
    states: int
    memory_mib: int


SETS: Final[Mapping[str, Mapping[str, Setting]]] = {"small": SMALL, "large": LARGE}


@click.command("model")
@click.option(
    "--set",
    "chosen",
    type=click.Choice(sorted(SETS)),
    default="small",
    show_default=True,
    help="Which groups.",
)
@click.option(
    "--seconds",
    type=click.IntRange(min=1),
    default=60,
    show_default=True,
    help="At most so many seconds of CPU for each; beside other work that takes longer.",
)
@click.option(
    "--states",
    type=click.IntRange(min=1),
    default=2_000_000,
    show_default=True,
    help="At most so many for each.",
)
@click.option(
    "--memory-mib",
    type=click.IntRange(min=100),
    default=6144,
    show_default=True,
    help="A row ends when the process has so much.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="ROW",
    help="Only this row of the set; may be repeated. --list-rows shows them.",
)
@click.option(
    "--plant", type=click.Choice(sorted(PLANTS)), help="Plant a bug, in the group in which it must be found."
)
@click.option("--list-rows", is_flag=True, help="Show the rows of the set, with what bounds each.")
@click.option("--list-bugs", is_flag=True, help="Show the bugs that can be planted.")
@click.option("--json", "out", type=OutFile(), help="Write the result to this file (- = stdout).")
@click.option("--markdown", "page", type=OutFile(), help="Write the result as a page to this file.")
def model(
    chosen: str,
    seconds: int,
    states: int,
    memory_mib: int,
    only: tuple[str, ...],
    plant: str | None,
    list_rows: bool,
    list_bugs: bool,
    out: Path | None,
    page: Path | None,
) -> None:
    """Explore every state a small broker group can reach, by the real rules of elections, sets and leases.

    Exit code 0: every promise held in every state visited. 2: one was broken; the steps to it are shown. 3: a
    planted bug was not found, a signal ended it before its last row, or a result was not written.

    \b
    Example: keelmq drill model --set large --seconds 600 --json model.json
    """
    if list_rows:
        for name, setting in SETS[chosen].items():
            click.echo(f"{name:56} {of_row(_setting(setting))}")
        return
    if list_bugs:
        for name, bug in PLANTS.items():
            click.echo(f"{name:32} {bug.text}")
        return
    if plant is not None and only:
        raise click.UsageError("--plant has a group of its own: leave out --only")
    asked = _asked(chosen, only)
    limits, ended = Limits(seconds, states, memory_mib), threading.Event()
    found: dict[str, Any] = {"name": "model", "set": plant or chosen, **_circumstances(), **limits._asdict()}
    rows = found["rows"] = []
    whole = written = True
    if plant is not None:
        bug = PLANTS[plant]
        with bug.planted() as rules:
            rows.append(_row(plant, bug.setting, rules, limits, ended))
        written = _write(found, out, page)
    else:
        with _sigterm(ended):  # a row takes minutes: what was seen until then is written
            for name, setting in asked.items():
                rows.append(_row(name, setting, AS_KEELMQ, limits, ended))
                written = _write(found, out, page)
                if ended.is_set():
                    break
        whole = _was_whole(rows, len(asked), ended)
    _end(rows, plant, whole and written)


def _asked(chosen: str, only: Sequence[str]) -> dict[str, Setting]:
    """The rows to explore. Raises UsageError for one that is not there."""
    unknown = set(only) - set(SETS[chosen])
    if unknown:
        # What is said of wrong usage is one line, and these names have commas.
        click.echo("\n  ".join((f"the {chosen} set:", *SETS[chosen])), err=True)
        raise click.UsageError(f"the {chosen} set has no row {', '.join(sorted(unknown))}; see above")
    return {name: of for name, of in SETS[chosen].items() if not only or name in only}


@contextmanager
def _sigterm(ended: threading.Event) -> Iterator[None]:
    """SIGTERM sets ``ended``."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: ended.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _was_whole(rows: list[dict[str, Any]], asked: int, ended: threading.Event) -> bool:
    """Whether no signal cut the run short; says so if one did."""
    done = len(rows) - (not rows[-1]["complete"])
    if not ended.is_set() or done == asked:
        return True
    text = f"keelmq drill model: ended by a signal: {done} of {asked} rows"
    if done < len(rows):
        text += f", and {rows[-1]['work']} up to {rows[-1]['states']:,} states"
    click.echo(text, err=True)
    return False


def _end(rows: list[dict[str, Any]], plant: str | None, whole: bool) -> None:
    """Leave with the verdict. ``whole``: every row ran to its end and is in the files."""
    if any(row["violation"] for row in rows):
        sys.exit(VIOLATED)
    if plant is not None:
        click.echo(f"keelmq drill model: the planted bug {plant} was NOT found", err=True)
    if plant is not None or not whole:
        sys.exit(UNFINISHED)


def _circumstances() -> dict[str, Any]:
    """When this was run, and on which code."""
    return {"date": f"{datetime.now(UTC):%Y-%m-%d}", "commit": named()}


def _write(found: dict[str, Any], out: Path | None, page: Path | None) -> bool:
    """After every row: a run that is cut off keeps what it found. Whether all is in its files."""
    written = True
    for path, text in ((out, json.dumps(found, indent=2) + "\n"), (page, markdown(found))):
        if path is not None:
            try:
                write_whole(path, text)
            except CannotWrite as error:
                click.echo(f"keelmq drill model: {error}", err=True)
                written = False
    return written


def _row(name: str, setting: Setting, rules: Rules, limits: Limits, ended: threading.Event) -> dict[str, Any]:
    began = time.process_time()
    over = _over(began + limits.seconds, limits.memory_mib, ended)
    found = explore(setting, rules, states_max=limits.states, stop=over)
    row = as_row(name, setting, found, time.process_time() - began)
    click.echo(f"{name:52} {found.states:>9,} states {found.transitions:>10,} steps  {bound(row)}", err=True)
    if found.violation is not None:
        click.echo(f"  BROKEN: {found.violation.text}", err=True)
        for line in (group(_setting(setting)), *found.violation.begins):
            click.echo(f"    {line}", err=True)
        for number, step in enumerate(found.violation.trace, 1):
            click.echo(f"    {number:2}. {step}", err=True)
    return row


def _over(end_s: float, memory_mib: int, ended: threading.Event) -> Callable[[], bool]:
    def over() -> bool:
        used_mib = _resident_bytes() >> 20
        return ended.is_set() or time.process_time() > end_s or used_mib > memory_mib

    return over


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def as_row(name: str, setting: Setting, found: Explored, cpu_s: float) -> dict[str, Any]:
    """One exploration as JSON: times in CPU seconds; ``depth``: steps from the beginning."""
    violation = found.violation
    return {
        "work": name,
        "setting": _setting(setting),
        "states": found.states,
        "transitions": found.transitions,
        "depth": found.depth,
        "complete": found.complete,
        "cpu_s": round(cpu_s, 1),
        "violation": None
        if violation is None
        else {"text": violation.text, "begins": list(violation.begins), "trace": list(violation.trace)},
    }


def _setting(setting: Setting) -> dict[str, Any]:
    then = None if setting.then is None else setting.then._asdict()
    return {**setting._asdict(), "then": then, "budget": setting.budget._asdict()}
