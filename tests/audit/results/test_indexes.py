"""The promise of the page's steps: no index is made anew of a record that it alone contradicts."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from audit.results.steps.repair import Step, steps
from runtime.os_env import OsDisk
from store.offline.repair import repair
from tests.audit.plants import make_queued, run_local
from tests.audit.results.advised import reads
from tests.audit.stores import first_records, look, patch


def _indexed(tmp_path: Path, count: int) -> list[Path]:
    stores, _ = make_queued(tmp_path, count)
    for store in stores:
        assert repair(OsDisk(), str(store), []).indexed
    return stores


def _altered(store: Path, begin: int, until: int) -> None:
    """Another body, with its CRC, and another key."""
    raw = bytearray(look(store, begin, until - begin))
    size = int.from_bytes(raw[84:88])
    raw[88] ^= 1
    raw[8:12] = (zlib.crc32(raw[88 : 88 + size]) & 0x7FFFFFFF).to_bytes(4)
    at = raw.rindex(b"UNIQ_KEY\x01") + len(b"UNIQ_KEY\x01")
    raw[at] = ord("z")
    patch(store, begin, bytes(raw))


def _entry(store: Path, begin: int) -> tuple[Path, int]:
    """The file, and where in it the first entry of a record stands."""
    [path] = (store / "index").iterdir()
    return path, path.read_bytes().index(begin.to_bytes(8) + b"\0\0\0", 44) - 4


def _steps(stores: list[Path]) -> list[Step]:
    report = run_local(stores, None)
    assert report.verdict != "clean"
    return steps(report.findings, report.replicas)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_all_copies_have_otherwise_than_their_indexes_is_open(tmp_path: Path, count: int) -> None:
    stores = _indexed(tmp_path, count)
    span = first_records(stores[0], 25)[22]
    for store in stores:
        _altered(store, *span)
    told = _steps(stores)
    assert not any(step.command for step in told)
    open_of = {step.replica for step in told if "than the entry that was made of it" in step.why}
    assert open_of == {store.name for store in stores}


@pytest.mark.parametrize("count", [1, 3])
def test_a_hash_that_hangs_nowhere_is_the_indexes_fault(tmp_path: Path, count: int) -> None:
    stores = _indexed(tmp_path, count)
    begin, _ = first_records(stores[0], 25)[22]
    for store in stores:
        path, at = _entry(store, begin)
        raw = bytearray(path.read_bytes())
        raw[at + 3] ^= 1
        path.write_bytes(raw)
    told = _steps(stores)
    assert {step.replica for step in told if step.command} == {store.name for store in stores}


def test_an_index_that_the_others_contradict_is_made_anew(tmp_path: Path) -> None:
    """It was made of another record, which only its own store had."""
    stores = _indexed(tmp_path, 3)
    begin, until = first_records(stores[0], 25)[22]
    was = look(stores[1], begin, until - begin)
    _altered(stores[1], begin, until)
    for path in (stores[1] / "index").iterdir():
        path.unlink()
    assert repair(OsDisk(), str(stores[1]), []).indexed
    patch(stores[1], begin, was)
    told = _steps(stores)
    assert [step.replica for step in told if step.command.startswith("keelmq store repair")] == ["r1"]


@pytest.mark.parametrize("altered", [0, 1])
def test_beside_an_open_record_no_index_is_made_anew(tmp_path: Path, altered: int) -> None:
    """One of two copies, of which nothing but the index tells that it was changed."""
    stores = _indexed(tmp_path, 2)
    spans = first_records(stores[0], 40)
    _altered(stores[altered], *spans[22])
    for store in stores:
        begin, until = spans[5] if store is stores[altered] else spans[35]
        patch(store, begin, bytes(until - begin))
    told = _steps(stores)
    taken = {step.replica: step for step in told if reads(step)}
    own = taken[stores[altered].name]
    assert own.command.startswith("dd ")
    assert "No repair of this store yet" in own.why
    assert not any(step.replica == own.replica and step.command.startswith("keelmq") for step in told)
