"""The promise of docs/pain-points.md: no row is missing, and every test, scenario and bug it names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from chaos.bugs import BUGS
from chaos.checks import CHECKERS
from chaos.drills.commands import TEXTS as DRILLS
from chaos.scenarios import SCENARIOS
from tests import ROOT

IDS = [
    *(f"A{number}" for number in range(1, 16)),  # data is lost, or replicas diverge
    *(f"B{number}" for number in range(16, 33)),  # writes stand still, or switches are needless
    *(f"C{number}" for number in range(33, 39)),  # disks, and the log that is a Raft log
    *(f"S{number}" for number in range(1, 12)),  # read in the source, reported by nobody
]
"""Every symptom we know of. The page numbers them through, so a row taken out leaves a hole here."""

_TERM = re.compile(r"`([^`]+)`")
_INTRODUCED = re.compile(r"\b(sim checks|sim|bug) ((?:`\w+`(?:, )?)+)")


def rows(page: str) -> list[list[str]]:
    """Number, symptom, tests, behaviour here: of each ``###`` section."""
    found = []
    for section in page.split("\n### ")[1:]:
        section = section.split("\n## ")[0]
        number, _, rest = section.partition("\n")
        texts = [" ".join(part.split()) for part in rest.split("\n\n")]
        named = {
            key: text for text in texts for key in ("**Symptom:**", "**keelmq:**") if text.startswith(key)
        }
        tests = "; ".join(line[2:] for line in rest.splitlines() if line.startswith("- "))
        found.append([number.strip(), named.get("**Symptom:**", ""), tests, named.get("**keelmq:**", "")])
    return found


@pytest.fixture(scope="module")
def page() -> str:
    return (ROOT / "docs" / "pain-points.md").read_text()


@cache
def collected(source: Path) -> frozenset[str]:
    """What pytest collects from a file: not a helper's name, nor one in a comment or a longer name."""
    if not source.exists():
        return frozenset()
    body = ast.parse(source.read_text()).body
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(f.name for f in body if isinstance(f, functions) and f.name.startswith("test_"))


def source_of(file: str) -> Path:
    return (ROOT / (file if file.startswith("tests/") else f"tests/ha/{file}")).with_suffix(".py")


def wrong_in(cell: str) -> list[str]:
    """What a cell names that does not exist, and what it names of no known kind."""
    introduced = {name: kind for kind, names in _INTRODUCED.findall(cell) for name in _TERM.findall(names)}
    known = {"sim": set(SCENARIOS), "bug": set(BUGS), "sim checks": set(CHECKERS)}
    wrong, tests, file = [], 0, None
    for term in _TERM.findall(cell):
        name, found = term, False
        if term in introduced:
            found = term in known[introduced[term]]
        elif term.startswith("keelmq drill "):
            found = term.removeprefix("keelmq drill ") in DRILLS
        elif term.startswith("tests/") and "::" not in term:
            found = bool(collected(source_of(term)))
        else:
            # A name without its file is in the file of the name before it.
            prefix, separator, name = term.rpartition("::")
            file = prefix if separator else file
            found = file is not None and name in collected(source_of(file))
            tests += found
        if not found:
            wrong.append(term)
    return wrong if tests else [*wrong, "no test"]


def test_no_row_is_missing_and_they_stand_in_order(page: str) -> None:
    assert [row[0] for row in rows(page)] == IDS
    assert all(len(row) == 4 and all(row) for row in rows(page))


def test_every_row_names_a_test_and_all_that_it_names_exists(page: str) -> None:
    wrong = {row[0]: named for row in rows(page) if (named := wrong_in(row[2]))}
    assert wrong == {}
    assert not any(len(terms) != len(set(terms)) for row in rows(page) if (terms := _TERM.findall(row[2])))


@pytest.mark.parametrize(
    ("cell", "wrong"),
    [
        ("`test_codec::test_a_handshake_of_twelve_bytes_is_waited_for`", []),
        (
            "`test_codec::test_a_handshake_of_twelve_bytes`",
            ["test_codec::test_a_handshake_of_twelve_bytes", "no test"],
        ),
        ("`tests/sim/test_lease::test_without_the_lease_it_would`, `test_gone`", ["test_gone"]),
        ("`test_without_the_lease_it_would`", ["test_without_the_lease_it_would", "no test"]),
        (
            "`tests/sim/test_lease::cut_off_and_healed`",
            ["tests/sim/test_lease::cut_off_and_healed", "no test"],
        ),
        ("`tests/sim/test_handover`", ["no test"]),
        ("sim `kill_the_master_under_load`, `gone`", ["gone", "no test"]),
        ("sim checks `lost`, `gone`; bug `gone_too`", ["gone", "gone_too", "no test"]),
        ("`keelmq drill kill-everything`", ["keelmq drill kill-everything", "no test"]),
        ("", ["no test"]),
    ],
)
def test_a_name_of_nothing_is_noticed(cell: str, wrong: list[str]) -> None:
    assert wrong_in(cell) == wrong
