"""Run keelmq's commands as a user does, in a process of their own."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from admin.exits import run
from cli.main import command
from tests import ROOT


def keelmq(
    *arguments: str | Path, timeout_s: float = 120, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cli.main", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        cwd=ROOT,
        env=env,
    )


def status(directory: Path) -> dict[str, Any]:
    found = json.loads(keelmq("cluster", "status", "--dir", directory, "--json").stdout)
    assert isinstance(found, dict)
    return found


class Shell:
    """Runs commands in this process: a start of Python for each would take most of the time."""

    def __init__(self, *where: str) -> None:
        """``where``: the options that name the cluster."""
        self.where = where

    def __call__(self, *arguments: str, code: int = 0, stdin: str = "") -> str:
        """What ``keelmq ARGUMENTS`` prints; it must end with ``code``."""
        ended, said = self.ended(arguments, stdin=stdin)
        assert ended == code, said
        return said

    def ended(self, arguments: Sequence[str], *, stdin: str = "") -> tuple[int, str]:
        """The exit code; and what was printed, or for another than 0 to 2 the error."""
        out, errors = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(errors):
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
            code = run(command(), [*arguments, *self.where])
        assert "Traceback" not in errors.getvalue()
        return code, out.getvalue() or errors.getvalue()

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))

    def lines(self, *arguments: str, stdin: str = "") -> list[Any]:
        return [json.loads(line) for line in self(*arguments, "--json", stdin=stdin).splitlines()]

    def findings(self, *arguments: str) -> list[dict[str, str]]:
        """What ``keelmq doctor`` finds; its exit code says how bad the worst of it is."""
        code, said = self.ended([*arguments, "--json"])
        found = json.loads(said)
        assert code == {"ok": 0, "warnings": 1, "failed": 2}[found["verdict"]]
        findings: list[dict[str, str]] = found["findings"]
        return findings
