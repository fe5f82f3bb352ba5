"""Which entries of ConsumeQueues name another record than the log has there? In Arrow and numpy.

``audit.engines.spark_entries`` asks the same of a cluster; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from audit.reading.queue_files import ENTRIES, EXTENSION_BELOW, Queue, QueueFile, read_entries
from audit.reading.record import STORED_FROM
from audit.tables import UNENTERED, Entered, EntryBounds
from model.message import LMQ_PREFIX, SCHEDULE_TOPIC


def entered(records: pa.Table, files: Sequence[QueueFile], bounds: EntryBounds) -> Entered:
    """``records``: those of one log that belong into queues, by physical offset."""
    log = _Log(records)
    log.odd = log.odd_dues([file for file in files if file.topic == SCHEDULE_TOPIC])
    wrong: list[pa.Table] = []
    last: dict[Queue, int] = {}
    there = np.zeros(len(log.offset), dtype=bool)
    for file in files:
        for batch in read_entries(file):
            if not len(batch):
                continue
            right, at = log.right(file, batch)
            there[at[right]] = True
            queue = (file.topic, file.queue_id)
            if right.any():
                last[queue] = max(last.get(queue, -1), int(batch["queue_offset"].to_numpy()[right].max()))
            wrong.append(pa.table(batch.filter(pa.array(~right & bounds.concern(batch)))))
    inside = ~there & (log.offset >= bounds.start)
    unentered = log.unentered(inside, files)
    return Entered(pa.concat_tables([ENTRIES.empty_table(), *wrong]), unentered, last)


class _Log:
    """One log's records as columns."""

    def __init__(self, records: pa.Table) -> None:
        self._records = records
        self.offset = records["offset"].to_numpy()
        self._size = records["until"].to_numpy() - self.offset
        topics = records["topic"].combine_chunks().dictionary_encode() if len(records) else None
        names = topics.dictionary.to_pylist() if topics is not None else []
        self._code = {name: code for code, name in enumerate(names)}
        self._topic = topics.indices.to_numpy() if topics is not None else np.zeros(0, np.int32)
        self._queue_id = records["queue_id"].to_numpy()
        self._queue_offset = records["queue_offset"].to_numpy()
        self._tags = records["tags_code"].to_numpy()
        self.odd: dict[Queue, Any] = {}

    def odd_dues(self, files: Sequence[QueueFile]) -> dict[Queue, Any]:
        """Places of delayed messages that are due before they were stored, or otherwise than both their
        neighbours, which agree.

        A level has one delay, until its broker gets another one: that begins anywhere, and goes on.
        """
        found: dict[Queue, list[tuple[Any, Any]]] = {}
        for file in files:
            for batch in read_entries(file):
                right, at = self.right(file, batch)
                tags = batch["entry_tags"].to_numpy()
                if len(self.offset):
                    right = right & (self._tags[at] >= STORED_FROM)
                    delays = (tags - self._tags[at])[right]
                    places = batch["queue_offset"].to_numpy()[right]
                    found.setdefault((file.topic, file.queue_id), []).append((places, delays))
        odd = {}
        for queue, parts in found.items():
            places, delays = (np.concatenate(column) for column in zip(*parts, strict=True))
            order = np.argsort(places)
            places, delays = places[order], delays[order]
            alone = delays < 0
            alone[1:-1] |= (delays[1:-1] != delays[:-2]) & (delays[:-2] == delays[2:])
            odd[queue] = places[alone]
        return odd

    def right(self, file: QueueFile, batch: pa.RecordBatch) -> tuple[Any, Any]:
        """Which entries name a record of their place as it is, and the index of the record at each offset."""
        offset, size = batch["entry_offset"].to_numpy(), batch["entry_size"].to_numpy()
        if not len(self.offset):
            return np.zeros(len(offset), bool), np.zeros(len(offset), np.int64)
        at = np.minimum(np.searchsorted(self.offset, offset), len(self.offset) - 1)
        right = (self.offset[at] == offset) & (self._size[at] == size)
        if file.topic.startswith(LMQ_PREFIX):  # a light queue's record names its own queue
            return right, at
        right &= self._topic[at] == self._code.get(file.topic, -1)
        right &= self._queue_id[at] == file.queue_id
        right &= self._queue_offset[at] == batch["queue_offset"].to_numpy()
        if file.topic != SCHEDULE_TOPIC:
            tags = batch["entry_tags"].to_numpy()
            right &= (self._tags[at] == tags) | ((tags < EXTENSION_BELOW) & file.extended)
        elif (odd := self.odd.get((file.topic, file.queue_id))) is not None:
            right &= ~np.isin(batch["queue_offset"].to_numpy(), odd)
        return right, at

    def unentered(self, inside: Any, files: Sequence[QueueFile]) -> pa.Table:
        """The records of ``inside`` whose queues are there and have no right entry at their places."""
        keep = np.zeros(len(inside), dtype=bool)
        by_queue: dict[Queue, list[QueueFile]] = {}
        for file in files:
            by_queue.setdefault((file.topic, file.queue_id), []).append(file)
        for (topic, queue_id), of_queue in by_queue.items():
            mine = inside & (self._topic == self._code.get(topic, -1)) & (self._queue_id == queue_id)
            if not mine.any():
                continue
            places = np.concatenate([np.zeros(0, np.int64), *self._right_places(of_queue)])
            keep |= mine & ~np.isin(self._queue_offset, places)
        return self._records.filter(pa.array(keep)).select(UNENTERED.names).cast(UNENTERED)

    def _right_places(self, files: Sequence[QueueFile]) -> Iterator[Any]:
        for file in files:
            for batch in read_entries(file):
                yield batch["queue_offset"].to_numpy()[self.right(file, batch)[0]]
