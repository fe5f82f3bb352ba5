"""The real Toxiproxy, built once a machine, for the tests that need it."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from chaos.links.server import find_toxiproxy
from tests import ROOT


def real_toxiproxy() -> Path:
    """Its binary; skips the test where it is neither there nor can be built."""
    built = ROOT / ".tools/toxiproxy-server"
    found = find_toxiproxy() or built
    if found.exists():
        return found
    if shutil.which("go") is None:
        pytest.skip("Toxiproxy is not installed, and Go, which builds it, is missing")
    with (Path(tempfile.gettempdir()) / "keelmq-toxiproxy.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # workers of one run ask at the same time
        subprocess.run(["make", "-C", str(ROOT), "toxiproxy"], check=True, timeout=200)
    return built
