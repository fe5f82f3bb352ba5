"""One target under atheris: coverage says which changed inputs are kept and changed again.

    python -m tests.fuzz.guided TARGET EXECUTIONS SEED DIRECTORY

A process of its own, because libFuzzer ends the process it runs in. It writes to DIRECTORY ``told.json`` (see
``Told``), every ``TELL`` executions and at the end, ``corpus/`` and, for a crash, ``crash-*``.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Final

import psutil

TELL: Final = 1 << 14
INSTRUMENTED: Final = (
    *("model", "remoting", "store", "ha", "controller", "namesrv", "broker", "audit", "runtime", "client"),
    *("chaos.history", "admin.host.serve"),
)


class Told:
    """Counts executions; the process's memory after the first ``TELL`` of them and now, bytes."""

    def __init__(self, path: Path, executions: int) -> None:
        self._path = path
        self._most = executions
        self._process = psutil.Process()
        self._began = time.monotonic()
        self.done = 0
        self.decoded = 0
        self._first_rss: int | None = None
        self.crashed: str | None = None

    def count(self, decoded: bool) -> None:
        self.done += 1
        self.decoded += decoded
        if self.done % TELL == 0 or self.done == self._most:
            self.write()

    def write(self) -> None:
        rss = self._process.memory_info().rss
        if self._first_rss is None:
            self._first_rss = rss
        told = {
            "executions": self.done,
            "decoded": self.decoded,
            "seconds": round(time.monotonic() - self._began, 3),
            "rssStart": self._first_rss,
            "rssEnd": rss,
            "crashed": self.crashed,
        }
        beside = self._path.with_suffix(".tmp")
        beside.write_text(json.dumps(told))
        beside.replace(self._path)


def main() -> None:
    name, executions, seed, directory = sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    import atheris

    logging.disable(logging.CRITICAL)
    with atheris.instrument_imports(include=list(INSTRUMENTED)), contextlib.redirect_stderr(io.StringIO()):
        from tests.fuzz import corpus
        from tests.fuzz.targets.registry import TARGETS
        from tests.fuzz.targets.target import execute
    target = TARGETS[name]
    kept = directory / "corpus"
    kept.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(corpus.inputs(target)):
        (kept / f"seed-{number:04}").write_bytes(data[: target.bytes_max])
    told = Told(directory / "told.json", executions)

    def once(data: bytes) -> None:
        try:
            decoded = execute(target, data)
        except BaseException as error:
            told.crashed = f"{type(error).__name__}: {error}"[:500]
            told.write()
            raise
        told.count(decoded)

    options = [f"-runs={executions}", f"-seed={seed}", f"-max_len={target.bytes_max}", "-timeout=20"]
    options += [f"-artifact_prefix={directory}{os.sep}", "-rss_limit_mb=2048", "-verbosity=0"]
    atheris.Setup([sys.argv[0], *options, str(kept)], once)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
