"""The promise of flat packages with common names: each one that is imported is ours."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES: list[str] = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["packages"]


@pytest.mark.parametrize("name", PACKAGES)
def test_each_name_resolves_to_this_repository(name: str) -> None:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    assert [Path(p).resolve() for p in spec.submodule_search_locations] == [ROOT / name]


@pytest.mark.parametrize("name", PACKAGES)
def test_each_package_is_typed_and_says_what_it_is_for(name: str) -> None:
    assert (ROOT / name / "py.typed").exists()
    assert (ROOT / name / "__init__.py").read_text().startswith('"""')


def test_no_other_distribution_claims_our_names() -> None:
    owners = importlib.metadata.packages_distributions()
    for name in PACKAGES:
        assert set(owners.get(name, [])) <= {"keelmq"}, f"{name} also belongs to {owners[name]}"


def test_a_drill_and_the_demo_need_no_extra_for_proxies() -> None:
    """Only faults on links do; they say what to install."""
    program = """
import sys
for name in ("requests", "toxiproxy"):
    sys.modules[name] = None
import chaos.drills.commands, cli.demo
from pathlib import Path
from chaos.links.server import LinkServer, NoLinks
try:
    LinkServer.start(Path("log"), None)
except NoLinks as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "pip install 'keelmq[proxy]'" in done.stdout, done.stderr


def test_every_folder_of_tests_is_a_package() -> None:
    """Modules of the same name in two folders would shadow each other otherwise."""
    for path in (ROOT / "tests").rglob("test_*.py"):
        assert (path.parent / "__init__.py").exists(), path.parent


def test_no_test_file_is_imported_by_another() -> None:
    """What several share stands in a module that says what it is."""
    sharing = re.compile(r"^\s*(?:from|import) tests\.[\w.]*\btest_\w+", re.M)
    files = (ROOT / "tests").rglob("*.py")
    assert {str(path): found for path in files if (found := sharing.findall(path.read_text()))} == {}
