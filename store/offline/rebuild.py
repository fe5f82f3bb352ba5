"""How do the queues and the index of a store no broker runs on come back, when only the log is left?

Queues are completed: entries that are there and right stay, what lacks behind them is made from the log. An
index is made anew as a whole, beside the one there is, whose place it takes when it is durable: a crash in
between leaves the old one, or none, and the next call makes it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from model.config import StoreConfig
from model.message import INNER_BATCH, INNER_NUM, TRANSACTION_PREPARED, property_of
from runtime.env import Disk
from store.files.consume_queue import is_queue_name
from store.files.consume_queues import ConsumeQueues
from store.files.index import Index
from store.files.record import Dispatch, DispatchParser, Record
from store.offline.directory import NEW_INDEX, StoreDirectory
from store.offline.index_check import Shape

_BATCH: Final = 1024


def _messages(record: Record) -> int:
    """How many queue offsets the record takes."""
    count = property_of(record.properties, INNER_NUM) or ""
    is_batch = record.sys_flag & INNER_BATCH and count.isascii() and count.isdigit() and len(count) < 6
    return max(int(count), 1) if is_batch else 1


def queue_file_bytes(store: StoreDirectory, config: StoreConfig) -> int:
    """What the queue files there are say of their size, else what is configured."""
    for topic, queue_id in store.queues():
        for file in store.queue_files(topic, queue_id):
            return file.size
    return config.queue_file_bytes


def complete_queues(disk: Disk, store: StoreDirectory, config: StoreConfig, parser: DispatchParser) -> int:
    """Make the queue entries that lack; returns how many. Raises DiskError, OSError."""
    queues = ConsumeQueues(disk, f"{store.root}/consumequeue", queue_file_bytes(store, config))
    made = 0
    try:
        queues.load()
        for record in store.records():
            if not isinstance(record, Record) or record.sys_flag & TRANSACTION_PREPARED:
                continue
            if not is_queue_name(record.topic, record.queue_id):
                continue
            queue = queues.open(record.topic, record.queue_id)
            code = parser.tags_code(record.topic, record.properties, record.store_timestamp_ms)
            if queue.put(record.queue_offset, record.physical_offset, record.size, code):
                queue.skip_to(record.queue_offset + _messages(record))
                queues.dirty[queue] = None
                made += 1
                if len(queues.dirty) >= _BATCH or made % _BATCH == 0:
                    queues.write_out()
        queues.write_out()
        if queues.unsynced_count:
            queues.sync_all()
    finally:
        queues.close()
    return made


def _dispatches(store: StoreDirectory, parser: DispatchParser) -> Iterator[Dispatch]:
    for record in store.records():
        if isinstance(record, Record):
            yield parser.dispatch_of(record)


def rebuild_index(
    disk: Disk, store: StoreDirectory, shape: Shape, parser: DispatchParser, now_ms: int
) -> int:
    """Make the index from the log; returns how many records it was made of. Raises DiskError, OSError."""
    aside = f"{store.root}/{NEW_INDEX}"
    if disk.is_dir(aside):
        disk.rmtree(aside)
    index = Index(disk, aside, shape.slots, shape.entries, lambda: now_ms)
    count = 0
    batch: list[Dispatch] = []
    try:
        for item in _dispatches(store, parser):
            count += 1
            batch.append(item)
            if len(batch) == _BATCH:
                index.put_many(batch)
                batch = []
        index.put_many(batch)
        index.begin_flush()()
        index.end_flush(True)
    finally:
        index.close()
    there = f"{store.root}/index"
    if disk.is_dir(there):
        disk.rmtree(there)
    disk.makedirs(there)
    for name in disk.listdir(aside):
        disk.replace(f"{aside}/{name}", f"{there}/{name}")
    for path in (there, aside, store.root):
        if disk.is_dir(path):
            disk.sync_dir(path)
    if disk.is_dir(aside):
        disk.rmtree(aside)
    return count
