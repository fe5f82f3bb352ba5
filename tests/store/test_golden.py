"""The promise of the formats: a directory of the real broker opens here, and every message is there."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from runtime.os_env import OsDisk, OsEnv
from store.files.record import Record, decode
from store.flow.reading import GetStatus
from store.message_store import MessageStore
from store.offline.directory import Damage, StoreDirectory, dump
from store.offline.verify import verify
from tests.store.support import golden, golden_config, records_of, reencode

WHOLE = ["plain-11", "batch-21", "delay-31", "tx-41", "retry-51"]
DUMP_KEYS = (
    "topic queueId queueOffset commitLogOffset storeSize sysFlag flag bodyCRC msgId offsetMsgId "
    "bornTimestamp storeTimestamp bornHost storeHost reconsumeTimes preparedTransactionOffset properties "
    "bodyLen bodySha256"
)
BY_CLIENT = ("CLUSTER", "MIN_OFFSET", "MAX_OFFSET")


def _comparable(values: dict[str, Any]) -> dict[str, Any]:
    kept = {k: v for k, v in values.items() if k not in ("properties", "bodyUnread")}
    kept["properties"] = {k: v for k, v in values["properties"].items() if k not in BY_CLIENT}
    kept["sysFlag"] &= ~1  # a client clears the bit when it decompresses
    if values.get("bodyUnread"):
        del kept["bodyLen"], kept["bodySha256"]
    return kept


@pytest.mark.parametrize("case", WHOLE)
def test_every_message_the_real_broker_served_is_in_the_log_unchanged(case: str, tmp_path: Path) -> None:
    root, manifest = golden(case, tmp_path)
    with StoreDirectory(OsDisk(), str(root)) as store:
        found = list(store.records())
    assert not [item for item in found if isinstance(item, Damage)]
    dumped = {item.physical_offset: dump(item) for item in found if isinstance(item, Record)}
    for expected in manifest["pulled"]:
        mine = dumped[expected["commitLogOffset"]]
        theirs = {k: v for k, v in _comparable(expected).items() if k in _comparable(mine)}
        assert _comparable(mine) == theirs


@pytest.mark.parametrize("case", WHOLE)
def test_records_encode_to_the_bytes_they_came_from(case: str, tmp_path: Path) -> None:
    root, _ = golden(case, tmp_path)
    count = 0
    with StoreDirectory(OsDisk(), str(root)) as store:
        for segment in store.segments():
            raw = Path(segment.path).read_bytes()
            for record in store.segment_records(segment):
                assert isinstance(record, Record)
                at = record.physical_offset - segment.start
                assert reencode(record) == raw[at : at + record.size]
                count += 1
    assert count > 50


@pytest.mark.parametrize("case", WHOLE)
def test_a_real_store_opens_and_serves_every_message_by_queue_and_by_key(case: str, tmp_path: Path) -> None:
    root, manifest = golden(case, tmp_path)

    async def run() -> None:
        store = MessageStore(OsEnv(), golden_config(root, manifest))
        await store.open()
        for expected in manifest["pulled"]:
            got = store.get(expected["topic"], expected["queueId"], expected["queueOffset"], 1, 1 << 20)
            assert got.status is GetStatus.FOUND
            record = decode(got.chunks[0])
            assert (record.physical_offset, record.size) == (
                expected["commitLogOffset"],
                expected["storeSize"],
            )
            uniq = expected["properties"].get("UNIQ_KEY")
            for key in filter(None, [uniq, *expected["properties"].get("KEYS", "").split(" ")]):
                offsets = {
                    decode(raw).physical_offset for raw in store.query(record.topic, key, 64, 0, 1 << 62)
                }
                assert record.physical_offset in offsets
        served = sum(len(records_of(store, *queue)) for queue in store.queues())
        assert served >= len(manifest["pulled"])
        await store.close()

    asyncio.run(run())
    assert verify(OsDisk(), str(root), golden_config(root, manifest))["damage"] == []


@pytest.mark.parametrize("case", ["plain-11", "tx-41"])
def test_queues_made_again_from_the_log_are_the_real_brokers_bytes(case: str, tmp_path: Path) -> None:
    root, manifest = golden(case, tmp_path)
    real = root.rename(tmp_path / "real")
    (root / "commitlog").mkdir(parents=True)
    for path in (real / "commitlog").iterdir():
        shutil.copy(path, root / "commitlog")

    async def run() -> None:
        store = MessageStore(OsEnv(), golden_config(root, manifest))
        await store.open()
        await store.close()

    asyncio.run(run())
    files = sorted(path.relative_to(real) for path in (real / "consumequeue").rglob("*") if path.is_file())
    assert files == sorted(p.relative_to(root) for p in (root / "consumequeue").rglob("*") if p.is_file())
    for name in files:
        assert (root / name).read_bytes() == (real / name).read_bytes(), name
    assert len((root / "checkpoint").read_bytes()) == 4096
    assert not (root / "abort").exists()


def test_replicas_of_a_real_group_open_with_their_epochs_and_confirm_offset(tmp_path: Path) -> None:
    root, _ = golden("ha-81", tmp_path)

    async def run(name: str) -> tuple[int, int, list[tuple[int, ...]]]:
        settings = {
            "mappedFileSizeCommitLog": "262144",
            "mappedFileSizeConsumeQueue": "2000",
            "maxHashSlotNum": "500",
            "maxIndexNum": "2000",
        }
        config = golden_config(root / name, {"settings": settings})
        store = MessageStore(OsEnv(), config, controller_mode=True)
        await store.open()
        ends = store.log.end, store.confirmed, [tuple(entry) for entry in store.epochs.entries]
        await store.close()
        return ends

    epochs = [(1, 0), (2, 32206), (3, 152395)]
    for name in ("after/b0", "after/b1", "after/b2"):
        assert asyncio.run(run(name)) == (153177, 153177, epochs)
    # Killed and frozen in the middle of a chunk: the partial record goes, and with it nothing else.
    assert asyncio.run(run("before/b0"))[0] == 152395


def test_a_dump_line_is_json_with_the_agreed_keys(tmp_path: Path) -> None:
    root, _ = golden("plain-11", tmp_path)
    with StoreDirectory(OsDisk(), str(root)) as store:
        first = next(iter(store.records()))
    assert isinstance(first, Record)
    line = json.loads(json.dumps(dump(first)))
    assert list(line) == DUMP_KEYS.split()
    assert line["bornHost"].startswith("/127.0.0.1:")
