"""What a drill that was killed leaves: a ledger, and processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

WAITS = "import signal, sys; signal.signal(signal.SIGCONT, lambda *_: 0); print(flush=True); sys.stdin.read()"

OF_A_DEAD_DRILL: dict[str, Any] = {
    "pid": 1,
    "began": -1,
    "keep": True,
    "switch": None,
    "namespaces": [],
    "tracers": [],
}


@contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """One that waits, with these words on its command line."""
    command = [sys.executable, "-S", "-E", "-c", WAITS, *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            yield child
        finally:
            child.kill()
