"""Which path do whole buffers take: the compiled one (``_native.pyx``), or Python's?

The compiled one wherever it is built, of this very source, unless ``KEELMQ_COMPILED=off``.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Final

from runtime.native.build import source_hash

VARIABLE: Final = "KEELMQ_COMPILED"


def _load() -> tuple[ModuleType | None, str]:
    if os.environ.get(VARIABLE, "").lower() in ("0", "no", "off", "false"):
        return None, f"{VARIABLE} is off"
    try:
        from runtime.native import _native
    except ImportError:
        return None, "not compiled"
    if source_hash() != _native.SOURCE:
        return None, "compiled of another source: run runtime/native/build.py"
    return _native, ""


_module, _why_not = _load()


def module() -> ModuleType | None:
    """The compiled module; None: Python's path is taken."""
    return _module


def describe() -> str:
    """``compiled``, or ``Python`` and why."""
    return f"Python ({_why_not})" if _why_not else "compiled"


def refuse(why: str) -> None:
    """Take Python's path from now on: the module is not fit."""
    global _module, _why_not
    _module, _why_not = None, why
