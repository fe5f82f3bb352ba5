"""The promise of docs/events.md: every event, its fields, and nothing that there is not."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from runtime.report.events import KINDS, page
from tests import ROOT

PACKAGES = ("broker", "controller", "ha", "namesrv", "store")


def added() -> Iterator[tuple[set[str], tuple[str, ...]]]:
    """(the names it may have, its fields) of each ``events.add`` with names in the code."""
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("events.add"):
                    texts = {one.value for one in ast.walk(node.args[0]) if isinstance(one, ast.Constant)}
                    fields = tuple(keyword.arg for keyword in node.keywords if keyword.arg)
                    yield {text for text in texts if isinstance(text, str)}, fields


def test_the_page_is_what_the_code_says() -> None:
    assert (ROOT / "docs" / "events.md").read_text() == page(), "python -m runtime.report.catalogue"


def test_what_is_added_is_declared_with_its_fields() -> None:
    found = [(name, fields) for names, fields in added() for name in names]
    assert len(found) >= 12
    for name, fields in found:
        assert KINDS[name].fields == fields, name


def test_what_is_declared_is_added_somewhere() -> None:
    named = {name for names, _ in added() for name in names}
    decided = (ROOT / "controller" / "elections" / "election.py").read_text()
    assert {name for name in KINDS if name not in named and f'event="{name}"' not in decided} == set()
