"""``keelmq drill run|replay|heal``: the simulated stories on real processes."""

from __future__ import annotations

import io
import json
import os
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import click
from rich.console import Console
from rich.markup import escape

from admin import ending
from admin.exits import DONE, FAILED, UNFINISHED, WARNINGS
from admin.host.serve import loop_factory
from admin.local.layout import STATE_FILE
from admin.numbers import Number
from admin.outfile import CannotWrite, OutFile, on_stdout, write_whole
from admin.tls import client_env
from chaos import extensions
from chaos.drills import ledger as ledgers
from chaos.drills.live import stubborn, verdicts
from chaos.drills.live.disks import lied
from chaos.drills.live.healing import heal_staging
from chaos.drills.live.java_load import JAVA
from chaos.drills.live.names import OURS, SWITCH, THEIRS, TOXIPROXY
from chaos.drills.live.online import Stopped
from chaos.drills.live.scenario import CLIENTS, DrillResult, DrillSpec, run_scenario
from chaos.drills.screen import cannot_go_on, show_unfinished, show_violations, verdict
from chaos.drills.verdict import read_result
from chaos.history import History
from chaos.live import folder, leftovers, loop_disk, network
from chaos.live.ground import heal
from chaos.live.noted import DRILL, LEDGER, began, is_our_file, is_ours, is_seen, keeps, pid_namespace
from chaos.scenarios import find
from chaos.worlds.live import CannotDrill
from model.errors import ConfigError, MqError
from runtime.os_env import OsEnv

PREFIX: Final = DRILL
KEPT_AT: Final = ".at"
"""How files end that say where a drill works whose folder is kept."""

_SCALE = click.option(
    "--scale",
    type=Number(0.1, 100),
    help="Real seconds to one of the plan [1, or that of the file].",
)
_SET = click.option("--set", "settings", multiple=True, metavar="ROLE.KEY=V", help="For the cluster.")
PREVIOUS = click.option(
    "--previous",
    type=click.Path(exists=True, path_type=Path),
    help="What upgrades begin with: a source tree or a wheel [an earlier commit, of a clone].",
)
LINKS = click.option(
    "--links",
    type=click.Choice([SWITCH, TOXIPROXY]),
    default=SWITCH,
    show_default=True,
    help="What cuts links: the switch between the namespaces, or Toxiproxy.",
)
TARGET = click.option(
    "--target",
    type=click.Choice([OURS, THEIRS]),
    default=OURS,
    show_default=True,
    help="rocketmq: the real one, on this machine (needs Java).",
)
CLIENT = click.option(
    "--client",
    type=click.Choice(CLIENTS),
    default=OURS,
    show_default=True,
    help="Who sends and reads. java: the official client of RocketMQ (needs Java).",
)
EXTRAS = click.option(
    "--extras",
    is_flag=True,
    help="Ask for delayed messages, transactions, retries, offsets, topics and groups meanwhile, too.",
)
GO_ON = click.option(
    "--go-on", is_flag=True, help="Carry the plan out to its end, also when a promise is broken before."
)
_HISTORY = click.option("--history", type=OutFile(), help="Write every send and read (JSON lines).")
_LEDGER = click.option(
    "--ledger",
    type=OutFile(),
    help="Write what was acknowledged, for keelmq audit (JSON lines, or .parquet).",
)
_KEEP = click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False),
    help="Make the cluster in this new folder, and leave its stores and logs there.",
)
_JSON = click.option("--json", "out", type=OutFile(), help="Write the result here (- = stdout).")


@dataclass(frozen=True, slots=True)
class Outs:
    """Where a run's traces go. Raises ConfigError, UsageError."""

    history: Path | None
    ledger: Path | None
    keep: Path | None
    json: Path | None

    def __post_init__(self) -> None:
        if self.ledger is not None:
            ledgers.check(self.ledger)
        if self.keep is not None and self.keep.exists() and any(self.keep.iterdir()):
            raise click.UsageError(f"--keep {self.keep}: there is something already")


@click.command("run")
@click.argument("scenario")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Draws the plan.")
@_SCALE
@_SET
@PREVIOUS
@LINKS
@TARGET
@CLIENT
@GO_ON
@EXTRAS
@click.option("--bug", default="", help="Plant one of drill sim --list-bugs into every server.")
@_HISTORY
@_LEDGER
@_KEEP
@_JSON
def run(
    scenario: str,
    seed: int,
    scale: float | None,
    settings: tuple[str, ...],
    previous: Path | None,
    links: str,
    target: str,
    client: str,
    go_on: bool,
    extras: bool,
    bug: str,
    **outs: Path | None,
) -> int:
    """Carry out a simulated scenario on a cluster of real processes.

    The plan is the one that drill sim draws from that seed. Exit code 1: some of its faults cannot be carried
    out on this machine. 2: a promise was broken. 3: it did not come to its end, or none of its faults could
    be carried out.

    \b
    Example:
      keelmq drill run isolated_master_confirms_nothing_its_successor_lacks --seed 3 --json run.json
    """
    if bug:
        from chaos.bugs import BUGS  # which imports the simulation

        if bug not in BUGS:
            raise click.UsageError(f"no bug {bug}; there are {', '.join(BUGS)}")
    try:
        plan = find(scenario).drawn(seed)
    except KeyError as error:
        raise click.UsageError(str(error.args[0])) from None
    return _carry_out(
        lambda: DrillSpec(
            scenario=scenario,
            seed=seed,
            plan=replace(plan, extras=plan.extras or extras),
            scale=scale or 1.0,
            settings=settings,
            previous=previous,
            links=links,
            target=target,
            client=client,
            go_on=go_on,
            bug=bug,
        ),
        _outs(**outs),
    )


@click.command("replay")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_SCALE
@click.option("--go-on/--stop", default=None, help="Whether to carry it out to its end [as the file says].")
@_HISTORY
@_LEDGER
@_KEEP
@_JSON
def replay(file: Path, scale: float | None, go_on: bool | None, **outs: Path | None) -> int:
    """Carry out the plan of a result again, or one that drill sim wrote, on real processes.

    The faults, their times and the load are the same; what processes and the machine do between them is not.
    In virtual time: drill sim --replay FILE.

    \b
    Example:
      keelmq drill replay run.json --json again.json
    """
    try:
        data = read_result(file)
        extensions.load_for(str(data["scenario"]))
        if scale is not None:
            data["scale"] = scale
        if go_on is not None:
            data["go_on"] = go_on
        DrillSpec.from_json(data)
    except (ValueError, TypeError, KeyError) as error:
        raise click.UsageError(f"{file} is no result of a run: {error}") from None
    except CannotDrill:
        pass  # said below, as for a scenario
    return _carry_out(lambda: DrillSpec.from_json(data), _outs(**outs))


@click.command("heal")
@click.argument("directory", required=False, type=click.Path(exists=True, path_type=Path, file_okay=False))
@click.option(
    "--hosts",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Have every server of this staging cluster run again, delete drills' topics there; nothing else.",
)
def heal_(directory: Path | None, hosts: Path | None) -> int:
    """End what a drill left that was killed: processes, namespaces, mounts, tracers.

    Without DIRECTORY: of every drill under the folder for temporary files whose process is gone, and every
    server of a drill that none looks after.

    \b
    Example: keelmq drill heal
    """
    if hosts is not None:
        return heal_staging(hosts)
    if directory is not None:
        try:
            heal_place(directory)
        except RuntimeError as error:
            click.echo(str(error), err=True)
            return UNFINISHED
        return DONE
    code = DONE
    for place, notes in _places().items():
        try:
            _heal_known(place, notes)
        except RuntimeError as error:
            click.echo(str(error), err=True)
        except (MqError, OSError) as error:
            click.echo(f"{place} could not be healed: {error}", err=True)
            code = UNFINISHED
    _end_leftovers()
    return code


def _heal_known(place: Path, notes: list[Path]) -> None:
    """A folder that a drill made, or that ``notes`` name. Raises as ``heal_place``, and MqError."""
    if place.exists() and not is_ours(place):
        click.echo(f"{place} is another user's: left alone", err=True)
        return
    if any((place / name).exists() for name in (STATE_FILE, LEDGER)) or folder.is_forgotten(place):
        heal_place(place)
    elif notes and _was_removed(place, notes):
        click.echo(f"{place} was removed: nothing to do")
    else:
        for note in notes:
            click.echo(f"{place} holds no cluster now: {note} stays until it does", err=True)
        return
    for note in notes:
        note.unlink(missing_ok=True)


def heal_place(place: Path, tell: Callable[[str], object] = click.echo) -> None:
    """Raises RuntimeError when its drill still runs, MqError, OSError."""
    if folder.is_forgotten(place):
        folder.remove(place)
        tell(f"{place}: removed what was empty")
        return
    left = (place / LEDGER).exists() and not keeps(place)
    done = heal(place, removes=left and place.name.startswith(PREFIX))
    tell(f"{place}: {', '.join(done) or 'nothing to do'}")


def _places() -> dict[Path, list[Path]]:
    """Where drills of this machine may have left something: the folders that they made, and those that they
    were told to keep. With each: the notes of drills that ended, which say so."""
    own = Path(tempfile.gettempdir())
    found: dict[Path, list[Path]] = {place: [] for place in sorted(own.glob(f"{PREFIX}*")) if is_ours(place)}
    for note in sorted(own.glob(f"{PREFIX}*{KEPT_AT}")):
        if (told := _noted(note)) is not None:
            gone = is_seen(told.pid_namespace) and began(told.pid) != told.began
            found.setdefault(told.place, []).extend([note] if gone else [])
    return found


class Kept(NamedTuple):
    """What a drill noted of itself whose folder is kept. ``device``: of the file system that it lies on."""

    pid: int
    began: int
    pid_namespace: int
    device: int
    place: Path


def _noted(note: Path) -> Kept | None:
    """None: that is somebody else's, or no such note."""
    try:
        if not is_our_file(note):
            return None
        *numbers, at = note.read_text(encoding="utf-8").split(" ", 4)
        pid, since, namespace, device = map(int, numbers)
        return Kept(pid, since, namespace, device, Path(at))
    except (OSError, ValueError):
        return None


def _was_removed(place: Path, notes: Iterable[Path]) -> bool:
    """Whether a folder is not there, and the file system that it lay on is: else that may come back."""
    kept = filter(None, map(_noted, notes))
    return not os.path.lexists(place) and any(one.device == _device(place) for one in kept)


def _device(place: Path) -> int:
    """Of the file system that a folder lies on, or would if it were made."""
    return next(at for at in (place, *place.parents) if at.exists()).stat().st_dev


@contextmanager
def _findable(keep: Path) -> Iterator[Path]:
    """Note where a drill works that keeps its folder: who heals looks there, too."""
    # A name that nobody can foretell, and put a link there.
    file, name = tempfile.mkstemp(prefix=PREFIX, suffix=KEPT_AT)
    note = Path(name)
    with os.fdopen(file, "w", encoding="utf-8") as out:
        pid, at = os.getpid(), keep.resolve()
        out.write(f"{pid} {began(pid)} {pid_namespace()} {_device(at)} {at}")
    try:
        yield keep
    finally:
        note.unlink(missing_ok=True)


def _end_leftovers() -> None:
    """Trials of processes that are gone, and servers whose drill ended, and its directory, without them."""
    for name in network.sweep():
        click.echo(f"removed namespace {name}")
    for name in loop_disk.sweep(Path(tempfile.gettempdir())):
        click.echo(f"removed the trial disk {name}")
    forgotten = leftovers.found(Path(tempfile.gettempdir()) / PREFIX)
    leftovers.end(forgotten)
    for place, count in Counter(forgotten.values()).items():
        click.echo(f"{place}: ended {count} servers that no drill looked after")


def _outs(*, history: Path | None, ledger: Path | None, keep: Path | None, out: Path | None) -> Outs:
    return Outs(history, ledger, keep, out)


def _carry_out(ask: Callable[[], DrillSpec], outs: Outs) -> int:
    console = Console(stderr=on_stdout(outs.json, outs.history, outs.ledger))
    try:
        spec = ask()
        told = carried_out(spec, console, outs.keep)
    except ConfigError:
        raise
    except MqError as error:
        cannot_go_on(console, error)
        return UNFINISHED
    show(console, spec, told)
    code = exit_code(told)
    if code == DONE and spec.bug:
        click.echo(f"keelmq drill: the planted bug {spec.bug} was not found", err=True)
        code = UNFINISHED
    try:
        missing = _write(told, spec, outs)
    except Exception:  # noqa: BLE001 - ours to mend; a broken promise stays one
        traceback.print_exc()
        return FAILED if code == FAILED else UNFINISHED
    for why in missing:
        click.echo(f"keelmq drill: {why}", err=True)
    return (code or UNFINISHED) if missing else code


def _write(told: DrillResult, spec: DrillSpec, outs: Outs) -> list[str]:
    """The small one first: there may be no room for the others. Each is tried by itself; what could not be
    written, and why."""
    writers: list[tuple[Path | None, Callable[[Path], None]]] = [
        (outs.json, lambda path: write_whole(path, json.dumps(told.to_json(spec)) + "\n")),
        (outs.history, lambda path: write_history(told.history, path)),
        (outs.ledger, lambda path: ledgers.write(told.history, path)),
    ]
    missing = []
    for path, write in writers:
        try:
            if path is not None:
                write(path)
        except (CannotWrite, OSError) as error:
            missing.append(str(error) if str(path) in str(error) else f"{path} was not written: {error}")
    return missing


def write_history(history: History, path: Path) -> None:
    """Raises CannotWrite."""
    lines = io.StringIO()
    history.write(lines)
    write_whole(path, lines.getvalue())


def carried_out(spec: DrillSpec, console: Console, keep: Path | None = None) -> DrillResult:
    """One plan on a cluster of its own, in a directory that is removed after, or in ``keep``. Raises
    MqError."""
    # A signal cancels the run while there is one: what comes before and after it, none may cut.
    place = folder.made(partial(click.echo, err=True)) if keep is None else _findable(keep)
    with ending.in_order(), ending.uncut(), place as own:
        return ending.run(_run(spec, own, console, keep is not None), loop_factory())


async def _run(spec: DrillSpec, own: Path, console: Console, keep: bool) -> DrillResult:
    with console.status(escape(f"in {own}")) as status:
        return await run_scenario(
            client_env(seed=spec.seed),
            spec,
            own,
            env_of=partial(env_of_client, spec.seed),
            tell=lambda text: status.update(escape(f"{text} (in {own})")),
            keep=keep,
        )


def env_of_client(seed: int, index: int) -> OsEnv:
    """Each client's own chance, else two clients would invent the same names."""
    return client_env(seed=seed * 1_000_003 + index)


def exit_code(told: DrillResult) -> int:
    """As of every drill; 1 when faults of the plan were refused, or one of its kinds never struck, and
    nothing else was wrong."""
    if told.drill.violated or told.drill.violations:
        return FAILED
    if told.drill.unfinished is not None:
        return UNFINISHED
    return WARNINGS if told.outcome.refused or told.untried else DONE


def _show_clients(console: Console, spec: DrillSpec, told: DrillResult) -> None:
    """Whose client it was, and those that ignore routes."""
    if spec.client == JAVA and (java := told.java_client):
        text = f"sent and read by the official Java client {java['version']}: its group was given"
        sure = f"times are true to {java['clock_error_ms']:g} ms"
        console.print(
            f"{text} {java['received']:,}, committed {java['committed']:,} times; {sure}", highlight=False
        )
    aside = stubborn.counted(told.history)
    if any(aside.values()):
        others = f"{aside['unknown']:,} unknown, {aside['fail']:,} failed"
        text = f"of clients that ignore routes: {aside['ok']:,} of these acknowledged; besides {others}"
        console.print(text, highlight=False)


def show(console: Console, spec: DrillSpec, told: DrillResult) -> None:
    """What came of a run, on a screen."""
    drill, outcome = told.drill, told.outcome
    done = ", ".join(f"{name} {count}" for name, count in sorted((+outcome.done).items())) or "none"
    planted = f", the bug {spec.bug} planted" if spec.bug else ""
    console.print(f"{spec.scenario}, seed {spec.seed}{planted}: faults {done}", highlight=False)
    if told.upgraded is not None:
        console.print("  upgraded from {} to {}".format(*told.upgraded), highlight=False, markup=False)
    for name, count in sorted(outcome.missed.items()):
        never = "; it never struck, so nothing is said of it" if name in told.untried else ""
        console.print(f"  {name}: {count} without a target, or without effect{never}", highlight=False)
    for one in outcome.refused:
        text = f"{one['fault']}: {one['reason']}"
        console.print(f"  [yellow]refused[/yellow] {escape(text)}", highlight=False)
    stall = (
        ""
        if drill.stall_ms is None
        else f"; longest time without an acknowledgement {drill.stall_ms:,.0f} ms"
    )
    liars = ", ".join(lied(told.history.events))
    said = (
        verdict(drill) if not liars else f"not judged for losses, as the disk of {liars} lied and lost power"
    )
    console.print(
        f"{drill.acked:,} acknowledged, {drill.unknown:,} unknown, {drill.failed:,} failed{stall}: {said}",
        highlight=False,
    )
    if told.extras:
        counts = ", ".join(f"{name.removeprefix('extra.')} {n}" for name, n in sorted(told.extras.items()))
        console.print(f"besides: {counts}", highlight=False)
    _show_clients(console, spec, told)
    show_violations(console, drill.violations)
    if drill.checks:
        text = verdicts.told(verdicts.words(drill.checks, told.broken))
        console.print(text, highlight=False, markup=False)
    if told.stopped is not None:
        _show_last(console, told.stopped)
    show_unfinished(console, drill.unfinished)


def _show_last(console: Console, stopped: Stopped) -> None:
    console.print(f"stopped after {stopped.at_ms:,.0f} ms, as a promise was broken; the last before it:")
    for name, lines in stopped.last.items():
        console.print(f"  [bold]{name}[/bold]", highlight=False)
        for line in lines:
            console.print(f"    {line}", highlight=False, markup=False, soft_wrap=True)
