"""Which queues does a store have, which of their entries are not on the disk yet, and up to where are all?"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from threading import Lock
from typing import Final

from model.errors import DiskError
from model.ids import is_number
from runtime.env import Disk
from store.files.consume_queue import ConsumeQueue, OffsetsTaken, fill
from store.files.segment import FilePool, Segment

OPEN_FILES_MAX: Final = 256


class ConsumeQueues:
    """All queues of a store, by (topic, queue id)."""

    def __init__(self, disk: Disk, path: str, file_bytes: int) -> None:
        self.path = path
        self.dirty: dict[ConsumeQueue, None] = {}  # queues with buffered entries, in order
        self.starts: Mapping[str, Mapping[int, int]] = {}
        """By topic and queue id, where a queue begins that is not here: what it held is kept nowhere."""
        self._disk = disk
        self._file_bytes = file_bytes
        self._unsynced: dict[ConsumeQueue, int] = {}  # the log offset up to which their entries are durable
        self._written_until = 0
        self._pool = FilePool(OPEN_FILES_MAX)
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._ids: dict[str, set[int]] = {}
        self._making = Lock()  # a file is made off the loop, or queues go

    def load(
        self, settled: int = 0, *, clean: bool = True, but: Container[tuple[str, int]] = frozenset()
    ) -> None:
        """Find the queues on disk, all ``but`` some, and their entries (see ConsumeQueue.load). Raises
        DiskError, OSError.

        After an unclean stop the names of files may be in memory only: the next sync of a queue covers them.
        """
        try:
            for topic in self._disk.listdir(self.path):
                for name in self._disk.listdir(f"{self.path}/{topic}"):
                    if is_number(name) and (topic, int(name)) not in but:
                        self.open(topic, int(name)).find()
        except NotADirectoryError as error:
            raise DiskError(
                f"{error.filename}: a file where a queue's folder should be; move it away"
            ) from error
        for queue in self:  # once the files of all were seen to be of the right size
            queue.load(settled)
            if queue.is_unsynced:
                self._unsynced[queue] = 0
            if not clean:
                queue.doubt_names()

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._queues.get((topic, queue_id))

    def start_of(self, topic: str, queue_id: int) -> int:
        """Where a queue begins, and ends, that is not here."""
        known = self.starts.get(topic)
        return 0 if known is None else known.get(queue_id, 0)

    def open(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, made when there is none."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            path = f"{self.path}/{topic}/{queue_id}"
            queue = ConsumeQueue(self._disk, path, topic, queue_id, self._file_bytes, self._pool)
            self._queues[topic, queue_id] = queue
            self._ids.setdefault(topic, set()).add(queue_id)
        return queue

    def ids_of(self, topic: str) -> list[int]:
        """The queues of a topic."""
        return sorted(self._ids.get(topic, ()))

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self._queues.values())

    def table(self) -> dict[tuple[str, int], ConsumeQueue]:
        """The table itself, for loops that cannot afford a call per record."""
        return self._queues

    @property
    def max_physical(self) -> int:
        """End of the last message any queue holds, bytes."""
        return max((queue.max_physical for queue in self), default=0)

    def write_out(self, count_max: int | None = None, is_over: Callable[[], bool] = lambda: False) -> int:
        """Write the buffered entries of ``count_max`` queues (default: all) to the page cache, one at least,
        until ``is_over``. Of how many? Raises OSError; the rest stays buffered."""
        wrote = 0
        for queue in list(islice(self.dirty, count_max)):
            queue.flush()
            del self.dirty[queue]
            self._unsynced.setdefault(queue, self._written_until)
            wrote += 1
            if is_over():
                break
        return wrote

    def without_file(self, count_max: int) -> list[ConsumeQueue]:
        """Those of the next ``count_max`` to be written that have no file yet: see ``make_files``."""
        return [queue for queue in islice(self.dirty, count_max) if queue.missing_file]

    def make_files(self, queues: list[ConsumeQueue]) -> None:
        """Make the files of new queues, off the loop: a busy disk may take long for each. What it refuses,
        ``write_out`` tries again, and tells."""
        for queue in queues:
            with self._making, suppress(OSError):
                path = queue.missing_file
                if path and self.get(queue.topic, queue.queue_id) is queue:
                    self._disk.makedirs(path.rpartition("/")[0])
                    file = self._disk.open(path, create=True)
                    try:
                        fill(file, self._file_bytes)
                    finally:
                        file.close()

    def wrote_until(self, physical: int) -> None:
        """No buffer holds an entry of a message that ends at or below log offset ``physical`` any more."""
        self._written_until = physical

    @property
    def synced_until(self) -> int:
        """The log offset up to which every message's entry is durable, once what was taken is synced."""
        return min(self._unsynced.values(), default=self._written_until)

    def patched(self, queue: ConsumeQueue) -> None:
        """An entry of ``queue`` was changed in place: a flush syncs it."""
        self._unsynced.setdefault(queue, self._written_until)

    def longest_unsynced(self, count_max: int) -> list[ConsumeQueue]:
        """Up to ``count_max`` queues that are to be synced, those that wait longest first."""
        return list(islice(self._unsynced, count_max))

    def take_unsynced(self, queue: ConsumeQueue) -> tuple[list[Segment], list[str]]:
        """What is to be synced of a queue: its files, pinned, and its directories. Raises OSError: then
        nothing is taken."""
        segments = queue.take_unsynced()
        del self._unsynced[queue]
        return segments, queue.take_new_names()

    @property
    def unsynced_count(self) -> int:
        """Queues a sync is owed to."""
        return len(self._unsynced)

    def sync_all(self) -> None:
        """Sync every queue at once. Blocks; raises OSError: then nothing is known to be durable."""
        self._disk.sync_all(self.path)
        self._disk.sync_dir(self.path.rpartition("/")[0])
        for queue in self._unsynced:
            queue.synced()
        self._unsynced.clear()

    def truncate(self, physical: int, taken: OffsetsTaken) -> list[ConsumeQueue]:
        """Forget the entries of messages that end above ``physical``; returns the queues that had some.

        Durable with the next syncs: until then ``synced_until`` stays below. Raises OSError."""
        self._written_until = min(self._written_until, physical)
        self._unsynced = {queue: min(until, physical) for queue, until in self._unsynced.items()}
        changed = [queue for queue in self if queue.max_physical > physical]
        for queue in changed:
            queue.truncate(physical, taken)
            self._unsynced.setdefault(queue, self._written_until)
        return changed

    def destroy(self) -> None:
        """Drop every queue. Raises OSError."""
        for queue in self:
            queue.destroy()
        self._queues.clear()
        self._ids.clear()
        self.dirty.clear()
        self._unsynced.clear()
        self._written_until = 0
        with self._making:
            if self._disk.is_dir(self.path):
                self._disk.rmtree(self.path)
                self._disk.sync_dir(self.path.rpartition("/")[0])

    def remove(self, queue: ConsumeQueue) -> None:
        """Drop a queue nothing is in. Raises OSError."""
        del self._queues[queue.topic, queue.queue_id]
        ids = self._ids[queue.topic]
        ids.discard(queue.queue_id)
        if not ids:
            del self._ids[queue.topic]
        self.dirty.pop(queue, None)
        self._unsynced.pop(queue, None)
        queue.destroy()
        topic = f"{self.path}/{queue.topic}"
        with self._making:
            self._disk.rmtree(f"{topic}/{queue.queue_id}")
            if not self._disk.listdir(topic):
                self._disk.rmtree(topic)

    def check_invariants(self) -> None:
        pairs = {(topic, queue_id) for topic, ids in self._ids.items() for queue_id in ids}
        assert pairs == self._queues.keys(), "each queue stands among those of its topic"

    def close(self) -> None:
        for queue in self:
            queue.close()
