"""Where do the packages stand: at the top of a checkout, or inside ``keelmq`` of an installed wheel?

Imports need no answer: the build rewrites them (``hatch_build.py``). A module named by a string does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

NAME: Final = "keelmq"
OURS: Final = (
    *("model", "runtime", "remoting", "store", "ha", "controller", "namesrv"),
    *("client", "broker", "admin", "chaos", "audit", "cli"),
)
"""The packages that move (``pyproject.toml``)."""
PREFIX: Final = __name__.removesuffix("model.installed")
"""``keelmq.`` in a wheel, nothing in a checkout."""
PACKAGES: Final = Path(__file__).resolve().parents[1]
"""The folder that holds the packages."""
IMPORTED_FROM: Final = PACKAGES.parent if PREFIX else PACKAGES
"""What must be on a process's path to import them."""


def module_name(name: str) -> str:
    """``store.files.record`` by its full name here."""
    return PREFIX + name
