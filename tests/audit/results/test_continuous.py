"""The promise of a continuous audit: a fault is told when its segment was sealed, a failover is none."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from audit import continuous
from audit.commands import make_engine, watch
from audit.continuous import HISTORY, Continuous, sealed
from audit.findings import SCHEMA_VERSION, Finding
from audit.pages import sentence
from audit.pages.textfile import Running
from audit.reading.storage import parse_stores
from audit.results import diff
from audit.run import AuditError, Report, audit
from model.errors import ConfigError
from tests.audit.stores import SEGMENT, LogWriter, copies, look, patch, record, write_epochs

FILLED = 30
"""Records: more than a segment holds."""


class Group:
    """A running group of three stores with one log."""

    def __init__(self, tmp_path: Path) -> None:
        self.log = LogWriter(tmp_path / "master")
        self.epochs = [(1, 0)]
        (self.log.root / "abort").touch()
        self.log.fill(FILLED)
        self.log.write_queues(1000)
        self._confirm(self.log.root)
        self.stores = copies(self.log.root)

    def _confirm(self, store: Path) -> None:
        self.log.confirm(None, self.epochs)
        if store != self.log.root:
            for name in ("checkpoint", "epochFileCheckpoint"):
                (store / name).write_bytes((self.log.root / name).read_bytes())

    def grow(self, *, but: tuple[int, ...] = (), mark: str = "n") -> None:
        """Another segment is sealed on all stores, or all ``but`` those that are down."""
        self.log.fill(FILLED, mark=f"{mark}{self.log.end}-", stamp=5000)
        self.log.write_queues(1000)
        for at, store in enumerate(self.stores):
            if at not in but:
                self.catch_up(store)

    def catch_up(self, store: Path) -> None:
        """The store's log becomes the master's, as after a rejoin."""
        for path in sorted(self.log.root.rglob("*")):
            if path.is_file() and path.name != "abort":
                copy = store / path.relative_to(self.log.root)
                raw = path.read_bytes()
                if not copy.exists() or copy.read_bytes() != raw:
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    copy.write_bytes(raw)
        self._confirm(store)


def flip(store: Path, offset: int) -> int:
    (byte,) = look(store, offset + 95, 1)
    patch(store, offset + 95, bytes([byte ^ 1]))
    return offset


class Run:
    """A continuous audit: between two looks the next of ``steps`` happens."""

    def __init__(self, group: Group, out: Path, *steps: Callable[[], object]) -> None:
        self.said: list[str] = []
        self.reports: list[Report] = []
        self.broken = 0
        self._steps = list(steps)
        self.out = out
        specs = parse_stores([str(store) for store in group.stores])
        told = Running(out.with_suffix(".prom"))

        def keep(report: Report | None) -> None:
            told.ended(report)
            if report is None:
                self.broken += 1
            else:
                self.reports.append(report)

        made = Continuous(
            specs, lambda: make_engine("local"), out, self._wait, self.said.append, keep, told.looked
        )
        self.verdict = made.run(7.0)

    def _wait(self, seconds: float) -> bool:
        if seconds != 7.0:
            return False  # between the two passes of which both must say it
        if self._steps:
            self._steps.pop(0)()
            return False
        return True

    @property
    def history(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.out / HISTORY).read_text().splitlines()]


def test_a_flipped_byte_is_found_by_the_pass_after_its_segment_was_sealed(tmp_path: Path) -> None:
    group = Group(tmp_path)
    at = 0

    def flip_and_seal() -> None:
        nonlocal at
        at = flip(group.stores[1], int(str(group.log.rows[-1]["phys_offset"])))
        group.grow(but=(1,))
        # The damaged store goes on behind its flipped byte.
        raw = bytearray(look(group.stores[1], at, 96))
        group.catch_up(group.stores[1])
        patch(group.stores[1], at, bytes(raw))

    run = Run(group, tmp_path / "out", group.grow, flip_and_seal)
    (told,) = [text for text in run.said if text.startswith("+ error")]
    assert "crc_mismatch" in told
    assert f"[{at}," in told
    assert run.verdict == "diverged"
    (row,) = [row for row in run.history if row["severity"] == "error"]
    assert (row["replica"], row["kind"], row["gone"]) == ("r1", "crc_mismatch", "")


def test_a_group_that_grows_and_fails_over_ends_clean(tmp_path: Path) -> None:
    group = Group(tmp_path)

    def killed() -> None:
        """The master dies with records that nobody else has; another one leads in a new epoch."""
        other = group.log
        only = record(other.end, FILLED, b"nobody else has it" * 3, key="only", stamp=5000)
        patch(group.stores[0], other.end, only)
        group.epochs.append((2, other.end))
        write_epochs(other.root, group.epochs)
        group.grow(but=(0,), mark="e2")

    def rejoined() -> None:
        group.catch_up(group.stores[0])

    run = Run(group, tmp_path / "out", group.grow, killed, group.grow, rejoined, group.grow)
    assert run.verdict == "clean", run.said
    assert {row["kind"] for row in run.history} == {"divergent_suffix"}
    assert all(row["gone"] for row in run.history)


def test_a_replica_that_does_not_come_back_is_told_at_the_end(tmp_path: Path) -> None:
    group = Group(tmp_path)
    patch(group.stores[0], group.log.end, record(group.log.end, FILLED // 2, b"nobody else" * 3, stamp=5000))

    def another_leads() -> None:
        group.epochs.append((2, group.log.end))
        group.grow(but=(0,), mark="e2")

    run = Run(group, tmp_path / "out", another_leads)
    assert run.verdict == "warnings"
    assert [row["kind"] for row in run.history] == ["divergent_suffix"]


def test_what_one_pass_alone_says_is_no_finding(tmp_path: Path) -> None:
    group = Group(tmp_path)
    at = flip(group.stores[2], 0)

    class Cut(Run):
        def _wait(self, seconds: float) -> bool:
            if seconds != 7.0:
                group.catch_up(group.stores[2])  # the first pass read it while it was being replaced
            return super()._wait(seconds)

    run = Cut(group, tmp_path / "out")
    assert at == 0
    assert (run.verdict, run.said) == ("clean", [])
    assert {f.severity for report in run.reports for f in report.findings} <= {"info"}
    first = run.reports[0]
    assert (first.verdict, first.windows, first.evidence) == ("clean", [], [])
    assert sentence.of(first.verdict, first.windows, first.unreadable) == "The replicas hold the same log."


def test_a_pass_that_breaks_and_every_look_are_in_the_textfile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from audit import continuous

    group = Group(tmp_path)
    file = tmp_path / "out.prom"
    rows: list[dict[str, float]] = []

    def told() -> None:
        lines = [line.rsplit(" ", 1) for line in file.read_text().splitlines() if line.startswith("keelmq")]
        rows.append({name.split("_audit_")[1]: float(value) for name, value in lines})

    def breaks(*arguments: Any, **options: Any) -> Report:
        raise AuditError("reading failed half-way")

    def break_and_seal() -> None:
        told()
        monkeypatch.setattr(continuous, "audit", breaks)
        group.grow()

    def mend() -> None:
        told()
        monkeypatch.setattr(continuous, "audit", audit)

    def passes_and_a_quiet_look() -> None:
        told()

    run = Run(group, tmp_path / "out", break_and_seal, mend, passes_and_a_quiet_look, told)
    assert (run.broken, run.verdict) == (1, "clean")
    verdict = 'verdict{audit="out",verdict="%s"}'
    assert [row[verdict % "clean"] for row in rows] == [1, 0, 1, 1]
    assert [row[verdict % "unfinished"] for row in rows] == [0, 1, 0, 0]
    ended, looked = (
        [row[f'{name}_timestamp_seconds{{audit="out"}}'] for row in rows] for name in ("finished", "looked")
    )
    assert ended[2] == ended[3], "nothing was sealed between the last two looks"
    assert looked == sorted(set(looked)), "each look is told"


def test_an_error_that_was_mended_still_counts_and_a_restart_knows_it(tmp_path: Path) -> None:
    group = Group(tmp_path)
    flip(group.stores[1], 0)
    out = tmp_path / "out"
    run = Run(group, out, lambda: group.catch_up(group.stores[1]))
    assert [text[:7] for text in run.said] == ["+ error", "- error"]
    assert run.verdict == "diverged"
    assert Run(group, out).verdict == "diverged"
    (out / HISTORY).unlink()
    assert Run(group, out).verdict == "clean"
    (out / HISTORY).write_text("{}\n")
    with pytest.raises(ConfigError, match="not the history"):
        Run(group, out)


def test_nothing_is_read_until_a_segment_is_sealed_or_changes(tmp_path: Path) -> None:
    group = Group(tmp_path)
    specs = parse_stores([str(store) for store in group.stores])
    before = sealed(specs)
    group.log.fill(1)
    group.catch_up(group.stores[0])
    base = group.log.end // SEGMENT * SEGMENT + SEGMENT
    (group.stores[0] / "commitlog" / f"{base:020d}").write_bytes(bytes(SEGMENT))  # reserved, not written
    assert sealed(specs) == before
    nothing: list[Callable[[], object]] = [lambda: None] * 5
    assert len(Run(group, tmp_path / "out", *nothing).reports) == 2, (
        "the first look, and when it is told to stop"
    )
    group.grow()
    assert sealed(specs) != before
    now = sealed(specs)
    path = group.stores[1] / "commitlog" / f"{0:020d}"
    os.utime(path, ns=(1, 1))
    assert sealed(specs) != now


def test_a_store_that_cannot_be_read_at_the_end_is_unfinished(tmp_path: Path) -> None:
    group = Group(tmp_path)
    run = Run(group, tmp_path / "out", lambda: (group.stores[2] / "commitlog").rename(tmp_path / "gone"))
    assert run.verdict == "unfinished"


def test_the_command_audits_until_a_signal_and_ends_with_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from audit import commands

    group = Group(tmp_path)
    flip(group.stores[1], 0)
    wait = commands.Stop.wait

    def told(self: commands.Stop, seconds: float) -> bool:
        if seconds == 9.0:
            os.kill(os.getpid(), signal.SIGTERM)
            return wait(self, 60)
        return False

    monkeypatch.setattr(commands.Stop, "wait", told)
    before = signal.getsignal(signal.SIGTERM)
    stores = [str(store) for store in group.stores]
    arguments = [*stores, "--continuous", "--every", "9", "--out", str(tmp_path / "out")]
    stopped = CliRunner().invoke(commands.audit, arguments, standalone_mode=False)
    assert stopped.return_value == 2, stopped.output
    assert "+ error crc_mismatch r1" in stopped.output
    assert (tmp_path / "out" / "index.html").exists()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("more", [["--ledger", "/dev/null"], ["--engine", "spark"], ["--json"]])
def test_what_it_does_not_do_continuously_it_says(tmp_path: Path, more: list[str]) -> None:
    from click.testing import CliRunner

    from audit import commands

    refused = CliRunner().invoke(commands.audit, [str(tmp_path), "--continuous", *more])
    assert refused.exit_code == 2
    assert "--continuous" in refused.output


def test_a_key_that_holds_what_ends_a_line_elsewhere_is_one_line(tmp_path: Path) -> None:
    """A restart goes on with it, a difference is told, and a terminal shows what stands in it."""
    row = Finding("dup_message", "warn", "a", uniq_key="x\u2028y\x85z\x0bw").to_json()
    text = json.dumps({**row, "since": "now", "gone": ""}, ensure_ascii=False) + "\n"
    (tmp_path / HISTORY).write_text(text)
    (seen,) = continuous._read(tmp_path / HISTORY).values()
    assert seen.row == row
    summary = {"schemaVersion": SCHEMA_VERSION, "verdict": "warnings"}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "findings.jsonl").write_text(json.dumps(row, ensure_ascii=False) + "\n")
    assert diff.read(tmp_path).findings == [row]


def test_what_a_continuous_audit_tells_is_one_line_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Tells:
        def __init__(self, *given: Any) -> None:
            self._say = given[4]

        def run(self, every_s: float) -> str:
            self._say("+ dup_message x\ny\x1b[2J")
            return "clean"

    monkeypatch.setattr("audit.continuous.Continuous", Tells)
    assert watch([], tmp_path, 1.0, None) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_findings_about_one_thing_are_told_apart_and_what_went_long_ago_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what went those that count stay longest: they are in the verdict."""
    monkeypatch.setattr("audit.continuous.GONE_MAX", 2)
    found = [
        Finding("queue_gap", "error", "r0", phys_offset=7, until=9, topic="T", queue_id=0, records=n)
        for n in (1, 2)
    ]
    others = [Finding("dup_message", "warn", "r0", phys_offset=at) for at in range(3)]
    reports = [[*found, *others], found, []]

    class Told(Continuous):
        def _audit(self) -> Report:
            return Report("", "local", list(reports[0]), [], {}, "", [], 0, 0, 0, 0)

    said: list[str] = []

    def made() -> Told:
        engine = partial(make_engine, "local")
        return Told([], engine, tmp_path, lambda s: True, said.append, lambda report: None)

    watched = made()
    for _ in range(2):
        watched._note(watched._audit())
        reports.pop(0)
    assert len([text for text in said if text.startswith("+ error")]) == 2
    assert len(watched._seen) == 2 + 2
    assert watched.run(1.0) == "diverged"
    rows = [json.loads(line) for line in (tmp_path / HISTORY).read_text().splitlines()]
    assert [(row["kind"], row["records"], bool(row["gone"])) for row in rows] == [
        ("queue_gap", 1, True),
        ("queue_gap", 2, True),
    ]
    assert len(made()._seen) == 2
