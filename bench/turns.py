"""How long does a request hold the event loop, at its limit? One row a request code.

    python bench/turns.py [--server broker|namesrv|controller] [--codes CODE,..] [--fields] [--json OUT]
        [--markdown OUT]

For each code that a broker, a NameServer or a Controller answers: the dearest well-formed request that is let
through, against tables as full as the default configuration admits. Measured is the longest piece of work
between two waits, in CPU time of the loop's thread; the median of three runs, each on its own connection.
Exit code 2 when a piece takes more than 20 ms, or a code has no case. ``--fields``: instead, each header
field of these requests with 2 MB in it, one at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from admin.host.collector import Collector  # noqa: E402
from bench.provenance import machine  # noqa: E402
from bench.turn_cases import controller, messages, namesrv, operators  # noqa: E402
from bench.turn_cases.fields import field_cases  # noqa: E402
from bench.turn_cases.filled import broker_site  # noqa: E402
from bench.turn_cases.measure import DRIVER, LIMIT_MS, Case, Pieces, Row, measured, timed  # noqa: E402
from model.codes import Request, name_of  # noqa: E402


@dataclass(frozen=True, slots=True)
class Server:
    """What is measured, and by which cases. ``site(path, share)`` runs it, its tables full to ``share``."""

    site: Callable[[Path, float], AbstractAsyncContextManager[Any]]
    cases: list[Case]


SERVERS: Final = {
    "broker": Server(broker_site, [*messages.CASES, *operators.CASES]),
    "namesrv": Server(namesrv.namesrv_site, namesrv.CASES),
    "controller": Server(controller.controller_site, controller.CASES),
}


def without_case(codes: set[int], cases: list[Case]) -> list[str]:
    """The codes a server answers that no case is for."""
    return sorted(name_of(code) for code in codes - {int(case.code) for case in cases})


async def measure(
    name: str, only: set[int], share: float, told: Callable[[Row], None], *, fields: bool = False
) -> tuple[list[Row], list[str]]:
    """The rows of one server, and the codes without a case."""
    server, pieces = SERVERS[name], Pieces()
    task = asyncio.current_task()
    assert task is not None
    task.set_name(DRIVER)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="turns-") as path:
        async with server.site(Path(path), share) as site:
            collector = Collector()
            collector.begin()
            try:
                cases = [case for case in server.cases if not only or int(case.code) in only]
                if fields:
                    cases = await field_cases(cases, site)
                with timed(pieces):
                    for case in cases:
                        rows.append(await measured(case, site, pieces))
                        told(rows[-1])
            finally:
                collector.end()
            return rows, [] if only else without_case(site.codes, server.cases)


def table(rows: list[Row]) -> list[str]:
    """The worst row of each code, the worst first."""
    worst: dict[int, Row] = {}
    for row in rows:
        if row.code not in worst or row.worst_ms > worst[row.code].worst_ms:
            worst[row.code] = row
    lines = ["| request | dearest | sent, KB | answer | answered, KB | ms |", "|---|---|---|---|---|---|"]
    for row in sorted(worst.values(), key=lambda row: (-row.worst_ms, row.code)):
        sent, got = row.sent_bytes // 1000, row.answer_bytes // 1000
        answer = row.answer.replace("|", "/")
        lines.append(
            f"| {row.name} ({row.code}) | {row.what} | {sent:,} | {answer} | {got:,} | {row.worst_ms} |"
        )
    return lines


def others(rows: list[Row]) -> list[str]:
    """What a server did by itself meanwhile, in pieces over the limit."""
    worst: dict[str, tuple[float, str]] = {}
    for row in rows:
        for name, ms in row.others.items():
            if ms > worst.get(name, (LIMIT_MS, ""))[0]:
                worst[name] = (ms, row.name)
    return [
        f"| `{name}` | {during} | {ms} |"
        for name, (ms, during) in sorted(worst.items(), key=lambda i: -i[1][0])
    ]


def page(found: dict[str, tuple[list[Row], list[str]]], where: dict[str, Any]) -> str:
    lines = [
        "# What holds the event loop, request by request",
        "",
        f"`python bench/turns.py`, commit {where['commit']}, {where['at']}, {where['cores']} cores, Python"
        f" {where['python']}, load {where['load_1min']} (shared with other work). Milliseconds are CPU time"
        " of the loop's thread, which others on the machine change little; the median of three runs.",
        "Each row is the dearest well-formed request of its code that was found, against tables as full as"
        " the default configuration admits (`bench/turn_cases/filled.py` says how full).",
    ]
    for name, (rows, lacking) in found.items():
        over = sorted({row.name for row in rows if row.worst_ms > LIMIT_MS})
        count = len({row.code for row in rows})
        lines += ["", f"## {name}: {count} codes, {len(over)} over {LIMIT_MS:.0f} ms", ""]
        lines += table(rows)
        if lacking:
            lines += ["", f"Without a case: {', '.join(lacking)}"]
        if own := others(rows):
            lines += ["", "Its own work meanwhile:", "", "| piece | during | ms |", "|---|---|---|", *own]
    return "\n".join(lines) + "\n"


def number_of(code: str) -> int:
    """Of a request code by its number or name."""
    return int(code) if code.isdigit() else int(Request[code.upper()])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server", choices=sorted(SERVERS), action="append")
    parser.add_argument("--codes", "--only", default="", help="request codes, numbers or names, with commas")
    parser.add_argument("--fields", action="store_true", help="each header field with 2 MB in it")
    parser.add_argument("--share", type=float, default=1.0, help="fill tables to this share only")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    only = {number_of(code.strip()) for code in options.codes.split(",") if code.strip()}

    def told(row: Row) -> None:
        print(
            f"{row.worst_ms:8.1f} ms  {row.name}: {row.what} -> {row.answer} [{row.where}]", file=sys.stderr
        )

    found = {}
    for name in options.server or SERVERS:
        found[name] = asyncio.run(measure(name, only, options.share, told, fields=options.fields))
    where = machine()
    text = page(found, where)
    print(text)
    if options.markdown:
        options.markdown.write_text(text, encoding="utf-8")
    if options.json:
        rows = {name: [row.to_json() for row in rows] for name, (rows, _) in found.items()}
        options.json.write_text(json.dumps({"machine": where, **rows}, indent=1) + "\n", encoding="utf-8")
    over = any(row.worst_ms > LIMIT_MS for rows, _ in found.values() for row in rows)
    return 2 if over or any(lacking for _, lacking in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
