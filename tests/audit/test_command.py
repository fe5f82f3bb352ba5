"""The promise of ``keelmq audit``: verdict, exit code and files agree, for scripts and for people."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click import UsageError
from click.testing import CliRunner, Result

from admin.exits import INTERRUPTED
from admin.exits import run as run_command
from audit.commands import audit
from audit.engines import local
from audit.engines.spill import SpillTask
from audit.findings import KINDS, SCHEMA
from tests.audit.plants import PLANTS, make
from tests.audit.stores import patch


def call(*arguments: str) -> Result:
    return CliRunner().invoke(audit, list(arguments), standalone_mode=False)


def plant(name: str, root: Path) -> tuple[list[str], str]:
    stores, writer, ledger = make(root)
    next(p for p in PLANTS if p.name == name).do(stores, writer)
    return [str(s) for s in stores], str(ledger)


@pytest.mark.parametrize(
    ("name", "verdict", "code"),
    [("nothing", "clean", 0), ("duplicate", "warnings", 1), ("divergent suffix", "diverged", 2)],
)
def test_the_exit_code_is_the_verdict(name: str, verdict: str, code: int, tmp_path: Path) -> None:
    stores, ledger = plant(name, tmp_path)
    out = tmp_path / "out"
    result = call(*stores, "--ledger", ledger, "--out", str(out), "--json")
    assert result.return_value == code
    said = json.loads(result.stdout)
    assert said["verdict"] == verdict
    assert said == json.loads((out / "summary.json").read_text())
    rows = [json.loads(line) for line in (out / "findings.jsonl").read_text().splitlines()]
    assert pq.read_table(out / "findings.parquet", schema=SCHEMA).to_pylist() == rows
    assert sum(said["findings"].values()) == len(rows)
    assert {r["kind"] for r in rows} <= set(KINDS)


def test_the_page_stands_alone_and_begins_with_the_verdict(tmp_path: Path) -> None:
    stores, ledger = plant("removed message", tmp_path)
    call(*stores, "--ledger", ledger, "--out", str(tmp_path / "out"))
    page = (tmp_path / "out" / "index.html").read_text()
    assert page.index("diverged") < page.index("<h2>Replicas")
    assert "acked_missing" in page
    assert not re.search(r"src=|href=\"(?!#|findings\.|summary\.)|@import|url\(", page)


def test_what_a_store_says_cannot_break_the_page(tmp_path: Path) -> None:
    """Topics and keys come from damaged disks."""
    stores, writer, ledger = make(tmp_path)
    row = {**writer.rows[0], "uniq_key": "<script>alert(1)</script>"}
    ledger.write_text(json.dumps(row) + "\n")
    call(*map(str, stores), "--ledger", str(ledger), "--out", str(tmp_path / "out"))
    page = (tmp_path / "out" / "index.html").read_text()
    assert page.count("<script") == 1
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_a_store_that_cannot_be_read_is_unknown_never_clean(tmp_path: Path) -> None:
    stores, ledger = plant("nothing", tmp_path)
    result = call(*stores, str(tmp_path / "gone"), "--ledger", ledger, "--out", str(tmp_path / "out"))
    assert result.return_value == 3
    assert "UNFINISHED" in result.stdout


def test_where_no_store_can_be_read_one_line_says_why_and_what_to_give(tmp_path: Path) -> None:
    result = call(f"nowhere={tmp_path / 'nowhere'}", "--out", str(tmp_path / "out"))
    assert result.return_value == 3
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert "nowhere could not be read" in line
    assert "storePathRootDir" in line
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["verdict"] == "unfinished"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["x", "--master", "local"],
        ["x", "--ledger", "/nosuch"],
        ["x", "--engine", "abacus"],
        ["a", "a"],
        ["x", "--every", "5"],
        ["x", "--engine", "spark", "--conf", "=v"],
        ["x", "--engine", "spark", "--conf", "nokey"],
        ["x", "--textfile", "nosuch/x.prom"],
    ],
)
def test_wrong_usage_is_64(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(audit, arguments, "keelmq audit") == 64


@pytest.mark.parametrize(
    "option", ["--ledger", "--out", "--textfile", "--engine", "--master", "--every", "--full/--incremental"]
)
def test_an_option_that_is_given_twice_is_refused(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first ledger was dropped, and what it lists was not asked for: the verdict was clean."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "local").write_text("")
    values = {"--engine": "local", "--every": "2"}
    given = ["--full", "--incremental"] if "/" in option else [option, values.get(option, "local")] * 2
    assert run_command(audit, ["x", *given], "keelmq audit") == 64
    assert f"{option} is given twice" in capsys.readouterr().err


def test_two_stores_of_one_name_are_wrong_usage(tmp_path: Path) -> None:
    assert run_command(audit, [f"a={tmp_path}", f"a={tmp_path.parent}"], "keelmq audit") == 64


@pytest.mark.parametrize("name", ["a.prom", "a.txt"])
def test_a_textfile_that_nobody_will_read_is_said(name: str, tmp_path: Path) -> None:
    stores, _ = plant("nothing", tmp_path)
    file = tmp_path / name
    result = call(*stores, "--out", str(tmp_path / "out"), "--textfile", str(file))
    assert result.return_value == 0
    assert 'keelmq_audit_verdict{audit="a",verdict="clean"} 1.0' in file.read_text()
    assert ("node_exporter reads only files named *.prom" in result.stderr) is (name == "a.txt")


@pytest.mark.parametrize(("fault", "code"), [("nothing", 3), ("flipped bit", 2)])
def test_metrics_that_cannot_be_written_hide_no_finding(
    fault: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("audit.pages.textfile.write", full)
    stores, _ = plant(fault, tmp_path)
    result = call(*stores, "--out", str(tmp_path / "out"), "--textfile", str(tmp_path / "a.prom"))
    assert result.return_value == code
    assert "a.prom could not be written: No space left on device" in result.stderr
    assert ("crc_mismatch" in result.stdout) is (code == 2)


def test_sigterm_ends_an_audit_as_ctrl_c_does_and_leaves_no_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stores, _ = plant("nothing", tmp_path)
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    def interrupted(job: SpillTask) -> None:
        Path(job.path).touch()
        signal.raise_signal(signal.SIGTERM)

    def not_heard(number: int, frame: object) -> None:
        raise RuntimeError("it would have ended the process")

    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(local, "spill_scan", interrupted)
    before = signal.signal(signal.SIGTERM, not_heard)
    try:
        assert run_command(audit, [*stores, "--out", str(tmp_path / "out")]) == INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().err.splitlines()[-1] == "aborted"
    assert list(temporary.iterdir()) == []


def test_an_incremental_audit_reads_sealed_segments_once(tmp_path: Path) -> None:
    stores, _ = plant("nothing", tmp_path)
    out = str(tmp_path / "out")

    def audit_again(*more: str) -> dict[str, object]:
        result = call(*stores, "--out", out, "--json", *more)
        assert result.return_value == 0
        said = json.loads(result.stdout)
        assert isinstance(said, dict)
        return said

    first, second, full = (audit_again(mode) for mode in ("--incremental", "--incremental", "--full"))
    assert first["trusted"] == full["trusted"] == []
    assert len(second["trusted"]) == 2  # type: ignore[arg-type]
    assert second["bytes"] < first["bytes"] == full["bytes"]  # type: ignore[operator]


def test_a_changed_segment_is_read_again(tmp_path: Path) -> None:
    stores, writer, _ = make(tmp_path)
    out = str(tmp_path / "out")
    texts = [str(s) for s in stores]
    assert call(*texts, "--out", out, "--incremental").return_value == 0
    next(p for p in PLANTS if p.name == "flipped bit").do(stores, writer)
    assert call(*texts, "--out", out, "--incremental").return_value == 2


def test_what_a_full_audit_finds_is_not_forgotten_by_the_next_incremental_one(tmp_path: Path) -> None:
    """A disk rots: the segment keeps its size and time."""
    stores, writer, _ = make(tmp_path)
    arguments = [*(str(s) for s in stores), "--out", str(tmp_path / "out")]
    assert call(*arguments, "--incremental").return_value == 0
    file = sorted((stores[1] / "commitlog").iterdir())[0]
    before = file.stat()
    patch(stores[1], int(str(writer.rows[3]["phys_offset"])) + 88, b"?")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    modes = ["--incremental", "--full", "--incremental", "--incremental"]
    assert [call(*arguments, mode).return_value for mode in modes] == [0, 2, 2, 2]


@pytest.mark.parametrize("name", ["trusted.parquet", "trusted/segments.parquet", "trusted/files.parquet"])
def test_a_full_audit_makes_a_damaged_state_anew(name: str, tmp_path: Path) -> None:
    stores, _ = plant("nothing", tmp_path)
    arguments = ["audit", *stores, "--out", str(tmp_path / "out")]
    assert call(*arguments[1:], "--incremental").return_value == 0
    (tmp_path / "out" / name).write_text("junk")
    assert run_command(audit, [*arguments[1:], "--incremental"], "keelmq audit") == 64
    assert call(*arguments[1:]).return_value == 0
    said = json.loads(call(*arguments[1:], "--incremental", "--json").stdout)
    assert (said["verdict"], len(said["trusted"])) == ("clean", 2)


def test_a_full_audit_leaves_no_state_where_none_was(tmp_path: Path) -> None:
    stores, _ = plant("nothing", tmp_path)
    assert call(*stores, "--out", str(tmp_path / "out")).return_value == 0
    assert [p.name for p in (tmp_path / "out").iterdir() if "trusted" in p.name] == []


@pytest.mark.parametrize("where", ["", "report", "commitlog", "../link/config"])
@pytest.mark.parametrize("option", ["--out", "--textfile"])
def test_no_result_lies_in_a_store(option: str, where: str, tmp_path: Path) -> None:
    stores, _ = plant("nothing", tmp_path)
    (tmp_path / "link").symlink_to(stores[1])
    before = sorted(Path(stores[1]).rglob("*"))
    rest = [] if option == "--out" else ["--out", str(tmp_path / "out")]
    path = f"{stores[1]}/{where}/audit.prom" if rest else f"{stores[1]}/{where}"
    refused = call(*stores, option, path, *rest).exception
    assert isinstance(refused, UsageError)
    assert "it lies in the store" in str(refused)
    assert sorted(Path(stores[1]).rglob("*")) == before


def test_the_allocator_is_told_before_arrow_is_loaded() -> None:
    script = "import sys, audit, os; print(os.environ['MIMALLOC_PURGE_DELAY'], 'pyarrow' in sys.modules)"
    environ = {name: value for name, value in os.environ.items() if name != "MIMALLOC_PURGE_DELAY"}
    shown = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True
    )
    assert shown.stdout.split() == ["0", "False"]
