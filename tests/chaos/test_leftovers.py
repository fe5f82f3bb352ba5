"""The promise of ``drill heal``: servers that no drill looks after end, and nobody else does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chaos.live import leftovers

WAITS = "import signal, sys; signal.signal(signal.SIGCONT, lambda *_: 0); print(flush=True); sys.stdin.read()"


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


def test_a_forgotten_server_ends_and_one_that_only_names_its_directory_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if this process were the one that takes orphans in.
    monkeypatch.setattr(leftovers, "REAPERS", {Path("/proc/self/comm").read_text().strip()})
    prefix, place = tmp_path / "keelmq-drill-", tmp_path / "keelmq-drill-x1"
    with (
        process("-c", f"{place}/conf/broker-a-0.conf") as ours,
        process(f"-Duser.home={place}/namesrv-0") as theirs,
        process(f"{place}/log/broker-a-0.log") as reader,
        process("-c", f"{tmp_path}/cluster/conf/broker-a-0.conf") as other,
    ):
        assert leftovers.found(prefix) == {ours.pid: place, theirs.pid: place}
        leftovers.end([ours.pid, theirs.pid])
        assert ours.wait(10) < 0
        assert theirs.wait(10) < 0
        assert (reader.poll(), other.poll()) == (None, None)
        assert leftovers.found(prefix) == {}


def test_a_server_whose_starter_lives_is_looked_after(tmp_path: Path) -> None:
    with process("-c", f"{tmp_path}/keelmq-drill-x1/conf/broker-a-0.conf"):
        assert leftovers.found(tmp_path / "keelmq-drill-") == {}
