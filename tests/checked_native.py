"""The tests of the compiled path, with each access to memory checked: ``make checked``.

Builds it with the compiler's address and undefined-behaviour sanitizers, into a directory of its own, and
runs the tests that hold it to Python's bytes under them. Each buffer is its own piece of memory there
(``PYTHONMALLOC=malloc``), so one byte read behind a frame ends the run. Needs gcc or clang with libasan.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from runtime.native.build import build

TESTS: Final = (
    "tests/broker/requests/test_both_paths.py",
    "tests/broker/requests/test_turns.py",
    "tests/broker/requests/consumers/test_fast_pull.py",
    "tests/broker/requests/consumers/test_pull_both_paths.py",
    "tests/store/flow/test_gather.py",
    "tests/store/flow/test_maps.py",
    "tests/store/files/test_compiled.py",
    "tests/audit/reading/test_plain.py",
)
NAME: Final = "runtime.native._native"


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="keelmq-checked-") as directory:
        problem = build(Path(directory), checked=True)
        if problem:
            print(f"not compiled ({problem})")
            return 1
        found = subprocess.run(
            [os.environ.get("CC", "gcc"), "-print-file-name=libasan.so"],
            capture_output=True,
            text=True,
            check=True,
        )
        env = {
            "LD_PRELOAD": found.stdout.strip(),
            "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter's own
            "PYTHONMALLOC": "malloc",
        }
        command = [sys.executable, "-m", "tests.checked_native", "--in", directory, *(sys.argv[1:] or TESTS)]
        return subprocess.run(command, env=os.environ | env, check=False).returncode


def inside(directory: Path, tests: list[str]) -> int:
    """Under the sanitizers: take the checked module for the usual one, and run ``tests``."""
    import pytest

    (path,) = directory.glob("_native*")
    spec = importlib.util.spec_from_file_location(NAME, path)
    assert spec is not None, "it was just built"
    assert spec.loader is not None, "it is a module"
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)

    import runtime.native

    runtime.native._native = module
    runtime.native._module, runtime.native._why_not = module, ""
    return int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *tests]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--in"]:
        sys.exit(inside(Path(sys.argv[2]), sys.argv[3:]))
    sys.exit(main())
