"""The promise of docs/chaos.md: each finding from outside names tests that exist, each script findings."""

from __future__ import annotations

import re

from chaos.model.world import Budget
from tests import ROOT
from tests.packaging.pages import missing_tests, rows


def test_every_finding_names_tests_that_exist() -> None:
    table = rows("chaos.md", r"[VS]\d+")
    assert [row[0] for row in table] == [*(f"V{n}" for n in range(1, 15)), *(f"S{n}" for n in range(1, 5))]
    assert missing_tests(table, "tests") == []


def test_every_script_leads_to_findings() -> None:
    scripts = rows("chaos.md", r"t[\d_][\w, ]*(?: \([\w, ]+\))?")
    named = {name for row in scripts for name in re.findall(r"\bt\w+", row[0])}
    assert len(named) == 13
    assert all(re.search(r"\b[VP]\d+\b", row[1]) for row in scripts)


def test_every_budget_of_the_explorer_is_explained() -> None:
    page = (ROOT / "docs" / "chaos.md").read_text().split("## Every interleaving")[1].split("## ")[0]
    explained = {name for row in re.findall(r"(?m)^\| ([a-z, ]+) \|", page) for name in row.split(", ")}
    assert set(Budget._fields) - {"starts"} <= explained
