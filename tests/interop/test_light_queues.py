"""The promise about light queues: keelmq reads and rebuilds those of the real broker to the byte."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from client.message import Message
from client.sending.producer import Producer
from model.config import StoreConfig
from runtime.os_env import OsEnv
from store.files.consume_queue import ENTRY
from store.files.record import decode
from store.message_store import MessageStore
from tests.interop.real_pair import rocketmq_pair

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

A, B = "%LMQ%a", "%LMQ%b"
SEGMENT_BYTES = 1048576
SENT = [A, f"{A},{B}", "", B, f"{B},{A}"] * 4
"""The light queues of each message sent."""


async def _send(namesrv: str) -> None:
    async with Producer(OsEnv(), "light", namesrv) as producer:
        for number, names in enumerate(SENT):
            properties = {"INNER_MULTI_DISPATCH": names} if names else {}
            body = b"light %d" % number
            await producer.send(Message(topic="Light", body=body, tags="t", properties=properties))


def _entries(root: Path, name: str) -> bytes:
    """What is in the ConsumeQueue of ``name``: its file up to the preallocated zeros."""
    data = (root / "consumequeue" / name / "0" / f"{0:020d}").read_bytes()
    whole = [data[at : at + ENTRY.size] for at in range(0, len(data), ENTRY.size)]
    return b"".join(entry for entry in whole if any(entry[8:12]))


def _bodies(store: MessageStore, name: str) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < store.max_queue_offset(name, 0):
        got = store.get(name, 0, len(found), 32, 1 << 20)
        data, at = b"".join(got.chunks), 0
        assert data, got
        while at < len(data):
            found.append(bytes(decode(data, at).body))
            at += int.from_bytes(data[at : at + 4], "big")
    return found


async def _read(root: Path) -> dict[str, list[bytes]]:
    config = StoreConfig(
        store_path=str(root),
        segment_bytes=SEGMENT_BYTES,
        lmq_enable=True,
        multi_dispatch_enable=True,
        disk_reserve_megabytes=0,
    )
    store = MessageStore(OsEnv(), config)
    await store.open()
    try:
        await store.caught_up()
        return {name: _bodies(store, name) for name in (A, B)}
    finally:
        await store.close()


@pytest.mark.covers("Light queues (LMQ) in the files", client="store files", sides="together")
def test_light_queues_of_the_real_broker_are_read_and_made_again_the_same(
    real_rocketmq: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    with rocketmq_pair(tmp_path / "r", store, enableLmq=True, enableMultiDispatch=True) as namesrv:
        asyncio.run(_send(namesrv))
    theirs = {name: _entries(store, name) for name in (A, B)}
    expected = {
        name: [b"light %d" % number for number, names in enumerate(SENT) if name in names.split(",")]
        for name in (A, B)
    }
    assert [len(theirs[name]) // ENTRY.size for name in (A, B)] == [12, 12]
    copy = tmp_path / "copy"
    shutil.copytree(store, copy)
    assert asyncio.run(_read(store)) == expected
    assert {name: _entries(store, name) for name in (A, B)} == theirs
    shutil.rmtree(copy / "consumequeue")
    assert asyncio.run(_read(copy)) == expected
    assert {name: _entries(copy, name) for name in (A, B)} == theirs
