"""What tests of pages share: a page's numbered rows, and whether the tests they name exist."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tests import ROOT


def rows(page: str, key: str) -> list[list[str]]:
    """The cells of each table row of ``docs/PAGE`` whose first cell is all ``key`` (a pattern)."""
    lines = (ROOT / "docs" / page).read_text().splitlines()
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if re.match(rf"\| {key} \|", line)
    ]


def missing_tests(table: Iterable[list[str]], folder: str) -> list[str]:
    """Tests named as `file::test` in the third cell that do not exist, and rows that name none.

    A file is one of ``folder`` unless its name begins with ``tests/``.
    """
    missing = []
    for row in table:
        named = re.findall(r"`([\w/]+)::(\w+)`", row[2])
        if not named:
            missing.append(f"{row[0]} names no test")
        for file, test in named:
            source = ROOT / f"{file if file.startswith('tests/') else f'{folder}/{file}'}.py"
            if not source.exists() or f"def {test}(" not in source.read_text():
                missing.append(f"{row[0]}: {file}::{test}")
    return missing
