"""What do official clients and tools see here, and beside it at RocketMQ? Writes docs/compatibility.md.

    python -m tests.interop.compatibility               the page, from the markers and what was noted before
    python -m tests.interop.compatibility --junit FILE  first notes how a run ended (pytest --junitxml)
    python -m tests.interop.compatibility --codes       first reads the codes in the real broker's jars

A test says what it covers by a marker: ``covers(behaviour, client=..., sides=...)``. ``both``: the same work
at keelmq and at the real broker, and what is seen is compared. ``together``: one group, cluster or store of
both. ``cases="mqadmin"``: each case of that table (``tests/interop/answers``) is a row of its own.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from broker.service import Broker
from chaos.worlds import rocketmq
from model.codes import name_of
from model.config import BrokerConfig
from runtime.os_env import OsEnv
from tests import ROOT
from tests.interop.answers import mqadmin, wire_cases

PAGE: Final = ROOT / "docs/compatibility.md"
SEEN: Final = ROOT / "docs/results/compatibility.json"
CODES: Final = ROOT / "tests/golden/broker_codes.json"
TESTS: Final = ROOT / "tests/interop"

SIDES: Final = ("both", "keelmq", "real", "together")
NO_BEHAVIOUR: Final = {
    "test_stock_producer::test_only_lines_of_the_producer_are_sends": "of a test's own helper",
    "test_migration::test_a_ledger_has_what_the_producer_was_told": "of a test's own helper",
}
"""Tests that say nothing about a client."""
TABLES: Final[dict[str, list[str]]] = {
    "mqadmin": [case.name for case in mqadmin.CASES],
    "wire": [case.name for case in wire_cases.CASES],
}
"""What ``cases`` of a marker names: a row each."""

REASONS: Final = {
    513: "static topics map logical queues to queues of many groups, and a broker of RocketMQ rewrites sends,"
    " pulls and offsets by that map, or hands them to another group's broker; a keelmq group serves its own"
    " queues alone",
}
"""Why keelmq's broker refuses a code that the real one answers, with REQUEST_CODE_NOT_SUPPORTED (3)."""


@dataclass(frozen=True, slots=True)
class Row:
    """What one test, or one case of it, covers."""

    test: str  # file::function, or file::function[case]
    behaviour: str
    client: str
    sides: str


def rows() -> list[Row]:
    """In the order of files and tests. Raises ValueError for a test that says nothing, or nonsense."""
    found = []
    for path in sorted(TESTS.glob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                name = f"{path.stem}::{node.name}"
                if name not in NO_BEHAVIOUR:
                    found += _rows(name, node)
    return found


def _rows(name: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[Row]:
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.covers":
            said = {word.arg: ast.literal_eval(word.value) for word in decorator.keywords}
            row = Row(name, ast.literal_eval(decorator.args[0]), said["client"], said["sides"])
            if row.sides not in SIDES:
                raise ValueError(f"{name}: sides is one of {', '.join(SIDES)}")
            if "cases" not in said:
                return [row]
            return [
                replace(row, test=f"{name}[{case}]", behaviour=f"{row.behaviour}: {case}")
                for case in TABLES[said["cases"]]
            ]
    raise ValueError(f"{name} does not say what it covers: @pytest.mark.covers(...), or NO_BEHAVIOUR")


def outcomes(junit: Path) -> dict[str, str]:
    """How each test of a run ended; of one with many cases the worst, unless each is a row."""
    worst = ("passed", "skipped", "failed")
    alone = {row.test for row in rows() if row.test.endswith("]")}
    found: dict[str, str] = {}
    for case in ElementTree.parse(junit).iter("testcase"):
        package, _, file = str(case.get("classname")).rpartition(".")
        if package != "tests.interop":
            continue
        name = f"{file}::{case.get('name')}"
        if name not in alone:
            name = name.partition("[")[0]
        ended = "passed"
        if case.find("failure") is not None or case.find("error") is not None:
            ended = "failed"
        elif case.find("skipped") is not None:
            ended = "skipped"
        found[name] = max(found.get(name, "passed"), ended, key=worst.index)
    return found


def note(seen: dict[str, Any], ended: dict[str, str], commit: str, date: str) -> dict[str, Any]:
    """``seen`` with the outcomes of a run; a test that was skipped keeps what was seen of it before."""
    fresh = {name: how for name, how in ended.items() if how != "skipped" or name not in seen}
    new = {name: {"ended": how, "commit": commit, "date": date} for name, how in fresh.items()}
    return dict(sorted({**seen, **new}.items()))


def answered() -> set[int]:
    """The codes that a broker of keelmq answers, from its own table."""
    with tempfile.TemporaryDirectory() as directory:
        broker = Broker(OsEnv(), BrokerConfig(store_path=directory, namesrv_addr="127.0.0.1:1"))
        return set(broker.processors.handlers)


def of_the_original() -> dict[int, str]:
    """Code -> name: what the broker of RocketMQ answers."""
    return {int(code): name for code, name in json.loads(CODES.read_text()).items()}


def page(table: list[Row], seen: dict[str, Any], ours: set[int], theirs: dict[int, str]) -> str:
    lines = [
        "# What official clients and tools see",
        "",
        "<!-- Written by `python -m tests.interop.compatibility`; a test holds it to the markers. -->",
        "",
        f"RocketMQ {rocketmq.VERSION} is the other side. *both*: the same work at keelmq and at the real"
        " broker, and what is seen is compared.",
        "*together*: one group, cluster or store of both systems. `make interop` notes how each test ended;",
        "*not noted* means that no run of it was. Failed and passed are those of the whole test, so of both"
        " sides.",
        "",
        f"{len(table)} behaviours, {len({row.test.partition('[')[0] for row in table})} tests.",
        "",
        "| behaviour | client | where | RocketMQ | keelmq | test |",
        "|---|---|---|---|---|---|",
    ]
    for row in table:
        ended = _ended(seen.get(row.test))
        real, keelmq = (
            ended if row.sides != "keelmq" else "–",
            ended if row.sides != "real" else "–",
        )
        lines.append(f"| {row.behaviour} | {row.client} | {row.sides} | {real} | {keelmq} | `{row.test}` |")
    return "\n".join([*lines, *_differences(), *_codes(ours, theirs)]) + "\n"


def _differences() -> list[str]:
    """What of mqadmin's output, and of answers, is not compared, and why."""
    found: dict[tuple[str, str], list[str]] = {}
    for case in mqadmin.CASES:
        for differ in case.differs:
            found.setdefault((differ.line, differ.why), []).append(case.name.partition(",")[0])
    return [
        "",
        "## What differs, and why",
        "",
        "Of each mqadmin command every line is compared after the same work, without addresses, ids and",
        "times; refusals by their code. These lines differ, or what stands in brackets of them:",
        "",
        "| commands | lines | why |",
        "|---|---|---|",
        *(
            f"| {', '.join(dict.fromkeys(commands))} | `{_in_a_cell(line)}` | {why} |"
            for (line, why), commands in found.items()
        ),
        "",
        "Answers on the wire that differ:",
        "",
        "| request | why |",
        "|---|---|",
        *(f"| {_in_a_cell(name)} | {why} |" for name, why in wire_cases.DIFFERS.items()),
        "",
        "The SQL92 expressions of consumers (`config/consumerFilter.json`) are kept and shown (code 321) as",
        "in RocketMQ, each with its bits of a bloom filter. The filters themselves",
        "(`enableCalcFilterBitMap`, off by default) would lie in ConsumeQueueExt, which keelmq does not",
        "have. RocketMQ also chooses by the kept expression: a group that comes back within 24 hours with a",
        "subscription of an older version gets what its former one takes; here, what it wants.",
        "",
        "A transaction whose topic was deleted since is not committed before the topic is there again (17):",
        "RocketMQ answers OK, and who makes the topic anew finds the message. Here what a topic held before",
        "it was deleted is for nobody. The producer is asked on, and what is given up can be resumed.",
        "",
        "A NOTIFICATION (200054) says that there is something whatever the consumer's expression takes:",
        "RocketMQ 5.5 looks (`useMessageFilterForNotification`), here the pop that follows finds nothing.",
        "An operator's reset of offsets stands until the group reads from there, also at a new master, and",
        "commits of before are not noted. Who pulls from elsewhere after 10 s, or on another connection, is",
        "told again, three times in all; 30 s after the last, commits count again. RocketMQ forgets it with",
        "the first pull, or its master: what a Java client of 4.9 commits in the next 10 s undoes it, and so",
        "does an answer that got lost.",
        "A client whose consumer group was deleted keeps its connection while it beats; RocketMQ closes it",
        "after two minutes.",
    ]


def _in_a_cell(text: str) -> str:
    return text.replace("|", "\\|")


def _ended(found: dict[str, str] | None) -> str:
    return "not noted" if found is None else f"{found['ended']} {found['date']}"


def _codes(ours: set[int], theirs: dict[int, str]) -> list[str]:
    refused = sorted(set(theirs) - ours)
    return [
        "",
        "## Request codes of the broker",
        "",
        f"The broker of RocketMQ {rocketmq.VERSION} answers {len(theirs)} codes (read from its classes),"
        f" keelmq's {len(set(theirs) & ours)} of them.",
        "Of parts that are off in RocketMQ with its default configuration, too (queues and tables in",
        "RocksDB, cold data control, the RocksDB engine of timers, lite topics), the answers are those",
        "of that configuration: what differs stands above. Topics with `message.type=LITE` are refused,",
        "and a subscription to lite topics is told that the quota is used up (2018), as with",
        "`maxLiteSubscriptionCount=0`. Cold reads are neither counted nor held back: limits of groups",
        "are kept and shown. The other code is refused with REQUEST_CODE_NOT_SUPPORTED (3):",
        "",
        "| code | name | why |",
        "|---|---|---|",
        *(f"| {code} | {theirs[code]} | {REASONS[code]} |" for code in refused),
        "",
        "Answered:",
        "",
        "| code | name |",
        "|---|---|",
        *(f"| {code} | {theirs[code]} |" for code in sorted(set(theirs) & ours)),
        "",
        "Answered beside these, RocketMQ 4.9's ACL 1.0 and keelmq's own among its parts: "
        + ", ".join(f"{code} {name_of(code)}" for code in sorted(ours - set(theirs)))
        + ".",
    ]


def read_codes() -> dict[int, str]:
    """The codes that the real broker answers, with their names: from the classes in its jars."""
    jars = f"{rocketmq.fetch()}/*"

    def javap(name: str, *how: str) -> str:
        line = ["javap", *how, "-p", "-cp", jars, f"org.apache.rocketmq.{name}"]
        return subprocess.run(line, capture_output=True, text=True, check=True, timeout=300).stdout

    said = javap("remoting.protocol.RequestCode", "-constants")
    names = {int(code): name for name, code in re.findall(r"int (\w+) = (-?\d+);", said)}
    found: set[int] = set()
    pushed = 0
    for line in _method(javap("broker.BrokerController", "-c"), "void registerProcessor()").splitlines():
        constant = re.search(r"(?:[sb]ipush\s+|// int )(\d+)", line)
        if constant is not None:
            pushed = int(constant[1])
        elif "registerProcessor:(I" in line:
            found.add(pushed)
    switch = _method(javap("broker.processor.AdminBrokerProcessor", "-c"), "RemotingCommand processRequest(")
    table = switch[switch.index("lookupswitch") : switch.index("default:")]
    found |= {int(code) for code in re.findall(r"\n\s+(\d+): \d+", table)}
    return {code: names[code] for code in sorted(found)}


def _method(text: str, head: str) -> str:
    """The byte code of the one method whose line holds ``head``."""
    begin = text.index(head)
    end = text.find("\n\n", begin)
    return text[begin : end if end > 0 else None]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--junit", type=Path)
    parser.add_argument("--codes", action="store_true")
    asked = parser.parse_args(arguments)
    if asked.codes:
        CODES.write_text(json.dumps({str(c): n for c, n in read_codes().items()}, indent=0) + "\n")
    seen = load_seen()
    if asked.junit is not None:
        head = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
        )
        today = datetime.now(UTC).date().isoformat()
        seen = note(seen, outcomes(asked.junit), head.stdout.strip(), today)
        SEEN.write_text(json.dumps(seen, indent=1) + "\n")
    PAGE.write_text(page(rows(), seen, answered(), of_the_original()))
    return 0


def load_seen() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SEEN.read_text()) if SEEN.exists() else {}
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
