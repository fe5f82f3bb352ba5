"""The promise about names and kinds of what lies in a store: none ends an audit."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from audit.ledger import read_ledger
from model.errors import ConfigError
from tests.audit.plants import make_queued, run_local

NO_TEXT = b"\xff\xfe"


@pytest.mark.parametrize(
    "folder", ["config", "consumequeue", "index", "batchconsumequeue", "consumequeue_ext", "timerlog"]
)
def test_a_folder_that_is_a_file_is_named(folder: str, tmp_path: Path) -> None:
    stores, ledger = make_queued(tmp_path)
    shutil.rmtree(stores[1] / folder, ignore_errors=True)
    (stores[1] / folder).write_bytes(b"x")
    told = {(f.kind, f.replica, f.segment, f.found) for f in run_local(stores, ledger).findings}
    assert ("file_unreadable", "r1", folder, "it is no folder") in told
    assert {replica for _, replica, *_ in told} == {"r1"}


@pytest.mark.parametrize("folder", ["consumequeue/T", "consumequeue_ext/T", "batchconsumequeue/T"])
def test_a_topic_that_is_a_file_ends_no_audit(folder: str, tmp_path: Path) -> None:
    stores, ledger = make_queued(tmp_path)
    shutil.rmtree(stores[1] / folder, ignore_errors=True)
    (stores[1] / folder).parent.mkdir(exist_ok=True)
    (stores[1] / folder).write_bytes(b"x")
    assert {f.replica for f in run_local(stores, ledger).findings} <= {"r1"}


@pytest.mark.parametrize(
    "folder", ["commitlog", "config", "consumequeue", "consumequeue/T", "consumequeue/T/0", "index"]
)
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_name_that_is_no_text_is_nobodys(kind: str, folder: str, tmp_path: Path) -> None:
    stores, ledger = make_queued(tmp_path)
    for store in stores:
        (store / "config").mkdir(exist_ok=True)
        (store / "index").mkdir(exist_ok=True)
    path = stores[1] / folder / os.fsdecode(NO_TEXT)
    if kind == "folder":
        shutil.copytree(stores[0] / "consumequeue" / "T", path)
    else:
        path.write_bytes(b"x" * 4096)
    assert run_local(stores, ledger).verdict == "clean"


def test_a_line_of_a_ledger_that_is_nested_too_deep_is_named(tmp_path: Path) -> None:
    _, ledger = make_queued(tmp_path)
    with ledger.open("a") as file:
        file.write("[" * 100_000 + "\n")
    with pytest.raises(ConfigError, match="nested too deep"):
        read_ledger(str(ledger))
