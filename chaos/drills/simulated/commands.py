"""``keelmq drill sim``: how are many schedules run, one replayed, a bug planted?"""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Never

import click

from admin import ending
from admin.numbers import whole
from admin.outfile import CannotWrite, OutFile, write_whole
from chaos import extensions
from chaos.bugs import BUGS, planted
from chaos.drills.simulated import told
from chaos.drills.simulated.run import Result, quietly, run_plan, run_seed, run_seeds, shrink, summary
from chaos.drills.simulated.shrink import readable
from chaos.drills.swarm_report import KIND, SwarmReport
from chaos.drills.verdict import read_result
from chaos.history import History, HistoryEvent
from chaos.live.releases import named
from chaos.scenarios import SCENARIOS, Plan, find, known
from chaos.scenarios.swarm import SWARM
from chaos.sim.story import Story

VIOLATED = 2
UNFINISHED = 3
WRONG_USAGE = 64
WRITE_EVERY_S = 20
SEEDS_FOR_A_BUG = 300
"""Each bug was found within so many (docs/results/swarm-bugs.json)."""


@click.command("sim")
@click.option("--scenario", "scenarios", multiple=True, help="Run this scenario only; may be repeated.")
@click.option("--seeds", type=click.IntRange(min=1), default=20, show_default=True, help="How many seeds.")
@click.option(
    "--from",
    "--seed-from",
    "first",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="The first seed.",
)
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Processes at once.")
@click.option("--json", "out", type=OutFile(), help="Write the result to this file (- = stdout).")
@click.option("--swarm", is_flag=True, help="Draw faults freely, each seed others; --json FILE grows.")
@click.option("--replay", metavar="SEED|FILE", help="Run this seed, or this schedule; show what happened.")
@click.option("--history", type=OutFile(), help="With --replay: write the history (JSON lines).")
@click.option("--shrink", "smaller", is_flag=True, help="With --replay: leave out what it does not need.")
@click.option("--schedule", type=OutFile(), help="With --replay: write the schedule (JSON), to be replayed.")
@click.option("--plant", metavar="BUG", help="Plant a bug the checks must find; alone: in its scenario.")
@click.option("--list-bugs", is_flag=True, help="Show the bugs that can be planted.")
@click.option("--list", "list_scenarios", is_flag=True, help="Show the scenarios.")
def sim(
    scenarios: tuple[str, ...],
    seeds: int,
    first: int,
    jobs: int,
    out: Path | None,
    swarm: bool,
    replay: str | None,
    history: Path | None,
    smaller: bool,
    schedule: Path | None,
    plant: str | None,
    list_bugs: bool,
    list_scenarios: bool,
) -> None:
    """Break a simulated cluster, of the real code, in as many ways as there are seeds.

    Exit code 0: every promise was kept. 2: one was broken; each line names the command that replays it. 3: a
    planted bug was not found, or a result was not written.

    \b
    Example:
      keelmq drill sim --seeds 200 --jobs 2 --json sim.json
      keelmq drill sim --swarm --seeds 20000 --jobs 2 --json swarm.json    # again: goes on where it ended
      keelmq drill sim --replay 17 --scenario swarm --shrink --schedule small.json
      keelmq drill sim --replay small.json
    """
    if list_bugs or list_scenarios:
        _list(list_bugs)
        return
    if swarm and scenarios:
        _wrong("--swarm is a scenario of its own: leave out --scenario")
    _for_a_replay(replay, {"--shrink": smaller, "--history": history, "--schedule": schedule})
    grows = swarm and plant is None and replay is None
    _keeps_reports([schedule, history, *([] if grows else [out])])
    if swarm:
        scenarios = (SWARM.name,)
    _known(scenarios, plant)
    if plant is not None and not scenarios:
        scenarios = (BUGS[plant].scenario.name,)
    numbers = range(first, first + seeds)
    if replay is not None:
        given = _given(scenarios, replay, plant)
        if smaller:
            _shrink(given, schedule)
        else:
            _replay(given, schedule, history, out)
    elif grows:
        _swarm(numbers, jobs, out)
    else:
        _run(scenarios or tuple(SCENARIOS), numbers, jobs, plant, out)


def _list(bugs: bool) -> None:
    for name, bug in BUGS.items() if bugs else ():
        click.echo(f"{name:28} {bug.text} [{bug.scenario.name}]")
    for name, scenario in known().items() if not bugs else ():
        click.echo(f"{name:52} {scenario.text}")


def _run(scenarios: tuple[str, ...], numbers: range, jobs: int, plant: str | None, out: Path | None) -> None:
    begun_s = time.perf_counter()
    results: list[Result] = []
    try:
        with ending.in_order():
            for result in run_seeds(scenarios, numbers, jobs=jobs, bug=plant):
                results.append(result)
                _tell(result)
    except BrokenProcessPool as error:
        click.echo(f"keelmq drill sim: a process died after {len(results)} schedules: {error}", err=True)
        sys.exit(UNFINISHED)
    found = {"commit": named()} | summary(results, time.perf_counter() - begun_s)
    broken = len({(v["scenario"], v["seed"]) for v in found["violations"]})
    click.echo(
        f"{found['seeds']} schedules, {broken} with violations, {found['schedules_per_second']:.2f} a second",
        err=True,
    )
    _end(broken > 0, plant, (found, out), seeds=len(numbers))


def _end(
    broken: bool,
    bug: str | None,
    *results: tuple[dict[str, Any] | str, Path | None],
    seeds: int | None = None,
) -> None:
    """Write the results and leave with the verdict, which a file that cannot be written does not hide.
    ``seeds``: how many were run; None: one schedule was repeated."""
    code = VIOLATED if broken else 0
    if bug is not None and not broken:
        click.echo(f"keelmq drill sim: the planted bug {bug} was NOT found{_tried(seeds)}", err=True)
        code = UNFINISHED
    for found, path in results:
        try:
            _write(found, path)
        except CannotWrite as error:
            click.echo(f"keelmq drill sim: {error}", err=True)
            code = code or UNFINISHED
    if code:
        sys.exit(code)


def _tried(seeds: int | None) -> str:
    if seeds is None:
        return ""
    more = "" if seeds >= SEEDS_FOR_A_BUG else f"; more seeds may find it: --seeds {SEEDS_FOR_A_BUG}"
    return f" after {seeds} seed{'s' * (seeds != 1)}{more}"


def _wrong(text: str) -> Never:
    click.echo(f"keelmq drill sim: {text}", err=True)
    sys.exit(WRONG_USAGE)


def _for_a_replay(replay: str | None, options: Mapping[str, object]) -> None:
    """``options`` have an effect with --replay only."""
    for option, value in options.items():
        if value and replay is None:
            _wrong(f"{option} needs --replay")
    if options["--shrink"] and options["--history"]:
        _wrong("--shrink writes no --history: replay the schedule that it leaves")


def _keeps_reports(outs: list[Path | None]) -> None:
    """A file that a swarm grew in many hours is not replaced by another result."""
    for path in outs:
        if path is None or not path.is_file():
            continue
        try:
            data = read_result(path)
        except (OSError, ValueError):
            continue
        if isinstance(data, dict) and data.get("kind") == KIND:
            _wrong(f"{path} is the report of a swarm and would be replaced: name another file")


def _known(scenarios: tuple[str, ...], plant: str | None) -> None:
    try:
        for name in scenarios:
            find(name)
        if plant is not None and plant not in BUGS:
            raise KeyError(f"no bug {plant}; there are {', '.join(BUGS)}")
    except KeyError as error:
        _wrong(error.args[0])


def _swarm(numbers: range, jobs: int, out: Path | None) -> None:
    """One part of a long run; a report that is there already is added to."""
    path = None if out is None or str(out) == "-" else out
    try:
        report = SwarmReport(named()) if path is None else SwarmReport.grown(path, named())
    except (OSError, ValueError) as error:
        _wrong(str(error))
    last_s = time.perf_counter()
    whole, former = False, report.seeds
    try:
        with ending.in_order():
            for result in run_seeds((SWARM.name,), report.missing(numbers), jobs=jobs):
                with ending.uncut():
                    report.add(result)
                _tell(result)
                now_s = time.perf_counter()
                if path is not None and now_s - last_s > WRITE_EVERY_S:
                    report.wall_s += now_s - last_s
                    last_s = now_s
                    report.write(path)
        whole = True
    except BrokenProcessPool as error:
        click.echo(f"keelmq drill sim: a process died: {error}", err=True)
    except CannotWrite:
        pass  # said below, if it still cannot
    finally:
        report.wall_s += time.perf_counter() - last_s
        found = report.to_json()
        written = _ends_swarm(found, out, former)
    if found["violations"]:
        sys.exit(VIOLATED)
    if not (whole and written):
        sys.exit(UNFINISHED)


def _ends_swarm(found: dict[str, Any], out: Path | None, former: int) -> bool:
    """Say what was found, and whether it is in its file: also where the run was cut off. ``former``: how many
    seeds of it were there before."""
    broken = len({violation["seed"] for violation in found["violations"]})
    speed, cpu = found["schedules_per_second"], found["schedules_per_cpu_second"]
    text = f"{found['seeds']} schedules, {broken} with violations, {speed:.2f} a second, {cpu:.2f} a CPU s"
    if former:
        now = found["seeds"] - former
        ran = f"{now} of them were run now" if now else "nothing was left to run"
        text = f"{ran}; in {out}, all of {found['commit']}: {text}"
    click.echo(f"{text}; not drawn by these seeds: {', '.join(found['not_met']) or 'nothing'}", err=True)
    try:
        _write(found, out)
    except CannotWrite as error:
        click.echo(f"keelmq drill sim: {error}", err=True)
        return False
    return True


def _tell(result: Result) -> None:
    for violation in result.violations:
        click.echo(f"{violation.checker}: {violation.text}", err=True)
    if result.violations:
        click.echo(f"    {result.replay}", err=True)


@dataclass(frozen=True, slots=True)
class _Given:
    """What is to be run again. ``plan`` None: what the seed draws."""

    scenario: str
    seed: int
    bug: str | None
    plan: Plan | None = None

    def run(self, keep: Callable[[Story], object] | None = None) -> Result:
        if self.plan is None:
            return run_seed(self.scenario, self.seed, self.bug, keep=keep)
        with planted(self.bug):
            return run_plan(self.scenario, self.seed, self.plan, self.bug, keep)


def _given(scenarios: tuple[str, ...], replay: str, plant: str | None) -> _Given:
    """A seed, or the schedule in a file."""
    seed = whole(replay)
    if seed is not None:
        if len(scenarios) != 1:
            _wrong("--replay needs one --scenario")
        return _Given(scenarios[0], seed, plant)
    try:
        data = read_result(Path(replay))
        extensions.load_for(str(data["scenario"]))
        plan = Plan.from_json(data["plan"])
        return _Given(str(data["scenario"]), int(data["seed"]), plant or data.get("bug"), plan)
    except (OSError, ValueError, OverflowError, KeyError, TypeError) as error:
        _wrong(f"{replay} is neither a seed nor a schedule: {error}")


def _say_planted(bug: str | None) -> None:
    if bug is not None:
        click.echo(f"planted: {bug}; a promise that it breaks is no fault of keelmq", err=True)


def _shrink(given: _Given, schedule: Path | None) -> None:
    _say_planted(given.bug)
    with quietly():
        plan, result = shrink(
            given.scenario,
            given.seed,
            given.bug,
            plan=given.plan,
            tell=lambda line: click.echo(line, err=True),
        )
    if not result.violations:
        click.echo(f"seed {given.seed} of {given.scenario} breaks no promise: nothing to shrink", err=True)
    for line in (*told.begins(plan), *readable(plan.steps)):
        click.echo(line)
    for violation in result.violations:
        click.echo(f"{violation.checker}: {violation.text}")
    _end(bool(result.violations), given.bug, (_schedule(result), schedule))


def _schedule(result: Result) -> dict[str, Any]:
    return {
        "scenario": result.scenario,
        "seed": result.seed,
        "bug": result.bug,
        "commit": named(),
        "plan": result.plan,
    }


def _replay(given: _Given, schedule: Path | None, history: Path | None, out: Path | None) -> None:
    written = io.StringIO()
    legend: list[str] = []
    events: list[HistoryEvent] = []
    names: dict[str, str] = {}
    _say_planted(given.bug)

    def keep(run: Story) -> None:
        legend.extend((*told.begins(run.plan), *told.who_is_who(run)))
        events.extend(told.happened(run))
        names.update(told.addresses(run))
        History(run.cluster.changes.among(run.history)).write(written)

    with quietly():
        result = given.run(keep)
    code = named()
    click.echo(f"{result.scenario}, seed {result.seed}, code {code}")
    for line in (*legend, *told.lines(events, result.violations, names)):
        click.echo(line)
    for violation in result.violations:
        click.echo(f"{violation.checker}: {violation.text}")
    click.echo(f"trace {result.trace}, {result.virtual_s:.1f} virtual s in {result.wall_s:.2f} s")
    found = {"commit": code} | summary([result], result.wall_s)
    results = (_schedule(result), schedule), (found, out), (written.getvalue(), history)
    _end(bool(result.violations), given.bug, *results)


def _write(found: dict[str, Any] | str, out: Path | None) -> None:
    if out is None:
        return
    text = found if isinstance(found, str) else json.dumps(found, indent=2) + "\n"
    write_whole(out, text)
