"""How does a store end earlier than it did? For a role change, a partial record, or to begin anew.

In this order, so that a crash at any step leaves a store that opens, and ends between the old end and the
new one: checkpoint and ``abort`` stop covering what goes, durably; the log is erased behind the cut, and
synced; then the ledger, the queues and the index follow, which recovery would cut as well.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from model.errors import DiskError
from model.ids import PhysicalOffset
from runtime.env import Env, write_file
from store.files.damage import DamagedRange, may_have
from store.files.epoch_file import encode as encode_epochs
from store.files.partial import claimed_end, damaged_end
from store.files.record import RECORD_BYTES_MIN, BadRecord, measure
from store.files.store_files import StoreFiles
from store.flow.dispatching.dispatch import offsets_taken
from store.flow.dispatching.queue_offsets import QueueOffsets
from store.flow.dispatching.store_flow import StoreFlow
from store.flow.reading import Reader
from store.recover.lost import note_damage

log = logging.getLogger(__name__)

PUTTING_ASIDE = "putting the log aside"


class Truncator:
    """Cuts one open store. Every method blocks, and raises DiskError."""

    def __init__(
        self,
        env: Env,
        root: str,
        files: StoreFiles,
        flow: StoreFlow,
        reader: Reader,
        offsets: QueueOffsets,
    ) -> None:
        self._env = env
        self._root = root
        self._files = files
        self._parser = flow.parser
        self._log = files.log
        self._queues = files.queues
        self._index = files.index
        self._checkpoint = files.checkpoint
        self._health = files.health
        self._indexer = flow.indexer
        self._dispatcher = flow.dispatcher
        self._walker = flow.walker
        self._reader = reader
        self._offsets = offsets

    def truncate(self, offset: int) -> None:
        """See MessageStore.truncate."""
        commit_log = self._log
        if offset == commit_log.end:
            return
        if not commit_log.min_offset <= offset < commit_log.end:
            raise DiskError(f"cannot cut at {offset}: the log is [{commit_log.min_offset}, {commit_log.end})")
        if offset % commit_log.segment_bytes and not self._is_boundary(offset):
            raise DiskError(f"cannot cut at {offset}: no record starts there")
        self._cut(offset)

    def _is_boundary(self, offset: int) -> bool:
        """Does a record, or the blank, start there? A last one whose bytes are not all there counts."""
        dispatched = self._dispatcher.dispatched
        if offset <= dispatched:
            return offset == dispatched or self._reader.starts_record(offset)
        return self._records_end(offset) == offset

    def _cut(self, offset: int, *, only_partial: bool = False) -> None:
        try:
            self.invalidate(offset)  # first: after a crash it must not speak for what comes next
            self._log.cut(offset)
            self._files.damage.truncate(offset)
            self._queues.truncate(offset, offsets_taken(self._log))
            if self._index is not None:
                self._index.truncate(offset)
        except OSError as error:
            raise self._health.failed(error, f"cutting the store at {offset}", sync=True) from error
        self._dispatcher.move_back(offset)
        if not only_partial:  # that has no place in a queue
            self._offsets.rebuild(self._dispatcher.dispatched)
        self._env.events.add("truncated", offset=offset)

    def invalidate(self, offset: int) -> None:
        """No note speaks of bytes behind ``offset``, the checkpoint durably so. Raises OSError."""
        self._log.generation += 1  # a sync in a thread says nothing of the old end from here on
        self._health.before_cut(offset)
        now, end = self._checkpoint.now, PhysicalOffset(offset)
        before = now.encode()
        now.confirm_offset = min(now.confirm_offset, end)
        now.master_flushed_offset = min(now.master_flushed_offset, end)
        now.settled_offset = min(now.settled_offset, end)
        now.indexed_offset = min(now.indexed_offset, end)
        if now.encode() != before:
            self._checkpoint.write(now.encode())

    def truncate_partial_tail(self) -> PhysicalOffset:
        """Drop a record at the end that is not there as a whole; returns the new end.

        Bytes that came as a whole and are no record are damage, as at a start: they counted, and what lies
        behind them counts.
        """
        end = self._records_end(self._log.end)
        if end < self._log.end and self._is_new_damage(end):
            segment = self._log.segment_bytes
            base = end - end % segment
            found = damaged_end(self._reads(base), end - base, base, self._log.end - base, segment)
            if found is not None:
                bad = DamagedRange(end, base + found, "unreadable_region")
                note_damage(self._files, self._parser, [bad], self._env.now_ms())
                end = base + found
        if end < self._log.end:
            log.info("partial record [%d, %d) dropped", end, self._log.end)
            self._cut(end, only_partial=True)
        return self._log.end

    def _records_end(self, until: int) -> int:
        """Where the last record ends that is there as a whole, or damaged, before ``until``. What is bad
        between good records behind what is dispatched is noted."""
        end: int = self._dispatcher.dispatched
        while True:
            for _, stop in self._walker.parsed(end, until, stop_bad=True):
                end = stop
            if end >= until or not self._is_new_damage(end):
                return end
            bad = BadRecord("unreadable_region", f"no record at {end}")
            if not self._dispatcher.on_bad(end, self._log.end, bad):
                return end

    def _is_new_damage(self, at: int) -> bool:
        """Are the bytes at ``at`` neither known damage nor a record, nor the beginning of one that goes on
        behind the log's end?"""
        if self._files.damage.at(at) is not None:
            return False
        base = at - at % self._log.segment_bytes
        left, came = base + self._log.segment_bytes - at, self._log.end - at
        says = int.from_bytes(self._log.read(at, 4), "big", signed=True)
        try:
            if measure(self._log.read(at, says if may_have(says, left) else RECORD_BYTES_MIN), 0, at, False):
                return False
        except BadRecord:
            return came >= RECORD_BYTES_MIN
        return came >= left or claimed_end(self._reads(base), at - base, at, came) is None

    def _reads(self, base: int) -> Callable[[int, int], bytes]:
        """What reads bytes at a position of the segment that starts at ``base``."""
        return lambda size, place: self._log.read(base + place, size)

    def quarantine(self) -> str:
        """See MessageStore.quarantine."""
        disk = self._env.disk
        names = set(self._log.segment_names())
        number = 1
        while True:
            aside = f"{self._root}/.before-reseed" + (f"-{number}" if number > 1 else "")
            if not names & set(disk.listdir(f"{aside}/commitlog")):
                break
            number += 1
        try:
            disk.makedirs(f"{aside}/commitlog")
            disk.sync_dir(aside)
            disk.sync_dir(self._root)
            if self._files.epochs.entries and not disk.exists(f"{aside}/epochFileCheckpoint"):
                write_file(disk, f"{aside}/epochFileCheckpoint", encode_epochs(self._files.epochs.entries))
        except OSError as error:
            problem = self._health.failed(error, PUTTING_ASIDE)
            self._health.room(PUTTING_ASIDE)  # a lack of space here keeps nobody from writing
            raise problem from error
        self.reset(0, keep_epochs=False, aside=f"{aside}/commitlog")
        return aside

    def reset(self, offset: int, *, keep_epochs: bool, aside: str | None = None) -> None:
        """See MessageStore.reset. The log's segments move to ``aside`` if given. Raises ValueError too."""
        try:
            self.invalidate(0)
            self._log.reset(offset, aside)
            self._files.damage.truncate(0)
            self._queues.destroy()
            if self._index is not None:
                self._index.destroy()
        except OSError as error:
            raise self._health.failed(error, "emptying the store", sync=True) from error
        if not keep_epochs:
            self._files.epochs.replace([])
        self._dispatcher.start_at(offset, offset)
        self._indexer.start_at(offset)
        self._offsets.clear()
