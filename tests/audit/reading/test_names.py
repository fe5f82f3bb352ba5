"""The promise about names and kinds of what lies in a store: none ends an audit."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from audit.commands import audit
from audit.ledgers.ledger import read_ledger
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


@pytest.mark.parametrize("path", ["consumequeue/X", "consumequeue/T/7"])
def test_a_file_among_the_folders_of_queues_is_named(path: str, tmp_path: Path) -> None:
    """keelmq does not start with it."""
    stores, ledger = make_queued(tmp_path)
    (stores[1] / path).write_bytes(b"x")
    told = {(f.kind, f.replica, f.segment, f.found) for f in run_local(stores, ledger).findings}
    assert ("file_unreadable", "r1", path, "it is no folder") in told


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


def call(*arguments: str) -> Result:
    return CliRunner().invoke(audit, list(arguments), standalone_mode=False)


def _moved(store: Path) -> Path:
    return store.rename(store.parent / os.fsdecode(NO_TEXT))


def test_a_path_that_is_no_text_ends_no_audit(tmp_path: Path) -> None:
    """Of a store, the ledger, the report and the text file."""
    stores, ledger = make_queued(tmp_path)
    others = [tmp_path / name for name in ("ledgers", "reports", "texts")]
    for folder in others:
        folder.mkdir()
    (tmp_path / "ledgers" / os.fsdecode(NO_TEXT)).write_bytes(ledger.read_bytes())
    out, text = (folder / os.fsdecode(NO_TEXT) for folder in others[1:])
    text = text.with_name(text.name + ".prom")
    given = ["--ledger", str(others[0] / os.fsdecode(NO_TEXT)), "--out", str(out), "--textfile", str(text)]
    paths = [str(_moved(stores[0])), *map(str, stores[1:])]
    for more in ([], ["--incremental"], ["--incremental"]):
        result = call(*paths, *given, *more)
        assert (result.return_value, result.exception) == (0, None)
    for name in ("findings.jsonl", "findings.parquet", "summary.json", "index.html"):
        assert (out / name).exists()
    assert "\\udcff\\udcfe" in (out / "summary.json").read_text()
    assert b'keelmq_audit_verdict{audit="\\\\udcff\\\\udcfe",verdict="clean"} 1.0' in text.read_bytes()


def test_a_group_of_consumers_whose_name_is_no_text_is_told(tmp_path: Path) -> None:
    stores, ledger = make_queued(tmp_path)
    for store in stores:
        (store / "config").mkdir()
        table = '{"offsetTable": {"T@\\ud800": {"0": 9999}}}'
        (store / "config" / "consumerOffset.json").write_text(table)
    out = tmp_path / "out"
    assert call(*map(str, stores), "--ledger", str(ledger), "--out", str(out)).return_value == 1
    told = pq.read_table(out / "findings.parquet").to_pylist()
    assert {row["kind"] for row in told} == {"consumer_offset_beyond"}
    lines = (out / "findings.jsonl").read_text().splitlines()
    assert [json.loads(line)["found"] for line in lines] == [row["found"] for row in told]
