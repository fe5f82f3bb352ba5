"""The promise of controller.raft.disk.journal: what was synced survives any crash; damage is noticed."""

import errno

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.sim.disk import Machine, SimDisk
from chaos.sim.loop import Life
from controller.raft.codec import Snapshot, decode_snapshot, encode_snapshot
from controller.raft.disk.journal import Journal, align
from model.errors import DiskError
from runtime.env import read_file, write_file
from tests.fakes.disk.crashing import CrashingDisk, crashing, machine
from tests.fakes.disk.refusing import JOURNAL, Fault, RefusingDisk

PATH = "/raft/raft.journal"
Kept = tuple[list[tuple[bytes, int, int]], int, str | None]


def opened(on: Machine, crash_at: int | None = None) -> tuple[Journal, CrashingDisk]:
    disk = CrashingDisk(on)
    journal = Journal(disk, PATH, "n0")
    disk.operations, disk.crash_at = 0, crash_at
    return journal, disk


def kept(journal: Journal) -> Kept:
    return journal[:], journal.getCurrentTerm(), journal.getVotedForNodeId()


def filled(on: Machine, count: int = 5) -> None:
    journal, _ = opened(on)
    for index in range(1, count + 1):
        journal.add(b"command %d" % index, index, 1)
        journal.setCurrentTerm(index, f"n{index}")
    journal.close()


def content(on: Machine) -> bytes:
    return on.content(PATH)


def overwrite(on: Machine, data: bytes) -> None:
    write_file(CrashingDisk(on), PATH, data)


def test_entries_term_and_vote_come_back() -> None:
    on = machine()
    journal, _ = opened(on)
    for index in range(1, 6):
        journal.add(b"%d" % index, index, 1)
    journal.setCurrentTerm(3, "n2")
    journal.deleteEntriesFrom(3)
    journal.add(b"new", 4, 3)
    journal.sync()
    journal.close()
    again, _ = opened(on)
    assert kept(again) == ([(b"1", 1, 1), (b"2", 2, 1), (b"3", 3, 1), (b"new", 4, 3)], 3, "n2")


def test_what_was_not_synced_is_not_written() -> None:
    on = machine()
    journal, disk = opened(on)
    journal.add(b"x", 1, 1)
    assert journal.dirty
    assert disk.operations == 0
    journal.close()
    assert len(opened(on)[0]) == 0


def test_a_closed_journal_refuses_work() -> None:
    journal, _ = opened(machine())
    journal.close()
    with pytest.raises(DiskError, match="closed"):
        journal.add(b"x", 1, 1)


@given(cut=st.integers(1, 60), junk=st.binary(max_size=80))
def test_an_unfinished_last_write_is_cut(cut: int, junk: bytes) -> None:
    on = machine()
    filled(on)
    whole = content(on)
    last = whole.rindex(b"KRB1")
    overwrite(on, whole[: max(len(whole) - cut, last)] + junk.replace(b"KRB1", b"KRB2"))
    journal, _ = opened(on)
    entries, term, _ = found = kept(journal)
    assert (len(entries), term) in ((4, 4), (5, 5))
    assert journal.size_bytes == len(content(on)), "nothing of it is left"
    assert kept(opened(on)[0]) == found


@given(st.data())
def test_a_flipped_bit_before_the_last_batch_is_found(data: st.DataObject) -> None:
    on = machine()
    filled(on)
    whole = bytearray(content(on))
    whole[data.draw(st.integers(0, whole.rindex(b"KRB1") - 1))] ^= 1 << data.draw(st.integers(0, 7))
    overwrite(on, bytes(whole))
    with pytest.raises(DiskError, match="remove its directory"):
        opened(on)


def told(on: Machine) -> Journal:
    """A member that may vote, and said that it holds entry 3 and voted in term 5."""
    journal, _ = opened(on)
    journal.admit()
    journal.setCurrentTerm(4, None)
    for index in range(1, 4):
        journal.add(b"decision %d" % index, index, 4)
    journal.sync()
    journal.setCurrentTerm(5, "n1")
    return journal


@given(st.data())
def test_a_member_that_may_have_forgotten_what_it_said_is_not_admitted(data: st.DataObject) -> None:
    """A flipped bit in the last batch cannot be told from a write that never finished."""
    on = machine()
    journal = told(on)
    if data.draw(st.booleans()):
        journal.add(b"another decision", 4, 5)
        journal.sync()
    said = kept(journal)
    journal.close()
    whole = bytearray(content(on))
    last = whole.rindex(b"KRB1")
    whole[data.draw(st.integers(last, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    overwrite(on, bytes(whole))
    again, _ = opened(on)
    assert kept(again) != said
    assert not again.admitted
    again.close()
    again, _ = opened(on)
    assert not again.admitted, "nor after the next start, which finds nothing to cut"
    again.admit()
    again.close()
    assert opened(on)[0].admitted


@pytest.mark.parametrize("crash_at", range(1, 8))
@pytest.mark.parametrize("power", [False, True])
def test_no_crash_of_a_start_keeps_the_admission_and_loses_the_end(crash_at: int, power: bool) -> None:
    on = machine(crash_at)
    journal = told(on)
    said = kept(journal)
    journal.close()
    whole = content(on)
    overwrite(on, whole[:-3] + bytes([whole[-3] ^ 4]) + whole[-2:])
    disk = CrashingDisk(on, crash_at)
    with crashing(disk):
        Journal(disk, PATH, "n0")
    if power:
        on.lose_power()
    again, _ = opened(on)
    assert kept(again) != said
    assert not again.admitted


def test_a_cut_that_finds_no_room_for_its_new_file_changes_nothing() -> None:
    on = machine()
    journal = told(on)
    journal.close()
    whole = content(on)
    overwrite(on, whole[:-1])
    on.faults.full = True
    with pytest.raises(DiskError, match="no space left"):
        opened(on)
    assert content(on) == whole[:-1]
    on.faults.full = False
    assert not opened(on)[0].admitted


def test_a_refused_append_leaves_no_end_to_cut() -> None:
    on = machine()
    disk = RefusingDisk(SimDisk(on, Life("test", 0)), on)
    journal = Journal(disk, PATH, "n0")
    journal.admit()
    before = content(on)
    disk.fault = Fault("pwrite", JOURNAL, errno.ENOSPC)
    with pytest.raises(DiskError, match="No space left"):
        journal.setCurrentTerm(9, "n1")
    assert content(on) == before
    journal.close()
    assert opened(on)[0].admitted


def test_a_zeroed_page_in_the_middle_is_found() -> None:
    on = machine()
    filled(on, 200)
    whole = bytearray(content(on))
    whole[4096:8192] = bytes(4096)
    overwrite(on, bytes(whole))
    with pytest.raises(DiskError, match="this is damage"):
        opened(on)


def test_the_journal_of_another_member_is_refused() -> None:
    on = machine()
    filled(on)
    with pytest.raises(DiskError, match="belongs to Controller n0, this is n1"):
        Journal(CrashingDisk(on), PATH, "n1")


def test_a_file_that_is_no_journal_is_refused() -> None:
    on = machine()
    overwrite(on, b"something else, and long enough")
    with pytest.raises(DiskError, match="expected b'KMQRJNL1'"):
        opened(on)


@given(
    seed=st.integers(0, 1000),
    crash_at=st.integers(1, 40),
    steps=st.lists(st.sampled_from(["add", "add", "sync", "term", "cut", "compact"]), max_size=25),
)
@settings(deadline=None)
def test_after_a_crash_anywhere_and_a_power_failure_a_synced_state_or_the_next_is_there(
    seed: int, crash_at: int, steps: list[str]
) -> None:
    on = machine(seed)
    journal, disk = opened(on, crash_at)
    # What may be found: the state of the last sync, or one a sync was under way for.
    synced = kept(journal)
    possible = [synced]
    with crashing(disk):
        for step in steps:
            if step == "add":
                index = journal.last_index + 1 if len(journal) else 1
                journal.add(b"%d" % index, index, journal.getCurrentTerm())
                continue
            if step == "cut":
                journal.deleteEntriesFrom(max(len(journal) - 2, 1))
                continue
            before, term = journal[:], journal.getCurrentTerm()
            if step == "sync":
                possible.append(kept(journal))
                journal.sync()
            elif step == "term":
                possible.append((before, term + 1, f"n{term}"))
                journal.setCurrentTerm(term + 1, f"n{term}")
            else:
                position = len(journal) // 2
                possible.append((before[position:], *kept(journal)[1:]))
                journal.deleteEntriesTo(position)
            possible = [kept(journal)]
    on.lose_power()
    assert kept(opened(on)[0]) in possible


@given(seed=st.integers(0, 1000), count=st.integers(0, 5), crash_at=st.integers(1, 5), fails=st.booleans())
@settings(deadline=None)
def test_what_a_restart_found_is_there_after_a_power_failure(
    seed: int, count: int, crash_at: int, fails: bool
) -> None:
    """It may be acknowledged at once, so it must not be in the page cache only."""
    on = machine(seed)
    filled(on, count)
    journal, disk = opened(on, crash_at)
    with crashing(disk):
        try:
            journal.add(b"decision", count + 1, 9)
            on.faults.sync_errors = int(fails)
            journal.setCurrentTerm(9, "n1")
            journal.add(b"and the next", count + 2, 9)
            journal.sync()
        except DiskError:
            assert fails
    on.faults.sync_errors = 0
    restarted, _ = opened(on)
    found = kept(restarted)
    assert not restarted.dirty
    on.lose_power()
    assert kept(opened(on)[0]) == found


# snapshots

SNAPSHOT = Snapshot((b"eight", 8, 2), (b"nine", 9, 2), b"the state" * 20)


def test_a_snapshot_comes_back() -> None:
    assert decode_snapshot(encode_snapshot(SNAPSHOT)) == SNAPSHOT


@given(st.data())
def test_a_damaged_snapshot_is_refused(data: st.DataObject) -> None:
    whole = bytearray(encode_snapshot(SNAPSHOT))
    if data.draw(st.booleans()):
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del whole[data.draw(st.integers(0, len(whole) - 1)) :]
    with pytest.raises(DiskError, match="snapshot"):
        decode_snapshot(bytes(whole))


def test_a_journal_keeps_what_continues_the_snapshot() -> None:
    journal, _ = opened(machine())
    for index in range(1, 13):
        journal.add(b"%d" % index, index, 2)
    align(journal, SNAPSHOT)
    assert (journal.first_index, journal.last_index) == (8, 12)
    align(journal, SNAPSHOT)
    assert (journal.first_index, journal.last_index) == (8, 12)


def test_a_journal_that_ends_before_the_snapshot_or_contradicts_it_starts_anew() -> None:
    for term, count in ((2, 5), (1, 12)):
        journal, _ = opened(machine())
        for index in range(1, count + 1):
            journal.add(b"%d" % index, index, term)
        align(journal, SNAPSHOT)
        assert journal[:] == [SNAPSHOT.before, SNAPSHOT.last]


def test_entries_missing_between_snapshot_and_journal_are_noticed() -> None:
    journal, _ = opened(machine())
    journal.reset([(b"x", 11, 2), (b"y", 12, 2)])
    with pytest.raises(DiskError, match="entries between them are lost"):
        align(journal, SNAPSHOT)


@pytest.mark.parametrize("crash_at", range(1, 15))
@pytest.mark.parametrize("power", [False, True])
def test_a_crash_at_any_step_of_a_compaction_loses_no_entry(crash_at: int, power: bool) -> None:
    on = machine(crash_at)
    journal, disk = opened(on)
    for index in range(1, 13):
        journal.add(b"%d" % index, index, 2)
    journal.sync()
    disk.operations, disk.crash_at = 0, crash_at
    snapshot = Snapshot((b"8", 8, 2), (b"9", 9, 2), b"state")
    with crashing(disk):
        write_file(disk, "/raft/raft.snapshot", encode_snapshot(snapshot))
        journal.deleteEntriesTo(7)
    if power:
        on.lose_power()
    again, disk = opened(on)
    if disk.exists("/raft/raft.snapshot"):
        found = decode_snapshot(read_file(disk, "/raft/raft.snapshot"))
        assert found == snapshot
        align(again, found)
        assert again.first_index == 8
    else:
        assert again.first_index == 1
    assert again.last_index == 12
