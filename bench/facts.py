"""How large the parts of this code base are, counted from its syntax trees.

    python bench/facts.py [--root DIR] [--json FILE] [--top N]

    number                what is counted
    folder                Python files that lie directly in it
    function length       lines from its ``def`` to its last, docstring included
    complexity            1 + branches, loops, handlers, conditions joined by and/or, comprehensions;
                          an assert is a promise, not a branch
    attributes            names a class sets on ``self``, or the fields it declares
    constructor           parameters of ``__init__`` without ``self``
    circle                modules that import each other, however late, relatively, by ``import_module`` of
                          a name that stands there, or for types only
    duplicate block       8 or more equal lines of code in a row at two places

Exits with 1 while a function is over a limit and ``ALLOWED`` does not name it, or names too many; or while
there is a class or constructor over its limit, a circle or a duplicate block. ``make check`` asks.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

PACKAGES = (
    "model", "runtime", "remoting", "store", "ha", "controller", "namesrv",
    "client", "broker", "admin", "chaos", "audit", "cli", "keelmq",
)  # fmt: skip
ASIDE = ("tests", "bench")  # measured apart: lines and long functions only

LINES_MAX = 60
COMPLEXITY_MAX = 15
ATTRIBUTES_MAX = 15
PARAMETERS_MAX = 8
ALLOWED_MAX = 10
DUPLICATE_LINES = 8

# Functions that may pass a limit, each with its reason.
ALLOWED: dict[str, str] = {
    "broker.requests.fast_path.FastPath._frames": "what each single send pays for, in one"
    " piece: split it costs 8 to 16 % of FastPath.process",
    "chaos.sim.loop.SimLoop._run_once": "what each call of a simulated schedule pays for, in one"
    " piece: split in three, a schedule takes 2 % more instructions",
    "broker.requests.codes.handlers": "a table, a line a request code",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_BRANCHES = (
    ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.match_case,
)  # fmt: skip

_IMPORTERS = ("import_module", "__import__")


class Measured(NamedTuple):
    """A function: where it stands, how long and how branched it is."""

    name: str
    lines: int
    complexity: int


class Counted(NamedTuple):
    """Something with a name and a number."""

    name: str
    number: int


@dataclass
class Facts:
    """What one tree of packages holds; everything is sorted with the largest first."""

    folders: list[Counted] = field(default_factory=list)
    files: list[Counted] = field(default_factory=list)
    functions: list[Measured] = field(default_factory=list)
    objects: list[Counted] = field(default_factory=list)
    records: list[Counted] = field(default_factory=list)
    constructors: list[Counted] = field(default_factory=list)
    circles: list[list[str]] = field(default_factory=list)
    duplicates: list[list[str]] = field(default_factory=list)
    lines: int = 0
    asserts: int = 0

    def over_limit(self) -> list[Measured]:
        return [one for one in self.functions if one.lines > LINES_MAX or one.complexity > COMPLEXITY_MAX]

    def asserts_per_1000(self) -> float:
        return self.asserts * 1000 / self.lines if self.lines else 0.0


def measure(root: Path, packages: tuple[str, ...] = PACKAGES) -> Facts:
    """Count in ``packages`` below ``root``."""
    facts = Facts()
    trees = dict(_trees(root, packages))
    folders: dict[str, int] = defaultdict(int)
    for path, (tree, lines) in trees.items():
        where = path.relative_to(root)
        folders[str(where.parent)] += 1
        facts.files.append(Counted(str(where), lines))
        facts.lines += lines
        facts.asserts += sum(isinstance(node, ast.Assert) for node in ast.walk(tree))
        _functions(tree, _module(where), facts)
        _classes(tree, _module(where), facts)
    facts.folders = [Counted(name, files) for name, files in folders.items()]
    facts.circles = circles({_module(path.relative_to(root)): tree for path, (tree, _) in trees.items()})
    texts = {str(path.relative_to(root)): (tree, path.read_text()) for path, (tree, _) in trees.items()}
    facts.duplicates = duplicates(texts)
    for counted in (facts.folders, facts.files, facts.objects, facts.records, facts.constructors):
        counted.sort(key=lambda one: (-one.number, one.name))
    facts.functions.sort(key=lambda one: (-one.lines, one.name))
    return facts


def _trees(root: Path, packages: tuple[str, ...]) -> Iterator[tuple[Path, tuple[ast.Module, int]]]:
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            text = path.read_text()
            yield path, (ast.parse(text), text.count("\n"))


def _module(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _functions(tree: ast.AST, prefix: str, facts: Facts) -> None:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, _FUNCTIONS):
            name = f"{prefix}.{node.name}"
            facts.functions.append(Measured(name, (node.end_lineno or 0) - node.lineno + 1, complexity(node)))
            _functions(node, name, facts)
        else:
            _functions(node, f"{prefix}.{node.name}" if isinstance(node, ast.ClassDef) else prefix, facts)


def complexity(function: Function) -> int:
    """The ways through ``function``: McCabe, each ``and``/``or`` a branch; functions inside count apart."""
    count = 1
    nodes: list[ast.AST] = list(ast.iter_child_nodes(function))
    while nodes:
        node = nodes.pop()
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            continue
        if isinstance(node, _BRANCHES):
            count += 1
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            count += 1 + len(node.ifs)
        nodes.extend(ast.iter_child_nodes(node))
    return count


def _classes(tree: ast.AST, module: str, facts: Facts) -> None:
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        name = f"{module}.{node.name}"
        fields = {
            one.target.id
            for one in node.body
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        }
        set_on_self = {
            one.attr
            for one in ast.walk(node)
            if isinstance(one, ast.Attribute)
            and isinstance(one.ctx, ast.Store)
            and isinstance(one.value, ast.Name)
            and one.value.id == "self"
        }
        if len(fields) > ATTRIBUTES_MAX and not set_on_self - fields:
            facts.records.append(Counted(name, len(fields)))
        elif len(fields | set_on_self) > ATTRIBUTES_MAX:
            facts.objects.append(Counted(name, len(fields | set_on_self)))
        for one in node.body:
            if isinstance(one, _FUNCTIONS) and one.name == "__init__":
                taken = len(one.args.posonlyargs + one.args.args + one.args.kwonlyargs) - 1
                if taken > PARAMETERS_MAX:
                    facts.constructors.append(Counted(name, taken))


def circles(trees: dict[str, ast.Module]) -> list[list[str]]:
    """The groups of modules that reach each other by imports (strongly connected, Tarjan)."""
    arrows = {name: _imports(name, tree, trees) for name, tree in trees.items()}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for to in arrows[name]:
            if to not in index:
                visit(to)
                low[name] = min(low[name], low[to])
            elif to in stack:
                low[name] = min(low[name], index[to])
        if low[name] == index[name]:
            at = stack.index(name)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    sys.setrecursionlimit(max(sys.getrecursionlimit(), 10_000))
    for name in arrows:
        if name not in index:
            visit(name)
    return sorted(found)


def _imports(name: str, tree: ast.Module, known: dict[str, ast.Module]) -> set[str]:
    to: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            to.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = _absolute(name, "." * node.level + (node.module or ""), known)
            for alias in node.names:
                below = f"{package}.{alias.name}"
                to.add(below if below in known else package)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _IMPORTERS:
            to.update(
                _absolute(name, one.value, known)
                for one in node.args[:1]
                if isinstance(one, ast.Constant) and isinstance(one.value, str)
            )
    return (to & known.keys()) - {name}


def _absolute(name: str, said: str, known: dict[str, ast.Module]) -> str:
    """The module that ``said``, with its leading dots, means in the module ``name``."""
    bare = said.lstrip(".")
    level = len(said) - len(bare)
    if not level:
        return said
    parts = name.split(".")
    if any(other.startswith(f"{name}.") for other in known):
        parts.append("__init__")  # a package: one dot means itself
    above = parts[: len(parts) - level]
    return ".".join([*above, bare] if bare else above)


def duplicates(texts: dict[str, tuple[ast.Module, str]]) -> list[list[str]]:
    """Places with ``DUPLICATE_LINES`` or more equal lines of code in a row; a longer run counts once."""
    seen: dict[tuple[str, ...], list[tuple[str, int, int]]] = defaultdict(list)
    for name, (tree, text) in texts.items():
        code = list(_code(tree, text))
        for at in range(len(code) - DUPLICATE_LINES + 1):
            rows = code[at : at + DUPLICATE_LINES]
            seen[tuple(line for _, line in rows)].append((name, at, rows[0][0]))
    blocks: list[list[str]] = []
    ends: set[tuple[tuple[str, int], ...]] = set()
    for places in seen.values():
        if len(places) < 2:
            continue
        here = tuple((name, at) for name, at, _ in places)
        before = tuple((name, at - 1) for name, at in here)
        ends.add(here)
        if before not in ends:
            blocks.append([f"{name}:{line}" for name, _, line in places])
    return sorted(blocks)


def _code(tree: ast.Module, text: str) -> Iterator[tuple[int, str]]:
    left_out: set[int] = set()
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text or isinstance(node, ast.Import | ast.ImportFrom):
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))  # type: ignore[attr-defined]
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        # a line of brackets alone says nothing
        if number not in left_out and not bare.startswith("#") and bare.strip("()[]{},:"):
            yield number, bare


def text(facts: Facts, aside: dict[str, Facts], top: int) -> list[str]:
    """The numbers as lines to read."""
    over = facts.over_limit()
    long = sum(one.lines > LINES_MAX for one in over)
    branched = sum(one.complexity > COMPLEXITY_MAX for one in over)
    lines = [
        f"files, lines            {len(facts.files)}, {facts.lines}",
        f"largest folders         {_named(facts.folders[:top])}",
        f"largest files           {_named(facts.files[:top])}",
        f"functions               {len(facts.functions)}; over {LINES_MAX} lines: {long},"
        f" over complexity {COMPLEXITY_MAX}: {branched}",
        *(
            f"    {one.name}  {one.lines} lines, complexity {one.complexity}"
            + (f": {ALLOWED[one.name]}" if one.name in ALLOWED else "")
            for one in over
        ),
        f"classes over {ATTRIBUTES_MAX} attributes   {len(facts.objects)}: {_named(facts.objects)}",
        f"records over {ATTRIBUTES_MAX} fields       {len(facts.records)}: {_named(facts.records)}",
        f"constructors over {PARAMETERS_MAX}     {len(facts.constructors)}: {_named(facts.constructors)}",
        f"import circles          {len(facts.circles)}",
        *(f"    {' <-> '.join(circle)}" for circle in facts.circles),
        f"asserts per 1,000 lines {facts.asserts_per_1000():.1f} ({facts.asserts})",
        f"duplicate blocks        {len(facts.duplicates)}",
        *(f"    {' = '.join(places)}" for places in facts.duplicates[:top]),
    ]
    for name, other in aside.items():
        over = other.over_limit()
        lines.append(
            f"{name:23} {len(other.files)} files, {other.lines} lines, {len(over)} functions over a limit"
        )
    return lines


def _named(counted: list[Counted]) -> str:
    return ", ".join(f"{one.name} {one.number}" for one in counted)


def broken(facts: Facts) -> list[str]:
    """What has to change before the check passes."""
    over = {one.name for one in facts.over_limit()}
    said = [f"{name} is over a limit, and nothing says why" for name in sorted(over - ALLOWED.keys())]
    said += [f"{name} is allowed a limit that it keeps" for name in sorted(ALLOWED.keys() - over)]
    said += [f"{one.name} has {one.number} attributes, at most {ATTRIBUTES_MAX}" for one in facts.objects]
    said += [
        f"{one.name}() has {one.number} parameters, at most {PARAMETERS_MAX}" for one in facts.constructors
    ]
    said += [f"these import each other: {' <-> '.join(circle)}" for circle in facts.circles]
    said += [f"these are the same: {' = '.join(places)}" for places in facts.duplicates]
    if len(ALLOWED) > ALLOWED_MAX:
        said.append(f"{len(ALLOWED)} functions are allowed to pass a limit, at most {ALLOWED_MAX} may")
    return said


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--top", type=int, default=5, metavar="N", help="how many of the largest to name")
    options = parser.parse_args()
    facts = measure(options.root)
    print("\n".join(text(facts, {name: measure(options.root, (name,)) for name in ASIDE}, options.top)))
    if options.json:
        options.json.write_text(json.dumps(vars(facts), indent=1))
    said = broken(facts)
    for line in said:
        print(f"facts: {line}", file=sys.stderr)
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
