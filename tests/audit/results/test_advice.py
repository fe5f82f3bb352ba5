"""The promise of the page's steps: who does all that it says, in its order, loses nothing that some copy had
right, and takes nothing that the group left.

``KEELMQ_PARTED_GROUPS`` groups whose epochs parted are made.
"""

from __future__ import annotations

import gzip
import os
import random
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from audit.findings import WARN
from audit.results.steps.repair import Step, steps
from audit.run import Report
from tests.audit.plants import ledger_at, make, make_queued, run_local
from tests.audit.results.advised import carry_out, damaged, do, reads
from tests.audit.results.parted_faults import ENDS, wrong_steps
from tests.audit.stores import SEGMENT, LogWriter, copies, kept, look, patch, record, write_epochs

PARTED_GROUPS: Final = int(os.environ.get("KEELMQ_PARTED_GROUPS", "80"))
PARTED_SEEDS: Final = (215, 825, 1130, 1178)
"""Whose steps once wrote what the group left over its last copy, or made a log that it left lead."""
ENDING_GROUPS: Final = PARTED_GROUPS // 2

BESIDE = ("cq_", "index_", "timer_", "file_corrupt", "file_missing", "consumer_", "epoch_", "same_file")
"""Kinds that say nothing of what the log holds."""


def _read_where_named(report: Report) -> Iterator[str]:
    """Commands that read from a copy in a stretch in which a finding names it, and the reader needs it."""
    of_log = [f for f in report.findings if f.phys_offset >= 0 and not f.kind.startswith(BESIDE)]
    of_log = [f for f in of_log if (f.kind, f.severity) != ("dup_message", WARN)]  # right bytes, twice
    for step in steps(report.findings, report.replicas):
        own = [f for f in of_log if f.replica == step.replica]
        for name, begin, end in reads(step):
            named = [f for f in of_log if name == f.replica or (f.ambiguous and f.replica != "*")]
            for f in named:
                needed = end < 1 << 62 or any(o.overlaps(f.phys_offset, f.until) for o in own)
                if needed and f.overlaps(begin, end):
                    yield f"{step.command} reads {name} at [{f.phys_offset}, {f.until})"


def look_at(root: Path, seed: int, audits: int = 2) -> tuple[int, int, bool]:
    """Audit a damaged group and do what the page says, ``audits`` times. Returns how many steps had a
    command, how many stores began anew, and whether the last page told no error any more."""
    group = damaged(root, seed)
    before = group.right()
    chance = random.Random(seed)
    commands = emptied = 0
    for _ in range(audits):
        report = run_local(group.stores, group.ledger)
        told = steps(report.findings, report.replicas)
        assert not list(_read_where_named(report)), group.done
        for step in told:
            failed = carry_out(step, group, chance)
            assert not failed, (group.done, step, failed)
        lost = sorted(before - group.right())
        assert not lost, (seed, group.done, lost, told)
        anew = {step.replica for step in told if "with an empty store" in step.why}
        assert len(anew) <= 1
        commands, emptied = commands + sum(1 for step in told if step.command), emptied + len(anew)
    return commands, emptied, report.verdict != "diverged"


@pytest.mark.parametrize("tens", range(4))
def test_who_does_what_the_page_says_loses_nothing(tens: int, tmp_path: Path) -> None:
    did = [look_at(tmp_path / str(seed), seed) for seed in range(tens * 10, tens * 10 + 10)]
    assert sum(commands for commands, *_ in did) > 10


@pytest.mark.parametrize("quarter", range(4))
def test_nor_where_epochs_parted_and_takes_nothing_that_the_group_left(quarter: int, tmp_path: Path) -> None:
    found = []
    for seed in [*range(PARTED_GROUPS), *PARTED_SEEDS][quarter::4]:
        (tmp_path / str(seed)).mkdir()
        found += wrong_steps(seed, tmp_path / str(seed))
    assert found == []


@pytest.mark.parametrize("quarter", range(2))
def test_nor_where_logs_or_files_end_early(quarter: int, tmp_path: Path) -> None:
    found = []
    for seed in range(quarter, ENDING_GROUPS, 2):
        (tmp_path / str(seed)).mkdir()
        found += wrong_steps(seed, tmp_path / str(seed), ENDS)
    assert found == []


def _at(writer: LogWriter, n: int) -> int:
    return int(str(writer.rows[n]["phys_offset"]))


def _alter(store: Path, writer: LogWriter, n: int) -> None:
    """Another body of the same size, with its CRC."""
    at, row = _at(writer, n), writer.rows[n]
    place = int(str(row["queue_offset"]))
    patch(store, at, record(at, place, f"M-{n}".encode() * 5, key=f"m{n}", queue_id=n % 2, stamp=1000 + n))


def _damage(store: Path, writer: LogWriter, n: int) -> None:
    patch(store, _at(writer, n) + 88, b"?")


def _file(store: Path, writer: LogWriter, n: int) -> Path:
    return store / "commitlog" / f"{_at(writer, n) // SEGMENT * SEGMENT:020d}"


def _unreadable(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _told(report: Report, name: str) -> list[Step]:
    return [step for step in steps(report.findings, report.replicas) if step.replica == name]


def test_what_the_ledger_convicts_by_breaking_a_tie_is_no_source(tmp_path: Path) -> None:
    """r0 is damaged, r1 altered, r2 right, in one record."""
    stores, writer, ledger = make(tmp_path)
    _alter(stores[1], writer, 40)
    _damage(stores[0], writer, 40)
    report = run_local(stores, ledger)
    assert [s.command for s in _told(report, "r0")] == [f"keelmq store repair {stores[0]} --from {stores[2]}"]
    [shown, *_] = report.evidence
    assert {copy.replica: copy.sound for copy in shown.copies} == {"r0": False, "r1": False, "r2": True}
    for step in steps(report.findings, report.replicas):
        assert not do(step)
    assert look(stores[0], _at(writer, 40), 125) == look(writer.root, _at(writer, 40), 125)
    assert {f.kind for f in run_local(stores, None).findings} <= {"cq_missing", "index_missing"}


@pytest.mark.parametrize("hurt", [_alter, _damage])
def test_a_missing_file_is_copied_from_a_replica_that_is_right_in_it(hurt: object, tmp_path: Path) -> None:
    stores, writer, ledger = make(tmp_path)
    assert callable(hurt)
    hurt(stores[1], writer, 40)
    _file(stores[0], writer, 40).unlink()
    [step] = _told(run_local(stores, ledger), "r0")
    assert step.command.startswith(f"cp --no-clobber {stores[2]}/")


def test_of_a_missing_file_what_no_replica_has_right_is_not_taken(tmp_path: Path) -> None:
    stores, writer, ledger = make(tmp_path, 2)
    begin, until = _at(writer, 40), _at(writer, 41)
    _alter(stores[1], writer, 40)
    _file(stores[0], writer, 40).unlink()
    told = _told(run_local(stores, ledger), "r0")
    assert [span for step in told for span in reads(step)] == [
        ("r1", SEGMENT, begin),
        ("r1", until, 2 * SEGMENT),
    ]
    assert told[-1].why.startswith(f"Of [{begin}, {until}): No replica holds a good copy")


def test_of_two_copies_the_one_that_the_ledger_confirms_is_taken(tmp_path: Path) -> None:
    """A repair can count only: it would decide nothing."""
    stores, writer, ledger = make(tmp_path, 2)
    _alter(stores[1], writer, 40)
    _alter(stores[0], writer, 42)
    report = run_local(stores, ledger)
    told = steps(report.findings, report.replicas)
    assert [(step.replica, step.command[:3]) for step in told] == [("r0", "dd "), ("r1", "dd ")]
    assert not any(do(step) for step in told)
    assert run_local(stores, ledger).verdict == "clean"


def test_one_store_alone_is_not_emptied(tmp_path: Path) -> None:
    stores, writer, ledger = make(tmp_path, 1)
    _unreadable(_file(stores[0], writer, 40))
    report = run_local(stores, ledger)
    assert not any("empty store" in step.why for step in steps(report.findings, report.replicas))
    assert any("another disk first" in step.why for step in steps(report.findings, report.replicas))


def test_of_two_stores_that_need_each_other_none_is_emptied(tmp_path: Path) -> None:
    stores, writer, ledger = make(tmp_path, 2)
    _unreadable(_file(stores[0], writer, 40))
    _unreadable(_file(stores[1], writer, 10))
    report = run_local(stores, ledger)
    assert not any("empty store" in step.why for step in steps(report.findings, report.replicas))


@pytest.mark.parametrize("how", ["epochs", "segment", "table"])
def test_the_last_right_copy_of_a_record_is_not_emptied(how: str, tmp_path: Path) -> None:
    stores, writer, ledger = make(tmp_path)
    for store, byte in zip(stores[1:], (b"?", b"!"), strict=True):
        patch(store, _at(writer, 12) + 88, byte)
    if how == "epochs":
        write_epochs(stores[0], [(1, 0), (2, _at(writer, 10)), (3, _at(writer, 20))])
    elif how == "segment":
        _unreadable(_file(stores[0], writer, 40))
    else:
        (stores[0] / "config" / "topics.json").mkdir(parents=True)
    told = _told(run_local(stores, ledger), "r0")
    assert told
    assert not any("empty store" in step.why for step in told)


@pytest.mark.parametrize("n", [10, 40, 79])
def test_a_store_is_emptied_while_another_holds_all_of_it_and_only_one(n: int, tmp_path: Path) -> None:
    stores, writer, ledger = make(tmp_path)
    for store in stores[:2]:
        _unreadable(_file(store, writer, n))
    report = run_local(stores, ledger)
    told = [step for step in steps(report.findings, report.replicas) if "empty store" in step.why]
    assert [(step.replica, "r2 leads" in step.why) for step in told] == [("r0", True)]


def test_no_store_is_emptied_while_another_is_wrong_without_a_sign(tmp_path: Path) -> None:
    """It might copy that one, and the two outvote the right ones in an audit without a ledger."""
    stores, writer, _ = make(tmp_path, 4)
    _alter(stores[0], writer, 10)
    _unreadable(_file(stores[1], writer, 79))
    report = run_local(stores, None)
    told = steps(report.findings, report.replicas)
    assert [(step.replica, "empty store" in step.why) for step in told] == [("r0", False), ("r1", False)]
    assert f"{stores[2]}/" in told[0].command or f"--from {stores[2]}" in told[0].command
    assert "Mend the others" in told[1].why


def test_who_alone_has_an_acknowledged_message_does_not_rejoin(tmp_path: Path) -> None:
    own, new = (LogWriter(tmp_path / name) for name in ("own", "new"))
    for log, stamp in ((own, 5000), (new, 9000)):
        log.fill(20)
        begin = log.end
        log.fill(6, mark=log.root.name, stamp=stamp)
    own.confirm(begin, epochs=[(1, 0)])
    new.confirm(epochs=[(1, 0), (2, begin)])
    stores = [*copies(new.root), tmp_path / "r3"]
    own.root.rename(stores[3])
    report = run_local(stores, ledger_at(tmp_path, [*new.rows, own.rows[20]]))
    [step] = _told(report, "r3")
    out = f"--out r3-suffix-{begin}.jsonl"
    assert step.command == f"keelmq store export {stores[3]} --from {begin} --bodies {out}"
    assert step.why.startswith("Do not start its broker in the group")
    told = steps(report.findings, report.replicas)
    assert not any(one.why.startswith("Start its broker in the group") for one in told)


def _parted(root: Path, promised: str = "end") -> tuple[list[Path], int]:
    """``own`` went on alone; where it did, too. ``promised``: what its checkpoint says of that."""
    own, new = (LogWriter(root / name) for name in ("own", "new"))
    for log, stamp in ((own, 5000), (new, 9000)):
        log.fill(20)
        begin = log.end
        log.fill(6, mark=log.root.name, stamp=stamp)
    own.confirm(own.end if promised == "end" else begin, epochs=[(1, 0)])
    new.confirm(epochs=[(1, 0), (2, begin)])
    return [own.root, *copies(new.root, 2)], begin


@pytest.mark.parametrize("how", ["changed", "unreadable"])
def test_a_checkpoint_that_cannot_be_right_gives_no_suffix_up(how: str, tmp_path: Path) -> None:
    """It may have said that somebody was promised it."""
    stores, begin = _parted(tmp_path)
    checkpoint = stores[0] / "checkpoint"
    if how == "changed":
        raw = bytearray(checkpoint.read_bytes())
        raw[64:68] = b"KQ02"
        checkpoint.write_bytes(raw)
    else:
        _unreadable(checkpoint)
    report = run_local(stores, None)
    suffixes = [f for f in report.findings if f.kind == "divergent_suffix"]
    assert [(f.replica, f.severity, f.phys_offset) for f in suffixes] == [("own", "error", begin)]
    told = _told(report, "own")
    assert not any(one.why.startswith("Start its broker") for one in told)
    assert any(one.command.startswith("keelmq store export") for one in told)
    if how == "changed":
        assert told[0].why.startswith("Put the file back"), "it tells whether the suffix is to be kept"


@pytest.mark.parametrize("how", ["another", "corrupt"])
def test_nobody_copies_the_store_of_one_whose_epoch_file_is_wrong(how: str, tmp_path: Path) -> None:
    stores, writer, ledger = make(tmp_path)
    _unreadable(stores[1] / "checkpoint")
    if how == "another":
        write_epochs(stores[0], [(1, 0), (2, _at(writer, 10)), (3, _at(writer, 20))])
    else:
        (stores[0] / "epochFileCheckpoint").write_text("1\n1\n1-0\n")
    [step] = _told(run_local(stores, ledger), "r1")
    assert "while r2 leads" in step.why
    told = _told(run_local(stores[:2], ledger), "r1")
    assert not any("empty store" in one.why for one in told)
    assert any(one.why.startswith("Keep this store") for one in told)


def _compressed(store: Path) -> Path:
    for file in list((store / "commitlog").iterdir()):
        file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    return store


def _archived(store: Path) -> Path:
    archive = store.with_name(f"{store.name}.tar.gz")
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(store, store.name)
    return archive


@pytest.mark.parametrize("pack", [_compressed, _archived])
def test_no_command_reads_from_a_compressed_store(pack: Callable[[Path], Path], tmp_path: Path) -> None:
    stores, writer, ledger = make(tmp_path)
    _file(stores[2], writer, 40).unlink()
    _damage(stores[1], writer, 5)
    packed = [pack(stores[0]), *stores[1:]]
    report = run_local(packed, ledger)
    for step in steps(report.findings, report.replicas):
        assert step.command
        assert not any(name == stores[0].name for name, *_ in reads(step))
        assert not do(step)
    assert "error" not in {f.severity for f in run_local(packed, ledger).findings}
    _damage(stores[1], writer, 40)
    _file(stores[2], writer, 40).unlink()
    [step] = _told(run_local([packed[0], stores[2]], ledger), "r2")
    assert (step.command, "plain copies" in step.why) == ("", True)


def test_a_segment_without_a_byte_is_put_back(tmp_path: Path) -> None:
    """A repair takes it for one that is gone."""
    stores, writer, ledger = make(tmp_path)
    _file(stores[1], writer, 40).write_bytes(b"")
    report = run_local(stores, ledger)
    [step] = _told(report, "r1")
    assert not do(step)
    assert _file(stores[1], writer, 40).read_bytes() == _file(stores[2], writer, 40).read_bytes()
    assert run_local(stores, ledger).verdict == "clean"


def _logs(root: Path, kept_records: int, old: int, new: int) -> tuple[LogWriter, LogWriter, int]:
    """Two that part, and where."""
    found = []
    for mark, count, stamp in (("old", old, 5000), ("new", new, 9000)):
        log = LogWriter(root / mark)
        log.fill(kept_records)
        log.fill(count, mark=mark, stamp=stamp)
        found.append(log)
    return found[0], found[1], _at(found[0], kept_records)


@pytest.mark.parametrize("acknowledged", [True, False])
@pytest.mark.parametrize(("old", "new"), [(1, 3), (3, 1)])
def test_no_step_writes_over_a_record_that_its_epoch_has_alone(
    old: int, new: int, acknowledged: bool, tmp_path: Path
) -> None:
    """Its place was changed, so nothing of it is compared; the others have one of an older epoch there."""
    left, last, begin = _logs(tmp_path, 10, old, new)
    own = kept(last, tmp_path / "a", [(1, 0), (2, begin)], last.end)
    stores = [own, *(kept(left, tmp_path / name, [(1, 0)], begin) for name in "bc")]
    patch(own, begin + 28, b"\x11")
    report = run_local(stores, ledger_at(tmp_path, last.rows) if acknowledged else None)
    for step in steps(report.findings, report.replicas):
        assert not do(step)
    assert b"new-0" in look(own, begin, 126)


def test_no_missing_file_comes_from_another_epoch(tmp_path: Path) -> None:
    left, last, begin = _logs(tmp_path, 40, 40, 40)
    assert SEGMENT < begin < 2 * SEGMENT < last.end
    own = kept(last, tmp_path / "a", [(1, 0), (2, begin)], last.end)
    stores = [own, *(kept(left, tmp_path / name, [(1, 0)], begin, 2 * SEGMENT) for name in "bc")]
    _file(own, last, 40).unlink()
    assert not any(step.command for step in _told(run_local(stores, None), "a"))


@pytest.mark.parametrize("other", ["segment", "table"])
def test_no_store_is_emptied_under_a_leader_of_an_older_epoch(other: str, tmp_path: Path) -> None:
    """Only an epoch file tells of the latest; what it wrote cannot be read."""
    left, last, begin = _logs(tmp_path, 40, 22, 20)
    own = kept(last, tmp_path / "a", [(1, 0), (2, begin)], 0)
    stores = [own, *(kept(left, tmp_path / name, [(1, 0)], 0) for name in "bc")]
    _unreadable(_file(own, last, 40))
    if other == "table":
        (stores[1] / "config" / "topics.json").mkdir(parents=True)
    told = steps((report := run_local(stores, None)).findings, report.replicas)
    assert any(step.why.startswith("Keep this store") for step in told)
    assert not any("empty store" in step.why for step in told)


@pytest.mark.parametrize("order", ["abc", "cab"])
@pytest.mark.parametrize("acknowledged", [True, False])
def test_who_has_all_leads_while_a_store_begins_anew(order: str, acknowledged: bool, tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "origin")
    log.fill(20)
    ends = {"a": (10, 10), "b": (15, 12), "c": (19, 19)}
    for name, (end, confirmed) in ends.items():
        kept(log, tmp_path / name, [(1, 0)], _at(log, confirmed), _at(log, end))
    _unreadable(_made(tmp_path / "a" / "config" / "topics.json"))
    ledger = ledger_at(tmp_path, log.rows[:19]) if acknowledged else None
    told = _told(run_local([tmp_path / name for name in order], ledger), "a")
    assert told
    assert all("while c leads" in step.why for step in told)


def test_no_store_is_emptied_while_a_longer_log_is_damaged(tmp_path: Path) -> None:
    """It cannot lead as it is, and what it has behind is to be kept."""
    log = LogWriter(tmp_path / "origin")
    log.fill(20)
    stores = [
        kept(log, tmp_path / name, [(1, 0)], _at(log, 5), _at(log, end))
        for name, end in (("a", 10), ("b", 15), ("c", 19))
    ]
    _unreadable(_made(stores[0] / "config" / "topics.json"))
    patch(stores[2], _at(log, 3) + 89, b"?")
    told = _told(run_local(stores, ledger_at(tmp_path, log.rows[:19])), "a")
    assert not any("empty store" in step.why for step in told)


def _made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    return path


def test_queues_are_made_of_the_log_alone_where_no_epoch_tells_of_both(tmp_path: Path) -> None:
    """A repair that compares nothing, as it cannot, fails."""
    stores, _ = make_queued(tmp_path)
    (stores[0] / "epochFileCheckpoint").write_bytes(b"no epoch file")
    for file in (stores[0] / "consumequeue" / "T" / "0").iterdir():
        file.write_bytes(bytes(file.stat().st_size))
    told = [step for step in _told(run_local(stores, None), "r0") if step.command]
    assert [step.command for step in told] == [f"keelmq store repair {stores[0]}"]
    assert [do(step) for step in told] == [""]
    assert "cq_missing" not in {f.kind for f in run_local(stores, None).findings}


@pytest.mark.parametrize("kept_bytes", [0, 10])
def test_what_a_file_lacks_is_written_where_no_repair_lengthens_it(kept_bytes: int, tmp_path: Path) -> None:
    stores, writer, _ = make(tmp_path)
    at = _at(writer, 20)
    os.truncate(_file(stores[0], writer, 20), at % SEGMENT + kept_bytes)
    told = [step for step in _told(run_local(stores, None), "r0") if step.command]
    assert {step.command.split()[0] for step in told} == {"dd"}
    assert {do(step) for step in told} == {""}
    assert look(stores[0], 0, SEGMENT) == look(stores[1], 0, SEGMENT)


def test_no_command_writes_over_a_misplaced_record_while_a_message_is_lost(tmp_path: Path) -> None:
    """It may be the only copy."""
    stores, writer, ledger = make(tmp_path)
    patch(stores[0], _at(writer, 20) + 90, b"\xff")  # of its body
    report = run_local(stores, ledger)
    assert any(step.command for step in steps(report.findings, report.replicas))
    damaged_row = next(f for f in report.findings if f.kind == "crc_mismatch")
    misplaced = replace(damaged_row, kind="phys_offset_mismatch")
    gone = replace(damaged_row, kind="acked_missing", replica="*", copies=0, topic="T")
    both = [*report.findings, misplaced]
    assert any(step.command for step in steps(both, report.replicas))
    told = steps([*both, gone], report.replicas)
    assert not any(step.command for step in told if step.replica == "r0")
    assert any("Copy the store to another disk first" in step.why for step in told)


@pytest.mark.parametrize("at", [0, 1000, SEGMENT - 100])
@pytest.mark.parametrize("count", [1, 8, 100])
def test_a_repair_that_is_advised_mends_what_was_moved_within_a_file(
    count: int, at: int, tmp_path: Path
) -> None:
    stores, _, _ = make(tmp_path)
    file = stores[0] / "commitlog" / f"{SEGMENT:020d}"
    raw = file.read_bytes()
    file.write_bytes((raw[:at] + bytes(count) + raw[at:])[:SEGMENT])
    told = _told(run_local(stores, None), "r0")
    assert {do(step) for step in told if step.command} == ({""} if told else set())
    assert [f for f in run_local(stores, None).findings if f.severity == "error"] == []
    end = at if not told else SEGMENT
    assert look(stores[0], SEGMENT, end) == look(stores[1], SEGMENT, end)
