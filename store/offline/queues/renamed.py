"""Which files of queues have another file's name?

An entry's place is its file's name and where it stands there. Where all entries of a file name records of its
queue, and all by the same distance from where these say that they stand, the one thing that is wrong is the
name: a broker would begin the queue there, and give out none of them.
"""

from __future__ import annotations

from typing import Final

from runtime.env import Disk
from store.files.consume_queue import ENTRY, ENTRY_BYTES
from store.offline.directory import SegmentInfo, StoreDirectory
from store.offline.queues.places import Queue

LOOKED_AT: Final = 64
"""Entries of a file, evenly over it."""
LEAST: Final = 2
"""Entries that have to say the same: one alone may be wrong."""


def name_right(disk: Disk, store: StoreDirectory, size: int) -> int:
    """Give such files their own name, where no other one has it; how many. ``size``: of each file, bytes; 0:
    nothing tells. Raises DiskError, OSError."""
    named = 0
    for queue in store.queues():
        files = store.queue_files(*queue)
        taken = {file.start for file in files}
        for file in files:
            start = file.start - _ahead(store, queue, file) * ENTRY_BYTES
            if start in taken or start < 0 or (size and start % size):
                continue
            folder = file.path.rpartition("/")[0]
            disk.replace(file.path, f"{folder}/{start:020d}")
            disk.sync_dir(folder)
            taken.add(start)
            named += 1
    if named:
        store.close()  # under the names of files that it has open there are others now
    return named


def _ahead(store: StoreDirectory, queue: Queue, file: SegmentInfo) -> int:
    """By how many places all of its entries stand behind those of their records; 0: not all do."""
    count = file.size // ENTRY_BYTES
    found: set[int] = set()
    seen = 0
    for number in range(0, count, max(1, count // LOOKED_AT)):
        offset, size, _ = ENTRY.unpack(store.read(file.path, ENTRY_BYTES, number * ENTRY_BYTES))
        if size <= 0:
            continue
        record = store.record_at(offset)
        if record is None:
            continue
        if (record.topic, record.queue_id) != queue or record.size != size:
            return 0
        found.add(file.start // ENTRY_BYTES + number - record.queue_offset)
        if len(found) > 1 or found == {0}:
            return 0
        seen += 1
    return found.pop() if seen >= LEAST else 0
