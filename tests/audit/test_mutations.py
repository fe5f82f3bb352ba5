"""The promise of a campaign: what is changed in a stopped group is reported, or read as before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from audit.findings import verdict
from audit.run import Report
from tests.audit.mutations import group
from tests.audit.mutations.change import KINDS, Change, draw, kind_of
from tests.audit.mutations.judge import MISSED, NO_EFFECT, REPORTED, Judge, in_process

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
