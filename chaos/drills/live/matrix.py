"""``keelmq drill matrix``: kinds of faults by modes of replication on real processes, counted in one table.

A directory keeps one result for each run, as ``drill run --json`` writes them; the same command once more
carries out only those that are missing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from admin.exits import DONE, FAILED, UNFINISHED
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
from chaos.drills.live.counted import Counted, ms, share
from chaos.drills.live.kept import kept_code, never_began, reasons, worse
from chaos.drills.live.results import NAME, pair, read
from chaos.drills.live.scenario import DrillResult, DrillSpec
from chaos.drills.screen import cannot_go_on
from chaos.scenarios.matrix import KINDS, MODES, MODES_OF, THEIR_MODES, plan
from model.errors import ConfigError, MqError

HEAD: Final = (
    "| fault | mode | runs | strikes | judged | without a target | skipped | not finished | acknowledged "
    "| lost | not judged | order violations | offsets twice | two masters | other violations | available "
    "| worst stall, ms |"
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
        found.judged,
        found.missed,
        found.refused,
        found.unfinished,
        f"{found.acked:,}",
        "-" if found.lost is None else found.lost,
        f"{found.unjudged:,}",
        found.order,
        found.twice,
        "-" if found.two_masters is None else found.two_masters,
        found.others,
        share(found.availability),
        ms(found.stall_ms),
    ]
    return f"| {' | '.join(map(str, values))} |"
