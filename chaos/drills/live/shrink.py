"""``keelmq drill shrink``: which of a live run's faults does its violation need? Parts of its plan run again.

Real processes never do the same twice, and each run takes a minute: a part is tried a few times, a fault goes
with what mends it, and what came after the violation is left out without a run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from admin.exits import DONE, UNFINISHED
from admin.outfile import OutFile, on_stdout, write_whole
from chaos import extensions, faults
from chaos.drills.live.commands import carried_out
from chaos.drills.live.scenario import DrillSpec
from chaos.drills.screen import cannot_go_on
from chaos.drills.simulated.shrink import readable
from chaos.drills.verdict import read_result
from chaos.faults import Step
from chaos.scenarios import Plan
from model.errors import ConfigError, MqError

ROLES: Final = ("master", "slave", "leader", "broker", "namesrv")
ON_LINKS: Final = (
    faults.Isolate,
    faults.Cut,
    faults.Partition,
    faults.SlowNetwork,
    faults.LosePackets,
    faults.DoublePackets,
    faults.ReorderPackets,
    faults.NarrowLinks,
)
"""What a heal ends."""
TAIL_MS: Final = 6000
"""The load goes on for so long after the last step: as long as a liveness check has to wait."""


def strikes(steps: Sequence[Step]) -> list[list[Step]]:
    """Each fault with what mends it, and with all else that names what it hit."""
    found: list[list[Step]] = []
    by_name: dict[str, list[Step]] = {}
    cut: list[list[Step]] = []
    for step in steps:
        if isinstance(step.fault, faults.Heal) and cut:
            parts, cut = cut, []
        else:
            parts = _each_once([by_name[name] for name in _meant(step.fault) if name in by_name])
        own: list[Step] = []
        if parts:
            own = parts[0]
            _join(parts, found, by_name, cut)
        else:
            found.append(own)
        own.append(step)
        for name in (step.bind, *_meant(step.fault)):
            if name:
                by_name[name] = own
        if isinstance(step.fault, ON_LINKS):
            cut = _each_once([*cut, own])
    return found


def _meant(fault: faults.Fault) -> list[str]:
    """The nodes that a fault tells by name: its target, and one that was bound and is cut from it."""
    other = str(getattr(fault, "other", ""))
    target = "" if fault.target in ROLES else fault.target
    return [name.removeprefix("=") for name in (target, other if other.startswith("=") else "") if name]


def _join(
    parts: Sequence[list[Step]],
    found: list[list[Step]],
    by_name: dict[str, list[Step]],
    cut: list[list[Step]],
) -> None:
    """Make one strike of several: the first takes the steps of the others, and their place."""
    first = parts[0]
    for part in parts[1:]:
        first += part
        found[:] = [one for one in found if one is not part]
        by_name.update({name: first for name, own in by_name.items() if own is part})
        cut[:] = _each_once([first if one is part else one for one in cut])


def _each_once(parts: Sequence[list[Step]]) -> list[list[Step]]:
    return list({id(part): part for part in parts}.values())


class LiveShrinking:
    """``run`` says which checks complain of a plan; ``plan`` is the smallest of which one of ``wanted`` did.
    Each part is run ``again`` times at most, all together ``runs_max`` times."""

    def __init__(
        self,
        run: Callable[[Plan], set[str]],
        plan: Plan,
        wanted: set[str],
        *,
        again: int,
        runs_max: int,
    ) -> None:
        self._run, self._wanted = run, wanted
        self._again, self._left = again, runs_max
        self.plan = plan
        self.parts = strikes(plan.steps)

    def shrink(self) -> Plan:
        """The whole first: it may fail where no part does. Then from halves down to single strikes, and again
        until nothing goes."""
        self._fails_of(self.plan)
        size = len(self.parts) // 2
        while size and self._left:
            at, dropped = 0, False
            while at < len(self.parts) and len(self.parts) > 1:
                if self._fails([*self.parts[:at], *self.parts[at + size :]]):
                    dropped = True
                else:
                    at += size
            size = min(size, len(self.parts) // 2) if dropped else size // 2
        return self.plan

    def _fails(self, parts: Sequence[list[Step]]) -> bool:
        if not parts:
            return False
        return self._fails_of(part_of(self.plan, [step for part in parts for step in part]))

    def _fails_of(self, plan: Plan) -> bool:
        for _ in range(min(self._again, self._left)):
            self._left -= 1
            if self._wanted & self._run(plan):
                self.plan, self.parts = plan, strikes(plan.steps)
                return True
        return False


def part_of(plan: Plan, steps: Sequence[Step]) -> Plan:
    """The plan with these steps only, at the distances they had, begun as soon as the whole."""
    kept = sorted(steps, key=lambda step: step.at_ms)
    early_ms = kept[0].at_ms - min(step.at_ms for step in plan.steps)
    moved = [replace(step, at_ms=step.at_ms - early_ms) for step in kept]
    load_ms = min(plan.load_ms - early_ms, moved[-1].at_ms + TAIL_MS)
    return replace(plan, steps=moved, load_ms=load_ms)


def carried(result: Mapping[str, Any], plan: Plan) -> Plan:
    """Without the steps that the run did not come to, as it was stopped."""
    told = result.get("faults") or {}
    count = sum((told.get("done") or {}).values()) + sum((told.get("missed") or {}).values())
    count += len(told.get("refused") or ())
    if not result.get("stopped") or not 0 < count < len(plan.steps):
        return plan
    return part_of(plan, plan.steps[:count])


@click.command("shrink")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--runs", type=click.IntRange(1), default=20, show_default=True, help="At most.")
@click.option("--again", type=click.IntRange(1), default=2, show_default=True, help="Runs of each part.")
@click.option("--json", "out", type=OutFile(), required=True, help="Write the smallest that failed here.")
def shrink(file: Path, runs: int, again: int, out: Path) -> int:
    """Leave out faults that a violation on real processes does not need.

    FILE is a result of drill run, replay or matrix with a violation; its plan, then parts of it, are run
    again on real processes, until no smaller one breaks the same promise. Exit code 3: neither did so. What
    drill sim --schedule wrote is shrunk by drill sim --replay FILE --shrink.

    \b
    Example: keelmq drill shrink run.json --json small.json
    """
    spec, result, wanted = _read(file)
    console, aside, smallest = Console(stderr=True), on_stdout(out), ""

    def run(plan: Plan) -> set[str]:
        nonlocal smallest
        tried = replace(spec, plan=plan)
        try:
            told = carried_out(tried, console)
        except ConfigError:
            raise
        except MqError as error:
            cannot_go_on(console, error, f"{len(plan.steps)} steps: ")
            return set()
        if broken := wanted & set(told.broken):
            smallest = json.dumps(told.to_json(tried)) + "\n"
            if not aside:
                write_whole(out, smallest)
        verdict = f"broke {', '.join(sorted(broken))}" if broken else "broke nothing of it"
        console.print(f"{len(plan.steps)} steps: {verdict}", highlight=False)
        return broken

    shrinking = LiveShrinking(run, carried(result, spec.plan), wanted, again=again, runs_max=runs)
    if len(shrinking.parts) == 1:
        console.print("one strike: there is nothing to leave out; does it break it again?", highlight=False)
    left = shrinking.shrink()
    if not smallest:
        told = ", ".join(sorted(wanted))
        console.print(f"neither it nor a part of it broke {told} again", highlight=False)
        return UNFINISHED
    for line in readable(left.steps):
        click.echo(line, err=aside)
    if aside:
        write_whole(out, smallest)
    else:
        click.echo(f"keelmq drill replay {out}")
    return DONE


def _read(file: Path) -> tuple[DrillSpec, Mapping[str, Any], set[str]]:
    """Raises UsageError for a file without a plan or without a violation."""
    try:
        result = read_result(file)
        extensions.load_for(str(result["scenario"]))
        spec = DrillSpec.from_json(result)
        wanted = {name for name, count in (result.get("broken") or {}).items() if count}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise click.UsageError(f"{file} is no result of a run: {error}") from None
    if not wanted:
        raise click.UsageError(f"{file}: no promise was broken there")
    return replace(spec, go_on=False), result, wanted
