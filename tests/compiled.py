"""What the tests import is compiled once, before the workers begin, and not by each process anew.

In a fresh clone pytest rewrites the asserts of 400 files, which is nine seconds of CPU. Workers that begin
together do it together, each for itself: five of them kept two cores busy for half a minute. A server that a
test starts needs half as much CPU for its start where it finds its modules compiled.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT

FEW = 40
"""So many files each worker may compile for itself: less than what a process for them costs."""
AT_ONCE = 2
KEPT = "compiled"
"""Below ``.pytest_cache/d``."""


def keep_compiled(config: pytest.Config) -> None:
    """Where this machine keeps no compiled modules, a run keeps its own, in its cache: no file comes to lie
    beside a source. Workers and every process that tests start inherit it."""
    cache = getattr(config, "cache", None)
    if not sys.dont_write_bytecode or cache is None:
        return
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(cache.mkdir(KEPT))
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def compile_tests(config: pytest.Config) -> None:
    """Does nothing without workers, in a worker, and where the compiled files are not kept."""
    if not getattr(config.option, "numprocesses", None) or sys.dont_write_bytecode:
        return
    stale = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if not _is_fresh(path)]
    if len(stale) <= FEW:
        return
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider"]
    begun = [
        subprocess.Popen(
            [*collect, *map(str, stale[number::AT_ONCE])],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for number in range(AT_ONCE)
    ]
    for process in begun:
        process.wait()  # what it could not compile, a worker will say


def _is_fresh(path: Path) -> bool:
    where = (
        Path(sys.pycache_prefix, *path.parent.parts[1:])
        if sys.pycache_prefix
        else path.parent / "__pycache__"
    )
    made = where / f"{path.stem}.{sys.implementation.cache_tag}-pytest-{pytest.__version__}.pyc"
    return made.exists() and made.stat().st_mtime >= path.stat().st_mtime
