"""The promise of the page: one sentence says it, windows show it, copies prove it, commands mend it."""

from __future__ import annotations

import json
import re
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from audit.commands import audit
from audit.findings import SCHEMA_VERSION, Finding
from audit.pages import sentence
from audit.pages.html import size
from audit.results.evidence import RECORDS_MAX
from audit.results.losses import windows
from audit.results.steps.repair import steps
from runtime.version import version
from tests.audit.browser import ask
from tests.audit.plants import PLANTS, make, run_local
from tests.audit.stores import LogWriter, copies, cut, look, patch, record

STAMP = 1_700_000_000_000


def damaged(root: Path) -> tuple[list[Path], list[int], Path]:
    """Three replicas that lost four messages of one queue, with a record whose copies differ."""
    writer = LogWriter(root / "origin")
    for n in range(60):
        writer.add(b"order %d" % n, key=f"KEY{n:029d}", topic="Orders", queue_id=n % 2, stamp=STAMP + n)
    at = [int(str(row["phys_offset"])) for row in writer.rows]
    writer.confirm(epochs=[(1, 0), (2, at[20])])
    ledger = root / "acked.jsonl"
    ledger.write_text("".join(json.dumps(row) + "\n" for row in writer.rows))
    stores = copies(writer.root)
    for n in (40, 42, 44, 46):
        size = struct.unpack(">i", look(stores[0], at[n], 4))[0]
        body = b"y" * (size - 91 - 1 - len("UNIQ_KEY\x01other40\x02"))
        raw = record(at[n], n, body, key=f"other{n}", topic="X", stamp=STAMP + n)
        for store in stores:
            patch(store, at[n], raw)
    patch(stores[1], at[3] + 50, b"\x11")
    return stores, at, ledger


def call(*arguments: str) -> Any:
    return CliRunner().invoke(audit, list(arguments), standalone_mode=False)


def report_of(tmp_path: Path) -> Path:
    stores, _, ledger = damaged(tmp_path)
    out = tmp_path / "out"
    call(*(str(s) for s in stores), "--ledger", str(ledger), "--out", str(out))
    return out


def test_losses_are_one_window_with_its_place_time_and_keys(tmp_path: Path) -> None:
    stores, at, ledger = damaged(tmp_path)
    report = run_local(stores, ledger)
    lost = [w for w in report.windows if w.lost]
    assert [(w.topic, w.queue_id, w.epoch, w.records) for w in lost] == [("Orders", 0, 2, 4)]
    assert (lost[0].first_key, lost[0].last_key) == (f"KEY{40:029d}", f"KEY{46:029d}")
    assert (lost[0].phys_offset, lost[0].until) == (at[40], at[46] + 1)
    assert (lost[0].since_ms, lost[0].until_ms) == (STAMP + 39, STAMP + 47), "between their neighbours"
    assert report.windows[0] == lost[0]
    told = sentence.of(report.verdict, report.windows)
    assert told.startswith("4 acknowledged messages are lost, on no replica, in queue 0 of Orders, epoch 2,")
    assert "since 2023-11-14 22:13:20.039 UTC" in told


def test_what_is_far_apart_is_two_windows() -> None:
    rows = [
        Finding("acked_missing", "error", "*", "", 1, at, at + 1, "T", 0, at, records=1)
        for at in (10, 4000, 9000)
    ]
    assert [w.records for w in windows(rows, [])] == [1, 1, 1]
    [whole] = windows([f for f in rows if f.phys_offset < 11] * 3, [])
    assert (whole.records, whole.since_ms) == (3, -1)


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        ("flipped bit", "r1 has 1 damaged record, in queue 0 of T, epoch 1, from offset"),
        ("missing segment", "r0 has a log without one of its segments, epoch"),
        ("divergent suffix", "r1 has another history than the others, epoch 3, from offset"),
        (
            "cut tail",
            "r2 has a log that ends too early and lacks 5 acknowledged messages, epoch 3",
        ),
        ("duplicate", "Every replica has 1 message more than once, in queue 0 of T, epoch 3"),
        ("same damage everywhere", "1 acknowledged message is lost, on no replica, in queue 1 of T, epoch 1"),
        ("nothing", "The replicas hold the same log."),
    ],
)
def test_the_sentence_says_what_where_and_since_when(plant: str, words: str, tmp_path: Path) -> None:
    stores, writer, ledger = make(tmp_path)
    next(p for p in PLANTS if p.name == plant).do(stores, writer)
    report = run_local(stores, ledger)
    told = sentence.of(report.verdict, report.windows)
    assert told.startswith(words)
    assert ("since 1970-01-01" in told) is (plant != "nothing")


def test_the_sentence_names_all_that_have_the_same_fault(tmp_path: Path) -> None:
    stores, writer, _ = make(tmp_path)
    next(p for p in PLANTS if p.name == "same damage everywhere").do(stores, writer)
    report = run_local(stores, None)
    told = sentence.of(report.verdict, report.windows)
    assert told.startswith("r0, r1 and r2 have 1 damaged record, in queue 1 of T, epoch 1")


def test_the_sentence_names_the_largest_of_the_other_things(tmp_path: Path) -> None:
    stores, writer, _ = make(tmp_path)
    assert len(writer.rows) == 80
    at = [int(str(row["phys_offset"])) for row in writer.rows]
    patch(stores[1], at[12] + 88, b"?")
    cut(stores[2], at[20])  # an older backup
    (stores[2] / "config").mkdir()
    (stores[2] / "config" / "topics.json").write_text("{")
    report = run_local(stores, None)
    told = sentence.of(report.verdict, report.windows)
    assert told.startswith("r1 has 1 damaged record, in queue 0 of T, epoch 1, from offset")
    lacks = size(writer.end - at[20])
    assert told.endswith(
        f"; 2 other things to look at, the largest: r2 has a log that ends too early, {lacks} of it."
    )
    rest = [w for w in report.windows if w.kind != "short_tail"]
    told = sentence.of(report.verdict, rest)
    assert told.endswith("; 1 other thing to look at: r2 has a small file that is not as it was written.")


@pytest.mark.parametrize(
    ("plant", "kept", "looked_up"),
    [
        ("nothing", False, "was looked up: there once, same body, same place, same order."),
        ("flipped bit", True, "Not each is. The findings name those"),
        ("cut tail", True, "Not each is. The findings name those behind the end of a log that is too short."),
        ("duplicate", False, "Not each is. The findings name those more than once there."),
        ("removed message", False, "Not each is. 1 is lost. The findings name those missing."),
        ("swapped", False, "Not each is. The findings name those"),
        ("same damage everywhere", False, "Not each is. 1 is lost. The findings name those missing."),
    ],
)
def test_the_page_says_what_became_of_the_ledger(
    plant: str, kept: bool, looked_up: str, tmp_path: Path
) -> None:
    """A question that was asked read as its answer, and nothing said that all was there."""
    stores, writer, ledger = make(tmp_path)
    next(p for p in PLANTS if p.name == plant).do(stores, writer)
    out, told = tmp_path / "out", "No acknowledged message of the ledger is lost."
    result = call(*(str(s) for s in stores), "--ledger", str(ledger), "--out", str(out))
    page = (out / "index.html").read_text()
    assert ((told in page), (told in result.stdout)) == (kept, kept)
    assert looked_up in page
    assert "1 errors" not in page
    lost = json.loads((out / "summary.json").read_text())["ledger"]["lost"]
    assert lost == (plant in ("removed message", "same damage everywhere"))
    call(*(str(s) for s in stores), "--out", str(out))
    assert told not in (out / "index.html").read_text(), "without a ledger nobody knows"
    assert json.loads((out / "summary.json").read_text())["ledger"]["lost"] is None


def test_the_headline_names_who_could_not_be_read(tmp_path: Path) -> None:
    no_bill = "r2 could not be read, so this is no clean bill."
    stores, _, _ = make(tmp_path / "whole")
    (stores[2] / "commitlog").rename(tmp_path / "went")
    report = run_local(stores, None)
    assert (report.verdict, report.windows) == ("unfinished", [])
    assert sentence.of(report.verdict, report.windows, report.unreadable) == no_bill
    stores, _, ledger = damaged(tmp_path)
    (stores[2] / "commitlog").rename(tmp_path / "gone")
    report = run_local(stores, ledger)
    assert (report.verdict, list(report.unreadable)) == ("diverged", ["r2"])
    told = sentence.of(report.verdict, report.windows, report.unreadable)
    assert told.startswith("4 acknowledged messages are lost, on no replica, ")
    assert told.endswith(f". {no_bill}")
    out = tmp_path / "out"
    assert call(*(str(s) for s in stores), "--ledger", str(ledger), "--out", str(out)).return_value == 2
    assert no_bill in (out / "index.html").read_text()


@pytest.mark.parametrize("read", [0, 2])
def test_what_could_not_be_read_has_a_step_before_all_others(read: int, tmp_path: Path) -> None:
    """The alert of an unfinished audit is answered by who looks at the page."""
    stores, _, _ = make(tmp_path)
    for store in stores[read:]:
        (store / "commitlog").rename(store / "went")
    out = tmp_path / "out"
    assert call(*(str(s) for s in stores), "--out", str(out)).return_value == 3
    page = (out / "index.html").read_text()
    told = page.partition("<h2>What to do</h2>")[2]
    assert told.count("It could not be read, and why stands above") == 3 - read
    assert "audit again before any other step" in told
    assert "0 findings" not in told
    if read:
        patch(stores[1], 89, b"?")
        assert call(*(str(s) for s in stores), "--out", str(out)).return_value == 2
        told = (out / "index.html").read_text().partition("<h2>What to do</h2>")[2]
        assert told.index("It could not be read") < told.index("keelmq store repair")


def test_copies_stand_beside_each_other_with_what_differs(tmp_path: Path) -> None:
    stores, at, ledger = damaged(tmp_path)
    report = run_local(stores, ledger)
    of = {e.window.kind: e for e in report.evidence}
    right, wrong = of["bytes_differ"].copies
    assert (right.replica, right.sound, wrong.replica, wrong.sound) == ("r0, r2", True, "r1", False)
    marked = [
        [(row.offset + n, byte) for row in copy.rows for n, (byte, off) in enumerate(row.cells) if off]
        for copy in (right, wrong)
    ]
    assert marked == [[(at[3] + 50, "00")], [(at[3] + 50, "11")]]
    assert {name: value for name, value, _ in right.fields}["key"] == f"KEY{3:029d}"
    [gone] = of["acked_missing"].copies
    assert (gone.replica, gone.sound) == ("r0, r1, r2", False)
    assert "another message" in gone.said


@pytest.mark.parametrize("plant", [p.name for p in PLANTS])
def test_every_fault_has_a_step_and_the_page_is_made(plant: str, tmp_path: Path) -> None:
    stores, writer, ledger = make(tmp_path)
    next(p for p in PLANTS if p.name == plant).do(stores, writer)
    out = tmp_path / "out"
    call(*(str(s) for s in stores), "--ledger", str(ledger), "--out", str(out))
    summary = json.loads((out / "summary.json").read_text())
    page = (out / "index.html").read_text()
    assert ("What to do" in page) is bool(summary["windows"]) is (plant != "nothing")
    assert page.count("<section class=evidence>") <= RECORDS_MAX


def test_the_command_that_repairs_names_every_replica(tmp_path: Path) -> None:
    stores, _, ledger = damaged(tmp_path)
    report = run_local(stores, ledger)
    by = {step.command for step in steps(report.findings, report.replicas) if step.replica == "r1"}
    assert f"keelmq store repair {stores[1]} --from {stores[0]} --from {stores[2]}" in by


def test_a_missing_segment_is_brought_back_by_its_command(tmp_path: Path) -> None:
    stores, writer, ledger = make(tmp_path)
    next(p for p in PLANTS if p.name == "missing segment").do(stores, writer)
    report = run_local(stores, ledger)
    [step] = [s for s in steps(report.findings, report.replicas) if s.command.startswith("cp ")]
    subprocess.run(step.command, shell=True, check=True)
    assert run_local(stores, ledger).verdict == "clean"


def test_the_page_tells_date_version_and_command_without_secrets(tmp_path: Path) -> None:
    out = report_of(tmp_path)
    page = (out / "index.html").read_text()
    summary = json.loads((out / "summary.json").read_text())
    assert summary["schemaVersion"] == SCHEMA_VERSION
    assert summary["version"] == version()
    assert summary["version"] in page
    assert summary["startedMs"] > STAMP
    assert summary["command"].startswith(f"keelmq audit r0={tmp_path}/r0 r1=")
    assert f"--ledger {tmp_path}/acked.jsonl --engine local --out {out}" in page


def test_a_file_that_is_damaged_is_named_on_the_console(tmp_path: Path) -> None:
    stores, _, ledger = make(tmp_path)
    (stores[1] / "config").mkdir()
    (stores[1] / "config" / "topics.json").write_text("{broken")
    said = call(*(str(s) for s in stores), "--ledger", str(ledger), "--out", str(tmp_path / "out")).stdout
    assert re.search(r"^warn  file_corrupt r1 config/topics\.json: ", said, re.MULTILINE)


@pytest.mark.more
@pytest.mark.parametrize("width", [1400, 390])
def test_nothing_is_cut_off_at_the_width_of_a_desk_and_of_a_phone(width: int, tmp_path: Path) -> None:
    script = """
      const wide = innerWidth, cut = [];
      for (const node of document.querySelectorAll("body *")) {
        const box = node.getBoundingClientRect();
        const scrolls = node.closest("pre, .bar, .scroll");
        const inside = scrolls && scrolls !== node && scrolls.getBoundingClientRect().right <= wide;
        if (box.width && !inside && (box.left < -1 || box.right > wide + 1)) cut.push(node.outerHTML);
      }
      const cell = document.querySelector("#findings td"), key = document.querySelector("#findings .key");
      const font = parseFloat(getComputedStyle(cell).fontSize), high = key.getBoundingClientRect().height;
      return {wide, page: document.documentElement.scrollWidth, cut, lines: Math.round(high / font / 1.5)};
    """
    root = tmp_path / ("x" * 80)  # a path that is longer than a line
    root.mkdir()
    told = ask(report_of(root) / "index.html", script, width=width, scratch=tmp_path)
    assert told["wide"] == width
    assert (told["page"], told["cut"]) == (width, [])
    assert told["lines"] == 1, "a key of 32 characters stands on one line"


@pytest.mark.more
def test_filters_show_the_rows_they_name(tmp_path: Path) -> None:
    out = report_of(tmp_path)
    script = """
      const form = document.getElementById("filters");
      const rows = [...document.querySelectorAll("#findings tr[data-kind]")];
      const shown = () => rows.filter((r) => r.offsetHeight).map((r) => [r.dataset.kind, r.dataset.replica]);
      const set = (name, value) => {
        form.elements[name].value = value;
        form.dispatchEvent(new Event("input"));
        return shown();
      };
      const all = shown(), lost = set("kind", "acked_missing");
      const one = set("text", "key00000000000000000000000000042");
      set("kind", ""); set("text", "");
      const r1 = set("replica", "r1");
      return {hidden: form.hidden, all, lost, one, r1, said: document.getElementById("count").textContent};
    """
    told = ask(out / "index.html", script, width=1400, scratch=tmp_path)
    rows = [json.loads(line) for line in (out / "findings.jsonl").read_text().splitlines()]
    assert told["hidden"] is False
    assert told["all"] == [[row["kind"], row["replica"]] for row in rows]
    assert told["lost"] == [row for row in told["all"] if row[0] == "acked_missing"]
    assert told["one"] == [["acked_missing", "*"]]
    assert told["r1"] == [row for row in told["all"] if row[1] == "r1"] != []
    assert told["said"] == f"{len(told['r1'])} of {len(rows)} rows"
