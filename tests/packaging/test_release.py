"""The promise of ``make release``: five files that belong together, and an sdist that builds by itself."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tomllib
from datetime import date
from email.parser import Parser
from pathlib import Path

import pytest

from deploy.release import CannotRelease, dated, section
from tests import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
VERSION: str = PROJECT["project"]["version"]
CHANGELOG = "# Changelog\n\n## 0.2.0 (unreleased)\n\n### One\n\n- A\n\n## 0.2.0rc1\n\n- B\n"


def run(out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "deploy/release.py", "--out", str(out)]
    env = os.environ | {"KEELMQ_URL": "https://git.example/keelmq/"}
    return subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_section_ends_where_the_next_release_begins() -> None:
    assert section(CHANGELOG, "0.2.0") == "## 0.2.0 (unreleased)\n\n### One\n\n- A\n"
    assert section(CHANGELOG, "0.2.0rc1") == "## 0.2.0rc1\n\n- B\n"
    assert dated(section(CHANGELOG, "0.2.0"), date(2027, 1, 2)).startswith("## 0.2.0 (2027-01-02)\n")
    with pytest.raises(CannotRelease, match=r"no section of 0\.2$"):
        section(CHANGELOG, "0.2")


def test_a_release_is_whole_and_its_checksums_hold(tmp_path: Path) -> None:
    done = run(tmp_path / "dist")
    assert done.returncode == 0, done.stderr
    made = {path.name: path for path in (tmp_path / "dist").iterdir()}
    wheel = next(name for name in made if name.endswith(".whl"))
    sdist = f"keelmq-{VERSION}.tar.gz"
    assert made.keys() == {sdist, wheel, f"keelmq-{VERSION}.cdx.json", f"CHANGES-{VERSION}.md", "SHA256SUMS"}
    lines = [line.split("  ") for line in made["SHA256SUMS"].read_text().splitlines()]
    stated = {name: sum_ for sum_, name in lines}
    assert stated == {
        name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in made.items() if name in stated
    }
    assert stated.keys() == made.keys() - {"SHA256SUMS"}
    with tarfile.open(made[sdist]) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
        told = archive.extractfile(f"keelmq-{VERSION}/PKG-INFO")
        assert told is not None, "it is a file"
        metadata = Parser().parsestr(told.read().decode())
    addresses = dict(line.split(", ") for line in metadata.get_all("Project-URL", []))
    assert addresses.keys() == {"Repository", "Documentation", "Changelog", "Issues"}
    assert addresses["Issues"] == "https://git.example/keelmq/issues"
    needed = {
        "pyproject.toml",
        "hatch_build.py",
        ".dockerignore",
        "requirements-audit.lock",
        "README.md",
        "LICENSE",
        "NOTICE",
        "deploy/sbom.py",
    }
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["packages"]
    assert needed | {f"{name}/__init__.py" for name in [*packages, "keelmq"]} <= held
    again = run(tmp_path / "dist")
    assert (again.returncode, again.stderr) == (1, f"no release: {tmp_path / 'dist'} is not empty\n")
