"""The promise to bytes that are put back by hand: they are served, whatever the ledger of damage said."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from zlib import crc32

import pytest

from model.ids import Epoch, PhysicalOffset
from store.files.damage import DamagedRange, DamageLedger
from store.offline.repair import repair
from store.recover.lost import note_damage
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv
from tests.store.support import SEGMENT, config, fill, opened, records_of

COUNT = 40


def _written() -> tuple[FaultyDisk, list[int]]:
    """A store, and where its records begin."""

    async def run() -> tuple[FaultyDisk, list[int]]:
        env = FaultyEnv()
        async with opened(env) as store:
            store.epochs.append(Epoch(1), PhysicalOffset(0))
            puts = await fill(store, COUNT, queues=1)
        return env.disk, [put.physical_offset for put in puts]

    return asyncio.run(run())


def _note(disk: FaultyDisk, begin: int, until: int, kind: str = "unreadable_region") -> None:
    ledger = DamageLedger(disk, "/store")
    ledger.load()
    ledger.note([DamagedRange(begin, until, kind)])


def _noted(disk: FaultyDisk) -> list[tuple[int, int]]:
    ledger = DamageLedger(disk, "/store")
    ledger.load()
    return [(item.begin, item.until) for item in ledger.ranges]


@pytest.mark.parametrize("skew", [0, 7, -9])
def test_a_start_takes_off_what_is_whole_wherever_the_range_begins(skew: int) -> None:
    """Damage before it said where it begins: that need be no record's begin."""
    disk, places = _written()
    _note(disk, places[10] + skew, places[12])

    async def run() -> None:
        async with opened(FaultyEnv(disk)) as store:
            assert not store.damage.ranges
            assert len(records_of(store)) == COUNT

    asyncio.run(run())


@pytest.mark.parametrize("skew", [0, 7])
def test_a_start_leaves_what_is_damaged(skew: int) -> None:
    disk, places = _written()
    at = places[11] + 30
    disk.nodes[f"/store/commitlog/{at - at % SEGMENT:020}"].cache[at % SEGMENT] ^= 0xFF
    _note(disk, places[10] + skew, places[12])

    async def run() -> None:
        async with opened(FaultyEnv(disk)) as store:
            assert [item.begin for item in store.damage.ranges] == [places[10] + skew]

    asyncio.run(run())


def test_a_repair_that_finds_nothing_takes_off_what_is_whole() -> None:
    disk, places = _written()
    _note(disk, places[10] + 7, places[12])
    _note(disk, places[20], places[21], "bytes_differ")
    assert repair(disk, "/store", [], config=config()).left == []
    assert _noted(disk) == [(places[20], places[21])], "only replicas tell whether it is right"


def _doubted(disk: FaultyDisk, at: int) -> None:
    """As a broker notes a record that replicas have otherwise, and that none decides about."""

    async def run() -> None:
        async with opened(FaultyEnv(disk)) as store:
            size = store.log.read(at, 4)
            found = DamagedRange(at, at + int.from_bytes(size, "big"), "bytes_differ")
            note_damage(store.files, store.flow.parser, [found], 1)
            assert len(store.damage.ranges) == 1

    asyncio.run(run())


QUEUE_OFFSET, STORE_TIME, BODY = 26, 63, 90
"""Bytes of a record: no CRC covers the first two."""


def _flip(disk: FaultyDisk, at: int) -> None:
    disk.nodes[f"/store/commitlog/{at - at % SEGMENT:020}"].cache[at % SEGMENT] ^= 1


@pytest.mark.parametrize("replaced", [True, False])
@pytest.mark.parametrize("repaired", [True, False])
def test_a_note_of_what_replicas_have_otherwise_is_about_those_bytes(replaced: bool, repaired: bool) -> None:
    """They were put back by hand (``dd``), and a repair or a start sees that. The same bytes stay noted."""
    disk, places = _written()
    _doubted(disk, places[20])
    if replaced:
        _flip(disk, places[20] + STORE_TIME)
    if repaired:
        assert repair(disk, "/store", [], config=config()).left == []
        assert _noted(disk) == ([] if replaced else [(places[20], places[21])])

    async def run() -> None:
        async with opened(FaultyEnv(disk)) as store:
            assert [item.begin for item in store.damage.ranges] == ([] if replaced else [places[20]])
            assert len(records_of(store)) == COUNT - (not replaced)

    asyncio.run(run())


def test_a_note_of_what_replicas_have_otherwise_stays_where_its_bytes_are_damaged() -> None:
    disk, places = _written()
    _doubted(disk, places[20])
    _flip(disk, places[20] + BODY)

    async def run() -> None:
        async with opened(FaultyEnv(disk)) as store:
            assert [item.begin for item in store.damage.ranges] == [places[20]]

    asyncio.run(run())
    assert repair(disk, "/store", [], config=config()).left
    assert _noted(disk) == [(places[20], places[21])]


def test_a_note_over_two_records_stays_when_one_of_them_is_put_back() -> None:
    disk, places = _written()
    data = disk.nodes[f"/store/commitlog/{0:020}"].cache[places[2] : places[4]]
    ledger = DamageLedger(disk, "/store")
    ledger.note([DamagedRange(places[2], places[4], "bytes_differ", bytes_crc=crc32(data))])
    _flip(disk, places[2] + STORE_TIME)
    assert repair(disk, "/store", [], config=config()).left == []
    assert _noted(disk) == [(places[2], places[4])]

    async def run() -> None:
        async with opened(FaultyEnv(disk)) as store:
            assert [item.begin for item in store.damage.ranges] == [places[2]]

    asyncio.run(run())


@pytest.mark.parametrize("replaced", [True, False])
def test_a_record_that_the_repair_gave_its_place_stays_doubted(replaced: bool) -> None:
    """Nobody put other bytes there, and of what is doubted the queue tells the place alone."""
    disk, places = _written()
    _flip(disk, places[20] + QUEUE_OFFSET)
    _doubted(disk, places[20])
    if replaced:
        _flip(disk, places[20] + STORE_TIME)
    outcome = repair(disk, "/store", [], config=config())
    assert ([row["physicalOffset"] for row in outcome.repaired], outcome.left) == ([places[20]], [])
    for _ in range(2):
        assert _noted(disk) == ([] if replaced else [(places[20], places[21])])
        assert repair(disk, "/store", [], config=config()).repaired == []

    async def run() -> None:
        async with opened(FaultyEnv(disk)) as store:
            assert [item.begin for item in store.damage.ranges] == ([] if replaced else [places[20]])

    asyncio.run(run())


def _writes_of_notes(disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Hears each time that the file of notes is written."""
    heard: list[str] = []
    replace = disk.replace

    def heard_replace(source: str, target: str) -> None:
        if target.endswith("/damagedRanges"):
            heard.append(target)
        replace(source, target)

    monkeypatch.setattr(disk, "replace", heard_replace)
    return heard


@pytest.mark.parametrize("kind", ["crc_mismatch", "bytes_differ"])
@pytest.mark.parametrize("repaired", [True, False])
def test_however_many_are_whole_the_notes_are_written_once(
    monkeypatch: pytest.MonkeyPatch, kind: str, repaired: bool
) -> None:
    disk, places = _written()
    ledger = DamageLedger(disk, "/store")
    pairs = list(pairwise(places))[:-1:2]
    ledger.note(
        [DamagedRange(*pair, kind, bytes_crc=1 if kind == "bytes_differ" else None) for pair in pairs]
    )
    writes = _writes_of_notes(disk, monkeypatch)
    if repaired:
        repair(disk, "/store", [], config=config())

    async def run() -> None:
        async with opened(FaultyEnv(disk)) as store:
            assert store.damage.ranges == []

    asyncio.run(run())
    assert (_noted(disk), len(writes)) == ([], 1)


def test_however_many_a_replica_mends_the_notes_are_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, places = _written()
    disk.makedirs("/other/commitlog")
    disk.nodes |= {p.replace("/store", "/other", 1): n.copy() for p, n in disk.nodes.items()}
    for at in places[3:30:3]:
        _flip(disk, at + BODY)
    ledger = DamageLedger(disk, "/store")
    ledger.note([DamagedRange(*pair, "crc_mismatch") for pair in pairwise(places)][3:30:3])
    writes, calls = _writes_of_notes(disk, monkeypatch), list[tuple[str, str]]()

    def heard(what: str, path: str) -> int | None:
        if (what in ("pwrite", "sync") and "/commitlog/" in path) or what == "replace":
            calls.append((what, path))
        return None

    disk.fail = heard
    outcome = repair(disk, "/store", ["/other"], config=config())
    assert (outcome.left, len(outcome.repaired)) == ([], 9)
    assert (_noted(disk), len(writes)) == ([], 1)
    segments = {path for what, path in calls if what == "pwrite"}
    synced = [path for what, path in calls if what == "sync"]
    assert sorted(synced) == sorted(segments), "each once"
    assert [what for what, _ in calls] == ["pwrite"] * 9 + ["sync"] * len(synced) + ["replace"]


def test_a_repair_keeps_what_it_could_not_mend() -> None:
    disk, places = _written()
    at = places[11] + 30
    disk.nodes[f"/store/commitlog/{at - at % SEGMENT:020}"].cache[at % SEGMENT] ^= 0xFF
    _note(disk, places[30] + 7, places[32])
    assert repair(disk, "/store", [], config=config()).left
    assert _noted(disk) == [(places[11], places[12])]
