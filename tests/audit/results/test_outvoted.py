"""The promise of the page's steps: copies outvote no record for which their own entries speak."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from audit.results.steps.repair import Step, steps
from runtime.os_env import OsDisk
from store.offline.repair import repair
from tests.audit.plants import make_queued, run_local
from tests.audit.results.advised import reads
from tests.audit.stores import first_records, look, patch, queue_file


def _change(store: Path, begin: int, until: int, mark: bytes) -> None:
    raw = look(store, begin, until - begin)
    patch(store, begin + raw.rindex(mark) + len(mark), b"z")


def _touching(told: list[Step], begin: int, until: int) -> list[Step]:
    taken = [step for step in told for _, a, b in reads(step) if a < until and begin < b]
    return taken + [step for step in told if step.command.startswith("keelmq store repair")]


def _tag(stores: list[Path], changed: int) -> tuple[int, int]:
    begin, until = first_records(stores[0], 25)[22]
    for store in stores[:changed]:
        _change(store, begin, until, b"TAGS\x01")
    return begin, until


def test_a_tag_that_is_wrong_in_two_of_three_is_open(tmp_path: Path) -> None:
    stores, _ = make_queued(tmp_path, 3)
    begin, until = _tag(stores, 2)
    report = run_local(stores, None)
    told = steps(report.findings, report.replicas)
    assert not _touching(told, begin, until)
    assert {step.replica for step in told if "than the entry that was made" in step.why} == {"r0", "r1", "r2"}


def test_a_key_is_told_by_the_indexes(tmp_path: Path) -> None:
    stores, _ = make_queued(tmp_path, 3)
    for store in stores:
        assert repair(OsDisk(), str(store), []).indexed
    begin, until = first_records(stores[0], 25)[22]
    for store in stores[:2]:
        _change(store, begin, until, b"UNIQ_KEY\x01")
    report = run_local(stores, None)
    told = steps(report.findings, report.replicas)
    assert not _touching(told, begin, until)
    assert {step.replica for step in told if "than the entry that was made" in step.why} == {"r0", "r1", "r2"}


def test_so_is_one_of_which_one_entry_alone_is_left(tmp_path: Path) -> None:
    stores, _ = make_queued(tmp_path, 3)
    begin, until = _tag(stores, 2)
    for store in (stores[0], stores[2]):
        shutil.rmtree(store / "consumequeue" / "T" / "0")
    report = run_local(stores, None)
    told = steps(report.findings, report.replicas)
    assert not [step for step in told for _, a, b in reads(step) if a < until and begin < b]
    assert not any(step.command for step in told if step.replica in ("r0", "r1"))


@pytest.mark.parametrize("entered", [True, False])
def test_entries_of_the_outvoted_copy_that_contradict_it_leave_it_to_the_vote(
    tmp_path: Path, entered: bool
) -> None:
    """Not where each of the many has an entry that contradicts it: all is open then."""
    stores, _ = make_queued(tmp_path, 3)
    _tag(stores, 2)
    if not entered:
        shutil.rmtree(stores[1] / "consumequeue" / "T" / "0")
    path = queue_file(stores[2], "T", 0, 11)
    raw = bytearray(path.read_bytes())
    raw[1 * 20 + 19] ^= 1
    path.write_bytes(raw)
    report = run_local(stores, None)
    told = steps(report.findings, report.replicas)
    assert any(step.replica == "r2" and step.command for step in told) is not entered


def test_what_no_entry_covers_is_left_to_the_vote(tmp_path: Path) -> None:
    """Also where an entry of one of the many is wrong: it speaks for no other record."""
    stores, _ = make_queued(tmp_path, 3)
    begin, _ = first_records(stores[0], 25)[22]
    patch(stores[2], begin + 19, b"\x01")
    path = queue_file(stores[0], "T", 0, 11)
    raw = bytearray(path.read_bytes())
    raw[1 * 20 + 19] ^= 1
    path.write_bytes(raw)
    report = run_local(stores, None)
    told = steps(report.findings, report.replicas)
    assert any(step.replica == "r2" and step.command for step in told)
