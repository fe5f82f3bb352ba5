"""What every reader of a broker gets from a store, read by the broker's own code from a copy in memory.

A change without effect is one behind which all of this is as before, with all that an opening mends.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from broker.membership.identity import Identity
from broker.membership.reboot import Found, UncleanRebootDetector
from broker.tables.files import ConfigFile, Source
from broker.timers.codec import READ_BYTES, decode_check
from model.config import BrokerConfig
from model.errors import ConfigError, DiskError
from model.message import KEYS, UNIQ_KEY, property_of
from runtime.env import Env
from runtime.tasks import Tasks
from store.files.consume_queue import ENTRY
from store.files.record import BadRecord, Record, walk
from store.message_store import MessageStore
from tests.audit.mutations.change import kind_of
from tests.audit.mutations.group import SHAPE
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv

ROOT: Final = "/store"
FOREVER_MS: Final = 1 << 60
STORE: Final = frozenset({"commitlog", "consumequeue", "index", "checkpoint", "epochs", "lock"})
"""Kinds of files that opening the store reads; each of the others is read by itself."""
Readings = dict[str, Any]
Key = tuple[str, str, int]
"""Topic, key, and when the record that carries it was stored, ms."""


def disk_of(files: Mapping[str, bytes]) -> FaultyDisk:
    disk = FaultyDisk()
    for path, data in files.items():
        full = f"{ROOT}/{path}"
        disk.makedirs(full.rpartition("/")[0])
        file = disk.open(full, create=True)
        file.pwrite(data, 0)
        file.sync()
        file.close()
    return disk


def read(files: Mapping[str, bytes], kind: str, keys: Iterable[Key]) -> Readings:
    """What is read from a store's files, as far as those of ``kind`` take part. ``keys``: what to look
    up."""
    logging.disable(logging.CRITICAL)
    try:
        if kind in STORE:
            return asyncio.run(_store(FaultyEnv(disk_of(files)), list(keys)))
        few = {path: data for path, data in files.items() if kind_of(path) == kind}
        env = FaultyEnv(disk_of(few))
        try:
            return {"table": _tables, "timercheck": _timers, "identity": _identity}[kind](env, few)
        except (DiskError, ConfigError) as error:
            return {"error": type(error).__name__}
    finally:
        logging.disable(logging.NOTSET)


def keys_of(files: Mapping[str, bytes]) -> list[Key]:
    """Every key of a whole store's log."""
    found: dict[Key, None] = {}
    for path in sorted(files):
        if not path.startswith("commitlog/"):
            continue
        with contextlib.suppress(BadRecord):  # behind the end of the last segment
            for record in walk(files[path], int(path.rpartition("/")[2])):
                for key in _keys(record):
                    found[record.topic, key, record.store_timestamp_ms] = None
    return list(found)


def _keys(record: Record) -> list[str]:
    words = (property_of(record.properties, KEYS) or "").split(" ")
    return [key for key in (property_of(record.properties, UNIQ_KEY), *words) if key]


async def _store(env: Env, keys: list[Key]) -> Readings:
    config = BrokerConfig.from_mapping({"brokerName": "broker-a", "storePathRootDir": ROOT, **SHAPE})
    store = MessageStore(env, config, controller_mode=True)
    try:
        await store.open()
    except DiskError as error:
        return {"error": str(error)}
    try:
        await store.flow.indexer.level()
        found: Readings = {
            "log": (store.log.min_offset, store.log.end, store.confirmed, store.dispatched),
            "damage": [(r.begin, r.until, r.kind) for r in store.damage.ranges],
            "epochs": (store.epochs.entries, store.epochs.unreadable, store.epochs.classic_from),
            "clean": store.recovered.clean if store.recovered is not None else None,
            "was longer": store.was_longer.end,
        }
        found["records"] = _records(store)
        found["queues"] = _queues(store)
        found["keys"] = _look_up(store, keys)
        return found
    except DiskError as error:
        return {"error": str(error)}
    finally:
        await store.close()


def _records(store: MessageStore) -> list[tuple[int, str]]:
    """Each record of the log, as a slave and a consumer get it."""
    found: list[tuple[int, str]] = []
    at, end = int(store.log.min_offset), store.log.end
    size = int(SHAPE["mappedFileSizeCommitLog"])
    while at < end:
        until = min(end, (at // size + 1) * size)
        try:
            found += [(r.physical_offset, _digest(repr(r))) for r in walk(store.log.read(at, until - at), at)]
        except BadRecord as bad:
            found.append((at, str(bad)))
        at = until
    return found


def _queues(store: MessageStore) -> dict[tuple[str, int], Any]:
    found = {}
    for queue in store.files.queues:
        place = (queue.topic, queue.queue_id)
        chunks: list[bytes] = []
        at: int = queue.min_offset
        while at < queue.max_offset:
            got = store.get(*place, at, 1 << 20, 1 << 30)
            chunks += got.chunks
            if got.next_offset <= at:
                break
            at = got.next_offset
        # By its tag code a consumer that asks for tags gets a message, or does not.
        entries = queue.read(queue.min_offset, queue.max_offset - queue.min_offset)
        found[place] = (
            (queue.min_offset, queue.max_offset, at),
            _digest(b"".join(chunks).hex(), str([tags for *_, tags in ENTRY.iter_unpack(entries)])),
            [store.offset_by_time(*place, at, upper=False) for at in (0, FOREVER_MS)],
        )
    return found


def _look_up(store: MessageStore, keys: list[Key]) -> list[str]:
    found = []
    for topic, key, stored_ms in keys:
        for window in ((0, FOREVER_MS), (stored_ms, stored_ms)):
            found.append(_digest(*map(repr, store.query(topic, key, 64, *window))))
    return found


def _digest(*texts: str) -> str:
    return hashlib.blake2b("\0".join(texts).encode(), digest_size=12).hexdigest()


def _tables(env: Env, files: Mapping[str, bytes]) -> Readings:
    found: Readings = {}
    tasks = Tasks("readers")
    for path in {path.removesuffix(".bak") for path in files}:
        file = ConfigFile(env, f"{ROOT}/{path}", Source(dict), tasks)
        file.write_anew = lambda: None  # type: ignore[method-assign]  # both copies are mended: not here
        found[path] = (file.load(), file.lost)
    return found


def _timers(env: Env, files: Mapping[str, bytes]) -> Readings:
    return {path: decode_check(data[:READ_BYTES]) for path, data in files.items()}


def _identity(env: Env, files: Mapping[str, bytes]) -> Readings:
    config = BrokerConfig.from_mapping({"brokerName": "broker-a", "storePathRootDir": ROOT})
    found: Readings = {"id": Identity(env.disk, config).broker_id()}
    for synced in (True, False):  # a start behind a clean stop, with the log and without it
        for end in (0, 1):
            env = FaultyEnv(disk_of(files))
            detector = UncleanRebootDetector(env, ROOT)
            detector.begin(Found(clean=True, synced=synced, end=end))
            found[f"suspect {synced} {end}"] = detector.suspect
    return found
