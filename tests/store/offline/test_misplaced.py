"""The promise of a repair to queues: an entry that names a record is worth as much as what the record says.

No CRC covers a record's queue offset. Nothing is erased by it that an entry of the queue contradicts.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from store.files.consume_queue import ENTRY_BYTES
from store.files.record import Record
from store.message_store import MessageStore
from store.offline.directory import StoreDirectory
from store.offline.repair import repair
from store.offline.verify import verify
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv
from tests.loops import completed
from tests.store.support import SEGMENT, config, message, opened

QUEUE_OFFSET = 20
"""Of a record's bytes."""
PER_FILE = 200
SHAPE = config(queue_file_bytes=PER_FILE)


def _stored(fill: Callable[[MessageStore], None], queue_file_bytes: int = PER_FILE) -> FaultyDisk:
    async def run() -> FaultyDisk:
        env = FaultyEnv()
        async with opened(env, queue_file_bytes=queue_file_bytes) as store:
            fill(store)
            store.confirm(store.log.end)
            await store.caught_up()
        return env.disk

    return completed(run())


def _put(store: MessageStore, queue_id: int, count: int, size: int = 4) -> None:
    for _ in range(count):
        store.put(message("x" * size, queue_id=queue_id))


def _quiet(store: MessageStore) -> None:
    """Of queue 1 the log has one message."""
    for queue_id in range(3):
        _put(store, queue_id, 1)


def _records(disk: FaultyDisk, queue_id: int) -> list[Record]:
    with StoreDirectory(disk, "/store") as store:
        return [item for item in store.records() if isinstance(item, Record) and item.queue_id == queue_id]


def _say(disk: FaultyDisk, record: Record, place: int) -> None:
    at = record.physical_offset + QUEUE_OFFSET
    start = at - at % SEGMENT
    cache = disk.nodes[f"/store/commitlog/{start:020}"].cache
    cache[at - start : at - start + 8] = place.to_bytes(8)


def _bytes(disk: FaultyDisk, folder: str = "") -> dict[str, bytes]:
    return {
        path: bytes(node.cache) for path, node in disk.nodes.items() if path.startswith(f"/store/{folder}")
    }


@pytest.mark.parametrize("bit", [0, 3, 20, 30, 62])
def test_the_only_record_of_a_queue_gets_the_place_back_that_its_entry_names(bit: int) -> None:
    disk = _stored(_quiet)
    right = _bytes(disk)
    [record] = _records(disk, 1)
    _say(disk, record, 1 << bit)
    outcome = repair(disk, "/store", [], config=SHAPE)
    assert [(row["physicalOffset"], row["from"]) for row in outcome.repaired] == [
        (record.physical_offset, "consumequeue/T/1")
    ]
    assert (outcome.left, _bytes(disk)) == ([], right)


@pytest.mark.parametrize("bit", [1, 5, 20])
def test_so_does_one_before_which_retention_took_all_others(bit: int) -> None:
    def fill(store: MessageStore) -> None:
        _put(store, 1, 5)
        _put(store, 0, 90, 100)
        _put(store, 1, 1)

    disk = _stored(fill)
    disk.remove(f"/store/commitlog/{0:020}")
    disk.sync_dir("/store/commitlog")
    repair(disk, "/store", [], config=SHAPE)  # of the index
    right = _bytes(disk)
    [record] = _records(disk, 1)
    _say(disk, record, 5 ^ 1 << bit)
    outcome = repair(disk, "/store", [], config=SHAPE)
    assert (outcome.left, _bytes(disk)) == ([], right)


@pytest.mark.parametrize(
    ("place", "queue_file_bytes"),
    [
        (7, PER_FILE),
        (5 << 20, PER_FILE),  # more than a bit
        (8, 8 * ENTRY_BYTES),
        (1 << 20, 8 * ENTRY_BYTES),  # a file has the name of another, or a bit flipped
    ],
)
def test_where_nobody_can_tell_which_is_right_all_is_left(place: int, queue_file_bytes: int) -> None:
    disk = _stored(_quiet, queue_file_bytes)
    [record] = _records(disk, 1)
    _say(disk, record, place)
    there = _bytes(disk, "consumequeue"), _bytes(disk, "commitlog")
    for _ in range(2):
        outcome = repair(disk, "/store", [], config=config(queue_file_bytes=queue_file_bytes))
        assert {row["kind"] for row in outcome.left} == {"cq_wrong", "cq_missing"}
        assert (_bytes(disk, "consumequeue"), _bytes(disk, "commitlog")) == there


@pytest.mark.parametrize("bit", [0, 4, 20])
def test_no_queue_is_made_of_a_record_that_an_entry_names_in_another(bit: int) -> None:
    disk = _stored(lambda store: _put(store, 8, 1))
    [record] = _records(disk, 8)
    at = record.physical_offset + QUEUE_OFFSET - 8
    disk.nodes[f"/store/commitlog/{0:020}"].cache[at : at + 4] = (8 ^ 1 << bit).to_bytes(4)
    there = _bytes(disk, "consumequeue"), _bytes(disk, "commitlog")
    outcome = repair(disk, "/store", [], config=SHAPE)
    assert {row["kind"] for row in outcome.left} == {"cq_wrong", "cq_missing"}
    assert (_bytes(disk, "consumequeue"), _bytes(disk, "commitlog")) == there


@pytest.mark.parametrize("place", [0, 5, 12, 13])
def test_of_a_file_that_has_the_name_of_another_the_records_are_right(place: int) -> None:
    """Its entries name records of other places, and none of those beside them speaks for them."""

    def fill(store: MessageStore) -> None:
        _put(store, 1, place)
        _put(store, 0, 90, 100)
        _put(store, 1, 1)

    disk = _stored(fill)
    disk.remove(f"/store/commitlog/{0:020}")
    disk.sync_dir("/store/commitlog")
    repair(disk, "/store", [], config=SHAPE)
    [record] = _records(disk, 1)
    log = _bytes(disk, "commitlog")
    start = place * ENTRY_BYTES // PER_FILE * PER_FILE
    other = PER_FILE if start == 0 else 0
    one, named = (f"/store/consumequeue/T/1/{at:020}" for at in (start, other))
    if not disk.exists(named):
        file = disk.open(named, create=True)
        file.truncate(PER_FILE)
        file.close()
    cache = disk.nodes[one].cache, disk.nodes[named].cache
    cache[0][:], cache[1][:] = bytes(cache[1]), bytes(cache[0])
    assert not verify(disk, "/store", SHAPE)["ok"]
    outcome = repair(disk, "/store", [], config=SHAPE)
    assert (outcome.left, _bytes(disk, "commitlog")) == ([], log)
    with StoreDirectory(disk, "/store") as store:
        entered = [at for at, offset, *_ in store.queue_entries("T", 1) if offset == record.physical_offset]
    assert entered == [place]


@pytest.mark.parametrize("number", [6, 7, 8])
def test_the_entry_of_a_message_that_cannot_be_read_is_not_written_over(number: int) -> None:
    """The record before it says its place: of that message the entry is all that is left."""
    disk = _stored(lambda store: _put(store, 0, 12))
    right = _bytes(disk, "consumequeue")
    records = _records(disk, 0)
    one, lost = records[number : number + 2]
    _say(disk, one, number + 1)
    at = lost.physical_offset
    disk.nodes[f"/store/commitlog/{0:020}"].cache[at : at + 16] = b"Z" * 16
    outcome = repair(disk, "/store", [], config=SHAPE)
    assert _bytes(disk, "consumequeue") == right
    assert _records(disk, 0) == [*records[: number + 1], *records[number + 2 :]]
    assert {(row["kind"], row["physicalOffset"]) for row in outcome.left} == {
        ("unreadable_region", at),
        ("cq_dangling", at),
    }
