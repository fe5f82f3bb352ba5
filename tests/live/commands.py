"""Run keelmq's commands as a user does, in a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

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
