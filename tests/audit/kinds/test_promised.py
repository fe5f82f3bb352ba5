"""The promise of checkpoints and later epochs: one that is not as it was written, or is gone, takes no
promise back; and a master that wrote nothing yet is the group's."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from audit.results.steps.repair import steps
from audit.run import Report
from broker.timers.codec import encode_check
from broker.timers.core import Note
from model.topic import DataVersion
from store.files.sealed import seal
from tests.audit.parted import sealed
from tests.audit.plants import run_local
from tests.audit.stores import SEGMENT, LogWriter, kept, patch, write_checkpoint

Told = set[tuple[str, str, str, int]]


def _sound(checkpoint: Path) -> None:
    """As it was written."""


def _changed(checkpoint: Path) -> None:
    raw = bytearray(checkpoint.read_bytes())
    raw[35] ^= 4
    checkpoint.write_bytes(raw)


def _closed(checkpoint: Path) -> None:
    checkpoint.unlink()
    checkpoint.mkdir()


def _zeros(checkpoint: Path) -> None:
    """Neither mark nor times nor offset: no broker of a log with records leaves it so."""
    checkpoint.write_bytes(bytes(4096))


def _sector(checkpoint: Path) -> None:
    raw = checkpoint.read_bytes()
    checkpoint.write_bytes(bytes(512) + raw[512:])


WAYS = [_sound, _changed, _closed, Path.unlink, _zeros, _sector]
"""A sound one confirmed all."""


def _told(report: Report) -> Told:
    beside = ("file_corrupt", "file_unreadable", "file_missing")
    return {
        (f.kind, f.severity, f.replica, f.phys_offset)
        for f in report.findings
        if f.severity != "info" and not (f.kind in beside and f.phys_offset < 0)
    }


def _log(root: Path, mark: str, size: int, **more: int) -> LogWriter:
    """20 records that all have, and ``more`` of its own."""
    log = LogWriter(root / mark)
    log.fill(size)
    for own, count in more.items():
        log.fill(count, mark=own, stamp=9000 if own == "new" else 5000)
    return log


def _at(log: LogWriter, n: int) -> int:
    return int(str(log.rows[n]["phys_offset"]))


def _group(log: LogWriter, end: int, later: list[tuple[int, int]]) -> list[Path]:
    """One replica has all of the log; two have it up to ``end``, and epochs of their own."""
    root = log.root.parent
    stores = [kept(log, root / "a", [(1, 0)], log.end)]
    stores += [kept(log, root / name, [(1, 0), *later], end, end) for name in "bc"]
    for store in stores:
        sealed(store)
    return stores


@pytest.mark.parametrize("harm", WAYS)
def test_what_an_election_cuts_may_have_been_promised(harm: Callable[[Path], None], tmp_path: Path) -> None:
    log = _log(tmp_path, "origin", 20)
    end = _at(log, 15)
    stores = _group(log, end, [(4, end)])
    harm(stores[0] / "checkpoint")
    assert _told(run_local(stores, None)) == {("short_tail", "warn", name, end) for name in "bc"}


@pytest.mark.parametrize("harm", WAYS)
def test_so_may_the_end_of_a_stopped_log(harm: Callable[[Path], None], tmp_path: Path) -> None:
    log = _log(tmp_path, "origin", 20)
    end = _at(log, 15)
    stores = _group(log, end, [])[:2]
    for store in stores:
        (store / "abort").unlink()
    harm(stores[0] / "checkpoint")
    assert _told(run_local(stores, None)) == {("short_tail", "warn", "b", end)}


@pytest.mark.parametrize("harm", WAYS)
def test_so_may_what_a_file_holds_that_cannot_be_read(harm: Callable[[Path], None], tmp_path: Path) -> None:
    log = _log(tmp_path, "origin", 60)
    stores = _group(log, _at(log, 50), [])
    assert SEGMENT < _at(log, 50) < log.end < 2 * SEGMENT
    _closed(stores[0] / "commitlog" / f"{SEGMENT:020d}")
    harm(stores[0] / "checkpoint")
    report = run_local(stores, None)
    told = [step.why for step in steps(report.findings, report.replicas) if step.replica == "a"]
    assert any(why.startswith("Keep this store") for why in told)
    assert not any("empty store" in why for why in told)


@pytest.mark.parametrize("harm", WAYS)
def test_so_may_what_stands_behind_unreadable_bytes(harm: Callable[[Path], None], tmp_path: Path) -> None:
    log = _log(tmp_path, "origin", 20)
    end, epochs = _at(log, 15), [(1, 0), (2, _at(log, 5))]
    stores = [kept(log, tmp_path / name, epochs, log.end if name == "a" else end) for name in "abc"]
    for store in stores[1:]:
        shutil.rmtree(store)
        kept(log, store, epochs, end, end)
    for store in stores:
        sealed(store)
    patch(stores[0], end, bytes(60))
    harm(stores[0] / "checkpoint")
    assert ("unreadable_region", "error", "a", end) in _told(run_local(stores, None))


@pytest.mark.parametrize("harm", WAYS)
def test_so_may_a_suffix(harm: Callable[[Path], None], tmp_path: Path) -> None:
    old, new = _log(tmp_path, "old", 10, old=4), _log(tmp_path, "new", 10, new=6)
    begin = _at(old, 10)
    stores = [kept(old, tmp_path / "a", [(1, 0)], old.end)]
    stores += [kept(new, tmp_path / name, [(1, 0), (2, begin)], new.end) for name in "bc"]
    for store in stores:
        sealed(store)
    harm(stores[0] / "checkpoint")
    assert _told(run_local(stores, None)) == {("divergent_suffix", "error", "a", begin)}


@pytest.mark.parametrize("harm", [_changed, _zeros, _sector])
def test_a_checkpoint_that_is_not_as_it_was_written_is_named(
    harm: Callable[[Path], None], tmp_path: Path
) -> None:
    log = _log(tmp_path, "origin", 20)
    stores = _group(log, log.end, [])
    harm(stores[0] / "checkpoint")
    found = [(f.kind, f.replica) for f in run_local(stores, None).findings if f.segment == "checkpoint"]
    assert found == [("file_corrupt", "a")]


def _from(begin: int, end: int) -> Callable[[Path], None]:
    """Zeros there; its times stay."""

    def zeros(checkpoint: Path) -> None:
        raw = checkpoint.read_bytes()
        checkpoint.write_bytes(raw[:begin] + bytes(end - begin) + raw[end:])

    return zeros


_NO_MARK = [_from(16, 512), _from(16, 104), _from(24, 104), _from(64, 104)]
_OFFSETS = b'{"offsetTable":{}}'


def _table(store: Path, raw: bytes) -> None:
    (store / "config").mkdir(exist_ok=True)
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (store / "config" / name).write_bytes(raw)


def _timers(store: Path, *, rocketmq_since: bool) -> None:
    (store / "config").mkdir(exist_ok=True)
    raw = encode_check(Note(5000, 7, 0), DataVersion(0, 0, 0)).ljust(4096, b"\0")
    other = struct.pack(">q", 6000)
    (store / "config" / "timercheck").write_bytes(other + raw[8:] if rocketmq_since else raw)


def _of_keelmq(store: Path, shown: str) -> None:
    """What shows that keelmq wrote this store last."""
    if shown == "a table with its CRC":
        _table(store, seal(_OFFSETS))
        return
    (store / "bootId.json").write_text('{"bootId": "x", "doubtful": false}')
    if shown == "its timers":
        _table(store, _OFFSETS)
        _timers(store, rocketmq_since=False)


@pytest.mark.parametrize("harm", _NO_MARK)
@pytest.mark.parametrize("shown", ["a table with its CRC", "no table", "its timers"])
@pytest.mark.parametrize("stopped", [False, True])
def test_a_checkpoint_without_its_mark_is_rocketmqs_only_where_keelmq_was_not_last(
    stopped: bool, shown: str, harm: Callable[[Path], None], tmp_path: Path
) -> None:
    """It takes no promise back."""
    old, new = _log(tmp_path, "old", 10, old=4), _log(tmp_path, "new", 10, new=6)
    begin = _at(old, 10)
    stores = [kept(old, tmp_path / "a", [(1, 0)], old.end)]
    stores += [kept(new, tmp_path / name, [(1, 0), (2, begin)], new.end) for name in "bc"]
    for store in stores:
        sealed(store)
        if stopped:
            (store / "abort").unlink()
    _of_keelmq(stores[0], shown)
    harm(stores[0] / "checkpoint")
    report = run_local(stores, None)
    assert ("divergent_suffix", "error", "a", begin) in _told(report)
    named = [(f.kind, f.replica) for f in report.findings if f.segment == "checkpoint"]
    assert named == [("file_corrupt", "a")]


@pytest.mark.parametrize("harm", [_zeros, _sector])
def test_one_store_alone_tells_that_its_stop_left_a_mark(
    harm: Callable[[Path], None], tmp_path: Path
) -> None:
    log = _log(tmp_path, "origin", 20)
    store = kept(log, tmp_path / "a", [(1, 0)], log.end)
    sealed(store)
    _of_keelmq(store, "no table")
    harm(store / "checkpoint")
    assert not any(f.segment == "checkpoint" for f in run_local([store], None).findings)
    (store / "abort").unlink()
    named = [(f.kind, f.replica) for f in run_local([store], None).findings if f.segment == "checkpoint"]
    assert named == [("file_corrupt", "a")]


def _moved(store: Path) -> None:
    """RocketMQ's, which keelmq opened and did not write yet."""
    write_checkpoint(store, 1000)
    _table(store, _OFFSETS)
    (store / "bootId.json").write_text('{"bootId": "x", "doubtful": false}')


def _served(store: Path) -> None:
    """keelmq's, which RocketMQ serves now: it writes its part of the small files and leaves ours."""
    write_checkpoint(store, 500)
    sealed(store)
    checkpoint = store / "checkpoint"
    checkpoint.write_bytes(struct.pack(">5q", 9, 9, 9, 1000, 1000) + checkpoint.read_bytes()[40:])
    (store / "bootId.json").write_text('{"bootId": "x", "doubtful": false}')
    _table(store, _OFFSETS)
    _timers(store, rocketmq_since=True)


@pytest.mark.parametrize("made", [_moved, _served])
@pytest.mark.parametrize("stopped", [False, True])
def test_a_store_that_changed_brokers_is_not_blamed(
    stopped: bool, made: Callable[[Path], None], tmp_path: Path
) -> None:
    log = _log(tmp_path, "origin", 20)
    store = kept(log, tmp_path / "a", [(1, 0)], log.end)
    made(store)
    if stopped:
        (store / "abort").unlink()
    report = run_local([store], None)
    assert [f for f in report.findings if f.segment == "checkpoint"] == []
    assert report.replicas[0].promised == 1000


def test_that_rocketmq_wrote_since_excuses_no_change_of_our_part(tmp_path: Path) -> None:
    log = _log(tmp_path, "origin", 20)
    store = kept(log, tmp_path / "a", [(1, 0)], log.end)
    _served(store)
    raw = bytearray((store / "checkpoint").read_bytes())
    raw[75] ^= 4
    (store / "checkpoint").write_bytes(raw)
    named = [f.kind for f in run_local([store], None).findings if f.segment == "checkpoint"]
    assert named == ["file_corrupt"]


@pytest.mark.parametrize("harm", [_changed, Path.unlink])
def test_an_unknown_promise_makes_no_lawful_lag_wrong(harm: Callable[[Path], None], tmp_path: Path) -> None:
    """Of a group that runs. That the checkpoint is not as it was, or is gone, is said."""
    log = _log(tmp_path, "origin", 20)
    stores = [
        kept(log, tmp_path / name, [(1, 0)], _at(log, 10), _at(log, n))
        for name, n in zip("abc", (19, 16, 17), strict=True)
    ]
    for store in stores:
        sealed(store)
    assert _told(run_local(stores, None)) == set()
    harm(stores[0] / "checkpoint")
    report = run_local(stores, None)
    assert _told(report) == set()
    kind = "file_missing" if harm is Path.unlink else "file_corrupt"
    found = [(f.kind, f.replica) for f in report.findings if f.segment == "checkpoint"]
    assert found == [(kind, "a")]


def test_rocketmqs_among_keelmqs_needs_no_mark(tmp_path: Path) -> None:
    log = _log(tmp_path, "origin", 20)
    stores = _group(log, log.end, [])
    write_checkpoint(stores[0], log.end)
    assert _told(run_local(stores, None)) == set()


def test_a_checkpoint_of_rocketmqs_that_is_gone_said_nothing(tmp_path: Path) -> None:
    """As a store that was never confirmed: an election explains the other end."""
    old, new = _log(tmp_path, "old", 10, old=4), _log(tmp_path, "new", 10, new=6)
    begin = _at(old, 10)
    stores = [kept(old, tmp_path / "a", [(1, 0)], begin)]
    stores += [kept(new, tmp_path / name, [(1, 0), (2, begin)], new.end) for name in "bc"]
    (stores[0] / "checkpoint").unlink()
    assert _told(run_local(stores, None)) == {("divergent_suffix", "warn", "a", begin)}


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("wrote", [0, 1])
def test_the_master_of_the_last_epoch_is_right_before_its_first_record(
    wrote: int, count: int, tmp_path: Path
) -> None:
    """It never had the epoch before, of which another log has records where it has its own."""
    log = _log(tmp_path, "old", 10, old=4)
    own = _log(tmp_path, "new", 10, own=2, new=wrote)
    begin, end = _at(log, 10), own.end if not wrote else _at(own, 12)
    stores = [kept(log, tmp_path / "a", [(1, 0), (3, begin)], begin)]
    stores += [kept(own, tmp_path / name, [(1, 0), (4, end)], end) for name in "bc"[: count - 1]]
    report = run_local(stores, None)
    assert _told(report) == {("divergent_suffix", "warn", "a", begin)}
    assert report.reference == "b"
