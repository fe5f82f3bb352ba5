"""What the store tests share: small stores, messages, the golden stores of the real broker."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from model.config import StoreConfig
from model.message import encode_host, encode_properties
from runtime.env import Env
from runtime.os_env import OsEnv
from store.files.record import NewMessage, Record, encode, records_in
from store.flow.reading import GetStatus, Got
from store.flow.writing import Put
from store.message_store import MessageStore
from tests import GOLDEN, unpack_archive
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv
from tests.loops import completed

STORES = GOLDEN / "store"
HOST = encode_host("127.0.0.1:10911")
SEGMENT = 8192


def config(root: str = "/store", **keys: Any) -> StoreConfig:
    values: dict[str, Any] = {
        "store_path": root,
        "segment_bytes": SEGMENT,
        "queue_file_bytes": 400,
        "index_slots": 50,
        "index_entries": 200,
        "flush_interval_ms": 5,
        "flush_queue_interval_ms": 5,
        "disk_reserve_megabytes": 0,
    }
    return StoreConfig(**(values | keys))


def golden_config(root: Path, manifest: dict[str, Any]) -> StoreConfig:
    settings = manifest["settings"]
    return StoreConfig(
        store_path=str(root),
        segment_bytes=int(settings["mappedFileSizeCommitLog"]),
        queue_file_bytes=int(settings["mappedFileSizeConsumeQueue"]),
        index_slots=int(settings["maxHashSlotNum"]),
        index_entries=int(settings["maxIndexNum"]),
    )


def golden(case: str, to: Path) -> tuple[Path, dict[str, Any]]:
    """Unpack a golden store; its folder and manifest."""
    unpack_archive(STORES / f"{case}.tar.gz", to)
    manifest = STORES / f"{case}.manifest.json"
    return to / case, json.loads(manifest.read_text()) if manifest.exists() else {}


def reencode(record: Record) -> bytes:
    """The bytes ``record`` was decoded from (when its CRC property, if any, is among its properties)."""
    return encode(
        record.message(),
        record.queue_offset,
        record.physical_offset,
        record.store_timestamp_ms,
        version=record.version,
    )


def scrub_all(store: MessageStore) -> None:
    """One pass of the scrub over all that is dispatched, now. Raises DiskError."""
    scrub = store.scrub
    scrub.at = store.log.min_offset
    while scrub.at < store.dispatched:
        scrub.step()
    scrub.passes += 1


def message(
    body: bytes | str = b"hello",
    *,
    topic: str = "T",
    queue_id: int = 0,
    keys: str = "",
    uniq: str = "",
    **more: Any,
) -> NewMessage:
    properties = {"TAGS": "A"}
    if uniq:
        properties["UNIQ_KEY"] = uniq
    if keys:
        properties["KEYS"] = keys
    values: dict[str, Any] = {
        "topic": topic,
        "queue_id": queue_id,
        "flag": 0,
        "sys_flag": 0,
        "born_timestamp_ms": 1,
        "born_host": HOST,
        "store_host": HOST,
        "reconsume_times": 0,
        "prepared_transaction_offset": 0,
        "body": body.encode() if isinstance(body, str) else body,
        "properties": encode_properties(properties),
    }
    return NewMessage(**(values | more))


@asynccontextmanager
async def opened(env: Env, *, controller_mode: bool = False, **keys: Any) -> AsyncIterator[MessageStore]:
    store = MessageStore(env, config(**keys), controller_mode=controller_mode)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def fill(
    store: MessageStore, count: int, *, size: int = 100, topic: str = "T", queues: int = 2
) -> list[Put]:
    """Put and confirm ``count`` messages over ``queues`` queues."""
    puts: list[Put] = []
    for number in range(count):
        body = f"{number}:".encode().ljust(size, b"x")
        puts += store.put(message(body, topic=topic, queue_id=number % queues, uniq=f"U{number}"))
    store.confirm(store.log.end)
    await store.caught_up()
    return puts


def records_of(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[Record]:
    """Everything a consumer gets from a queue, from its start."""
    found: list[Record] = []
    at: int = store.min_queue_offset(topic, queue_id)
    while (got := store.get(topic, queue_id, at, 32, 1 << 20)).status is GetStatus.FOUND:
        found += unpack(got.chunks)
        at = got.next_offset
    return found


def unpack(chunks: list[bytes]) -> list[Record]:
    return list(records_in(b"".join(chunks)))


async def abandoned(env: FaultyEnv, work: Callable[[MessageStore], object], **keys: Any) -> None:
    """Open a store, let ``work`` use it, and leave it as a kill would."""
    mode = bool(keys.pop("controller_mode", False))
    store = MessageStore(env, config(**keys), controller_mode=mode)
    await store.open()
    result = work(store)
    if asyncio.iscoroutine(result):
        await result


def records_on(disk: FaultyDisk, **keys: Any) -> tuple[int, list[bytes]]:
    """The end of the log and the bodies of queue 0 that a store opened on ``disk`` serves."""
    mode = bool(keys.pop("controller_mode", False))

    async def run() -> tuple[int, list[bytes]]:
        async with opened(FaultyEnv(disk), controller_mode=mode, **keys) as store:
            return store.log.end, [r.body for r in records_of(store)]

    return completed(run())


async def opened_at(path: Path, **keys: object) -> MessageStore:
    store = MessageStore(OsEnv(seed=1), config(str(path), **keys))
    await store.open()
    return store


def put_in_turn(store: MessageStore, chance: random.Random, count: int) -> None:
    """Messages of one size over three queues, whose records lie in each other's gaps."""
    for number in range(count):
        store.put(message(chance.randbytes(200).hex(), queue_id=number % 3))
    store.confirm(store.log.end)


def said(got: Got) -> tuple[object, ...]:
    return got.status, got.next_offset, got.min_offset, got.max_offset, got.count, b"".join(got.chunks)
