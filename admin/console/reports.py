"""Which reports of drills and audits lie in a directory? Pages that somebody wrote: they get no rights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

REPORTS_MAX: Final = 200
FILES_MAX: Final = 5000
REPORT_BYTES_MAX: Final = 32 * 1024 * 1024
SANDBOX: Final = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""A report has no script; one that has is not run, and is no part of the console's origin."""


@dataclass(frozen=True, slots=True)
class Report:
    """``name``: its path below the directory."""

    name: str
    written_ms: int
    size_bytes: int


def listed(directory: Path) -> list[Report]:
    """The newest pages in the directory and one below it. What leads out of it is none. Raises OSError."""
    root = directory.resolve()
    found = []
    for number, path in enumerate(path for mask in ("*.html", "*/*.html") for path in root.glob(mask)):
        if number == FILES_MAX:
            break
        real = path.resolve()
        if real.is_relative_to(root) and real.is_file():
            about = real.stat()
            name = path.relative_to(root).as_posix()
            found.append(Report(name, about.st_mtime_ns // 1_000_000, about.st_size))
    return sorted(found, key=lambda one: (-one.written_ms, one.name))[:REPORTS_MAX]


def read(directory: Path, name: str) -> bytes | None:
    """A listed report, or None. Raises OSError."""
    for one in listed(directory):
        if one.name == name and one.size_bytes <= REPORT_BYTES_MAX:
            return (directory / name).read_bytes()
    return None
