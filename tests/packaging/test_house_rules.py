"""Rules that no linter here knows."""

import ast
from pathlib import Path

from bench import facts

ROOT = Path(__file__).parents[2]
OWNERS = {"runtime/tasks.py", "chaos/sim/loop.py"}


def test_every_task_has_an_owner() -> None:
    """ruff bans ``asyncio.create_task`` by that name; a loop's own ``create_task`` passes it by."""
    found = []
    for package in facts.PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute) and node.attr in ("create_task", "ensure_future"):
                    found.append((name, node.lineno))
    assert {name for name, _ in found} == OWNERS, [place for place in found if place[0] not in OWNERS]
