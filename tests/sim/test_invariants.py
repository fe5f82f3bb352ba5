"""A server's invariants are looked at after everything that may break them, and not more often."""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

from bench import facts
from chaos.history import History
from chaos.sim.cluster import SimCluster, WorldConfig
from chaos.sim.invariants import CHANGED_BY, METHOD, PACKAGES, PART_OF, TELLS_ITSELF
from chaos.sim.loop import BrokenInvariant
from remoting.guard import Tally
from tests import ROOT

MUTATORS = {"add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem"} | {
    "popleft",
    "remove",
    "setdefault",
    "update",
}
OTHERS_STATE = {
    # What these methods change is none of what the check reads, or it is checked where it is changed.
    "model.acl.directory.Directory": {"_changed", "_verdict"},
    "remoting.guard.Guard": {"_drop", "_end", "admit"},
    "broker.state.clients.Clients": set(),
    "broker.tables.resets.Resets": {"on_heard"},
    # Who looks takes pairs out of those that were noted, of which there may be fewer.
    "broker.tables.offsets.OffsetTable": {"_written", "mark", "version"},
    # Where an entry is written, it is the dirty queues that change, not which queues there are.
    "store.files.consume_queues.ConsumeQueues": {
        "write_out",
        "wrote_until",
        "patched",
        "take_unsynced",
        "sync_all",
        "truncate",
    },
}


def _class(name: str) -> type[Any]:
    module, _, kind = name.rpartition(".")
    found: type[Any] = getattr(importlib.import_module(module), kind)
    return found


def _roots(node: ast.AST) -> Iterator[str]:
    """``self.x.y[z]``: x."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            yield node.attr
        node = node.value


def _changed(method: ast.AST) -> set[str]:
    """Attributes of self that a method sets, or whose containers it changes."""
    found: set[str] = set()
    for node in ast.walk(method):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Delete):
            targets = node.targets
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS
        ):
            targets = [node.func.value]
        for target in targets:
            for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                found.update(_roots(part))
    return found


def _methods(kind: type[Any]) -> dict[str, ast.AST]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(tree, ast.ClassDef)
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def _calls(method: ast.AST) -> set[str]:
    return {
        node.func.attr
        for node in ast.walk(method)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "self"
    }


@pytest.mark.parametrize("name", sorted(set(CHANGED_BY) - TELLS_ITSELF))
def test_no_other_method_changes_what_is_checked(name: str) -> None:
    methods = _methods(_class(name))
    told = set(CHANGED_BY[name])
    assert told <= methods.keys()
    reached, left = set(told), list(told)
    while left:
        for called in _calls(methods[left.pop()]) & methods.keys():
            if called not in reached:
                reached.add(called)
                left.append(called)
    outside = methods.keys() - reached - {"__init__", METHOD} - OTHERS_STATE.get(name, set())
    changing = {method for method in outside if _changed(methods[method])}
    # A helper that is only called by methods that tell is told about with them.
    assert not changing, f"{sorted(changing)} of {name} change it and are not in CHANGED_BY"


@pytest.mark.parametrize("name", sorted({whole for wholes in PART_OF.values() for whole in wholes}))
def test_a_whole_checks_its_parts(name: str) -> None:
    check = _methods(_class(name))[METHOD]
    called = [
        node
        for node in ast.walk(check)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == METHOD
    ]
    assert len(called) >= sum(name in wholes for wholes in PART_OF.values())


def test_each_package_with_invariants_is_looked_through() -> None:
    holds = {
        package
        for package in facts.PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if f"def {METHOD}(self)" in path.read_text()
    }
    assert holds - {"chaos"} <= PACKAGES, "chaos is what checks, not what is checked"


def test_the_world_stops_at_a_part_that_is_checked_after_its_change() -> None:
    cluster = SimCluster(1, WorldConfig(brokers=2), History())
    node, _ = cluster.client("c0")

    async def work() -> None:
        tally = Tally(100)
        tally.total = 5  # as a mistake in ``note`` would leave it
        tally.note(None, 0)  # type: ignore[arg-type]

    async def main() -> None:
        await cluster.inside(node, work())
        await cluster.until(lambda: "not yet", 1.0)

    try:
        with pytest.raises(BrokenInvariant, match="the total is the sum"):
            cluster.loop.run_until_complete(main())
    finally:
        cluster.close()
