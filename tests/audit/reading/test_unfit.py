"""The promise about what is no file of a store: it is named, all else is audited, and nobody waits for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from audit.reading.storage import LocalStorage, UnfitFileError, open_storage
from tests.audit.derived_files import EXTENSION_FILE, TIMER_FILE
from tests.audit.plants import make_queued, run_local
from tests.audit.sources import ssh_in

PLACES = [
    f"commitlog/{4096:020d}",
    f"commitlog/{4096 * 9:020d}",
    "checkpoint",
    "epochFileCheckpoint",
    "bootId.json",
    "config/topics.json",
    "config/consumerOffset.json",
    "consumequeue/T/0/00000000000000000200",
    "consumequeue/T/0/00000000000000090000",
    "index/20261129122623000",
    EXTENSION_FILE,
    TIMER_FILE,
]
SMALL = [
    "checkpoint",
    "config/x.json",
    "config/consumerOffset.json",
    "bootId.json",
    "damagedRanges",
    "logWasLonger",
    "brokerIdentity",
]
LARGE = ["consumequeue/T/0/00000000000000000200", "index/20261129122623000", TIMER_FILE, "timerwheel"]


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("put", [_pipe, _device])
@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_regular_file_is_named_and_not_waited_for(
    place: str, put: Callable[[Path], None], tmp_path: Path
) -> None:
    stores, ledger = make_queued(tmp_path)
    path = stores[2] / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    put(path)
    report = run_local(stores, ledger)
    told = [(f.replica, f.segment, f.found) for f in report.findings if f.kind == "file_unreadable"]
    segment = place.removeprefix("commitlog/")
    assert told == [("r2", segment, "not a regular file")]
    assert (report.verdict, report.records >= 80, report.unreadable) == ("diverged", True, {})


@pytest.mark.parametrize("place", PLACES[:2])
@pytest.mark.parametrize("to", ["itself", "nothing"])
def test_a_link_of_a_segments_name_that_leads_nowhere_is_named_and_the_rest_is_audited(
    to: str, place: str, tmp_path: Path
) -> None:
    stores, ledger = make_queued(tmp_path)
    path = stores[2] / place
    path.unlink(missing_ok=True)
    path.symlink_to(path.name if to == "itself" else "/nowhere/at/all")
    report = run_local(stores, ledger)
    told = [(f.replica, f.segment) for f in report.findings if f.kind == "file_unreadable"]
    assert told == [("r2", path.name)]
    assert (report.verdict, report.unreadable, report.lost) == ("diverged", {}, 0)


@pytest.mark.parametrize("place", PLACES[2:])
def test_a_link_to_itself_is_as_a_file_that_is_gone(place: str, tmp_path: Path) -> None:
    stores, ledger = make_queued(tmp_path)
    path = stores[2] / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    gone = run_local(stores, ledger)
    path.symlink_to(path.name)
    report = run_local(stores, ledger)
    assert [(f.kind, f.replica) for f in report.findings] == [(f.kind, f.replica) for f in gone.findings]


def test_a_file_that_the_disk_does_not_tell_of_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stores, ledger = make_queued(tmp_path)
    place, size = f"{4096:020d}", LocalStorage.size

    def fails(storage: LocalStorage, path: str) -> int:
        if path.endswith(place) and storage.root.endswith("r2"):
            raise OSError(5, "Input/output error")
        return size(storage, path)

    monkeypatch.setattr(LocalStorage, "size", fails)
    report = run_local(stores, ledger)
    rows = [f for f in report.findings if f.kind == "file_unreadable"]
    assert [(f.replica, f.segment, f.found) for f in rows] == [("r2", place, "Input/output error")]


@pytest.mark.parametrize("place", SMALL + LARGE)
def test_a_file_larger_than_its_kind_is_named_and_not_read(place: str, tmp_path: Path) -> None:
    stores, ledger = make_queued(tmp_path)
    path = stores[2] / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.truncate(path, 1 << 36)
    report = run_local(stores, ledger)
    rows = [f for f in report.findings if f.kind == "file_unreadable"]
    assert [(f.replica, f.segment, f.severity) for f in rows] == [("r2", place, "error")]
    assert rows[0].found.startswith(f"{1 << 36} bytes, no such file has more than ")
    assert (report.verdict, report.unreadable) == ("diverged", {})


def test_a_segment_larger_than_any_is_left_out(tmp_path: Path) -> None:
    stores, _ = make_queued(tmp_path)
    os.truncate(stores[2] / f"commitlog/{4096:020d}", 1 << 36)
    report = run_local(stores, None)
    told = [(f.kind, f.replica, f.phys_offset, f.copies) for f in report.findings if f.severity == "error"]
    assert told == [("file_unreadable", "r2", 4096, 2)]


def test_a_pipe_that_takes_a_file_s_place_under_a_reader_is_refused(tmp_path: Path) -> None:
    """Between a look at it and its opening."""
    (tmp_path / "file").write_bytes(b"x")
    files = LocalStorage(str(tmp_path))
    assert files.size("file") == 1
    (tmp_path / "file").unlink()
    os.mkfifo(tmp_path / "file")
    for read in (lambda: files.read("file", 0, 1), lambda: files.size("file")):
        with pytest.raises(UnfitFileError, match="not a regular file"):
            read()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("scheme", ["ssh://somewhere", "file://"])
def test_other_sources_refuse_a_pipe_too(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh_in(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    store = tmp_path / "store"
    store.mkdir()
    os.mkfifo(store / "checkpoint")
    (store / "abort").touch()
    files = open_storage(f"{scheme}{store}")
    assert files.exists("checkpoint")
    assert files.size("abort") == 0
    with pytest.raises(UnfitFileError, match="not a regular file"):
        files.size("checkpoint")
    try:
        assert files.read("checkpoint", 0, 40) == b""  # over ssh: the size tells
    except UnfitFileError as error:
        assert (scheme, error.strerror) == ("file://", "not a regular file")  # noqa: PT017 - not over ssh
    files.close()
