"""What is released: sdist, wheel, SBOM, the changelog's section, and the checksums of all four.

    python deploy/release.py [--out DIR] [--date YYYY-MM-DD]

Without ``--date`` the section keeps its "(unreleased)" and the release is a rehearsal. A
compiled wheel fits this kind of machine; the sdist is for every other. Nothing is uploaded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tomllib
from datetime import date
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SUMS: Final = "SHA256SUMS"


class CannotRelease(ValueError):
    """Why, in one line."""


def section(changelog: str, version: str) -> str:
    """What ``changelog`` says of ``version``, heading included."""
    found = re.search(rf"^## {re.escape(version)}(?: .*)?\n(?:(?!## ).*\n?)*", changelog, re.MULTILINE)
    if found is None:
        raise CannotRelease(f"CHANGELOG.md has no section of {version}")
    return found[0].strip() + "\n"


def dated(text: str, day: date | None) -> str:
    """The section with the day of its release in its heading."""
    return text if day is None else text.replace("(unreleased)", f"({day.isoformat()})", 1)


def sums(files: list[Path]) -> str:
    """As ``sha256sum --check`` reads them."""
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


def release(out: Path, day: date | None) -> list[Path]:
    """Make everything in ``out``, which must hold nothing; the files, checksums last."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    changes = dated(section((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version), day)
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise CannotRelease(f"{out} is not empty")
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(out.resolve()), "-t", "sdist", "-t", "wheel"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        check=False,
    )
    if built.returncode:
        raise CannotRelease("hatchling could not build sdist and wheel")
    told = subprocess.run(
        [sys.executable, str(ROOT / "deploy/sbom.py")], capture_output=True, text=True, check=True
    )
    bill = json.loads(told.stdout)
    (out / f"keelmq-{version}.cdx.json").write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")
    (out / f"CHANGES-{version}.md").write_text(changes, encoding="utf-8")
    files = sorted(out.iterdir())
    (out / SUMS).write_text(sums(files), encoding="utf-8")
    return [*files, out / SUMS]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist", metavar="DIR")
    parser.add_argument("--date", type=date.fromisoformat, metavar="YYYY-MM-DD")
    given = parser.parse_args()
    try:
        made = release(given.out, given.date)
    except CannotRelease as error:
        print(f"no release: {error}", file=sys.stderr)
        return 1
    for path in made:
        print(f"{path.stat().st_size:>10,}  {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
