"""``keelmq drill model``: explore every interleaving of a small group, and say what was complete."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import click

from admin.outfile import OutFile
from chaos.model.explore import Explored, explore
from chaos.model.plants import PLANTS
from chaos.model.rows import LARGE, SMALL
from chaos.model.rules import AS_KEELMQ, Rules
from chaos.model.world import Setting

VIOLATED: Final = 2
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
    "--seconds", type=click.IntRange(min=1), default=60, show_default=True, help="At most so long for each."
)
@click.option(
    "--states",
    type=click.IntRange(min=1),
    default=2_000_000,
    show_default=True,
    help="At most so many for each.",
)
@click.option(
    "--plant", type=click.Choice(sorted(PLANTS)), help="Plant a bug, in the group in which it must be found."
)
@click.option("--list-bugs", is_flag=True, help="Show the bugs that can be planted.")
@click.option("--json", "out", type=OutFile(), help="Write the result to this file (- = stdout).")
def model(
    chosen: str, seconds: int, states: int, plant: str | None, list_bugs: bool, out: Path | None
) -> None:
    """Explore every state a small broker group can reach, by the real rules of elections, sets and leases.

    Exit code 0: every promise held in every state visited. 2: one was broken; the steps to it are shown.

    \b
    Example: keelmq drill model --set large --seconds 600 --json model.json
    """
    if list_bugs:
        for name, bug in PLANTS.items():
            click.echo(f"{name:32} {bug.text}")
        return
    if plant is not None:
        bug = PLANTS[plant]
        with bug.planted() as rules:
            rows = [_row(plant, bug.setting, rules, seconds, states)]
    else:
        rows = [_row(name, setting, AS_KEELMQ, seconds, states) for name, setting in SETS[chosen].items()]
    if out is not None:
        text = json.dumps({"name": "model", "rows": rows}, indent=2)
        click.echo(text) if str(out) == "-" else out.write_text(text + "\n", encoding="utf-8")
    if any(row["violation"] for row in rows):
        sys.exit(VIOLATED)


def _row(name: str, setting: Setting, rules: Rules, seconds: int, states: int) -> dict[str, Any]:
    began = time.process_time()
    found = explore(setting, rules, states_max=states, stop=_over(began + seconds))
    row = as_row(name, setting, found, time.process_time() - began)
    bound = "complete" if found.complete else f"all states up to {found.depth - 1} steps deep"
    click.echo(f"{name:44} {found.states:>9,} states {found.transitions:>10,} steps  {bound}", err=True)
    if found.violation is not None:
        click.echo(f"  BROKEN: {found.violation.text}", err=True)
        for number, step in enumerate(found.violation.trace, 1):
            click.echo(f"    {number:2}. {step}", err=True)
    return row


def _over(end_s: float) -> Callable[[], bool]:
    return lambda: time.process_time() > end_s


def as_row(name: str, setting: Setting, found: Explored, cpu_s: float) -> dict[str, Any]:
    """One exploration as JSON: times in CPU seconds; ``depth``: steps from the beginning."""
    violation = found.violation
    return {
        "work": name,
        "setting": {**setting._asdict(), "budget": setting.budget._asdict()},
        "states": found.states,
        "transitions": found.transitions,
        "depth": found.depth,
        "complete": found.complete,
        "cpu_s": round(cpu_s, 1),
        "violation": None if violation is None else {"text": violation.text, "trace": list(violation.trace)},
    }
