"""The promise of ``drill heal``: servers that no drill looks after end, and nobody else does."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from admin.local import layout as layouts
from admin.local.layout import Layout
from chaos.drills.live.commands import KEPT_AT, PREFIX, _findable, _places
from chaos.live import leftovers, loop_disk, network
from chaos.live.ground import LEDGER, heal, keeps
from tests.live.commands import Shell

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


def test_a_process_is_known_by_when_it_began_too() -> None:
    with process("one") as one:
        assert leftovers.began(one.pid) == leftovers.began(one.pid)
        assert leftovers.began(one.pid) != leftovers.began(os.getpid())
    assert leftovers.began(one.pid) is None


def test_trial_disks_of_processes_that_are_gone_are_taken_away(tmp_path: Path) -> None:
    with process("one") as one:
        pass
    gone, here = (tmp_path / f"{loop_disk.TRIAL}{pid}-x" for pid in (one.pid, os.getpid()))
    for place in (gone, here):
        (place / "disk").mkdir(parents=True)
    assert loop_disk.sweep(tmp_path) == [str(gone)]
    assert [gone.exists(), here.exists()] == [False, True]


def test_a_drill_with_another_ones_pid_is_over_and_what_it_keeps_stays(tmp_path: Path) -> None:
    layouts.save(Layout.make(base_port=20_000), tmp_path)
    found: dict[str, Any] = {
        "pid": os.getpid(),
        "switch": None,
        "namespaces": [],
        "tracers": [],
        "keep": True,
    }
    image = tmp_path / "disks" / "broker-a-0.img"
    image.parent.mkdir()
    image.write_bytes(b"x")
    now = leftovers.began(os.getpid())
    assert now is not None
    (tmp_path / LEDGER).write_text(json.dumps(found | {"began": now}))
    with pytest.raises(RuntimeError, match="still runs"):
        heal(tmp_path)
    (tmp_path / LEDGER).write_text(json.dumps(found | {"began": now - 1}))
    assert keeps(tmp_path)
    heal(tmp_path)
    assert not (tmp_path / LEDGER).exists()
    assert not keeps(tmp_path)


def test_heal_looks_where_a_drill_keeps_its_folder_and_takes_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, kept, evidence = tmp_path / "tmp", tmp_path / "kept", tmp_path / "tmp" / f"{PREFIX}evidence"
    for place in (kept, evidence):
        place.mkdir(parents=True)
        layouts.save(Layout.make(base_port=20_000), place)
        told: dict[str, Any] = {
            "pid": 1,
            "began": -1,
            "switch": None,
            "namespaces": [],
            "tracers": [],
            "keep": True,
        }
        (place / LEDGER).write_text(json.dumps(told))
    monkeypatch.setattr(tempfile, "tempdir", str(own))
    with _findable(kept):
        note = next(own.glob(f"*{KEPT_AT}"))
        assert _places() == [evidence, kept]
        assert note.exists(), "its drill runs"
        note.write_text(f"{os.getpid()} -1 {kept}")
        Shell()("drill", "heal")
    assert not note.exists()
    for place in (kept, evidence):
        assert not (place / LEDGER).exists()
        assert (place / layouts.STATE_FILE).exists()


def test_a_network_that_a_dead_drill_left_is_not_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keelmq-7-broker-a-0").touch()
    monkeypatch.setattr(network, "NETNS", tmp_path)
    made = network.Network(cast(Any, None), 0)
    asked: list[int] = []

    async def ask(**command: Any) -> None:
        asked.append(made.number)

    monkeypatch.setattr(made, "_ask", ask)
    numbers = iter((7, 7, 8))
    asyncio.run(made._choose_number(cast(Any, SimpleNamespace(randrange=lambda *_: next(numbers)))))
    assert asked == [8]
