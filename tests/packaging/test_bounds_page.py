"""The promise of docs/security.md that every table of a server is named there, with what bounds it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from model.config import BrokerConfig, ControllerConfig, NamesrvConfig
from tests import ROOT

SECTION = (
    (ROOT / "docs" / "security.md")
    .read_text(encoding="utf-8")
    .partition("## What grows, and what bounds it")[2]
    .partition("\n## ")[0]
)
SERVERS = ("broker", "namesrv", "controller", "remoting")
TABLES = {"dict", "set", "deque", "Counter", "OrderedDict", "defaultdict"}


def begins_empty(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Dict):
        return not value.keys
    if not isinstance(value, ast.Call):
        return False
    made = value.func.value if isinstance(value.func, ast.Subscript) else value.func
    return isinstance(made, ast.Name) and made.id in TABLES


def tables(text: str) -> Iterator[str]:
    """The attributes an ``__init__`` makes that begin empty and may grow."""
    for method in ast.walk(ast.parse(text)):
        if not isinstance(method, ast.FunctionDef) or method.name != "__init__":
            continue
        for step in ast.walk(method):
            if isinstance(step, ast.Assign | ast.AnnAssign) and begins_empty(step.value):
                target = step.targets[0] if isinstance(step, ast.Assign) else step.target
                if isinstance(target, ast.Attribute):
                    yield target.attr


def keeps_on_a_connection(text: str) -> bool:
    return re.search(r"\bconnection\.attributes(\[[^\]]+\] =|\.setdefault\()", text) is not None


def named() -> set[str]:
    """The files of the section; a bare name is in the folder of the one before it."""
    found, folder = set(), ""
    for path in re.findall(r"`([\w/]+\.py)`", SECTION):
        folder = path.rpartition("/")[0] or folder
        found.add(path if "/" in path else f"{folder}/{path}")
    return found


def test_each_table_of_a_server_has_its_row() -> None:
    grows = {
        path.relative_to(ROOT).as_posix()
        for server in SERVERS
        for path in (ROOT / server).rglob("*.py")
        if any(tables(text := path.read_text(encoding="utf-8"))) or keeps_on_a_connection(text)
    }
    assert len(grows) > 50
    assert grows - named() == set(), "say in docs/security.md what bounds them"


def test_what_is_kept_on_a_connection_is_found() -> None:
    assert keeps_on_a_connection('connection.attributes["session"] = 1')
    assert keeps_on_a_connection("lock = connection.attributes.setdefault(LOCK, Lock())")
    assert not keeps_on_a_connection('if connection.attributes.get("session") == 1:')


def test_what_the_section_names_is_there() -> None:
    tests = {path for path in named() if path.startswith("packaging/")}
    assert all((ROOT / "tests" / path).is_file() for path in tests)
    assert [path for path in sorted(named() - tests) if not (ROOT / path).is_file()] == []
    keys = {*BrokerConfig.keys(), *ControllerConfig.keys(), *NamesrvConfig.keys()}
    said = set(re.findall(r"`([a-z]+[A-Z]\w+)`", SECTION))
    assert len(said) > 20
    assert said - keys == set()


def test_a_table_is_found_however_it_is_made() -> None:
    text = """
class Some:
    def __init__(self):
        self.a = {}
        self.b: dict[str, int] = {}
        self.c = Counter[str]()
        self.d = deque(maxlen=3)
        self.e = {"full": 1}
        self.f = made()
        g = {}
"""
    assert list(tables(text)) == ["a", "b", "c", "d"]
