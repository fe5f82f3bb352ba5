"""``keelmq drill matrix``: kinds of faults by modes of replication on real processes, counted in one table.

A directory keeps one result for each run, as ``drill run --json`` writes them; the same command once more
carries out only those that are missing.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from admin.exits import DONE, FAILED, UNFINISHED, WARNINGS
from admin.numbers import Number
from admin.outfile import OutFile, on_stdout, write_whole
from chaos.drills.junit import junit
from chaos.drills.live.commands import (
    CLIENT,
    EXTRAS,
    GO_ON,
    LINKS,
    PREVIOUS,
    TARGET,
    carried_out,
    exit_code,
    show,
)
from chaos.drills.live.counted import Counted, ms, pair, releases, share
from chaos.drills.live.scenario import OURS, DrillResult, DrillSpec
from chaos.drills.measure import COUNTS, PROMISES, Drill, why_no_result
from chaos.drills.screen import cannot_go_on
from chaos.scenarios.matrix import KINDS, MODES, MODES_OF, THEIR_MODES, plan
from model.errors import ConfigError, MqError

NAME: Final = "matrix/{}/{}"
HEAD: Final = (
    "| fault | mode | runs | strikes | without a target | skipped | not finished | acknowledged | lost "
    "| order violations | offsets twice | two masters | other violations | available | worst stall, ms |"
)


@click.command("matrix")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--kinds", default=",".join(KINDS), show_default=True, help="Kinds of faults, by commas.")
@click.option("--modes", help=f"Modes of replication, by commas [{','.join(MODES)}].")
@click.option("--count", type=click.IntRange(1), default=1, show_default=True, help="Runs of each pair.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Of the first run.")
@click.option("--strikes", type=click.IntRange(1), default=4, show_default=True, help="Faults in each run.")
@click.option("--limit", "limit_s", type=Number(0), help="Begin no run after so many seconds.")
@PREVIOUS
@LINKS
@TARGET
@CLIENT
@GO_ON
@EXTRAS
@click.option("--histories", is_flag=True, help="Keep every history, not only those of violations.")
@click.option("--markdown", type=OutFile(), help="Write the table here [stdout].")
@click.option("--junit", "xml", type=OutFile(), help="Write every run's checks as JUnit XML, too.")
def matrix(
    directory: Path,
    kinds: str,
    modes: str | None,
    count: int,
    seed: int,
    strikes: int,
    limit_s: float | None,
    previous: Path | None,
    links: str,
    target: str,
    client: str,
    go_on: bool,
    extras: bool,
    histories: bool,
    markdown: Path | None,
    xml: Path | None,
) -> int:
    """Strike a cluster by each kind of fault in each mode of replication, and count what came.

    DIRECTORY keeps the result of each run; the same command once more carries out those that are missing.
    Exit code: the worst of the runs, also of those that were kept.

    \b
    Example: keelmq drill matrix results --kinds kill,pause,partition --count 3 --markdown live.md
    """
    known = MODES_OF[target]
    wanted = _names(kinds, KINDS, "kind")
    chosen = list(known) if modes is None else _names(modes, known, "mode")
    directory.mkdir(parents=True, exist_ok=True)
    console, begun_s, code = Console(stderr=True), time.monotonic(), DONE
    for kind, mode, number in _cells(wanted, chosen, range(seed, seed + count)):
        path = directory / f"{kind}-{mode}-{number}.json"
        if path.exists():
            continue
        if limit_s is not None and time.monotonic() - begun_s > limit_s:
            code = worse(code, UNFINISHED)
            break
        name = NAME.format(kind, mode)
        spec = DrillSpec(
            scenario=name,
            seed=number,
            plan=replace(plan(kind, mode, number, strikes, target), extras=extras),
            one_by_one=True,
            previous=previous,
            links=links,
            target=target,
            client=client,
            go_on=go_on,
        )
        code = worse(code, _one(spec, path, console, histories))
    return _counted(directory, code, markdown, xml)


def _counted(directory: Path, code: int, markdown: Path | None, xml: Path | None) -> int:
    """Write what the directory keeps as one table; the worst exit code of all."""
    results = read(directory)
    for result in results:
        code = worse(code, kept_code(result))
    if xml is not None:
        write_whole(xml, junit(results))
    text = table(results) + "\n"
    if markdown is None:
        click.echo(text, nl=False, err=on_stdout(xml))
    else:
        write_whole(markdown, text)
    return code


def _one(spec: DrillSpec, path: Path, console: Console, histories: bool) -> int:
    """One run; its result is kept, and with a violation, or for ``histories``, its history, too."""
    try:
        told = carried_out(spec, console)
    except ConfigError:
        raise
    except MqError as error:
        cannot_go_on(console, error, f"{spec.scenario}, seed {spec.seed}: ")
        write_whole(path, json.dumps(never_began(spec, error)) + "\n")
        return UNFINISHED
    show(console, spec, told)
    write_whole(path, json.dumps(told.to_json(spec)) + "\n")
    code = exit_code(told)
    if histories or code == FAILED:
        _keep_history(told, path.with_suffix(".jsonl"))
    return code


def kept_code(result: Mapping[str, Any]) -> int:
    """The exit code of a result that a directory keeps: that of the run which left it."""
    told = [*(result.get("violations") or ()), *(result.get("broken") or ())]
    told += [one for drill in result["drills"] for one in drill.get("violations") or ()]
    if told or any(result.get(f"{name}_total") for name in PROMISES):
        return FAILED
    if result.get("unfinished_total") or any(drill.get("unfinished") for drill in result["drills"]):
        return UNFINISHED
    return WARNINGS if result.get("refused_total") else DONE


def never_began(spec: DrillSpec, error: MqError) -> dict[str, Any]:
    drill = Drill(unfinished=str(error))
    times = dict.fromkeys(("rto_p50_ms", "rto_p99_ms", "rto_max_ms"))
    return {
        **spec.to_json(),
        "drills": [asdict(drill)],
        **times,
        **{f"{name}_total": 0 for name in COUNTS},
        "unfinished_total": 1,
    }


def _keep_history(told: DrillResult, path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        told.history.write(file)


def _names(given: str, known: Mapping[str, object], what: str) -> list[str]:
    found = [name.strip() for name in given.split(",") if name.strip()]
    for name in found:
        if name not in known:
            raise click.UsageError(f"no {what} {name}; there are {', '.join(known)}")
    return found


def _cells(
    kinds: Sequence[str], modes: Sequence[str], seeds: Iterable[int]
) -> Iterator[tuple[str, str, int]]:
    """A run of each pair before the second of any: whatever time there is, all are met alike."""
    return ((kind, mode, seed) for seed in seeds for kind in kinds for mode in modes)


def worse(one: int, other: int) -> int:
    order = (DONE, WARNINGS, UNFINISHED, FAILED)
    return max(one, other, key=order.index)


def read(directory: Path) -> list[dict[str, Any]]:
    """Every result of a directory. Raises ConfigError for a file that is none."""
    found = []
    for path in sorted(directory.glob("*.json")):
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            found.append({**data, "scenario": str(data["scenario"]), "drills": list(data["drills"])})
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise ConfigError(f"{path} is no result of a drill: {why_no_result(error)}") from None
    return found


def table(results: Iterable[Mapping[str, Any]]) -> str:
    """One row for each fault and mode, in the order of the kinds; a last one for all."""
    cells: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for result in results:
        cells.setdefault(pair(result), []).append(result)
    places = {name: at for at, name in enumerate((*KINDS, *MODES, *THEIR_MODES))}
    rows = sorted(cells, key=lambda pair: (places.get(pair[0], len(places)), places.get(pair[1], 0)))
    lines = [HEAD, "|" + "---|" * HEAD.count(" | ") + "---|"]
    lines += [_row(kind, mode, cells[kind, mode]) for kind, mode in rows]
    everything = [result for results in cells.values() for result in results]
    lines.append(_row("all", "", everything))
    told = reasons(everything)
    return "\n".join([*lines, "", *told] if told else lines)


def _row(kind: str, mode: str, results: Sequence[Mapping[str, Any]]) -> str:
    found = Counted.of(results)
    values = [
        kind,
        mode,
        found.runs,
        found.strikes,
        found.missed,
        found.refused,
        found.unfinished,
        f"{found.acked:,}",
        "-" if found.lost is None else found.lost,
        found.order,
        found.twice,
        "-" if found.two_masters is None else found.two_masters,
        found.others,
        share(found.availability),
        ms(found.stall_ms),
    ]
    return f"| {' | '.join(map(str, values))} |"


def reasons(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of which releases runs are, if of several; between which releases upgrades were, why faults were
    skipped, and runs did not finish."""
    skipped: Counter[str] = Counter()
    upgraded: Counter[str] = Counter()
    lines: list[str] = []
    for result in results:
        if result.get("upgraded"):
            upgraded["from {} to {}".format(*result["upgraded"])] += 1
        for one in (result.get("faults") or {}).get("refused", ()):
            skipped[f"{one['fault']}: {one['reason']}"] += 1
        for drill in result["drills"]:
            if drill.get("unfinished"):
                why = str(drill["unfinished"]).partition("\n")[0]
                of = "" if result.get("target", OURS) == OURS else f"{result['target']} "
                lines.append(f"- not finished, {of}{result['scenario']} seed {result['seed']}: {why}")
    lines = [f"- skipped {count} times, {reason}" for reason, count in sorted(skipped.items())] + lines
    lines = [f"- {count} runs upgraded {way}" for way, count in sorted(upgraded.items())] + lines
    java = sum(result.get("client", OURS) != OURS for result in results)
    if java:
        lines = [f"- in {java} of {len(results)} runs the official Java client sent and read", *lines]
    mixed = releases(results)
    if len(mixed) > 1:
        told = ", ".join(f"{release} ({count})" for release, count in sorted(mixed.items()))
        lines = [f"- the runs are of several releases: {told}", *lines]
    return lines
