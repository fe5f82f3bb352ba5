"""``keelmq drill compare A B``: two runs, or two directories of runs, side by side: what became worse?

Each side is a JSON result of any drill, or a directory of them. Rows are faults; a fault that only one side
has is listed and judged by nobody. Sides may have different targets: keelmq against RocketMQ.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from admin.exits import DONE, FAILED, UNFINISHED, WARNINGS
from admin.numbers import Number
from admin.outfile import OutFile, on_stdout, write_whole
from chaos.drills import verdict
from chaos.drills.live.results import available
from chaos.drills.measure import judged_count, percentile, why_no_result
from chaos.drills.timeline import windows
from model.errors import ConfigError

UNCUT: Final = 10_000
NOTICED_MS: Final = 50.0
"""Times that differ by less are alike, whatever the ratio."""
NOTICED_SHARE: Final = 0.01
"""Of availability."""
COLUMNS: Final[Mapping[str, str]] = {
    "runs": "runs",
    "acked": "acknowledged",
    "lost": "lost",
    "broken": "other violations",
    "unfinished": "not finished",
    "unjudged": "not judged",
    "availability": "available",
    "rto_p50_ms": "RTO p50, ms",
    "rto_max_ms": "RTO max, ms",
    "latency_p99_ms": "latency p99, ms",
}


OURS: Final = "keelmq"
SAME_PROMISE: Final[Mapping[str, str]] = {"default": "master-alone", "all-ack": "default"}
"""Modes of a matrix of RocketMQ by what they promise: all members acknowledge in our default, the master
alone in its own (results older than 2026-11-29 name it so)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What one side measured of one fault; None: not measured. ``runs``: drills, those not finished too.
    ``judged``: of how many it is known whether they lost anything; ``unjudged``: of how many that finished it
    is not."""

    target: str = OURS

    runs: int
    judged: int | None = None
    unjudged: int = 0
    acked: int
    lost: int | None
    broken: int
    unfinished: int
    availability: float | None
    rto_p50_ms: float | None
    rto_max_ms: float | None
    latency_p99_ms: float | None
    in_part: int = 0
    """Of how many runs a fault was refused, or never struck."""
    windows: int = 0
    """Of how many windows availability is the share; 0: not known."""
    of_asked: bool | None = None
    """Whether RTO and availability count only where somebody asked; None: of drills without a plan."""


@click.command("compare")
@click.argument("before", type=click.Path(exists=True, path_type=Path))
@click.argument("after", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--tolerance",
    type=Number(0),
    default=0.5,
    show_default=True,
    help="By which share a time may grow.",
)
@click.option("--json", "out", type=OutFile(), help="Write both sides and what became worse here.")
@click.option("--markdown", type=OutFile(), help="Write a row for each fault and side here.")
def compare(before: Path, after: Path, tolerance: float, out: Path | None, markdown: Path | None) -> int:
    """Hold two results of drills, or two directories of results, against each other.

    Exit code 2: AFTER breaks a promise more often than BEFORE. 3: it finishes less often, or they have no
    fault in common. 1: it is slower, or less available. 0: nothing became worse.

    \b
    Example: keelmq drill compare before/ after/ --tolerance 0.3
    """
    one, other = load(before), load(after)
    sides = [(name, measured(one.get(name)), measured(other.get(name))) for name in sorted({*one, *other})]
    worse = [
        {"fault": name, "code": code, "text": text}
        for name, a, b in sides
        if a is not None and b is not None
        for code, text in regressions(a, b, tolerance)
    ]
    if not set(one) & set(other):
        worse.append({"fault": "", "code": UNFINISHED, "text": "the two have no fault in common"})
    names = (title(before, one), title(after, other))
    _show(Console(stderr=on_stdout(out, markdown)), names, sides, worse)
    if out is not None:
        rows = [{"fault": n, "before": a and asdict(a), "after": b and asdict(b)} for n, a, b in sides]
        write_whole(out, json.dumps({"sides": names, "faults": rows, "worse": worse}) + "\n")
    if markdown is not None:
        write_whole(markdown, _markdown(names, sides))
    order = (DONE, WARNINGS, UNFINISHED, FAILED)
    return max((int(str(each["code"])) for each in worse), key=order.index, default=DONE)


def regressions(before: Side, after: Side, tolerance: float) -> Iterable[tuple[int, str]]:
    """What became worse: an exit code and words. Counts are held against the number of runs."""
    counts = (("lost", FAILED), ("broken", FAILED), ("unfinished", UNFINISHED), ("unjudged", UNFINISHED))
    for name, code in counts:
        a, b = getattr(before, name) or 0, getattr(after, name) or 0
        runs, now = _runs(before, name), _runs(after, name)
        if b * max(1, runs) > a * max(1, now):
            yield code, f"{COLUMNS[name]}: {a} in {runs} runs, now {b} in {now}"
    if after.in_part * max(1, before.runs) > before.in_part * max(1, after.runs):
        yield WARNINGS, f"held in part: {before.in_part} in {before.runs} runs, now {after.in_part}"
    alike = before.of_asked == after.of_asked
    a, b = before.availability, after.availability
    if alike and a is not None and b is not None and b < a - max(NOTICED_SHARE, _by_chance(before, after)):
        yield WARNINGS, f"available: {a:.1%}, now {b:.1%}"
    # Another target's processes are set up to start at once, not to be fast.
    names = [*(["rto_p50_ms"] if alike else []), *(["latency_p99_ms"] * (before.target == after.target))]
    for name in names:
        a, b = getattr(before, name), getattr(after, name)
        if a is not None and b is not None and b > max(a * (1 + tolerance), a + NOTICED_MS):
            yield WARNINGS, f"{COLUMNS[name]}: {a:,.0f}, now {b:,.0f}"


def _by_chance(before: Side, after: Side) -> float:
    """By how much shares of so few windows may differ: two standard errors; 0 where nobody knows of how
    many."""
    if not (before.windows and after.windows):
        return 0.0
    shares = ((one.availability or 0.0, one.windows) for one in (before, after))
    return 2 * math.sqrt(sum(share * (1 - share) / count for share, count in shares))


def _runs(side: Side, name: str) -> int:
    """How many runs could have been counted for it."""
    return side.judged if name == "lost" and side.judged is not None else side.runs


def load(path: Path) -> dict[str, list[Mapping[str, Any]]]:
    """Results by fault. Raises ConfigError for what is none."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for file in sorted(path.glob("*.json")) if path.is_dir() else [path]:
        try:
            data = verdict.read_result(file)
            name = _name(data)
            verdict.check_shape(data)
            measured([data])  # a number of it may be none
            found.setdefault(name, []).append(data)
        except (ValueError, OverflowError, KeyError, TypeError, AttributeError, OSError) as error:
            raise ConfigError(f"{file} is no result of a drill: {why_no_result(error)}") from None
    return found


def _name(data: Mapping[str, Any]) -> str:
    """The fault, and of a matrix the mode by its promise."""
    name = str(data["scenario"])
    kind, _, mode = name.removeprefix("matrix/").partition("/")
    if name.startswith("matrix/") and data.get("target", OURS) != OURS:
        return f"{kind}/{SAME_PROMISE.get(mode, mode)}"
    return name.removeprefix("matrix/")


def measured(results: Sequence[Mapping[str, Any]] | None) -> Side | None:
    if results is None:
        return None
    drills = [drill for result in results for drill in result["drills"]]
    times = sorted(_known(drill.get("rto_ms") for drill in drills))
    drawn = [told for one in results if (told := one.get("timeline") or {}).keys() >= {"acks", "faults"}]
    lost = sum(verdict.broken(one)["lost"] for one in results)
    judged = sum(map(judged_count, results))
    return Side(
        target=str(results[0].get("target", OURS)),
        runs=sum(map(_runs_of, results)),
        acked=_total(results, "acked"),
        judged=judged,
        unjudged=sum(map(_unjudged, results)),
        lost=lost if judged or lost else None,
        broken=sum(map(verdict.others, results)),
        in_part=sum(verdict.word(one) == verdict.IN_PART for one in results),
        unfinished=sum(map(_unfinished, results)),
        windows=sum(map(windows, drawn)),
        of_asked=all("asked" in told for told in drawn) if drawn else None,
        availability=_mean(_known(map(available, results))),
        rto_p50_ms=percentile(times, 50),
        rto_max_ms=max(times, default=None),
        latency_p99_ms=_median(map(_latency_p99_ms, results)),
    )


def _runs_of(result: Mapping[str, Any]) -> int:
    """Its drills; one that never began has none."""
    return max(1, len(result["drills"]))


def _unjudged(result: Mapping[str, Any]) -> int:
    return 0 if verdict.ends(result) else len(result["drills"]) - judged_count(result)


def _latency_p99_ms(result: Mapping[str, Any]) -> float | None:
    told: float | None = (result.get("timeline") or {}).get("latency_p99_ms")
    return told


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _median(values: Iterable[float | None]) -> float | None:
    return percentile(sorted(_known(values)), 50)


def _unfinished(result: Mapping[str, Any]) -> int:
    """How many of its drills came to no end."""
    return max(int(result.get("unfinished_total", 0)), len(verdict.ends(result)))


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _total(results: Iterable[Mapping[str, Any]], name: str) -> int:
    return sum(int(result.get(f"{name}_total", 0)) for result in results)


def title(path: Path, results: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    targets = {str(one.get("target", "keelmq")) for own in results.values() for one in own}
    return f"{path.name} ({', '.join(sorted(targets)) or 'nothing'})"


def _show(
    console: Console,
    names: tuple[str, str],
    sides: Sequence[tuple[str, Side | None, Side | None]],
    worse: Sequence[Mapping[str, Any]],
) -> None:
    table = Table(title=f"{names[0]} | {names[1]}", title_justify="left")
    table.add_column("fault")
    for text in COLUMNS.values():
        table.add_column(text, justify="right")
    for fault, before, after in sides:
        table.add_row(fault, *(f"{cell(before, name)} | {cell(after, name)}" for name in COLUMNS))
    # A measure is cut to the screen's width, too: what the table would take is asked of a wide one.
    if console.measure(table, options=console.options.update(max_width=UNCUT)).maximum <= console.width:
        console.print(table)
    else:
        _show_narrow(console, names, sides)
    for each in worse:
        text = escape(f"{each['fault']}: {each['text']}")
        console.print(f"[red]worse[/red] {text}", highlight=False, soft_wrap=True)
    if not worse:
        console.print("nothing became worse")
    if any(a is not None and b is not None and a.of_asked != b.of_asked for _, a, b in sides):
        console.print("available and RTO are not compared: the two sides count them otherwise")


def _show_narrow(
    console: Console, names: tuple[str, str], sides: Sequence[tuple[str, Side | None, Side | None]]
) -> None:
    """A table for each fault: one for all would be cut, its numbers, too."""
    for fault, before, after in sides:
        console.print(fault, highlight=False, markup=False, soft_wrap=True)
        table = Table()
        table.add_column("")
        for name in names:
            table.add_column(escape(name), justify="right", overflow="fold")
        for name, text in COLUMNS.items():
            table.add_row(text, cell(before, name), cell(after, name))
        console.print(table)


def _markdown(names: tuple[str, str], sides: Sequence[tuple[str, Side | None, Side | None]]) -> str:
    heads = ["fault", "side", *COLUMNS.values()]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for fault, *both in sides:
        for name, side in zip(names, both, strict=True):
            lines.append(f"| {' | '.join([fault, name, *(cell(side, column) for column in COLUMNS)])} |")
    return "\n".join(lines) + "\n"


def cell(side: Side | None, name: str) -> str:
    value = None if side is None else getattr(side, name)
    if value is None:
        return "-"
    return f"{value:.1%}" if name == "availability" else f"{value:,.0f}"
