"""One broker's store: what goes in by ``append``, what comes out by ``get``, and when it is safe.

The parts: ``store.files`` (bytes on disk), ``store.flow`` (queues and index follow what is confirmed;
writing, reading, syncs), ``store.recover`` (what is true after a stop, cuts), ``store.heal`` (damage), and
``store.background`` (the tasks of an open store). This module wires them and is what broker and ha talk to.
All methods are called on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Final

from model.config import StoreConfig
from model.errors import DiskError
from model.ids import PhysicalOffset, QueueOffset
from runtime.env import Buffer, Env
from runtime.turns import Slice
from store.background import Background
from store.files.checkpoint import CheckpointFile
from store.files.consume_queue import ENTRY_BYTES
from store.files.damage import DamageLedger
from store.files.entry_sizes import counted
from store.files.epoch_file import EpochFile
from store.files.record import Dispatch, NewMessage, Record
from store.files.store_files import StoreFiles
from store.flow.dispatching.arrivals import OnArrive
from store.flow.dispatching.store_flow import StoreFlow
from store.flow.reading import Got, Reader
from store.flow.upkeep.retention import Retention
from store.flow.upkeep.throttle import Throttle
from store.flow.writing import Gathered, Prepared, Put, Writer
from store.heal.repair import Repairer
from store.heal.scrub import Scrub
from store.recover.abort_file import AbortFile
from store.recover.evidence import LogWasLonger
from store.recover.opening import Opening
from store.recover.recovery import Recovered
from store.recover.truncation import Truncator

log = logging.getLogger(__name__)

SYNC_LOOK_S: Final = 0.5  # so often at least who waits for a sync looks whether the log was cut, or broke


class MessageStore:
    """The store under ``storePathRootDir``. Usable between ``open`` and ``close``.

    Hooks are lists of plain callables, called on the loop: ``on_append(end)``, ``on_flush(flushed)``,
    ``on_arrive([(topic, queue_id, max_offset, tags_code), ...])`` with each queue and tags code of a batch,
    ``on_broken(error)`` once, at the first error that is for ever.
    """

    def __init__(self, env: Env, config: StoreConfig, *, controller_mode: bool = False) -> None:
        self.root = config.store_path.rstrip("/") or "/"
        self.on_append: list[Callable[[PhysicalOffset], None]] = []
        self.on_flush: list[Callable[[PhysicalOffset], None]] = []
        self.on_arrive: list[OnArrive] = []
        self.recovered: Recovered | None = None
        throttle = Throttle()
        self.files = files = StoreFiles.of(env, config, self.root)
        self.log = files.log
        self.flow = flow = StoreFlow.of(files, config, throttle, self.on_arrive)
        self.writer = Writer(config, files, flow, env.now_ms, self.on_append)
        self.reader = Reader(files)
        self.repairer = Repairer(env, files, flow)
        self.truncator = Truncator(env, self.root, files, flow, self.reader, self.writer.offsets)
        self.background = Background(
            env, config, self.root, files, flow, self.repairer, throttle, self.on_flush
        )
        self._opening = Opening(
            env,
            config,
            self.root,
            files,
            flow,
            controller_mode=controller_mode,
            before=self.background.reserve.take,
            after=self._follow_log_end,
        )
        self._opened = False
        self.reader.mend_entry = self._mend_entry
        self.writer.begin_at = lambda start: self.reset(start, keep_epochs=True)
        flow.dispatcher.on_bad = self.repairer.note_ahead
        flow.indexer.on_bad = self.repairer.note

    # -- parts that others use -------------------------------------------------------------------------

    @property
    def on_broken(self) -> list[Callable[[DiskError], None]]:
        return self.files.health.on_broken

    @property
    def epochs(self) -> EpochFile:
        return self.files.epochs

    @property
    def checkpoint(self) -> CheckpointFile:
        return self.files.checkpoint

    @property
    def was_longer(self) -> LogWasLonger:
        return self._opening.was_longer

    @property
    def abort(self) -> AbortFile:
        return self._opening.abort

    @property
    def damage(self) -> DamageLedger:
        return self.files.damage

    @property
    def throttle(self) -> Throttle:
        return self.background.throttle

    @property
    def scrub(self) -> Scrub:
        return self.background.scrub

    @property
    def retention(self) -> Retention:
        return self.background.retention

    def check_invariants(self) -> None:
        """Raise AssertionError, with the rule as its text, if a promise of log, dispatch or ledger is broken.

        Cheap: called after each start, cut and reset, and by tests and simulation after every step.
        """
        self.log.check_invariants()
        self.flow.dispatcher.check_invariants()
        self.damage.check_invariants()
        if self._opened:  # before, the checkpoint may have been read, and the log not yet
            self._check_checkpoint()

    def _check_checkpoint(self) -> None:
        settled = self.checkpoint.now.settled_offset
        assert settled <= self.log.flushed, (
            f"the checkpoint covers bytes up to {settled}, flushed are {self.log.flushed}"
        )

    # -- life ------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Lock, recover, start. Raises DiskError (files that cannot be right, another process, I/O).

        Cancelled, it tells the recovery to stop, and waits for that for a while (see Opening.run).
        """
        self.recovered = await self._opening.run()
        self._opened = True
        self.files.health.silent = False
        self.background.start()

    def _follow_log_end(self) -> None:
        """Checkpoint, epochs and queue offsets say nothing of bytes behind the end that recovery found."""
        self.truncator.invalidate(self.log.end)
        # An epoch may start where the log ends, not behind.
        self.epochs.truncate_suffix(PhysicalOffset(self.log.end + 1))
        self.rebuild_queue_offsets()
        self.check_invariants()
        self._check_checkpoint()

    def start_failed(self) -> None:
        """The server whose store this is did not come to serve: see ``Opening.start_failed``."""
        self._opening.start_failed()

    async def close(self) -> None:
        """Stop and flush everything; without an error the next start is a clean one. Idempotent."""
        if not self._opened:
            return
        self._opened = False
        self.hurry()
        await self.background.stop()
        health = self.files.health
        try:
            if health.broken is None:
                await self.caught_up()
                await self.background.flush_all()
                whole = self.flow.dispatcher.is_level and self._queues_are_safe()
                if health.why_not_writable is None and whole:
                    self._opening.stopped_cleanly()
        except (OSError, DiskError) as error:
            log.error("closing %s: %s; the next start will recover", self.root, error)
        finally:
            try:
                await self._opening.noted()
            finally:
                self._opening.release()

    def _queues_are_safe(self) -> bool:
        return self.files.queues.synced_until >= self.dispatched

    # -- writing ---------------------------------------------------------------------------------------

    @property
    def why_not_writable(self) -> str | None:
        """None, or why not: disk full (until space returns), a failed sync (for ever)."""
        if not self._opened:
            return "the store is not open"
        return self.files.health.why_not_writable

    def stamp_ms(self) -> int:
        """The store timestamp for a record appended now: the clock, but not going back with it."""
        return self.writer.stamp_ms()

    def next_offset(self, topic: str, queue_id: int) -> QueueOffset:
        """Queue offset of the next record of that queue. It does not count what ``append_waiting`` would
        append."""
        return self.writer.next_offset(topic, queue_id)

    def append_waiting(self) -> None:
        """Append what is encoded already and waits for the end of this turn of the loop."""
        self.writer.before_append()

    def append(self, chunks: Sequence[Buffer], size: int, dispatches: Sequence[Dispatch]) -> None:
        """Write encoded records at ``log.end``; together they fit ``log.room``. One pwrite.

        ``dispatches`` is kept: the caller does not touch it again. Raises DiskError: nothing happened,
        offsets are unchanged.
        """
        self.writer.append(chunks, size, dispatches)

    @property
    def appended(self) -> Buffer:
        """For those who hear of an append: the bytes the log ends with now, where they are at hand."""
        return self.writer.appended

    def put(self, message: NewMessage | list[NewMessage], *, stored_before: bool = False) -> list[Put]:
        """Encode and append messages, all of them or none, in one segment.

        Raises Refused (13) for a message too long, DiskError when the store does not take writes.
        ``stored_before``: of messages the log holds already, and which only move on, any length is taken.
        """
        reason = self.why_not_writable
        if reason is not None:
            raise DiskError(reason)
        messages = message if isinstance(message, list) else [message]
        return self.writer.put(messages, stored_before=stored_before)

    def put_prepared(self, messages: Gathered | list[Prepared], *, stored_before: bool = False) -> list[Put]:
        """``put`` of what ``writer.prepare`` made. Raises as ``put``."""
        reason = self.why_not_writable
        if reason is not None:
            raise DiskError(reason)
        return self.writer.put_prepared(messages, stored_before=stored_before)

    def tags_code(self, topic: str, properties: str, store_timestamp_ms: int) -> int:
        """What a queue entry carries: the hash of TAGS, or when a delayed message is due (ms)."""
        return self.flow.parser.tags_code(topic, properties, store_timestamp_ms)

    def append_raw(self, offset: PhysicalOffset, data: Buffer) -> None:
        """Write bytes of the master's log, which start at ``offset`` there; records may be cut anywhere.

        An empty log may start at any segment's start. Raises DiskError when ``offset`` is not ``log.end`` or
        the disk refuses; then nothing happened (of data that crosses segments: the first may be in).
        """
        self.writer.append_raw(offset, data)

    def sync_to(self, offset: int) -> None:
        """Ask for a sync that covers ``offset``; ``log.flushed`` reaches it soon, ``on_flush`` says when."""
        self.background.flusher.want(offset)

    async def synced(self, offset: int) -> None:
        """Return when what the log keeps below ``offset`` is on the disk; at once while the store is not
        open. Raises DiskError when that cannot be."""
        wake = asyncio.Event()
        hook: Callable[[PhysicalOffset], None] = lambda flushed: wake.set()  # noqa: E731
        self.on_flush.append(hook)
        try:
            while self._opened and self.log.flushed < (least := min(offset, self.log.end)):
                if self.files.health.broken is not None:
                    raise DiskError(self.files.health.broken)
                wake.clear()
                self.sync_to(least)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(SYNC_LOOK_S):
                        await wake.wait()
        finally:
            self.on_flush.remove(hook)

    # -- confirming, cutting ---------------------------------------------------------------------------

    @property
    def confirmed(self) -> PhysicalOffset:
        """Records that end at or below this offset may be read by consumers."""
        return self.flow.dispatcher.confirmed

    @property
    def confirmed_records_end(self) -> PhysicalOffset:
        """Where the last confirmed record ends; at most ``confirmed``, which a piece of the HA stream may
        leave in the middle of one. It is ``confirmed`` while some are not dispatched."""
        dispatcher = self.flow.dispatcher
        return dispatcher.dispatched if dispatcher.is_level else dispatcher.confirmed

    @property
    def dispatched(self) -> PhysicalOffset:
        """Records below this offset are in their queues."""
        return self.flow.dispatcher.dispatched

    def confirm(self, offset: PhysicalOffset) -> None:
        """Records ending at or below ``offset`` are dispatched, in batches, soon. Never moves back."""
        if self._opened:
            self.flow.dispatcher.confirm(offset)

    def confirm_copied(self, offset: PhysicalOffset) -> None:
        """``confirm`` by a master that serves the consumers of these records: they are dispatched a few
        milliseconds later while nobody waits for them here, or after ``hurry``."""
        if self._opened:
            self.flow.dispatcher.confirm_copied(offset)

    def hurry(self) -> None:
        """That master is gone, or its consumers may come here: nothing is put off any more."""
        self.flow.dispatcher.hurry()

    async def caught_up(self) -> None:
        """Return when every whole confirmed record is dispatched. Raises DiskError when that cannot be."""
        await self.flow.dispatcher.caught_up()

    @property
    def indexing_bytes(self) -> int:
        """Dispatched bytes of the log a look-up by key does not see yet: after a start, for a while."""
        return 0 if self.flow.indexer.caught_up else max(self.dispatched - self.flow.indexer.at, 1)

    async def indexed(self) -> None:
        """Return once look-ups by key see all that is dispatched. Raises DiskError when that cannot be."""
        await self.flow.indexer.level()

    def truncate(self, offset: PhysicalOffset) -> None:
        """Let everything end at ``offset``, durably: log, queues, index, offset table. Blocks.

        The epochs are the caller's to cut. Raises DiskError when ``offset`` lies outside of the log or is no
        record's start (then nothing happened), or when the disk refuses (then the store is broken).
        """
        self.truncator.truncate(offset)
        self.check_invariants()

    def truncate_partial_tail(self) -> PhysicalOffset:
        """Drop a record at the end that is not there as a whole; returns the new end. Raises DiskError."""
        return self.truncator.truncate_partial_tail()

    def quarantine(self) -> str:
        """``reset``, but the log and its epochs are kept in a directory beside it, whose path is returned.

        The first ``.before-reseed``, ``.before-reseed-2``, ... that has none of the segments yet: what a
        crash interrupted goes on in the same one. Blocks. Raises DiskError.
        """
        return self.truncator.quarantine()

    def reset(self, offset: int = 0, *, keep_epochs: bool = False) -> None:
        """Drop every message; the log goes on, empty, at ``offset``, the start of a segment. Blocks.

        Raises ValueError, DiskError.
        """
        self.truncator.reset(offset, keep_epochs=keep_epochs)
        self.check_invariants()

    def rebuild_queue_offsets(self) -> None:
        """Make the table of next queue offsets from the queues and every record behind them. Store times go
        on from what a former master wrote."""
        for _ in self.writer.rebuilding_offsets():
            pass

    def begin_queues(self, starts: Mapping[str, Mapping[int, int]]) -> None:
        """By topic and queue id, where queues begin that are not here. The mapping itself: it may change."""
        self.files.queues.starts = starts

    async def rebuild_queue_offsets_in_slices(self, slice_: Slice) -> None:
        """``rebuild_queue_offsets`` while others run; nothing may be appended meanwhile."""
        for _ in self.writer.rebuilding_offsets():
            await slice_.breathe()

    # -- reading ---------------------------------------------------------------------------------------

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int,
        wanted: Container[int] | None = None,
    ) -> Got:
        """See reading.Reader.get."""
        return self.reader.get(topic, queue_id, offset, max_count, max_bytes, wanted)

    def min_queue_offset(self, topic: str, queue_id: int) -> QueueOffset:
        """First queue offset whose message is kept; of a queue that is not here, where it begins."""
        queues = self.files.queues
        queue = queues.get(topic, queue_id)
        return QueueOffset(queue.min_offset if queue is not None else queues.start_of(topic, queue_id))

    def bytes_behind(self, topic: str, queue_id: int, offset: int) -> int:
        """How much of the log lies between the start of a queue's message and the log's end; 0 when the queue
        has no such message."""
        queue = self.files.queues.get(topic, queue_id)
        entry = queue.entry(offset) if queue is not None else None
        return self.log.end - entry[0] if entry is not None else 0

    def max_queue_offset(self, topic: str, queue_id: int) -> QueueOffset:
        """Queue offset after the last one dispatched; of a queue that is not here, where it begins."""
        queues = self.files.queues
        queue = queues.get(topic, queue_id)
        return QueueOffset(queue.max_offset if queue is not None else queues.start_of(topic, queue_id))

    def end_below(self, topic: str, queue_id: int, physical_offset: int) -> int:
        """Where a queue ends that holds no message at or behind ``physical_offset`` of the log; else 0. With
        what it stepped over, where the log is damaged."""
        queue = self.files.queues.get(topic, queue_id)
        if queue is None or queue.max_physical > physical_offset:
            return 0
        return max(queue.max_offset, self.next_offset(topic, queue_id) if self.damage.ranges else 0)

    def place_of(self, topic: str, queue_id: int, queue_offset: int) -> PhysicalOffset | None:
        """Where in the log the record of a queue offset lies, as its queue says; None: it does not."""
        queue = self.files.queues.get(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return None
        entry = queue.entry(queue_offset)
        return PhysicalOffset(entry[0]) if entry is not None else None

    def sizes_of(
        self, topic: str, queue_id: int, begin: int, count_max: int, bounds: Sequence[int]
    ) -> tuple[int, list[int], int]:
        """Of the entries of a queue from ``begin`` on, up to ``count_max`` and not beyond a file's end: how
        many these are, and ``entry_sizes.counted``. None of an unknown queue."""
        queue = self.files.queues.get(topic, queue_id)
        entries = queue.read(begin, count_max) if queue is not None else b""
        return len(entries) // ENTRY_BYTES, *counted(entries, bounds)

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, upper: bool = False) -> int:
        """See reading.Reader.offset_by_time."""
        return self.reader.offset_by_time(topic, queue_id, timestamp_ms, upper)

    def queue_store_time(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """Store timestamp (ms) of a message in a queue, or None."""
        queue = self.files.queues.get(topic, queue_id)
        entry = queue.entry(queue_offset) if queue is not None and queue_offset >= queue.min_offset else None
        return self.reader.store_time(entry[0]) if entry is not None else None

    def earliest_ms(self) -> int:
        """Store timestamp (ms) of the first record that is kept; -1 while there is none."""
        found = self.reader.store_time(self.log.min_offset) if self.log.end > self.log.min_offset else None
        return -1 if found is None else found

    def lookup(self, physical_offset: int) -> bytes | None:
        """The whole record that starts there, or None."""
        return self.reader.lookup(physical_offset)

    def without_body(self, physical_offset: int) -> Record | None:
        """See reading.Reader.without_body."""
        return self.reader.without_body(physical_offset)

    def record_bytes(self, physical_offset: int) -> int:
        """How long the record is that starts there, if one does; 0 where none can."""
        return self.reader.record_bytes(physical_offset)

    def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> list[bytes]:
        """See reading.Reader.query. Messages the index does not hold yet are not found: ``indexed`` first."""
        return next(filter(None, self._query(topic, key, max_count, begin_ms, end_ms)), [])

    async def query_in_turns(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int, slice_: Slice
    ) -> list[bytes]:
        """``query``, with turns for others: a key may have millions of messages newer than ``end_ms``.
        Raises as ``slice_``."""
        for found in self._query(topic, key, max_count, begin_ms, end_ms):
            if found is not None:
                return found
            await slice_.pause()
        return []

    def _query(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
    ) -> Iterator[list[bytes] | None]:
        try:
            yield from self.reader.query(topic, key, max_count, begin_ms, end_ms)
        except OSError as error:
            raise DiskError(f"reading the index failed: {error.strerror or error}") from error

    def queues(self) -> Iterable[tuple[str, int]]:
        """(topic, queue id) of every queue there is, in the order they were met."""
        return [(queue.topic, queue.queue_id) for queue in self.files.queues]

    def queues_of(self, topic: str) -> list[int]:
        """The ids of the queues there are of a topic."""
        return self.files.queues.ids_of(topic)

    def _mend_entry(self, topic: str, queue_id: int, index: int) -> bool:
        """A reader met an entry without its record: one of the two is damaged. Is the entry right now?"""
        if not self._opened:
            return False
        try:
            return self.repairer.mend_entry(topic, queue_id, index)
        except (DiskError, ValueError) as error:
            log.error("%s/%d %d: %s", topic, queue_id, index, error)
            return False
