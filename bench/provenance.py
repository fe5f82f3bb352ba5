"""Where and of what was a number measured? Every result carries this beside its figures."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent


def machine() -> dict[str, Any]:
    """The machine, the load on it now (1 min), the time (UTC) and the commit of the code."""
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "load_1min": round(os.getloadavg()[0], 1),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
    }


def commit() -> str | None:
    """The commit checked out, with ``+`` when files differ from it; None outside a checkout."""
    told = _git("describe", "--always", "--abbrev=12", "--exclude=*")
    if told is None:
        return None
    return f"{told}+" if _git("status", "--porcelain", "--untracked-files=no") else told


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, timeout=30
        )
    except OSError:
        return None  # no git here: the result says that it does not know
    return done.stdout.strip() if done.returncode == 0 else None
