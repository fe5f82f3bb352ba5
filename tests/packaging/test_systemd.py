"""The promise of deploy/systemd: systemd takes the units, they allow little, and their commands exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from admin.host.kept_file import keep
from cli.main import COMMANDS
from tests import ROOT

UNITS = sorted((ROOT / "deploy/systemd").glob("*.service"))
EXPOSURE_MAX = 2.0
"""Of 10, as ``systemd-analyze security`` counts; what the docs had before was 8.8."""

analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


def here(unit: Path, directory: Path) -> Path:
    """The unit with a program that this machine has."""
    copy = directory / unit.name
    copy.write_text(unit.read_text().replace("/opt/keelmq/bin/keelmq", "/bin/true"))
    return copy


def test_there_is_a_unit_for_each_server() -> None:
    assert [unit.stem for unit in UNITS] == ["keelmq-broker", "keelmq-controller", "keelmq-namesrv"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_its_command_is_one_of_ours(unit: Path) -> None:
    found = re.search(
        r"^ExecStart=/opt/keelmq/bin/keelmq (\w+) -c /etc/keelmq/\w+\.conf$", unit.read_text(), re.M
    )
    assert found is not None
    assert found[1] in COMMANDS
    assert unit.stem == f"keelmq-{found[1]}"


@analyze
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_takes_it(unit: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", here(unit, tmp_path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@analyze
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_it_gives_the_server_little(unit: Path, tmp_path: Path) -> None:
    asked = ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(here(unit, tmp_path))]
    told = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    found = re.search(r"Overall exposure level for .*: ([\d.]+)", told)
    assert found is not None
    assert float(found[1]) <= EXPOSURE_MAX


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_it_may_write_its_file_and_reads_the_secrets_beside_it(unit: Path) -> None:
    text, role = unit.read_text(), unit.stem.removeprefix("keelmq-")
    assert "ProtectSystem=strict" in text
    assert f" -c /etc/keelmq/{role}.conf\n" in text
    assert re.findall(r"^(ReadWritePaths|BindPaths|ConfigurationDirectory)=(.*)$", text, re.M) == [
        ("ReadWritePaths", f"-/etc/keelmq/{role}")
    ]


def test_what_the_page_says_brings_the_file_into_that_directory(tmp_path: Path) -> None:
    """Keeping writes a file beside it, and one that takes its place."""
    page = (ROOT / "docs/operations.md").read_text()
    (told,) = re.findall(r"^    for role in namesrv broker; do\n.*?^    done\n", page, re.M | re.S)
    (group,) = {name for unit in UNITS for name in re.findall(r"^Group=(\w+)$", unit.read_text(), re.M)}
    assert f"install -d -g {group} -m 775 " in told
    (tmp_path / "peers.json").write_text("{}")
    for role in ("namesrv", "broker"):
        (tmp_path / f"{role}.conf").write_text("adminPort=1\n")
    here = told.replace("/etc/keelmq", str(tmp_path)).replace(f"-g {group} ", "")
    subprocess.run(["sh", "-ec", here], check=True)
    before = {path.name: path.lstat().st_ino for path in tmp_path.iterdir()}
    keep(tmp_path / "broker.conf", {"adminPort": "2"})
    assert (tmp_path / "broker.conf").read_text() == "adminPort=2\n"
    assert {path.name: path.lstat().st_ino for path in tmp_path.iterdir()} == before, "all else is read only"
    assert {path.name for path in (tmp_path / "broker").iterdir()} == {"broker.conf", "broker.conf.bak"}


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_boot_id_stays_readable(unit: Path) -> None:
    """A broker that cannot read it cannot tell a restart of its process from one of its machine."""
    assert "ProcSubset=pid" not in unit.read_text()


def test_the_docs_name_every_unit() -> None:
    text = (ROOT / "docs/operations.md").read_text()
    assert [unit.name for unit in UNITS if unit.name not in text] == []


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_it_is_restarted_for_as_long_as_it_takes_but_not_for_a_wrong_file(unit: Path) -> None:
    lines = unit.read_text().splitlines()
    assert {"StartLimitIntervalSec=0", "RestartSec=2", "RestartPreventExitStatus=64"} <= set(lines)
