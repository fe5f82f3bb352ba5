"""Each kind of finding that the page documents is made by the audit, and met in a test of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from audit.findings import KINDS
from tests import ROOT


def texts(node: ast.AST, *, sets: bool = False) -> Iterator[str]:
    """The text constants below ``node``. A set of kinds, which tells what belongs together, makes none."""
    if isinstance(node, ast.Set) and not sets:
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    for below in ast.iter_child_nodes(node):
        yield from texts(below, sets=sets)


def texts_of(folder: str, *but: str, sets: bool = False) -> set[str]:
    paths = [path for path in sorted((ROOT / folder).rglob("*.py")) if path.name not in but]
    return {text for path in paths for text in texts(ast.parse(path.read_text()), sets=sets)}


def test_each_kind_is_made_by_the_audit_and_met_in_a_test() -> None:
    """One that stands in ``KINDS`` and docs/audit.md alone promises what nobody looks for."""
    assert set(KINDS) - texts_of("audit", "findings.py", "causes.py") == set()
    assert set(KINDS) - texts_of("tests/audit", sets=True) == set()


def test_a_kind_in_a_set_alone_is_not_made() -> None:
    tree = ast.parse("MERGED = frozenset({'a', 'b'})\nfound = Finding('b')")
    assert (list(texts(tree)), list(texts(tree, sets=True))) == (["b"], ["a", "b", "b"])
