"""The promise of docs/pain-points.md: every test it names exists."""

from __future__ import annotations

import re
from pathlib import Path

from chaos.bugs import BUGS
from chaos.scenarios import SCENARIOS

ROOT = Path(__file__).resolve().parents[2]


def rows() -> list[list[str]]:
    page = (ROOT / "docs" / "pain-points.md").read_text()
    lines = [line for line in page.splitlines() if re.match(r"\| [A-Z]\d+ \|", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_test_a_pain_point_names_exists() -> None:
    missing = []
    for row in rows():
        named = re.findall(r"`([\w/]+)::(\w+)`", row[2])
        assert named, f"{row[0]} names no test"
        for file, test in named:
            path = ROOT / (file if file.startswith("tests/") else f"tests/ha/{file}")
            source = path.with_suffix(".py")
            if not source.exists() or f"def {test}(" not in source.read_text():
                missing.append(f"{row[0]}: {file}::{test}")
    assert missing == []


def test_every_scenario_and_planted_bug_a_pain_point_names_exists() -> None:
    for row in rows():
        for name in re.findall(r"sim `(\w+)`", row[2]):
            assert name in SCENARIOS
        for name in re.findall(r"bug `(\w+)`", row[2]):
            assert name in BUGS


def test_rows_stand_in_order_and_once() -> None:
    keys = [(row[0][0], int(row[0][1:])) for row in rows()]
    assert keys == sorted(set(keys))
