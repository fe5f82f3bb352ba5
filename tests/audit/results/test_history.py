"""The promise of findings as data: audits can be compared, alerted on, and read by their documentation."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from prometheus_client.parser import text_string_to_metric_families

from admin.exits import run as run_command
from audit.commands import audit
from audit.findings import KINDS, SCHEMA, SCHEMA_VERSION, Finding
from model.errors import ConfigError
from tests import ROOT
from tests.audit.plants import PLANTS, make
from tests.audit.stores import patch

DOCS = ROOT / "docs"


def call(*arguments: str) -> Result:
    return CliRunner().invoke(audit, list(arguments), standalone_mode=False)


def two_audits(tmp_path: Path, *faults: str) -> tuple[str, str]:
    """One of a sound group, and one after the faults."""
    stores, writer, ledger = make(tmp_path)
    outs = [str(tmp_path / name) for name in ("old", "new")]
    texts = [str(s) for s in stores]
    call(*texts, "--ledger", str(ledger), "--out", outs[0])
    for fault in faults:
        next(p for p in PLANTS if p.name == fault).do(stores, writer)
    call(*texts, "--ledger", str(ledger), "--out", outs[1])
    return outs[0], outs[1]


@pytest.mark.parametrize(
    ("faults", "code", "back"),
    [((), 0, 0), (("duplicate",), 1, 0), (("flipped bit", "duplicate"), 2, 0)],
)
def test_a_difference_counts_what_is_new(
    faults: tuple[str, ...], code: int, back: int, tmp_path: Path
) -> None:
    old, new = two_audits(tmp_path, *faults)
    result = call("diff", old, new, "--json")
    assert result.return_value == code
    said = json.loads(result.stdout)
    rows = [json.loads(line) for line in (Path(new) / "findings.jsonl").read_text().splitlines()]
    assert (said["appeared"], said["gone"], said["changed"]) == (rows, [], [])
    assert said["new"]["findings"] == len(rows)
    mended = call("diff", new, old)
    assert mended.return_value == back
    assert len([line for line in mended.stdout.splitlines() if line.startswith("- ")]) == len(rows)
    again = call("diff", new, new)
    assert again.return_value == 0
    assert f"0 new, 0 gone, 0 changed, {len(rows)} as before" in again.stdout


def test_what_was_found_on_a_replica_that_cannot_be_read_now_is_not_gone(tmp_path: Path) -> None:
    stores, writer, _ = make(tmp_path)
    patch(stores[1], int(str(writer.rows[12]["phys_offset"])) + 88, b"?")
    outs = [str(tmp_path / name) for name in ("old", "new")]
    call(*(str(s) for s in stores), "--out", outs[0])
    (stores[1] / "commitlog").rename(stores[1] / "went")
    call(*(str(s) for s in stores), "--out", outs[1])
    told = call("diff", *outs)
    assert told.return_value == 3
    assert [line[:20] for line in told.stdout.splitlines()[:-1]] == ["? error crc_mismatch"]
    assert told.stdout.endswith("0 new, 0 gone, 0 changed, 0 as before, 1 of what was not read\n")
    said = json.loads(call("diff", *outs, "--json").stdout)
    assert (said["gone"], [row["replica"] for row in said["unread"]]) == ([], ["r1"])


def test_what_was_found_on_a_replica_that_is_not_given_now_is_not_gone(tmp_path: Path) -> None:
    stores, writer, _ = make(tmp_path)
    patch(stores[1], int(str(writer.rows[12]["phys_offset"])) + 88, b"?")
    outs = [str(tmp_path / name) for name in ("old", "new")]
    call(*(str(s) for s in stores), "--out", outs[0])
    call(str(stores[0]), str(stores[2]), "--out", outs[1])
    said = json.loads(call("diff", *outs, "--json").stdout)
    assert (said["gone"], [row["replica"] for row in said["unread"]]) == ([], ["r1"])


def _rewrite(out: str, **columns: Any) -> None:
    path = Path(out) / "findings.jsonl"
    rows = [json.loads(line) | columns for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_finding_that_got_worse_is_no_new_one(tmp_path: Path) -> None:
    _, new = two_audits(tmp_path, "duplicate")
    for at, out in enumerate(("a", "b")):
        (tmp_path / out).mkdir()
        for name in ("findings.jsonl", "summary.json"):
            (tmp_path / out / name).write_text((Path(new) / name).read_text())
        if at:
            _rewrite(str(tmp_path / out), severity="error")
    worse = call("diff", str(tmp_path / "a"), str(tmp_path / "b"))
    assert worse.return_value == 2
    assert "severity warn -> error" in worse.stdout
    assert call("diff", str(tmp_path / "b"), str(tmp_path / "a")).return_value == 0


@pytest.mark.parametrize("broken", ["nothing", "summary.json", "findings.jsonl", "other", "a folder"])
def test_what_is_no_report_cannot_be_compared(broken: str, tmp_path: Path) -> None:
    old, new = two_audits(tmp_path, "duplicate")
    if broken == "nothing":
        new = str(tmp_path / "nosuch")
    elif broken == "a folder":
        (Path(new) / "findings.jsonl").unlink()
        (Path(new) / "findings.jsonl").mkdir()
    elif broken == "other":
        (Path(new) / "findings.jsonl").write_text('{"kind": "dup_message"}\n')
    else:
        (Path(new) / broken).write_text("{")
    assert run_command(audit, ["diff", old, new], "keelmq audit") == 64
    assert run_command(audit, ["diff", old], "keelmq audit") == 64


@pytest.mark.parametrize("file", ["summary.json", "findings.jsonl"])
@pytest.mark.parametrize("version", [None, SCHEMA_VERSION + 1])
def test_results_of_another_schema_are_refused(version: int | None, file: str, tmp_path: Path) -> None:
    old, new = two_audits(tmp_path, "duplicate")
    path = Path(new) / file
    name = "schemaVersion" if file == "summary.json" else "schema_version"
    assert f'"{name}": {SCHEMA_VERSION}' in path.read_text()
    told = path.read_text().replace(f'"{name}": {SCHEMA_VERSION}', f'"{name}": {json.dumps(version)}')
    path.write_text(told)
    result = CliRunner().invoke(audit, ["diff", old, new])
    assert isinstance(result.exception, ConfigError)
    said = f"schema version {version}" if version else "no schema version"
    assert f"{path}: {said}, this keelmq compares version {SCHEMA_VERSION}" in str(result.exception)
    assert run_command(audit, ["diff", old, new], "keelmq audit") == 64


def test_every_result_has_its_schema_version(tmp_path: Path) -> None:
    old, new = two_audits(tmp_path, "removed message")
    table = pq.read_table(Path(new) / "findings.parquet")
    assert set(table["schema_version"].to_pylist()) == {SCHEMA_VERSION}
    assert table.schema.metadata[b"keelmq.audit.schema_version"] == str(SCHEMA_VERSION).encode()
    assert json.loads(call("diff", old, new, "--json").stdout)["schemaVersion"] == SCHEMA_VERSION
    page = (DOCS / "audit.md").read_text()
    named = set(re.findall(r"`(\w+)`", page[page.index("## Results") : page.index("## Findings")]))
    summary = json.loads((Path(new) / "summary.json").read_text())
    assert set(summary) | set(summary["windows"][0]) <= named


def test_what_does_not_apply_is_null(tmp_path: Path) -> None:
    stores, _, ledger = make(tmp_path)
    (stores[1] / "config").mkdir()
    (stores[1] / "config" / "topics.json").write_text("{broken")
    out = tmp_path / "out"
    call(*map(str, stores), "--ledger", str(ledger), "--out", str(out))
    (row,) = pq.read_table(out / "findings.parquet").to_pylist()
    assert [json.loads(line) for line in (out / "findings.jsonl").read_text().splitlines()] == [row]
    absent = ("epoch", "phys_offset", "until", "topic", "queue_id", "queue_offset", "uniq_key", "caused_by")
    assert [row[name] for name in absent] == [None] * len(absent)
    (window,) = json.loads((out / "summary.json").read_text())["windows"]
    assert (window["topic"], window["phys_offset"], window["since_ms"]) == (None, None, None)
    assert Finding.from_json(row).to_json() == row


def _metrics(file: Path) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *(v for k, v in sorted(sample.labels.items()) if k != "audit")): sample.value
        for family in text_string_to_metric_families(file.read_text())
        for sample in family.samples
        if sample.labels["audit"] == file.stem
    }


@pytest.mark.parametrize(("fault", "verdict"), [("nothing", "clean"), ("removed message", "diverged")])
def test_the_textfile_has_the_result(fault: str, verdict: str, tmp_path: Path) -> None:
    stores, writer, ledger = make(tmp_path)
    next(p for p in PLANTS if p.name == fault).do(stores, writer)
    file, out = tmp_path / "broker-a.prom", tmp_path / "out"
    texts = [str(s) for s in stores]
    call(*texts, "--ledger", str(ledger), "--out", str(out), "--textfile", str(file))
    summary = json.loads((out / "summary.json").read_text())
    got = _metrics(file)
    said = {key[1]: value for key, value in got.items() if key[0] == "keelmq_audit_verdict"}
    assert said == {name: float(name == verdict) for name in ("clean", "warnings", "diverged", "unfinished")}
    by_kind = dict.fromkeys(KINDS, 0.0)
    for key, value in got.items():
        if key[0] == "keelmq_audit_findings":
            by_kind[key[1]] += value
    assert {kind: n for kind, n in by_kind.items() if n} == summary["findings"]
    assert got["keelmq_audit_lost_messages",] == summary["findings"].get("acked_missing", 0)
    assert got["keelmq_audit_records",] == summary["records"]
    assert got["keelmq_audit_read_bytes",] == summary["bytes"]


def test_an_audit_that_breaks_says_so_in_the_textfile(tmp_path: Path) -> None:
    stores, _, _ = make(tmp_path)
    file = tmp_path / "broker-a.prom"
    file.write_text("# of an audit before\n")
    (tmp_path / "out").write_text("not a folder")
    arguments = [*(str(s) for s in stores), "--out", str(tmp_path / "out"), "--textfile", str(file)]
    assert run_command(audit, arguments, "keelmq audit") == 3
    got = _metrics(file)
    assert got["keelmq_audit_verdict", "unfinished"] == 1
    assert got["keelmq_audit_finished_timestamp_seconds",] > 1_700_000_000
    assert not any(key[0] == "keelmq_audit_findings" for key in got)


def test_a_ledger_that_is_not_there_is_told_in_the_textfile(tmp_path: Path) -> None:
    stores, _, _ = make(tmp_path)
    file = tmp_path / "broker-a.prom"
    arguments = [str(stores[0]), "--ledger", str(tmp_path / "nosuch"), "--textfile", str(file)]
    assert run_command(audit, arguments, "keelmq audit") == 64
    assert _metrics(file)["keelmq_audit_verdict", "unfinished"] == 1


def test_every_kind_and_column_is_in_the_page() -> None:
    page = (DOCS / "audit.md").read_text()
    part = page[page.index("## Findings") : page.index("## Several audits")]
    cells = [line.split("|")[1] for line in part.splitlines() if line.startswith("| `")]
    named = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert named == set(KINDS) | set(SCHEMA.names)


def test_the_kinds_of_files_and_offsets_are_in_the_glossary() -> None:
    words = (DOCS / "glossary.md").read_text()
    beside = {
        k for k in KINDS if k.startswith(("index_", "cq_", "file_", "consumer_", "queue_", "dup_queue"))
    }
    assert {k for k in beside - {"file_unreadable"} if f"`{k}`" not in words} == set()


def test_every_metric_is_in_the_page(tmp_path: Path) -> None:
    stores, _, _ = make(tmp_path)
    file = tmp_path / "m.prom"
    call(*(str(s) for s in stores), "--out", str(tmp_path / "out"), "--textfile", str(file))
    names = set(re.findall(r"^(keelmq_audit_\w+)", file.read_text(), re.MULTILINE))
    page = (DOCS / "audit.md").read_text()
    assert names
    assert {name for name in names if f"`{name}" not in page} == set()
