"""``make facts`` counts what it says it counts."""

import ast
from pathlib import Path
from textwrap import dedent

import pytest

from bench import facts


def tree(root: Path, **files: str) -> facts.Facts:
    (root / "part").mkdir()
    for name, text in files.items():
        (root / "part" / f"{name}.py").write_text(dedent(text))
    return facts.measure(root, ("part",))


@pytest.mark.parametrize(
    ("body", "complexity"),
    [
        ("pass", 1),
        ("if a and b or c: pass", 4),
        ("for x in y:\n  while z: pass", 3),
        ("try: pass\nexcept OSError: pass", 2),
        ("return [x for x in y if x if z]", 4),
        ("def inner():\n  if a: pass", 1),
        ("assert a\nassert b", 1),
    ],
)
def test_complexity_counts_the_ways_through(body: str, complexity: int) -> None:
    function = ast.parse("def f():\n" + "\n".join("  " + line for line in body.split("\n"))).body[0]
    assert isinstance(function, ast.FunctionDef)
    assert facts.complexity(function) == complexity


def test_a_function_is_measured_from_def_to_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "ALLOWED", {})
    lines = "".join(f"    a{number} = 1\n" for number in range(60))
    found = tree(tmp_path, one=f"class A:\n  def f(self):\n{lines}  def g(self): pass\n")
    assert [(one.name, one.lines) for one in found.over_limit()] == [("part.one.A.f", 61)]
    assert facts.broken(found) == ["part.one.A.f is over a limit, and nothing says why"]


def test_imports_for_types_only_and_late_ones_make_circles(tmp_path: Path) -> None:
    found = tree(
        tmp_path,
        a="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  from part.b import B\n",
        b="def late():\n  from part import c\n",
        c="import part.a\n",
        d="import part.a\n",
    )
    assert found.circles == [["part.a", "part.b", "part.c"]]
    assert "these import each other: part.a <-> part.b <-> part.c" in facts.broken(found)


def test_relative_imports_and_those_by_name_make_circles(tmp_path: Path) -> None:
    for body in (
        "from . import {0}",
        "from .{0} import x",
        "from ..part import {0}",
        "import importlib\nimportlib.import_module('part.{0}')",
        "from importlib import import_module\ndef late():\n  import_module('.{0}', __package__)",
        "__import__('part.{0}')",
    ):
        where = tmp_path / str(len(list(tmp_path.iterdir())))
        where.mkdir()
        found = tree(where, __init__="", a=body.format("b"), b="from .c import x", c=body.format("a"))
        assert found.circles == [["part.a", "part.b", "part.c"]], body


def test_a_package_that_imports_what_lies_in_it_is_half_of_a_circle(tmp_path: Path) -> None:
    found = tree(tmp_path, __init__="from .a import x", a="from . import x", b="import part.a")
    assert found.circles == [["part", "part.a"]]
    (tmp_path / "two").mkdir()
    assert not tree(tmp_path / "two", __init__="from . import a", a="", b="from . import a").circles


def test_attributes_and_constructors(tmp_path: Path) -> None:
    many = "".join(f"    self.a{n} = 1\n" for n in range(16))
    fields = "".join(f"  f{n}: int\n" for n in range(17))
    found = tree(
        tmp_path,
        one=f"class A:\n  def __init__(self, a, b, c, d, e, f, g, h, *, i):\n{many}\nclass B:\n{fields}",
    )
    assert found.objects == [("part.one.A", 16)]
    assert found.records == [("part.one.B", 17)]
    assert found.constructors == [("part.one.A", 9)]
    said = facts.broken(found)
    assert "part.one.A has 16 attributes, at most 15" in said
    assert "part.one.A() has 9 parameters, at most 8" in said


def test_a_long_duplicate_counts_once_and_imports_not_at_all(tmp_path: Path) -> None:
    rows = "".join(f"a{n} = {n}\n" for n in range(12))
    imports = "".join(f"import m{n}\n" for n in range(12))
    found = tree(tmp_path, a=imports + rows, b=imports + "x = 1\n" + rows, c=rows[:20])
    assert found.duplicates == [["part/a.py:13", "part/b.py:14"]]
    assert "these are the same: part/a.py:13 = part/b.py:14" in facts.broken(found)


def test_asserts_are_per_thousand_lines(tmp_path: Path) -> None:
    assert tree(tmp_path, a="assert True\n" * 2 + "x = 1\n" * 8).asserts_per_1000() == 200


def test_this_code_base_is_counted() -> None:
    """A part of it: ``make check`` counts the whole."""
    found = facts.measure(Path(facts.__file__).parent.parent, ("model", "namesrv"))
    assert {one.name for one in found.folders} >= {"model", "model/config", "namesrv"}
    assert found.lines > 3_000
    lines = facts.text(found, {}, top=3)
    assert any(line.startswith("import circles") for line in lines)
