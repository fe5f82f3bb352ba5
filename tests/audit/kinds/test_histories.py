"""The promise where epochs part: the later one is right, not the majority; a wrong file is no evidence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from audit.findings import Finding
from audit.reading.live import look as look_live
from audit.reading.storage import StoreSpec
from audit.run import Report
from tests.audit.parted import faults, sealed
from tests.audit.plants import ledger_at, make, run_local
from tests.audit.stores import (
    SEGMENT,
    LogWriter,
    copies,
    kept,
    look,
    patch,
    record,
    write_checkpoint,
    write_epochs,
)

KEPT = 20
Told = set[tuple[str, str, str, int]]


class Parted:
    """``old`` replicas went on in epoch 1, ``new`` ones in epoch 2. Messages ``again`` were sent to both."""

    def __init__(self, root: Path, old: int, new: int, later: int = 40, again: tuple[int, ...] = ()) -> None:
        self.root = root
        self.own, self.new = (LogWriter(root / mark) for mark in ("own", "new"))
        for log, stamp in ((self.own, 5000), (self.new, 9000)):
            log.fill(KEPT)
            self.begin = log.end
            for n in range(later):
                mark = "again" if n in again else log.root.name
                log.add(f"{mark[:3]}-{n}".encode() * 5, key=f"{mark}{n}", queue_id=n % 2, stamp=stamp + n)
        self.own.confirm(self.begin, epochs=[(1, 0)])
        self.new.confirm(epochs=[(1, 0), (2, self.begin)])
        self.stores = [root / f"r{n}" for n in range(old + new)]
        for n, store in enumerate(self.stores):
            shutil.copytree((self.own if n < old else self.new).root, store)

    def at(self, n: int) -> int:
        """Where a message behind the parting stands."""
        return int(str(self.new.rows[KEPT + n]["phys_offset"]))

    def run(self, *, ledger: bool = False) -> Report:
        return run_local(self.stores, ledger_at(self.root, self.new.rows) if ledger else None)

    def suffixes(self, *names: str) -> Told:
        return {("divergent_suffix", "warn", name, self.begin) for name in names}


def _flip(store: Path, at: int, bit: int = 4) -> None:
    patch(store, at, bytes([look(store, at, 1)[0] ^ bit]))


def _flip_in(path: Path, at: int, bit: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= bit
    path.write_bytes(raw)


def _told(report: Report) -> Told:
    return {(f.kind, f.severity, f.replica, f.phys_offset) for f in report.findings if f.severity != "info"}


def _of(report: Report, kind: str) -> list[Finding]:
    return [f for f in report.findings if f.kind == kind]


def _break_epochs(store: Path) -> None:
    """One bit: epoch 1 became 9. The file's CRC tells."""
    path = store / "epochFileCheckpoint"
    path.write_text(path.read_text().replace("1-0", "9-0"))


@pytest.mark.parametrize("ledger", [False, True])
@pytest.mark.parametrize("old", [1, 2])
def test_what_was_sent_again_after_a_failover_is_of_two_histories(
    old: int, ledger: bool, tmp_path: Path
) -> None:
    """The same key, body and size at the same place: no damage of one message."""
    group = Parted(tmp_path, old, 3 - old, 1, again=(0,))
    report = group.run(ledger=ledger)
    assert _told(report) == group.suffixes(*[f"r{n}" for n in range(old)])
    assert report.verdict == "warnings"


@pytest.mark.parametrize("old", [1, 2])
def test_what_was_sent_again_behind_a_border_ends_no_suffix(old: int, tmp_path: Path) -> None:
    first = Parted(tmp_path / "first", 1, 1)
    border = next(n for n in range(40) if first.at(n) == SEGMENT)
    group = Parted(tmp_path / "again", old, 3 - old, again=(border,))
    assert _told(group.run()) == group.suffixes(*[f"r{n}" for n in range(old)])


def test_an_epoch_file_that_cannot_be_right_makes_no_log_the_latest(tmp_path: Path) -> None:
    group = Parted(tmp_path, 1, 2)
    _break_epochs(group.stores[0])
    report = group.run()
    assert _told(report) == group.suffixes("r0") | {("epoch_file_corrupt", "warn", "r0", -1)}
    assert [f.ambiguous for f in _of(report, "divergent_suffix")] == [True], "it may be of a third epoch"
    assert report.reference == "r1"
    assert [f.ambiguous for f in _of(group.run(ledger=True), "divergent_suffix")] == [False]


def test_no_majority_convicts_a_log_whose_epoch_file_says_nothing(tmp_path: Path) -> None:
    """It alone has what was acknowledged since."""
    group = Parted(tmp_path, 2, 1, 1, again=(0,))
    _break_epochs(group.stores[2])
    rows = [f for f in group.run().findings if f.kind in ("bytes_differ", "divergent_suffix")]
    assert rows
    assert all(f.ambiguous for f in rows)


def test_a_log_that_lags_with_a_wrong_epoch_file_hides_nothing_behind_its_end(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "origin")
    log.fill(60)
    log.confirm(epochs=[(1, 0)])
    shutil.copytree(log.root, tmp_path / "r0")
    log.add(b"new", key="new")
    log.skip(-1)
    log.add(b"another", key="another")
    log.confirm(epochs=[(1, 0)])
    stores = [tmp_path / f"r{n}" for n in range(3)]
    for store in stores[1:]:
        shutil.copytree(log.root, store)
    _break_epochs(stores[0])
    report = run_local(stores, None)
    assert [f.severity for f in _of(report, "dup_queue_offset")] == ["error"]
    assert report.verdict == "diverged"


def test_a_checkpoint_whose_crc_is_wrong_promises_nothing(tmp_path: Path) -> None:
    stores, _, ledger = make(tmp_path)
    for store in stores:
        sealed(store)
    _flip_in(stores[0] / "checkpoint", 32 + 5, 1)
    assert _told(run_local(stores, ledger)) == {("file_corrupt", "warn", "r0", -1)}


def test_nor_takes_it_a_promise_back(tmp_path: Path) -> None:
    own, new = (LogWriter(tmp_path / mark) for mark in ("own", "new"))
    for log, stamp in ((own, 5000), (new, 9000)):
        log.fill(KEPT)
        begin = log.end
        log.fill(6, mark=log.root.name, stamp=stamp)
        log.confirm(epochs=[(1, 0)])
        sealed(log.root)
    stores = [tmp_path / f"r{n}" for n in range(3)]
    for n, store in enumerate(stores):
        shutil.copytree((own if n == 2 else new).root, store)
    _flip_in(stores[2] / "checkpoint", 32 + 6, 8)
    assert ("divergent_suffix", "error", "r2", begin) in _told(run_local(stores, None))


def test_a_stream_of_what_is_confirmed_reads_by_no_such_checkpoint(tmp_path: Path) -> None:
    stores, *_ = make(tmp_path, 1)
    sealed(stores[0])
    assert look_live(StoreSpec("r0", str(stores[0])))[1].offset > 0
    _flip_in(stores[0] / "checkpoint", 32 + 5, 1)
    with pytest.raises(OSError, match="CRC"):
        look_live(StoreSpec("r0", str(stores[0])))
    assert look_live(StoreSpec("r0", str(stores[0])), "written")[1].offset > 0


@pytest.mark.parametrize(("old", "new"), [(2, 3), (1, 2)])
def test_what_stands_behind_a_blank_has_no_vote(old: int, new: int, tmp_path: Path) -> None:
    """Logs of one epoch: those who agree but for that are more."""
    group = Parted(tmp_path, old, new)
    for store in group.stores:
        write_epochs(store, [(1, 0)])
        write_checkpoint(store, group.begin)
    last = max(at for n in range(40) if (at := group.at(n)) < SEGMENT)
    filler = last + int.from_bytes(look(group.stores[-1], last, 4)) + 8
    for n in range(old + 1, old + new):
        patch(group.stores[n], filler, bytes([n]) * (SEGMENT - filler))
    report = group.run()
    assert {(f.replica, f.ambiguous, f.copies) for f in _of(report, "divergent_suffix")} == {
        (f"r{n}", False, new) for n in range(old)
    }


@pytest.mark.parametrize("old", [1, 2])
def test_copies_of_an_earlier_epoch_have_no_vote_behind_it(old: int, tmp_path: Path) -> None:
    """Nor are they copies of what is damaged."""
    group = Parted(tmp_path, old, 2)
    damaged = f"r{old + 1}"
    _flip(group.stores[old + 1], group.at(1) + 88)
    report = group.run()
    crc = ("crc_mismatch", "error", damaged, group.at(1))
    assert _told(report) == group.suffixes(*[f"r{n}" for n in range(old)]) | {crc}
    assert [f.copies for f in _of(report, "crc_mismatch")] == [1]


@pytest.mark.parametrize("ledger", [False, True])
@pytest.mark.parametrize("old", [2, 3])
def test_damage_over_the_place_where_epochs_part_is_two_stretches(
    old: int, ledger: bool, tmp_path: Path
) -> None:
    group = Parted(tmp_path, old, 1, 12)
    before = int(str(group.new.rows[KEPT - 1]["phys_offset"]))
    patch(group.stores[0], group.begin - 60, bytes(100))
    assert _told(group.run(ledger=ledger)) == group.suffixes(*[f"r{n}" for n in range(old)]) | {
        ("unreadable_region", "error", "r0", before)
    }


def test_damage_of_a_later_log_is_cut_there_for_others_too(tmp_path: Path) -> None:
    """The sound copy of it has no vote of the earlier ones against it."""
    group = Parted(tmp_path, 2, 2, 12)
    before = int(str(group.new.rows[KEPT - 1]["phys_offset"]))
    patch(group.stores[2], group.begin - 60, bytes(100))
    assert _told(group.run()) == group.suffixes("r0", "r1") | {("unreadable_region", "error", "r2", before)}


def test_a_suffix_that_lacks_a_segment_is_one(tmp_path: Path) -> None:
    group = Parted(tmp_path, 1, 2, 100)
    (group.stores[0] / "commitlog" / f"{SEGMENT:020d}").unlink()
    report = group.run()
    assert _told(report) >= group.suffixes("r0")
    assert "bytes_differ" not in {f.kind for f in report.findings}


def test_epochs_that_part_at_a_blank_are_no_fault(tmp_path: Path) -> None:
    """What both wrote first is the blank that ends their segment."""
    own, new = (LogWriter(tmp_path / mark) for mark in ("own", "new"))
    for log, stamp in ((own, 5000), (new, 9000)):
        log.fill(33)
        begin = log.end
        assert SEGMENT - begin < 120
        log.fill(6, mark=log.root.name, stamp=stamp)
    own.confirm(begin, epochs=[(1, 0)])
    new.confirm(epochs=[(1, 0), (2, begin)])
    stores = [tmp_path / f"r{n}" for n in range(3)]
    for n, store in enumerate(stores):
        shutil.copytree((own if n < 1 else new).root, store)
    assert _told(run_local(stores, None)) == {("divergent_suffix", "warn", "r0", begin)}


@pytest.mark.parametrize("lacking", [1, 2])
def test_an_epoch_that_few_know_of_bytes_that_all_have_is_open(lacking: int, tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "origin")
    log.fill(40)
    log.confirm(epochs=[(1, 0), (2, int(str(log.rows[20]["phys_offset"])))])
    stores = copies(log.root)
    for store in stores[:lacking]:
        write_epochs(store, [(1, 0)])
    rows = _of(run_local(stores, None), "epoch_mismatch")
    assert [(f.severity, f.replica, f.ambiguous) for f in rows] == [
        ("error", "r0" if lacking == 1 else "r2", lacking == 2)
    ]


@pytest.mark.parametrize("later", [1, 12])
@pytest.mark.parametrize("n", [0, -1])
@pytest.mark.parametrize("hurt", ["body", "property"])
@pytest.mark.parametrize("stale", [1, 2])
def test_a_damaged_record_makes_no_two_histories_of_one(
    later: int, n: int, hurt: str, stale: int, tmp_path: Path
) -> None:
    """The sound copies, whose epoch files lack the last epoch, would be cut."""
    group = Parted(tmp_path, 0, stale + 1, later)
    for store in group.stores[:stale]:
        write_epochs(store, [(1, 0)])
    at = group.at(n % later)
    size = int.from_bytes(look(group.stores[-1], at, 4))
    _flip(group.stores[-1], at + (88 if hurt == "body" else size - 2))
    report = group.run()
    assert "divergent_suffix" not in {f.kind for f in report.findings}
    kind, sound = (
        ("crc_mismatch" if hurt == "body" else "bytes_differ"),
        {r.name for r in report.replicas[:stale]},
    )
    [row] = _of(report, kind)
    assert row.ambiguous or row.replica not in sound
    assert report.verdict == "diverged"


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("elected", [1, 2])
def test_what_a_master_that_wrote_nothing_yet_lacks_is_no_clean_log(
    elected: int, clean: bool, tmp_path: Path
) -> None:
    """Its epoch begins at its end: what the old master has behind it is cut."""
    old, new = (LogWriter(tmp_path / mark) for mark in ("old", "new"))
    for log in (old, new):
        log.fill(KEPT)
        begin = log.end
    old.fill(12, mark="own", stamp=9000)
    old.confirm(begin, epochs=[(1, 0), (2, begin)])
    new.confirm(begin, epochs=[(1, 0), (3, begin)])
    stores = [old.root, *copies(new.root, elected)]
    for store in stores if not clean else ():
        (store / "abort").touch()
    assert _told(run_local(stores, None)) >= {("extra_tail", "warn", "old", begin)}
    report = run_local(stores, ledger_at(tmp_path, old.rows))
    assert ("short_tail", "error", "r0", begin) in _told(report), "where what was acknowledged is cut"


def test_two_histories_of_which_one_begins_with_a_blank_are_two(tmp_path: Path) -> None:
    """They have no other place in common."""
    own, new = (LogWriter(tmp_path / mark) for mark in ("own", "new"))
    for log in (own, new):
        log.fill(32)
        begin = log.end
    own.add(b"own", key="own", stamp=5000)
    new.add(b"new" * 50, key="new", stamp=9000)
    assert own.end < SEGMENT < new.end
    own.confirm(begin, epochs=[(1, 0)])
    new.confirm(epochs=[(1, 0), (2, begin)])
    assert _told(run_local([own.root, new.root], None)) == {("divergent_suffix", "warn", "own", begin)}


@pytest.mark.parametrize("confirmed", [1, 0])
def test_a_log_that_went_its_own_way_is_told_what_it_lacks(confirmed: int, tmp_path: Path) -> None:
    """In one epoch: its last record is another message, and 30 acknowledged ones are gone behind it."""
    log = LogWriter(tmp_path / "origin")
    log.fill(80)
    log.confirm(epochs=[(1, 0)])
    stores = copies(log.root)
    ledger = tmp_path / "acked.jsonl"
    ledger.write_text("".join(json.dumps(row) + "\n" for row in log.rows))
    last, end = (int(str(log.rows[n]["phys_offset"])) for n in (49, 50))
    for file in (stores[2] / "commitlog").iterdir():
        if int(file.name) > end:
            file.unlink()
    patch(stores[2], end, bytes(-end % SEGMENT))
    patch(stores[2], last, record(last, 24, b"q-49" * 5, key="q49", queue_id=1, stamp=7000))
    write_checkpoint(stores[2], confirmed or last)
    report = run_local(stores, ledger)
    assert ("short_tail", "error", "r2", end) in _told(report)
    assert [f.records for f in _of(report, "short_tail")] == [30]
    assert report.verdict == "diverged"


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_no_sound_copy_of_the_last_epoch_is_ever_blamed(first: int, tmp_path: Path) -> None:
    found = []
    for seed in range(first, first + 10):
        (tmp_path / str(seed)).mkdir()
        found += faults(seed, tmp_path / str(seed))
    assert found == []


@pytest.mark.parametrize("joined", [("old", "old"), ("old", "new"), ("new", "new")])
@pytest.mark.parametrize("masters", [1, 2])
def test_logs_that_joined_late_and_tell_their_own_start_are_of_their_masters_history(
    masters: int, joined: tuple[str, str], tmp_path: Path
) -> None:
    """Their files tell the epoch of their master from where their logs begin. The old master's are more."""
    old, new = LogWriter(tmp_path / "old"), LogWriter(tmp_path / "new")
    for log in (old, new):
        log.fill(50)
    begin = old.end
    old.fill(20, mark="o", stamp=5000)
    new.fill(40, mark="n", stamp=9000)
    epochs = {"old": [(1, 0)], "new": [(1, 0), (2, begin)]}
    logs = {"old": old, "new": new}
    stores = [kept(new, tmp_path / "r0", epochs["new"], new.end)]
    stores += [kept(old, tmp_path / f"r{n}", epochs["old"], begin) for n in range(1, masters + 1)]
    for n, name in enumerate(joined, len(stores)):
        own = [(epoch, max(start, SEGMENT)) for epoch, start in epochs[name]]
        stores.append(kept(logs[name], tmp_path / f"r{n}", own, begin))
        (stores[-1] / "commitlog" / f"{0:020d}").unlink()
    assert begin > SEGMENT
    lefts = [f"r{n}" for n in range(1, masters + 1)]
    lefts += [f"r{n}" for n, name in enumerate(joined, masters + 1) if name == "old"]
    assert _told(run_local(stores, None)) == {("divergent_suffix", "warn", name, begin) for name in lefts}
