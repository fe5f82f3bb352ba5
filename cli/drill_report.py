"""``keelmq drill report``: results of drills as one page, without outside parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from admin.exits import DONE, UNFINISHED
from admin.outfile import CannotWrite, OutFile, on_stdout, write_whole
from audit.pages import html
from audit.pages.html import ms, number
from chaos.drills import verdict
from chaos.drills.again import again
from chaos.drills.compare import COLUMNS, cell, load, measured
from chaos.drills.junit import junit
from chaos.drills.measure import COUNTS, judged_count, unjudged, why_no_result, why_unjudged
from cli import chart
from cli.chart import Axis

Results = Mapping[str, Sequence[Mapping[str, Any]]]
"""Of one side, by fault."""
TEMPLATES: Final = Path(__file__).with_name("templates")
OUTCOMES: Final = ("acked", "unknown", "failed")
PROMISES: Final = tuple(name for name in COUNTS if name not in OUTCOMES)
LEADS: Final = {"leader": "master", "follower": "slave"}
"""The tones of Controllers."""
VERDICTS: Final = {
    "broken": ("diverged", "A promise was broken."),
    "unfinished": ("unfinished", "The drill did not come to its end."),
    "not judged": ("warnings", "Not judged for losses."),
    "held, in part": ("warnings", "Nothing acknowledged is missing; some faults could not be carried out."),
    "held": ("clean", "Nothing acknowledged is missing."),
}


def _beside(path: Path) -> Path:
    if path.is_dir():
        own = path.resolve()
        return own.parent / f"{own.name or 'drills'}.html"
    return path.with_suffix(".html")


@click.command("report")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--out", type=OutFile(), help="Write the page here [FILE or folder with .html; drills.html].")
@click.option("--junit", "xml", type=OutFile(), help="Write the checks as JUnit XML, too.")
def report(files: Sequence[Path], out: Path | None, xml: Path | None) -> int:
    """Make one page of a drill's result; of several, or of a folder of them, side by side.

    Of drill run and replay it shows acknowledgements, latency, faults, roles and epochs over time; of other
    drills their times and checks. Each of several FILES is a side: a result, or a folder, as of drill matrix.

    \b
    Example: keelmq drill report run.json --out run.html
    """
    out = out or (_beside(files[0]) if len(files) == 1 else Path("drills.html"))
    try:
        if len(files) == 1 and files[0].is_file():
            result = _read(files[0])
            text, checks = page(result, str(files[0])), junit([result])
        else:
            sides = [(name, load(path)) for name, path in zip(_names(files), files, strict=True)]
            for path, (_, found) in zip(files, sides, strict=True):
                if not found:
                    raise click.UsageError(f"{path} holds no result of a drill")
            text = overview(sides)
            checks = junit(one for _, found in sides for own in found.values() for one in own)
    except (ValueError, OverflowError, KeyError, TypeError, AttributeError) as error:
        named = ", ".join(map(str, files))
        raise click.UsageError(f"{named} is no result of a drill: {why_no_result(error)}") from None
    try:
        write_whole(out, text)
        if xml is not None:
            write_whole(xml, checks)
    except CannotWrite as error:
        click.echo(f"keelmq drill report: {error}", err=True)
        return UNFINISHED
    click.echo(str(out), err=on_stdout(out, xml))
    return DONE


def _names(files: Sequence[Path]) -> list[str]:
    """What the sides are called: their paths, where two have one name."""
    names = [path.name or str(path) for path in files]
    return names if len(set(names)) == len(names) else [str(path) for path in files]


def _read(file: Path) -> Any:
    result = verdict.read_result(file)
    verdict.check_shape(result)
    return result


def overview(sides: Sequence[tuple[str, Results]]) -> str:
    """The page of several results, a column for each side. Raises KeyError or TypeError for what is none."""
    named = [(f"{name} ({_target(found)})", found) for name, found in sides]
    every = [one for _, found in named for one in _all(found)]
    words = [verdict.word(one) for one in every]
    word = next((each for each in VERDICTS if each in words), "unfinished")
    tone, headline = VERDICTS[word]
    values = {
        "word": word,
        "tone": tone,
        "headline": headline if every else "There are no results.",
        "story": f"{' beside '.join(name for name, _ in named)}: {len(every)} results",
        "numbers": [],
        "columns": list(COLUMNS.values()),
        "rows": _measures(named),
        "troubles": [_trouble(one, each) for one, each in zip(every, words, strict=True) if each != "held"],
        "queues": [row for name, found in named for row in _queues(name, found)],
        "plots": [plot for name, found in named for plot in _drawn(name, found)],
    }
    return html.page("drills.html", values, beside=TEMPLATES)


def _all(found: Results) -> list[Mapping[str, Any]]:
    return [one for _, own in sorted(found.items()) for one in own]


def _measures(named: Sequence[tuple[str, Results]]) -> list[tuple[str, str, list[str]]]:
    """A row for each fault and side."""
    rows = []
    for fault in sorted({fault for _, found in named for fault in found}):
        for name, found in named:
            side = measured(found.get(fault))
            rows.append((fault, name, [cell(side, column) for column in COLUMNS]))
    return rows


def _queues(name: str, found: Results) -> list[tuple[str, str, Any, Mapping[str, Any]]]:
    return [
        (name, str(one["scenario"]), one["seed"], queue)
        for one in _all(found)
        for queue in one.get("per_queue") or ()
    ]


def _drawn(name: str, found: Results) -> list[tuple[str, dict[str, Any]]]:
    """The drawing of a side that is one result."""
    every = _all(found)
    return [(name, _plot(one["timeline"])) for one in every if len(every) == 1 and one.get("timeline")]


def _target(found: Results) -> str:
    targets = {f"{one.get('target', 'keelmq')}{_by(one)}" for own in found.values() for one in own}
    return ", ".join(sorted(targets)) or "nothing"


def _trouble(result: Mapping[str, Any], word: str) -> tuple[str, Any, str, str]:
    """Which run it was, what came of it, and the first that shows why."""
    told = [str(one["text"]) for one in result.get("violations") or ()]
    told += verdict.ends(result)
    told += [f"{one['fault']}: {one['reason']}" for one in (result.get("faults") or {}).get("refused", ())]
    told += [why] if not told and (why := why_unjudged(result)) else []
    return str(result["scenario"]), result["seed"], word, next(iter(told), "")


def _by(result: Mapping[str, Any]) -> str:
    """Who sent and read, where that was not our own client."""
    java = result.get("java_client") or {}
    other = result.get("client", "keelmq") != "keelmq"
    return f", load by the official Java client {java.get('version', '')}".rstrip() if other else ""


def page(result: Mapping[str, Any], file: str) -> str:
    """The page of one result. Raises KeyError or TypeError for what is none."""
    word = verdict.word(result)
    tone, _ = VERDICTS[word]
    drills: Sequence[Mapping[str, Any]] = result["drills"]
    timeline = result.get("timeline")
    where = f"{result['target']}{_by(result)}"
    planted = f", the bug {result['bug']} planted" if result.get("bug") else ""
    story = f"{result['scenario']} on {where}{planted}, seed {result['seed']}: {len(drills)} drills"
    values = {
        "word": word,
        "tone": tone,
        "headline": _headline(result, word),
        "story": story if len(drills) != 1 else story[:-1],
        "numbers": _numbers(result, timeline),
        "plots": [_plot(timeline)] if timeline else [],
        "about": _about(result),
        "spans": timeline["faults"] if timeline else [],
        "queues": result.get("per_queue") or [],
        "drills": [drill | _lost(result, drill) for drill in map(dict, drills)],
        "checks": _checks(result),
        "stopped": result.get("stopped"),
        "refused": (result.get("faults") or {}).get("refused", []),
        "command": again(result, file),
    }
    return html.page("drill.html", values, beside=TEMPLATES)


def _headline(result: Mapping[str, Any], word: str) -> str:
    why = why_unjudged(result) if word == "not judged" else None
    return f"{why[0].upper()}{why[1:]}." if why else VERDICTS[word][1]


def _lost(result: Mapping[str, Any], drill: Mapping[str, Any]) -> dict[str, Any]:
    """What a drill lost; None: nobody knows."""
    alone = {**result, "drills": [drill]}
    return {} if judged_count(alone) or drill.get("lost") else {"lost": None}


def _numbers(result: Mapping[str, Any], timeline: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    known = "lost" not in unjudged(result) or result["lost_total"]
    found = [
        (ms(result["rto_p50_ms"]), "RTO p50, worst queue"),
        (ms(result["rto_p99_ms"]), "RTO p99"),
        (ms(result["rto_max_ms"]), "RTO max"),
        (number(result["lost_total"]) if known else "unknown", "RPO: acknowledged, then gone"),
        (number(result["acked_total"]), "acknowledged"),
        (number(result["unknown_total"] + result["failed_total"]), "unknown or refused"),
    ]
    if timeline:
        found.append((ms(timeline["latency_p99_ms"]), "latency p99"))
    shares = {"availability": "available while faults act", "availability_before": "available before them"}
    return found + [
        (f"{result[name]:.1%}", text) for name, text in shares.items() if result.get(name) is not None
    ]


def _about(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a page is read with later: when, of what, on what machine, and how loaded it was."""
    machine, spent = result.get("machine") or {}, result.get("spent_s") or {}
    plan = result.get("plan") or {}
    settings = [f"{name}={value}" for name, value in (plan.get("broker") or {}).items()]
    told = {
        "when": result.get("at"),
        "release": result.get("release"),
        "system": result["target"],
        "peer": " ".join(str(value) for value in (result.get("peer") or {}).values()),
        "settings": " ".join([*settings, *map(str, result.get("settings") or ())]),
        "machine": f"{machine['cpus']} CPUs, {machine['system']}" if machine else "",
        "its load (1 min)": machine.get("load_1_min"),
        "took": f"{sum(spent.values()):,.0f} s" if spent else "",
        "seed": result.get("seed"),
        "planted bug": result.get("bug"),
    }
    return [(name, str(value)) for name, value in told.items() if value not in (None, "")]


def _checks(result: Mapping[str, Any]) -> list[tuple[str, str, list[str]]]:
    """Every promise, whether it was held, and what shows that it was not."""
    # Drills without a plan, and results before 2026-11-30, name no checks.
    # One that came to no end may have counted nothing: its zeros are no zeros.
    word = verdict.NOT_JUDGED if verdict.ends(result) else verdict.HELD
    words = dict(result.get("checks") or dict.fromkeys(PROMISES, word))
    words |= dict.fromkeys(unjudged(result) & words.keys(), verdict.NOT_JUDGED)
    words |= {name: f"broken: {count}" for name, count in sorted(verdict.broken(result).items())}
    texts = verdict.said(result)
    return [(name, word, texts.get(name, [])) for name, word in words.items()]


def _plot(timeline: Mapping[str, Any]) -> dict[str, Any]:
    """Where everything of the drawing stands: one axis of time for all."""
    axis, bin_ms = Axis(0.0, timeline["until_ms"]), timeline["bin_ms"]
    top, slowest = max([1, *timeline["acks"]]), max([1.0, *timeline["latency_max_ms"]])
    return {
        "top": top,
        "bin_ms": int(bin_ms),
        "slowest": slowest,
        "acks": chart.bars(timeline["acks"], bin_ms, axis, top),
        "latency": chart.bars(timeline["latency_max_ms"], bin_ms, axis, slowest),
        "spans": [
            (*axis.wide(a, b), "bad", f"no acknowledgement for {ms(b - a)}") for a, b in timeline["gaps"]
        ],
        "lines": [],
        "rows": _rows(timeline, axis),
        "ticks": chart.ticks(axis),
    }


def _rows(timeline: Mapping[str, Any], axis: Axis) -> list[tuple[str, list[tuple[float, float, str, str]]]]:
    """A row for each kind of fault, and for the roles of each Controller and broker."""
    rows: dict[str, list[tuple[float, float, str, str]]] = {}
    for one in timeline["faults"]:
        text = f"{one['fault']} {one['node']}"
        rows.setdefault(one["fault"], []).append(_span(one, axis, "fault", text))
    for one in timeline.get("controllers", ()):
        text = f"{one['node']} {'leads' if one['role'] == 'leader' else 'follows'}, term {one['term']}"
        rows.setdefault(one["node"], []).append(_span(one, axis, LEADS[one["role"]], text))
    for one in timeline["roles"]:
        tone = one["role"] if one["role"] in ("master", "slave") else "other"
        text = f"{one['node']} {one['role']}, epoch {one['epoch']}"
        rows.setdefault(one["node"], []).append(_span(one, axis, tone, text))
    return list(rows.items())


def _span(one: Mapping[str, Any], axis: Axis, tone: str, text: str) -> tuple[float, float, str, str]:
    told = f"{text}: {one['from_ms']:.0f} to {one['to_ms']:.0f} ms"
    return (*axis.wide(one["from_ms"], one["to_ms"]), tone, told)
