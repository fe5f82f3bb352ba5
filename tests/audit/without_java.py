"""The environment of a machine that has no Java."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

TOOLS: Final = ("bash", "sh", "env", "dirname", "ps", "rm", "cat", "uname", "readlink", "chmod")
"""What Spark's scripts call."""


def without_java(tools: Path) -> dict[str, str]:
    """With a PATH that is ``tools``, which is made."""
    tools.mkdir()
    for directory in ("/usr/bin", "/bin"):
        for tool in TOOLS:
            source = Path(directory, tool)
            if source.exists() and not (tools / tool).exists():
                (tools / tool).symlink_to(source)
    kept = {k: v for k, v in os.environ.items() if k not in ("JAVA_HOME", "PYSPARK_PYTHON", "PYTHONPATH")}
    return kept | {"PATH": str(tools)}
