"""The promise of a campaign: what is changed in a stopped group is reported, or read as before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from audit.findings import verdict
from audit.run import Report
from tests.audit.mutations import group
from tests.audit.mutations.campaign import selected
from tests.audit.mutations.change import KINDS, Change, draw, kind_of
from tests.audit.mutations.judge import MISSED, NO_EFFECT, REPORTED, Judge, in_process
from tests.audit.mutations.page import by_hand, page

SEED = 3
COUNT = 48
INDEX = "index/"


class Blind:
    """An audit that leaves out findings of ``kinds``, and gives the others the replica ``of``."""

    def __init__(self) -> None:
        self.kinds: tuple[str, ...] = ()
        self.of = ""

    def __call__(self, stores: list[Path], ledger: Path | None) -> Report:
        report = in_process(stores, ledger)
        left = [f for f in report.findings if f.kind not in self.kinds]
        report.findings = [replace(f, replica=self.of) for f in left] if self.of else left
        report.verdict = verdict(report.findings, unfinished=False)
        return report


@pytest.fixture(scope="module")
def eyes() -> Blind:
    return Blind()


@pytest.fixture(scope="module")
def judge(eyes: Blind, tmp_path_factory: pytest.TempPathFactory) -> Judge:
    folder = tmp_path_factory.mktemp("mutations")
    made = folder / "group"
    made.mkdir()
    group.make(made, SEED, short=True)
    return Judge(made, folder / "work", eyes)


@pytest.fixture(autouse=True)
def seeing(eyes: Blind) -> Iterator[None]:
    yield
    eyes.kinds, eyes.of = (), ""


def path_of(judge: Judge, start: str, at: int = 0) -> str:
    return sorted(path for path in judge.stores["b2"] if path.startswith(start))[at]


@pytest.mark.xdist_group("mutations")
def test_changes_drawn_at_random_are_reported_or_proven_without_effect(judge: Judge) -> None:
    drawn = [draw(number, SEED, judge.stores) for number in range(COUNT)]
    outcomes = {change: judge.judge(change) for change in drawn}
    assert {change: o for change, o in outcomes.items() if o.verdict == MISSED or o.blamed} == {}
    assert len({kind_of(change.file) for change in drawn}) >= 6
    assert {change.kind for change in drawn} >= set(KINDS) - {"remove", "truncate"}
    reported = [o for o in outcomes.values() if o.verdict == REPORTED]
    assert len(reported) > COUNT / 2
    assert len({o.why for o in reported}) >= 6


@pytest.mark.xdist_group("mutations")
@pytest.mark.parametrize(
    ("start", "at", "kinds"),
    [
        (INDEX, 600, ("index_wrong", "index_missing")),
        ("consumequeue/orders", 15, ("cq_wrong",)),  # a tag code: a wrong place is mended by its reader
        ("config/topics.json", 30, ("file_corrupt",)),
    ],
)
def test_what_an_audit_does_not_see_is_missed(
    start: str, at: int, kinds: tuple[str, ...], judge: Judge, eyes: Blind
) -> None:
    file = path_of(judge, start)
    change = Change(0, "b2", file, "byte", at, 1, (judge.stores["b2"][file][at] + 1) % 256)
    assert judge.judge(change).verdict == REPORTED
    eyes.kinds = kinds
    outcome = judge.judge(change)
    # A table's reader takes the other copy.
    assert outcome.verdict == (NO_EFFECT if kinds == ("file_corrupt",) else MISSED)


@pytest.mark.xdist_group("mutations")
def test_a_lost_log_that_no_finding_names_is_missed(judge: Judge, eyes: Blind) -> None:
    change = Change(0, "b2", path_of(judge, "commitlog/", 1), "zero", 300, 200)
    assert judge.judge(change).verdict == REPORTED
    eyes.of = "b1"
    outcome = judge.judge(change)
    assert (outcome.verdict, "@b1" in outcome.why) == (MISSED, True)


@pytest.mark.xdist_group("mutations")
def test_files_that_nobody_reads_have_no_effect(judge: Judge) -> None:
    for change in (
        Change(0, "b3", "lock", "remove"),
        Change(1, "b3", "checkpoint", "byte", 2000, 1, 1),
        Change(2, "b3", path_of(judge, "commitlog/", -1), "byte", 49151, 1, 1),
    ):
        assert judge.judge(change).verdict == NO_EFFECT


@pytest.mark.xdist_group("mutations")
def test_the_oldest_segment_that_is_gone_is_reported(judge: Judge) -> None:
    """Of what a real stop leaves: keelmq noted where the log begins."""
    change = Change(0, "b3", path_of(judge, "commitlog/"), "remove")
    outcome = judge.judge(change)
    assert (outcome.verdict, outcome.why, outcome.blamed) == (REPORTED, "missing_start", "")


@pytest.mark.xdist_group("mutations")
def test_the_oldest_index_without_its_entries_is_named(judge: Judge) -> None:
    """It says of no record that it has it: only the next file was said to lack them."""
    file = sorted(path for path in judge.stores["b3"] if path.startswith(INDEX))[0]
    entries_at = 40 + 4 * int(group.SHAPE["maxHashSlotNum"])
    change = Change(0, "b3", file, "zero", entries_at, len(judge.stores["b3"][file]) - entries_at)
    assert (judge.judge(change).verdict, judge.judge(change).why) == (REPORTED, "index_wrong")


def test_words_select_what_is_drawn_again() -> None:
    removed = Change(0, "b1", "commitlog/0", "remove")
    entry = Change(1, "b1", "consumequeue/T/0/0", "byte")
    words = (["remove"], ["consumequeue"], ["consumequeue/T"], ["consumequeue/other", "index"])
    assert [selected(removed, w) for w in words] == [True, False, False, False]
    assert [selected(entry, w) for w in words] == [False, True, True, False]


def test_a_new_page_keeps_what_was_written_by_hand() -> None:
    result: dict[str, Any] = {"done": 0, "seed": 1, "cpuSeconds": 0.0, "rows": [], "misses": []}
    first = page(result, "Commit 1.\n\nWhat it means.")
    assert by_hand(first) == "Commit 1.\n\nWhat it means."
    again = {
        "words": ["remove"],
        "counts": {MISSED: 1, REPORTED: 2},
        "misses": [{"number": 7}],
        "cpuSeconds": 1,
    }
    second = page({**result, "again": [again]}, by_hand(first))
    assert by_hand(second) == by_hand(first)
    assert "3 changes, 1 CPU seconds. Reported 2, without effect 0, missed 1: 7." in second
    assert by_hand("# A page without marks") == ""


def test_a_change_is_drawn_again_by_its_number() -> None:
    stores = {"b1": {"commitlog/0": bytes(range(200)), "lock": b""}}
    drawn = [draw(number, 5, stores) for number in range(40)]
    assert drawn == [draw(number, 5, stores) for number in range(40)]
    assert drawn != [draw(number, 6, stores) for number in range(40)]
    for change in drawn:
        was = stores["b1"][change.file]
        now = change.of(was)
        assert now != was
        if change.kind in ("byte", "zero", "copy", "swap"):
            assert now is not None
            assert len(now) == len(was)
            inside = slice(change.begin, change.until)
            assert now[: inside.start] + now[inside.stop :] == was[: inside.start] + was[inside.stop :]
