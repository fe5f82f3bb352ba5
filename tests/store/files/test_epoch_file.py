"""The promise of the epoch file: what is recorded survives, what is cut does not come back."""

from __future__ import annotations

import errno
from dataclasses import fields
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.errors import DiskError
from model.ids import Epoch, PhysicalOffset
from store.files.checkpoint import Checkpoint, CheckpointFile
from store.files.epoch_file import EpochEntry, EpochFile, decode, encode
from tests.fakes.disk.memory import FaultyDisk


def _entry(epoch: int, start: int) -> EpochEntry:
    return EpochEntry(Epoch(epoch), PhysicalOffset(start))


def _checkpoint(*values: int, trusted: bool = False) -> Checkpoint:
    """Three times, then offsets."""
    names = [field.name for field in fields(Checkpoint)]
    found = Checkpoint(trusted=trusted)
    for name, value in zip(names, values, strict=False):
        setattr(found, name, value)
    return found


PATH = "/store/epochFileCheckpoint"


def _file(disk: FaultyDisk | None = None) -> EpochFile:
    disk = disk or FaultyDisk()
    disk.makedirs("/store")
    file = EpochFile(disk, PATH)
    file.load()
    return file


def test_the_text_is_the_real_one() -> None:
    assert encode([_entry(1, 0), _entry(3, 1000)]) == b"2\n1377471367\n1-0\n3-1000\n"
    assert decode(b"2\n0\n1-0\n3-1000\n") == [(1, 0), (3, 1000)]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 10**12)), max_size=6))
def test_epochs_decode_to_what_was_encoded(steps: list[tuple[int, int]]) -> None:
    entries, epoch, start = [], 0, 0
    for more_epochs, more_bytes in steps:
        epoch, start = epoch + more_epochs, start + more_bytes
        entries.append(_entry(epoch, start))
    assert decode(encode(entries)) == entries


@pytest.mark.parametrize(
    "text", [b"", b"1\n0\n", b"x\n0\n", b"1\n7\n1-0\n", b"2\n0\n3-5\n2-9\n", b"1\n0\n1-0-0\n", b"\xff"]
)
def test_a_damaged_text_is_noticed(text: bytes) -> None:
    with pytest.raises(DiskError):
        decode(text)


def test_an_election_without_a_write_takes_the_place_of_the_one_before() -> None:
    file = _file()
    file.append(Epoch(1), PhysicalOffset(0))
    file.append(Epoch(2), PhysicalOffset(500))
    file.append(Epoch(3), PhysicalOffset(500))
    assert file.entries == [(1, 0), (3, 500)]
    file.append(Epoch(3), PhysicalOffset(500))
    assert file.last == (3, 500)


def test_epochs_and_offsets_do_not_go_back() -> None:
    file = _file()
    file.append(Epoch(2), PhysicalOffset(100))
    for epoch, start in ((2, 200), (1, 200), (3, 99)):
        with pytest.raises(ValueError, match="cannot follow"):
            file.append(Epoch(epoch), PhysicalOffset(start))
    assert file.entries == [(2, 100)]


def test_cut_epochs_do_not_come_back_even_when_none_is_left() -> None:
    disk = FaultyDisk()
    file = _file(disk)
    file.append(Epoch(1), PhysicalOffset(0))
    file.append(Epoch(2), PhysicalOffset(500))
    file.truncate_suffix(PhysicalOffset(500))
    assert _file(disk.crash()).entries == [(1, 0)]
    file.truncate_suffix(PhysicalOffset(0))
    assert _file(disk.crash()).entries == []


def test_every_change_survives_a_crash_and_a_crash_during_it_leaves_the_one_before() -> None:
    disk = FaultyDisk()
    file = _file(disk)
    for epoch in range(1, 6):
        file.append(Epoch(epoch), PhysicalOffset(epoch * 10))
        assert _file(disk.crash(epoch)).entries == file.entries
    for allowed in range(12):
        calls = 0

        def fail(what: str, path: str, allowed: int = allowed) -> int | None:
            nonlocal calls
            calls += 1
            return errno.EIO if calls > allowed else None

        disk.fail = fail
        before = file.entries
        try:
            file.append(Epoch(100 + allowed), PhysicalOffset(1000 + allowed))
        except DiskError:
            assert file.entries == before
        disk.fail = lambda what, path: None
        assert _file(disk.crash(allowed)).entries in (
            before,
            file.entries,
            [*before, (100 + allowed, 1000 + allowed)],
        )


@pytest.mark.parametrize("copy", ["", ".bak"])
@pytest.mark.parametrize("step", ["pwrite", "sync"])
def test_an_epoch_of_which_one_copy_could_not_be_written_is_none_after_a_restart(
    copy: str, step: str
) -> None:
    """It was never led, and a start that finds it takes it for one that was."""
    disk = FaultyDisk()
    file = _file(disk)
    file.append(Epoch(1), PhysicalOffset(0))
    disk.fail = lambda what, path: errno.EIO if (what, path) == (step, f"{PATH}{copy}.tmp") else None
    with pytest.raises(DiskError):
        file.append(Epoch(2), PhysicalOffset(500))
    disk.fail = lambda what, path: None
    assert file.entries == _file(disk).entries == _file(disk.crash(1)).entries == [(1, 0)]


def test_the_copy_is_read_when_the_file_is_damaged() -> None:
    disk = FaultyDisk()
    file = _file(disk)
    file.append(Epoch(1), PhysicalOffset(0))
    file.append(Epoch(2), PhysicalOffset(500))
    disk.nodes[PATH].cache[-2:] = b"##"
    assert _file(disk).entries == [(1, 0), (2, 500)]
    assert disk.nodes[PATH].cache == disk.nodes[PATH + ".bak"].cache
    disk.nodes[PATH].cache[-2:] = b"##"
    disk.nodes[PATH + ".bak"].cache[-2:] = b"##"
    with pytest.raises(DiskError, match="not an epoch file"):
        _file(disk)
    suspect = EpochFile(disk, PATH)
    suspect.load(may_be_unreadable=True)
    assert suspect.entries == []
    assert suspect.unreadable is not None
    suspect.trust([_entry(3, 7)])
    assert suspect.unreadable is None
    assert _file(disk).entries == [(3, 7)]


def test_a_flipped_bit_of_the_file_is_turned_back() -> None:
    disk = FaultyDisk()
    file = _file(disk)
    file.append(Epoch(1), PhysicalOffset(0))
    file.append(Epoch(2), PhysicalOffset(500))
    good = bytes(disk.nodes[PATH].cache)
    del disk.nodes[PATH + ".bak"]
    for bit in range(len(good) * 8):
        disk.nodes[PATH].cache[bit // 8] ^= 1 << bit % 8
        assert _file(disk).entries == file.entries
        disk.nodes[PATH].cache[:] = good


def test_epochs_whose_bytes_expired_are_dropped_but_never_the_last() -> None:
    file = _file()
    for epoch, start in ((1, 0), (2, 100), (3, 200)):
        file.append(Epoch(epoch), PhysicalOffset(start))
    file.truncate_prefix(PhysicalOffset(150))
    assert file.entries == [(2, 100), (3, 200)]
    file.truncate_prefix(PhysicalOffset(10**9))
    assert file.entries == [(3, 200)]


def test_the_checkpoint_has_4096_bytes_and_keeps_its_values() -> None:
    disk = FaultyDisk()
    disk.makedirs("/store")
    file = CheckpointFile(disk, "/store/checkpoint")
    file.load()
    assert file.now == Checkpoint()
    file.now = _checkpoint(1, 2, 3, 4, 5, 6, 7)
    file.write(file.now.encode())
    after = disk.crash()
    values = bytes.fromhex("".join(f"{n:016x}" for n in (1, 2, 3, 4, 5)))
    ours = bytes.fromhex("".join(f"{n:016x}" for n in (6, 7)))
    seal = b"KQ02" + crc32(values + ours).to_bytes(4, "big")
    written = values + bytes(24) + seal + ours
    assert bytes(after.nodes["/store/checkpoint"].cache) == written + bytes(4096 - 88)
    again = CheckpointFile(after, "/store/checkpoint")
    again.load()
    assert again.now == _checkpoint(1, 2, 3, 4, 5, 6, 7, trusted=True)


def test_a_checkpoint_is_believed_whole_or_not_at_all() -> None:
    ours = _checkpoint(1, 2, 3, 4, 5, 6, 7).encode()
    assert Checkpoint.decode(ours[:40]) == _checkpoint(1, 2, 3, 4, 5)  # the real broker's: it has no seal
    for bit in (*range(40 * 8), *range(68 * 8, 88 * 8)):
        rotten = bytearray(ours)
        rotten[bit // 8] ^= 1 << bit % 8
        assert Checkpoint.decode(bytes(rotten)) == Checkpoint()


def test_the_note_of_the_logs_start_counts_with_its_own_seal_only() -> None:
    noted = _checkpoint(1, 2, 3, 4, 5, 6, 7, trusted=True)
    noted.log_start = PhysicalOffset(8192)
    assert Checkpoint.decode(noted.encode()) == noted
    silent = _checkpoint(1, 2, 3, 4, 5, 6, 7, trusted=True)
    for bit in range(88 * 8, 104 * 8):
        rotten = bytearray(noted.encode())
        rotten[bit // 8] ^= 1 << bit % 8
        assert Checkpoint.decode(bytes(rotten)) == silent
    older = _checkpoint(1, 2, 3, 4, 5, 6, 8).encode()[:88]  # of a keelmq that writes no note
    assert Checkpoint.decode(older + noted.encode()[88:]).log_start is None


def test_what_a_newer_rocketmq_keeps_behind_its_fields_stays() -> None:
    disk = FaultyDisk()
    disk.makedirs("/store")
    theirs = bytes(40) + b"\1\2\3\4\5\6\7\x08" + bytes(4096 - 48)
    disk.open("/store/checkpoint", create=True).pwrite(theirs, 0)
    file = CheckpointFile(disk, "/store/checkpoint")
    file.load()
    file.now.settled_offset = PhysicalOffset(9)
    file.write(file.now.encode())
    assert bytes(disk.nodes["/store/checkpoint"].cache)[40:64] == theirs[40:64]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_new_epoch_counts_also_when_the_note_on_the_time_before_cannot_be_removed(restarted: bool) -> None:
    """The epoch was in the file, and whoever noted it heard that it was not."""
    disk = FaultyDisk()
    file = _file(disk)
    file.append(Epoch(1), PhysicalOffset(0))
    file.leave(PhysicalOffset(500))
    disk.fail = lambda what, path: errno.EIO if path.endswith(".classic") and what == "remove" else None
    file.append(Epoch(2), PhysicalOffset(500))
    assert (file.last, file.classic_from) == (_entry(2, 500), None)
    assert _file(disk).classic_from is None, "it is of another epoch"
    disk.fail = lambda what, path: None
    file = _file(disk) if restarted else file
    file.append(Epoch(3), PhysicalOffset(900))
    assert not disk.exists(PATH + ".classic"), "it goes with the next"


@pytest.mark.parametrize("restarted", [False, True])
def test_a_note_that_was_left_goes_before_its_epoch_is_the_last_again(restarted: bool) -> None:
    """A kill behind the list of epochs would have it count again."""
    disk = FaultyDisk()
    file = _file(disk)
    file.append(Epoch(1), PhysicalOffset(0))
    file.leave(PhysicalOffset(500))
    disk.fail = lambda what, path: errno.EIO if path.endswith(".classic") and what == "remove" else None
    file.append(Epoch(2), PhysicalOffset(500))
    file = _file(disk) if restarted else file
    with pytest.raises(DiskError, match="removing"):
        file.truncate_suffix(PhysicalOffset(500))
    assert (file.last, _file(disk).last) == (_entry(2, 500), _entry(2, 500)), "nothing changed"
    disk.fail = lambda what, path: None
    file.truncate_suffix(PhysicalOffset(500))
    assert (file.last, file.classic_from, _file(disk).classic_from) == (_entry(1, 0), None, None)
