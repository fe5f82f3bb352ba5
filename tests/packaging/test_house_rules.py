"""Rules that no linter here knows."""

import ast
import functools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import facts

ROOT = Path(__file__).parents[2]
OWNERS = {"runtime/tasks.py", "chaos/sim/loop.py"}
CLOCKS = ("now", "utcnow", "today")
"""Of ``datetime`` and ``date``, which do arithmetic otherwise."""
OF_OS = ("strerror",)
"""What a simulated module may ask of ``os``: the text of an error number is the same everywhere."""
LEVELS = ("debug", "info", "warning", "error", "critical", "exception")
NAMES = ("Controller", "HA", "NameServer", "Raft", "RocketMQ", "SyncStateSet", "TLS")
"""With which a line of the log may begin; else it begins with a small letter."""
PURE_OR_SIMULATED = ("remoting", "store", "ha", "controller", "namesrv", "client", "broker")
OPENERS = ("open", "input", "__import__", "exec", "eval")


@functools.cache
def texts() -> dict[str, str]:
    """Each module of the packages by its path below ROOT."""
    paths = [path for package in facts.PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths}


def trees(pattern: str) -> Iterator[tuple[str, ast.Module]]:
    """The modules in whose text ``pattern`` is found: the others need not be parsed."""
    for name, text in texts().items():
        if re.search(pattern, text):
            yield name, ast.parse(text)


def contracts() -> dict[str, dict[str, Any]]:
    """Those of import-linter, by the first words of their names."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return {contract["name"].partition(":")[0].partition(" gets ")[0]: contract for contract in settings}


def of_machine(tree: ast.Module) -> Iterator[str]:
    """Calls by which a module takes a clock, chance or a file past every import that is banned."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in OPENERS:
            yield f"{node.lineno}: {node.func.id}()"
        if isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            clock = node.attr in CLOCKS and owner.rpartition(".")[2] in ("datetime", "date")
            if clock or (owner == "os" and node.attr not in OF_OS):
                yield f"{node.lineno}: {owner}.{node.attr}"
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            yield f"{node.lineno}: from os import"
        if isinstance(node, ast.Import | ast.ImportFrom):
            hidden = any(a.asname and a.name in ("datetime", "date", "os") for a in node.names)
            if hidden:
                yield f"{node.lineno}: {ast.unparse(node)}"


def test_every_task_has_an_owner() -> None:
    """ruff bans ``asyncio.create_task`` by that name; a loop's own ``create_task`` passes it by."""
    found = []
    for name, tree in trees("create_task|ensure_future"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in ("create_task", "ensure_future"):
                found.append((name, node.lineno))
    assert {name for name, _ in found} == OWNERS, [place for place in found if place[0] not in OWNERS]


@pytest.mark.parametrize("contract", ["decisions are pure", "what simulation runs"])
def test_no_decision_and_nothing_simulated_opens_a_file_or_reads_a_clock(contract: str) -> None:
    """lint-imports bans the modules. ``open`` needs none, and ``datetime`` and ``os`` have harmless names,
    too."""
    sources = tuple(name.replace(".", "/") for name in contracts()[contract]["source_modules"])
    within = tuple(f"{name}/" for name in sources) + tuple(f"{name}.py" for name in sources)
    assert sum(name.startswith(within) for name in texts()) >= len(sources)
    openers, clocks = "|".join(OPENERS), "|".join(CLOCKS)
    pattern = rf"(?<![\w.])({openers})\(|\b(datetime|date)\.({clocks})\b|\bos\.(?!strerror)"
    pattern += r"|from os |\b(os|date|datetime) as "
    seen = {name: list(of_machine(tree)) for name, tree in trees(pattern) if name.startswith(within)}
    assert {name: found for name, found in seen.items() if found} == {}


@pytest.mark.parametrize(
    "code",
    [
        *("open('x')", "datetime.now()", "datetime.datetime.now()", "datetime.utcnow()", "date.today()"),
        *(
            "os.urandom(8)",
            "os.getpid()",
            "from os import urandom",
            "__import__('time')",
            "f = os.open",
            "from datetime import datetime as dt",
            "import os as o",
        ),
    ],
)
def test_what_is_taken_from_the_machine_is_seen(code: str) -> None:
    assert list(of_machine(ast.parse(f"def late():\n  {code}\n")))


@pytest.mark.parametrize(
    "code", ["datetime.fromtimestamp(1)", "self.now()", "disk.open('x')", "os.strerror(5)", "env.now_ms()"]
)
def test_what_is_not_taken_from_the_machine_may_be_used(code: str) -> None:
    assert not list(of_machine(ast.parse(code)))


def test_both_contracts_ban_the_modules_of_clock_chance_network_disk_and_threads() -> None:
    banned = (
        *("time", "random", "secrets", "uuid", "socket", "ssl", "select", "selectors", "os", "io", "pathlib"),
        *("glob", "shutil", "tempfile", "mmap", "threading", "queue", "concurrent", "subprocess", "signal"),
    )
    for name in ("decisions are pure", "what simulation runs"):
        assert set(banned) <= set(contracts()[name]["forbidden_modules"])
    assert {"asyncio", "datetime"} <= set(contracts()["decisions are pure"]["forbidden_modules"])


def messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The line, and the text, of each call of a logger. ruff (G) bans those that are put together."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        text = node.args[0]
        logs = node.func.attr in LEVELS and ast.unparse(node.func.value).endswith(("log", "logger"))
        if logs and isinstance(text, ast.Constant) and isinstance(text.value, str):
            yield node.lineno, text.value


def is_said_plainly(text: str) -> bool:
    """One line, that begins as a sentence goes on, and neither ends nor shouts: it stands behind a time and a
    name."""
    begins = text.startswith(NAMES) or not text[:1].isupper()
    return begins and not text.endswith((".", "!", "\n")) and "!!" not in text and text == text.strip()


def test_what_is_logged_is_one_line_that_begins_small_and_does_not_shout() -> None:
    seen = [
        (name, line, text) for name, tree in trees(r"\blog(ger)?\.[dwiec]") for line, text in messages(tree)
    ]
    assert len(seen) > 200
    assert [one for one in seen if not is_said_plainly(one[2])] == []


@pytest.mark.parametrize("text", ["Broker died", "it died!", "it died.", "it died\n", "ERROR: it died", " x"])
def test_a_line_that_shouts_is_seen(text: str) -> None:
    tree = ast.parse(f"log.error({text!r}, broker)")
    assert [is_said_plainly(said) for _, said in messages(tree)] == [False]


def test_ruff_bans_prints_and_messages_that_are_put_together() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert {"G", "T20"} <= set(settings["select"])
    prints = {name for name, rules in settings["per-file-ignores"].items() if "T20" in rules}
    assert not [name for name in prints if name.startswith(PURE_OR_SIMULATED)]
    for name, rules in settings["per-file-ignores"].items():
        assert "G" not in rules, name


PROMISE_OF = re.compile(r"The promises? of ((?:" + "|".join(PURE_OR_SIMULATED) + r")(?:\.[a-z_]+)+)")


def test_a_test_names_the_module_whose_promise_it_is() -> None:
    """Modules move; the first line of a test says where the code is that it is about."""
    named = 0
    for path in (ROOT / "tests").rglob("test_*.py"):
        with path.open() as file:
            found = PROMISE_OF.match(file.readline().removeprefix('"""'))
        if found is not None:
            named += 1
            module = ROOT / found[1].replace(".", "/")
            assert module.is_dir() or module.with_suffix(".py").is_file(), f"{path}: no {found[1]}"
    assert named > 50
