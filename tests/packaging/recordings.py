"""docs/recordings.md, typed again: each line after ``$`` is run, and what came is written below it.

    python -m tests.packaging.recordings [SECTION ...]

With sections these alone, and the first one, which makes the cluster. The lines run in one folder, which goes
afterwards, in their order: each in a bash of its own, with the checkout's ``keelmq`` first on the path.
``<!-- run: LINE -->`` is run and not shown. What is long is cut in the middle; the folder is shown as
``/home/shop``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests import ROOT

PAGE: Final = ROOT / "docs" / "recordings.md"
HOME: Final = "/home/shop"
INDENT: Final = "    "
TYPED: Final = INDENT + "$ "
HEADING: Final = "## "
FIRST: Final = 1
"""The section that makes the cluster of the others."""
HIDDEN: Final = re.compile(r"<!-- run: (.*) -->$")
LINES_MAX: Final = 26
LINE_MAX: Final = 160
LIMIT_S: Final = 400.0


def typed(text: str) -> Iterator[str]:
    """The lines of a page that are run and shown."""
    for line in text.splitlines():
        if line.startswith(TYPED):
            yield line.removeprefix(TYPED)


def without_answers(text: str) -> list[str]:
    """The lines of a page that stay: what came after a typed line is left out."""
    kept: list[str] = []
    answers = False
    for line in text.splitlines():
        if answers and line.startswith(INDENT) and not line.startswith(TYPED):
            continue
        answers = line.startswith(TYPED) or (answers and not line)
        if answers and not line and kept[-1:] == [""]:
            continue
        kept.append(line)
    return kept


def recorded(lines: list[str], shell: Shell) -> Iterator[str]:
    for line in lines:
        yield line
        if hidden := HIDDEN.match(line):
            shell.run(hidden[1])
        elif line.startswith(TYPED):
            command = line.removeprefix(TYPED)
            print("$", command, file=sys.stderr, flush=True)
            yield from (f"{INDENT}{one}".rstrip() for one in shell.run(command))


class Shell:
    """Runs lines in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        scratch = folder / "tmp"
        scratch.mkdir()
        places = [str(Path(sys.executable).parent), os.environ["PATH"]]
        self._env = {
            "PATH": ":".join(places),
            "HOME": str(folder),
            "TMPDIR": str(scratch),
            "LANG": "C.UTF-8",
            "COLUMNS": "120",
            "TERM": "dumb",
        }

    def run(self, command: str) -> list[str]:
        """What it printed, on both streams in their order, and how it ended if not with 0."""
        out = self._folder / "tmp" / "out"
        with out.open("wb") as file:
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=self._folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=LIMIT_S,
            )
        text = out.read_text(errors="replace").replace(str(self._folder), HOME).replace(str(ROOT), "keelmq")
        lines = [one if len(one) <= LINE_MAX else one[: LINE_MAX - 3] + "..." for one in _as_seen(text)]
        if len(lines) > LINES_MAX:
            half = LINES_MAX // 2
            lines[half:-half] = [f"... {len(lines) - 2 * half} lines ..."]
        if done.returncode:
            lines.append(f"(exit code {done.returncode})")
        return lines


def _as_seen(text: str) -> list[str]:
    """Lines as a terminal shows them: of one that was written over, the last state; no colours."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    return (
        [line.rsplit("\r", 1)[-1].rstrip() for line in text.rstrip("\n").split("\n")] if text.strip() else []
    )


def sections(text: str) -> list[tuple[str, list[str]]]:
    """(heading, its lines), in order; what stands before the first one has the heading ""."""
    found: list[tuple[str, list[str]]] = [("", [])]
    for line in text.splitlines():
        if line.startswith(HEADING):
            found.append((line.removeprefix(HEADING), []))
        found[-1][1].append(line)
    return found


def main(chosen: Sequence[str]) -> None:
    parts = sections(PAGE.read_text())
    unknown = set(chosen) - {name for name, _ in parts}
    if unknown:
        raise SystemExit(f"no such section: {', '.join(sorted(unknown))}")
    lines: list[str] = []
    with tempfile.TemporaryDirectory(prefix="keelmq-recordings-", ignore_cleanup_errors=True) as folder:
        shell = Shell(Path(folder))
        for number, (name, part) in enumerate(parts):
            if not chosen or name in chosen or number == FIRST:
                part = list(recorded(without_answers("\n".join(part)), shell))
                part += [""] if part[-1] and number < len(parts) - 1 else []
            lines += part
        shell.run("for dir in clusters/default acl; do [ ! -d $dir ] || keelmq cluster down --dir $dir; done")
    PAGE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
