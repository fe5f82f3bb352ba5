"""The promise of audit.reading.log_ends and aside: how much is read to find where logs end is bounded,
however much is damaged, and whatever else lies beside the log."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from audit.reading.aside import settle
from audit.reading.layout import Replica, load
from audit.reading.storage import StoreSpec
from audit.sources.storage import LocalStorage
from tests.audit.stores import LogWriter, copies, patch

SIZE = 1 << 20


def _loaded(stores: list[Path]) -> list[Replica]:
    return [load(StoreSpec(store.name, str(store))) for store in stores]


def _settled(stores: list[Path], monkeypatch: pytest.MonkeyPatch) -> tuple[list[Replica], int, int]:
    """With how many times something was read for it, and how many bytes in all."""
    read, asked = LocalStorage.read, list[int]()

    def counted(self: LocalStorage, path: str, offset: int, size: int) -> bytes:
        data = read(self, path, offset, size)
        asked.append(len(data))
        return data

    replicas = _loaded(stores)
    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, "read", counted)
        settle(replicas)
    return replicas, len(asked), sum(asked)


def _refusing(root: Path, damaged: int) -> tuple[list[Path], int]:
    """A killed store whose clock went back at each record, and of which every second record is gone."""
    log = LogWriter(root / str(damaged) / "origin", segment=SIZE)
    for n in range(2 * damaged + 2):
        log.add(b"x" * 40, key=f"m{n}", stamp=10**6 - n)
    stores = copies(log.root, 2)
    for store in stores:
        (store / "abort").touch()
    for n in range(1, 2 * damaged, 2):
        patch(stores[0], int(str(log.rows[n]["phys_offset"])), bytes(60), SIZE)
    return stores, log.end


def test_records_that_look_left_over_cost_no_more_than_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log was walked once for each of them."""
    told = {}
    for damaged in (20, 80):
        stores, end = _refusing(tmp_path, damaged)
        replicas, _, read = _settled(stores, monkeypatch)
        assert (replicas[0].end, len(replicas[0].skipped)) == (end, damaged)
        told[damaged] = read
    assert told[80] < told[20] + 60 * 2 * 4096, "of each the record itself, on both logs"


def test_a_record_that_no_other_log_has_ends_it(tmp_path: Path) -> None:
    stores, _ = _refusing(tmp_path, 20)
    other = LogWriter(tmp_path / "other", segment=SIZE)
    other.add(b"y" * 40, key="other")
    replicas = _loaded([stores[0], other.root])
    settle(replicas)
    assert replicas[0].refused is not None
    assert replicas[0].end < replicas[0].refused[0]


@pytest.mark.parametrize("most", [None, 8 * SIZE])
def test_copies_beside_the_log_are_held_to_it_up_to_a_bound(
    most: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the process that begins the audit: what it did not look at is told, and is no finding of a file."""
    log = LogWriter(tmp_path / "origin", segment=SIZE)
    for n in range(6000):
        log.add(b"x" * 1000, key=f"m{n}", stamp=n)
    [store] = copies(log.root, 1)
    beside = store / "commitlog" / "backup"
    beside.mkdir()
    for file in list((store / "commitlog").glob("0*")):
        shutil.copy(file, beside)
    if most is not None:
        monkeypatch.setattr("audit.reading.strays.OTHERS_BYTES_MAX", most)
    [replica], _, read = _settled([store], monkeypatch)
    assert (replica.stray, replica.unseen) == ([], most is not None)
    assert read < (4 * SIZE + most if most is not None else 4 * log.end)
