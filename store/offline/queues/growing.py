"""How do entries get behind the last file of a queue, without a word of those that are there?

Each goes to its own place. What is between stands for no message, which is written later (``mend_queues``):
a repair that was killed leaves zeros, which the next one finds. No entry is altered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from model.queue_sizes import Told
from runtime.env import Disk
from store.files.consume_queue import ENTRY_BYTES, FILL_ENTRIES_MAX, PRE_BLANK
from store.offline.directory import SegmentInfo
from store.offline.queues.begins import FOLDER
from store.offline.queues.places import Placed, Queue, Says, places_of
from store.offline.written import Written


class Growing:
    """``told``: how large a queue's file is; ``files``: those there are, all of this size and in a row. Where
    the size is not sure, none is made.
    ``_starts``, ``_stops``: the bytes of each queue at which its files begin and end."""

    def __init__(
        self, disk: Disk, root: str, told: Told, files: Mapping[Queue, Sequence[SegmentInfo]]
    ) -> None:
        self._disk = disk
        self._root = f"{root}/{FOLDER}"
        self._size = told.size
        self._sure = told.sure
        self._written = Written(disk)
        self._starts = {queue: own[0].start for queue, own in files.items() if own}
        self._stops = {queue: own[-1].start + told.size for queue, own in files.items() if own}
        self._folders: set[str] = set()

    def enter(self, item: Placed, entry: bytes) -> bool:
        """Was it to be written? A record that goes on far ahead of its queue alone is left. Raises
        OSError."""
        record = item.record
        queue = record.topic, record.queue_id
        if item.says is Says.ALONE and queue in self._stops:
            return False
        made = self._put(queue, record.queue_offset, entry)
        for place in range(record.queue_offset + 1, record.queue_offset + places_of(record)):
            self._put(queue, place, PRE_BLANK)
        return made

    def _put(self, queue: Queue, place: int, entry: bytes) -> bool:
        at = place * ENTRY_BYTES
        if at < self._starts.get(queue, 0):
            return False
        if at >= self._stops.get(queue, 0):
            if not self._sure:
                return False
            self._grow(queue, at)
        file = self._written.open(self._path(queue, at - at % self._size))
        if any(file.pread(ENTRY_BYTES, at % self._size)):
            return False
        file.pwrite(entry, at % self._size)
        return True

    def _grow(self, queue: Queue, at: int) -> None:
        """Up to the file of byte ``at``. One that goes on far ahead begins there, as a broker makes it."""
        start, stop = at - at % self._size, self._stops.get(queue)
        if stop is None or at - stop > max(self._size, FILL_ENTRIES_MAX * ENTRY_BYTES):
            self._drop(queue)
            stop = self._starts[queue] = start
        folder = self._path(queue, start).rpartition("/")[0]
        self._disk.makedirs(folder)
        self._folders.add(folder)
        for begin in range(stop, start + 1, self._size):
            file = self._written.open(self._path(queue, begin), create=True)
            file.truncate(self._size)
        self._stops[queue] = start + self._size

    def _drop(self, queue: Queue) -> None:
        for start in range(self._starts.get(queue, 0), self._stops.pop(queue, 0), self._size):
            self._written.sync()
            self._disk.remove(self._path(queue, start))

    def _path(self, queue: Queue, start: int) -> str:
        return f"{self._root}/{queue[0]}/{queue[1]}/{start:020}"

    def sync(self) -> None:
        """All that was written, and the names, are durable then. Raises OSError."""
        self._written.sync()
        topics = {folder.rpartition("/")[0] for folder in self._folders}
        for path in (
            *self._folders,
            *topics,
            *((self._root, self._root.rpartition("/")[0]) if topics else ()),
        ):
            self._disk.sync_dir(path)
        self._folders.clear()
