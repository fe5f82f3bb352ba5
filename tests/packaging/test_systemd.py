"""The promise of deploy/systemd: systemd takes the units, they allow little, and their commands exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

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
def test_it_may_write_the_file_that_keeps_what_is_changed_at_run_time(unit: Path) -> None:
    text = unit.read_text()
    (file,) = re.findall(r"^ExecStart=.* -c (\S+)$", text, re.M)
    (group,) = re.findall(r"^Group=(\w+)$", text, re.M)
    assert "ProtectSystem=strict" in text
    assert f"\nReadWritePaths={Path(file).parent}\n" in text
    page = (ROOT / "docs/operations.md").read_text()
    assert f"install -d -g {group} -m 775 {Path(file).parent}\n" in page


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
