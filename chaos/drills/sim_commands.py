"""``keelmq drill sim``: how are many schedules run, one replayed, a bug planted?"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import click

from admin import ending
from admin.outfile import OutFile
from chaos.bugs import BUGS
from chaos.drills.sim_run import Result, quietly, run_seed, run_seeds, shrink, summary
from chaos.scenarios import SCENARIOS, find
from chaos.worlds.sim_story import Story

VIOLATED = 2
UNFINISHED = 3
WRONG_USAGE = 64


@click.command("sim")
@click.option("--scenario", "scenarios", multiple=True, help="Run this scenario only; may be repeated.")
@click.option("--seeds", type=click.IntRange(min=1), default=20, show_default=True, help="How many seeds.")
@click.option("--from", "first", type=int, default=0, show_default=True, help="The first seed.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Processes at once.")
@click.option("--json", "out", type=OutFile(), help="Write the result to this file (- = stdout).")
@click.option("--replay", type=int, help="Run this one seed and show what happened.")
@click.option("--history", type=OutFile(), help="With --replay: write the history (JSON lines).")
@click.option("--shrink", "smaller", is_flag=True, help="With --replay: leave out faults it does not need.")
@click.option("--plant", metavar="BUG", help="Plant a bug the checks must find; alone: in its scenario.")
@click.option("--list-bugs", is_flag=True, help="Show the bugs that can be planted.")
@click.option("--list", "list_scenarios", is_flag=True, help="Show the scenarios.")
def sim(
    scenarios: tuple[str, ...],
    seeds: int,
    first: int,
    jobs: int,
    out: Path | None,
    replay: int | None,
    history: Path | None,
    smaller: bool,
    plant: str | None,
    list_bugs: bool,
    list_scenarios: bool,
) -> None:
    """Break a simulated cluster, of the real code, in as many ways as there are seeds.

    Exit code 0: every promise was kept. 2: one was broken; each line names the command that replays it.

    \b
    Example:
      keelmq drill sim --seeds 200 --jobs 2 --json sim.json
      keelmq drill sim --replay 17 --scenario kill_the_master_under_load
    """
    if list_bugs or list_scenarios:
        _list(list_bugs)
        return
    _known(scenarios, plant)
    if plant is not None and not scenarios:
        scenarios = (BUGS[plant].scenario.name,)
    if replay is None:
        _run(scenarios or tuple(SCENARIOS), range(first, first + seeds), jobs, plant, out)
    elif smaller:
        _shrink(scenarios, replay, plant)
    else:
        _replay(scenarios, replay, plant, history, out)


def _list(bugs: bool) -> None:
    for name, bug in BUGS.items() if bugs else ():
        click.echo(f"{name:28} {bug.text} [{bug.scenario.name}]")
    for name, scenario in SCENARIOS.items() if not bugs else ():
        click.echo(f"{name:52} {scenario.text}")


def _run(scenarios: tuple[str, ...], numbers: range, jobs: int, plant: str | None, out: Path | None) -> None:
    begun_s = time.perf_counter()
    results: list[Result] = []
    try:
        with ending.in_order():
            for result in run_seeds(scenarios, numbers, jobs=jobs, bug=plant):
                results.append(result)
                for violation in result.violations:
                    click.echo(f"{violation.checker}: {violation.text}", err=True)
                if result.violations:
                    click.echo(f"    {result.replay}", err=True)
    except BrokenProcessPool as error:
        click.echo(f"keelmq drill sim: a process died after {len(results)} schedules: {error}", err=True)
        sys.exit(UNFINISHED)
    found = summary(results, time.perf_counter() - begun_s)
    _write(found, out)
    broken = len({(v["scenario"], v["seed"]) for v in found["violations"]})
    click.echo(
        f"{found['seeds']} schedules, {broken} with violations, {found['schedules_per_second']:.2f} a second",
        err=True,
    )
    if broken:
        sys.exit(VIOLATED)


def _known(scenarios: tuple[str, ...], plant: str | None) -> None:
    try:
        for name in scenarios:
            find(name)
        if plant is not None and plant not in BUGS:
            raise KeyError(f"no bug {plant}; there are {', '.join(BUGS)}")
    except KeyError as error:
        click.echo(f"keelmq drill sim: {error.args[0]}", err=True)
        sys.exit(WRONG_USAGE)


def _only(scenarios: tuple[str, ...]) -> str:
    if len(scenarios) != 1:
        click.echo("keelmq drill sim: --replay needs one --scenario", err=True)
        sys.exit(WRONG_USAGE)
    return scenarios[0]


def _shrink(scenarios: tuple[str, ...], seed: int, plant: str | None) -> None:
    with quietly():
        plan, result = shrink(_only(scenarios), seed, plant, tell=lambda line: click.echo(line, err=True))
    for step in plan.steps:
        click.echo(json.dumps(step.to_json()))
    for violation in result.violations:
        click.echo(f"{violation.checker}: {violation.text}")
    if result.violations:
        sys.exit(VIOLATED)


def _replay(
    scenarios: tuple[str, ...], seed: int, plant: str | None, history: Path | None, out: Path | None
) -> None:
    scenario = _only(scenarios)

    def keep(run: Story) -> None:
        for event in run.history.happened():
            click.echo(event.line())
        if history is not None:
            with history.open("w") as lines:
                run.history.write(lines)

    with quietly():
        result = run_seed(scenario, seed, plant, keep=keep)
    for violation in result.violations:
        click.echo(f"{violation.checker}: {violation.text}")
    click.echo(f"trace {result.trace}, {result.virtual_s:.1f} virtual s in {result.wall_s:.2f} s")
    if out is not None:
        _write(summary([result], result.wall_s), out)
    if result.violations:
        sys.exit(VIOLATED)


def _write(found: dict[str, Any], out: Path | None) -> None:
    if out is None:
        return
    text = json.dumps(found, indent=2) + "\n"
    if str(out) == "-":
        click.echo(text, nl=False)
    else:
        out.write_text(text)
