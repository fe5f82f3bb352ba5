"""The promise of the pages: a Python file that one names is there."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from itertools import product
from pathlib import Path

import pytest

from bench.facts import PACKAGES
from tests import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NAME = re.compile(r"[\w*./{},-]*[\w*}]\.py\b(?!`? \((?:RocketMQ|an example)\))")
"""A page marks what is none of ours: ``run.py (an example)``, ``tool.py (RocketMQ)``."""


def files() -> list[str]:
    """Every Python file of the project, as a path that begins with ``/`` at the project's root."""
    folders = (*PACKAGES, "tests", "bench", "deploy", "docs")
    found = [*ROOT.glob("*.py"), *(path for name in folders for path in (ROOT / name).rglob("*.py"))]
    return [f"/{path.relative_to(ROOT)}" for path in found]


def spelled_out(name: str) -> list[str]:
    """``a/{b,c}.py`` names two files."""
    parts = [part.split(",") for part in re.split(r"[{}]", name)] if "{" in name else [[name]]
    return ["".join(chosen) for chosen in product(*parts)]


def missing(text: str, there: list[str]) -> list[str]:
    """Files that ``text`` names, alone or with some of their folders, that are not ``there``."""
    named = {name for found in NAME.findall(text) for name in spelled_out(found.lstrip("./"))}
    gone = [name for name in named if not any(fnmatch(path, f"*/{name}") for path in there)]
    return sorted(gone)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    assert missing(page.read_text(), files()) == []


def test_a_name_that_is_gone_is_found_however_it_is_written() -> None:
    there = ["/ha/epochs.py", "/ha/slave/follow.py", "/tests/ha/test_wire.py"]
    text = (
        "`epochs.py`, `slave/follow.py`, `ha/{epochs,core}.py`, `master.py`, `tests/ha/test_*.py`, `low.py`"
    )
    assert missing(text, there) == ["ha/core.py", "low.py", "master.py"]
    assert missing("`tool.py` (RocketMQ), `mine.py` (an example) and tool.py.", there) == ["tool.py"]
