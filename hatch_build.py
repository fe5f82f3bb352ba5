"""The wheel's name space: every package moves under ``keelmq``, and imports between packages with it.

The repository keeps its packages at the top, where people and tools find them. An installed keelmq must not:
a user's own ``model.py`` or ``store/`` would shadow ours, and ours theirs. Only import statements are
rewritten; a module named by a string asks ``model.installed.module_name``. An editable install is the
checkout itself. Both get the compiled path (``runtime/native``) where it can be built.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

ROOT_PACKAGE = "keelmq"
NATIVE = "runtime/native"
URL = "KEELMQ_URL"
"""The variable of ``make release URL=...``: where the repository lies."""
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", "*.so")


class CannotRelocate(ValueError):
    """A source file whose imports cannot be moved as text."""


def relocated(source: str, packages: frozenset[str], name: str) -> str:
    """``source`` with its absolute imports of ``packages`` moved under ``keelmq``. Line numbers stay.

    ``name`` stands in errors. Raises CannotRelocate for ``import store.files``: the dotted name is then used
    all over the file; ``from store import files`` is moved by one line.
    """
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source, name)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] in packages:
                    raise CannotRelocate(
                        f"{name}:{node.lineno}: write 'from ... import' instead of 'import {alias.name}'"
                    )
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            if node.module.partition(".")[0] not in packages:
                continue
            old, at = lines[node.lineno - 1], node.col_offset
            head, tail = old.encode()[:at].decode(), old.encode()[at:].decode()
            new, count = re.subn(r"^from(\s+)(?=\w)", rf"from\g<1>{ROOT_PACKAGE}.", tail)
            if count != 1:
                raise CannotRelocate(
                    f"{name}:{node.lineno}: the module's name does not follow 'from' on its line"
                )
            lines[node.lineno - 1] = head + new
    return "".join(lines)


def relocate(root: Path, packages: frozenset[str], target: Path) -> None:
    """Copy ``keelmq`` and ``packages`` from ``root`` to ``target/keelmq``, imports rewritten."""
    for package in sorted(packages | {ROOT_PACKAGE}):
        into = target / ROOT_PACKAGE if package == ROOT_PACKAGE else target / ROOT_PACKAGE / package
        shutil.copytree(root / package, into, ignore=LEFT_OUT, dirs_exist_ok=True)
    for path in sorted((target / ROOT_PACKAGE).rglob("*.py")):
        path.write_text(relocated(path.read_text(), packages, str(path.relative_to(target))))


def compile_native(root: Path, target: Path) -> str:
    """Build the compiled path of the checkout at ``root`` into ``target``; "" or why it cannot be built."""
    spec = importlib.util.spec_from_file_location("keelmq_native_build", root / NATIVE / "build.py")
    assert spec is not None, "it is a file of this checkout"
    assert spec.loader is not None, "it is Python"
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    problem: str = build.build(target)
    return problem


def urls(repository: str) -> dict[str, str]:
    """The addresses in the metadata; a checkout knows none, so none are told."""
    if not repository:
        return {}
    top = repository.rstrip("/")
    file = f"{top}/blob/HEAD"
    return {
        "Repository": top,
        "Documentation": f"{file}/docs/index.md",
        "Changelog": f"{file}/CHANGELOG.md",
        "Issues": f"{top}/issues",
    }


class UrlsHook(MetadataHookInterface):
    """Called by hatchling for the metadata (``[tool.hatch.metadata.hooks.custom]``)."""

    def update(self, metadata: dict[str, Any]) -> None:
        metadata["urls"] = urls(os.environ.get(URL, ""))


class RelocateHook(BuildHookInterface):  # type: ignore[type-arg]
    """Called by hatchling for the wheel (``[tool.hatch.build.targets.wheel.hooks.custom]``)."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            self._compile(Path(self.root) / NATIVE)
            return
        self._made = Path(tempfile.mkdtemp(prefix="keelmq-wheel-"))
        relocate(Path(self.root), frozenset(self.config["packages"]), self._made)
        if self._compile(self._made / ROOT_PACKAGE / NATIVE):
            build_data["pure_python"], build_data["infer_tag"] = False, True
        build_data["force_include"][str(self._made / ROOT_PACKAGE)] = ROOT_PACKAGE

    def _compile(self, target: Path) -> bool:
        problem = compile_native(Path(self.root), target)
        if problem:
            self.app.display_warning(f"keelmq: not compiled ({problem}): sends take the Python path")
        return not problem

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            shutil.rmtree(self._made)
