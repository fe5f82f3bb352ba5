"""The promise of the offline view: it changes nothing, says what is there, and names what is damaged."""

from __future__ import annotations

import asyncio
import os
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest

from model.compression import PLAIN_BYTES_MAX
from model.errors import DiskError
from model.ids import Epoch, PhysicalOffset
from model.message import COMPRESSED, COMPRESSION_LZ4, COMPRESSION_ZLIB
from runtime.os_env import OsDisk, OsEnv
from store.files.record import Record
from store.offline.directory import Damage, StoreDirectory, dump
from store.offline.verify import verify
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv
from tests.store.support import SEGMENT, config, fill, message, opened

SHAPE = config()
FIRST = "/store/commitlog/" + "0" * 20


def _written(count: int = 100, **keys: Any) -> FaultyDisk:
    async def run() -> FaultyDisk:
        env = FaultyEnv()
        async with opened(env, **keys) as store:
            store.epochs.append(Epoch(1), PhysicalOffset(0))
            await fill(store, count)
        return env.disk

    return asyncio.run(run())


def _verify(disk: FaultyDisk) -> dict[str, Any]:
    return verify(disk, "/store", SHAPE)


def _kinds(disk: FaultyDisk) -> set[str]:
    return {item["kind"] for item in _verify(disk)["damage"]}


def test_a_whole_store_is_ok() -> None:
    disk = _written()
    before = {path: bytes(node.cache) for path, node in disk.nodes.items()}
    verdict = _verify(disk)
    assert verdict["ok"]
    assert (verdict["records"], verdict["minOffset"], verdict["damage"]) == (100, 0, [])
    assert verdict["maxOffset"] == verdict["confirmOffset"] > SEGMENT
    assert verdict["epochs"] == [{"epoch": 1, "start": 0}]
    assert {path: bytes(node.cache) for path, node in disk.nodes.items()} == before


def test_a_read_only_directory_can_be_read(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(OsEnv(), root=str(tmp_path / "store")) as store:
            await fill(store, 5)

    asyncio.run(run())
    for directory, _, files in os.walk(tmp_path):
        for name in files:
            os.chmod(Path(directory) / name, 0o444)
    assert verify(OsDisk(), str(tmp_path / "store"), SHAPE)["ok"]


def test_what_is_no_directory_is_an_error() -> None:
    with pytest.raises(DiskError, match="no such directory"):
        verify(FaultyDisk(), "/nowhere")


def test_a_flipped_bit_is_named_with_its_place_and_the_records_behind_it_are_read() -> None:
    disk = _written()
    with StoreDirectory(disk, "/store") as store:
        records = [item for item in store.records() if isinstance(item, Record)]
    hit = records[10]
    disk.nodes[FIRST].cache[hit.physical_offset + 100] ^= 4
    verdict = _verify(disk)
    assert [(d["kind"], d["physicalOffset"], d["until"], d["file"]) for d in verdict["damage"]] == [
        ("crc_mismatch", hit.physical_offset, hit.physical_offset + hit.size, "0" * 20)
    ]
    assert verdict["records"] == 99
    with StoreDirectory(disk, "/store") as store:
        items = list(store.records(records[9].physical_offset, records[12].physical_offset))
    assert [isinstance(item, Damage) for item in items] == [False, True, False]


def test_an_overwritten_region_is_named_from_its_start_to_the_next_whole_record() -> None:
    disk = _written()
    with StoreDirectory(disk, "/store") as store:
        records = [item for item in store.records() if isinstance(item, Record)]
    begin, end = records[5].physical_offset, records[8].physical_offset
    disk.nodes[FIRST].cache[begin + 10 : end - 3] = os.urandom(end - begin - 13)
    disk.nodes[FIRST].cache[begin : begin + 10] = b"\1" * 10
    (damage,) = [d for d in _verify(disk)["damage"] if d["kind"] == "unreadable_region"]
    assert (damage["physicalOffset"], damage["until"]) == (begin, end)
    assert _verify(disk)["records"] == 97
    assert "cq_dangling" in _kinds(disk)


def test_zeros_where_the_last_records_were_are_damage() -> None:
    disk = _written(10)
    with StoreDirectory(disk, "/store") as store:
        records = [item for item in store.records() if isinstance(item, Record)]
    cut = records[7].physical_offset
    disk.nodes[FIRST].cache[cut:] = bytes(SEGMENT - cut)
    verdict = _verify(disk)
    assert verdict["maxOffset"] == cut
    assert "unreadable_region" in {d["kind"] for d in verdict["damage"]}


def test_a_write_that_was_under_way_when_the_process_died_is_no_damage() -> None:
    async def run() -> FaultyDisk:
        env = FaultyEnv()
        async with opened(env) as store:
            await fill(store, 10)
            raw = store.log.read(0, 100)
        node = env.disk.nodes[FIRST]
        end = store.log.end
        node.cache[end : end + 100] = raw[:28] + end.to_bytes(8, "big") + raw[36:]
        env.disk.open("/store/abort", create=True)
        return env.disk

    disk = asyncio.run(run())
    verdict = _verify(disk)
    assert verdict["ok"]
    assert verdict["tail"]["physicalOffset"] == verdict["maxOffset"]


def test_a_missing_segment_is_named() -> None:
    disk = _written(150)
    disk.remove(f"/store/commitlog/{SEGMENT:020}")
    damage = [d for d in _verify(disk)["damage"] if d["kind"] == "missing_segment"]
    assert [(d["physicalOffset"], d["until"]) for d in damage] == [(SEGMENT, 2 * SEGMENT)]


def test_queue_entries_that_are_missing_or_point_elsewhere_are_named() -> None:
    disk = _written(10)
    queue = disk.nodes["/store/consumequeue/T/0/" + "0" * 20]
    entry = bytes(queue.cache[20:40])
    queue.cache[0:20] = entry
    assert _kinds(disk) == {"cq_wrong"}
    queue.cache[0:20] = (5).to_bytes(8, "big") + entry[8:]
    assert _kinds(disk) == {"cq_dangling"}
    disk = _written(10)
    disk.nodes["/store/consumequeue/T/1/" + "0" * 20].cache[80:100] = bytes(20)
    assert _kinds(disk) == {"cq_missing"}


def test_a_wrong_index_entry_and_a_damaged_epoch_file_are_named() -> None:
    disk = _written(10)
    path = next(path for path in disk.nodes if path.startswith("/store/index/"))
    disk.nodes[path].cache[40 + 4 * SHAPE.index_slots + 20] ^= 1
    assert _kinds(disk) == {"index_wrong"}
    disk.nodes["/store/epochFileCheckpoint"].cache[-2] ^= 1
    assert _kinds(disk) == {"index_wrong", "epoch_file_corrupt"}


def test_a_property_that_a_client_gave_twice_is_no_damage() -> None:
    """Brokers read the last; keelmq's first ones read the first."""

    async def run() -> FaultyDisk:
        env = FaultyEnv()
        async with opened(env) as store:
            for name in ("UNIQ_KEY", "KEYS", "TAGS"):
                store.put(message(b"x", properties=f"{name}\x01first\x02a\x01b\x02{name}\x01last\x02"))
            store.confirm(store.log.end)
            await store.caught_up()
        return env.disk

    assert _verify(asyncio.run(run()))["damage"] == []


def test_bodies_are_shown_decompressed_or_said_to_be_unreadable() -> None:
    async def run() -> FaultyDisk:
        env = FaultyEnv()
        async with opened(env) as store:
            packed = zlib.compress(b"plain text")
            store.put(message(packed, sys_flag=COMPRESSED | COMPRESSION_ZLIB))
            store.put(message(packed, sys_flag=COMPRESSED))
            store.put(message(b"no zlib", sys_flag=COMPRESSED))
            store.put(message(b"no lz4", sys_flag=COMPRESSED | COMPRESSION_LZ4))
            store.put(message(b"as it is"))
        return env.disk

    with StoreDirectory(asyncio.run(run()), "/store") as store:
        lines = [dump(item) for item in store.records() if isinstance(item, Record)]
    assert [line["bodyLen"] for line in lines] == [10, 10, None, None, 8]
    assert "zlib" in lines[2]["bodyUnread"]
    assert "lz4" in lines[3]["bodyUnread"]


def test_a_body_that_unpacks_to_gigabytes_is_said_to_be_unreadable() -> None:
    async def run() -> FaultyDisk:
        env = FaultyEnv()
        async with opened(env, segment_bytes=1 << 20) as store:
            store.put(
                message(zlib.compress(bytes(PLAIN_BYTES_MAX + 1)), sys_flag=COMPRESSED), stored_before=True
            )
        return env.disk

    with StoreDirectory(asyncio.run(run()), "/store") as store:
        (record,) = [item for item in store.records() if isinstance(item, Record)]
    tracemalloc.start()
    try:
        line = dump(record)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (line["bodyLen"], line["bodySha256"]) == (None, None)
    assert f"more than {PLAIN_BYTES_MAX} bytes" in line["bodyUnread"]
    assert peak < 4 << 20


def test_what_was_not_confirmed_at_an_orderly_stop_is_in_no_queue_and_no_damage() -> None:
    async def run() -> FaultyDisk:
        env = FaultyEnv()
        async with opened(env) as store:
            store.epochs.append(Epoch(1), PhysicalOffset(0))
            await fill(store, 10)
            store.put(message(b"its slaves were gone", topic="Late", uniq="L"))
        return env.disk

    verdict = _verify(asyncio.run(run()))
    assert (verdict["ok"], verdict["records"], verdict["damage"]) == (True, 11, [])
    assert verdict["confirmOffset"] < verdict["maxOffset"]
