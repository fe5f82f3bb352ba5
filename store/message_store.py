"""One broker's store: what goes in by ``append``, what comes out by ``get``, and when it is safe.

The parts: store.commit_log (bytes), store.dispatch (queues and index follow what is confirmed), store.flush
(what is durable), store.reading, store.recovery, store.cutting, store.retention. This module wires them, owns
their tasks and is what broker and ha talk to. All methods are called on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from model.config import StoreConfig
from model.errors import DiskError, Refused
from model.message import KEYS, TRANSACTION_PREPARED, UNIQ_KEY, VALUE_END, property_of
from runtime.env import Buffer, Env, Lock
from runtime.tasks import Tasks
from store.files.checkpoint import CheckpointFile
from store.files.commit_log import CommitLog
from store.files.consume_queue import ConsumeQueues, is_queue_name
from store.files.damage import DamageLedger
from store.files.epoch_file import EpochFile
from store.files.health import Health
from store.files.index_file import Index
from store.files.record import (
    BLANK_BYTES,
    OVERHEAD_BYTES_MAX,
    Dispatch,
    DispatchParser,
    NewMessage,
    delay_levels_ms,
    encode,
)
from store.flow import multi_dispatch
from store.flow.dispatch import Dispatcher, OnArrive
from store.flow.flush import Flusher
from store.flow.housekeeping import Housekeeping
from store.flow.indexing import Indexer
from store.flow.multi_dispatch import MultiDispatchParser
from store.flow.queue_offsets import QueueOffsets
from store.flow.reading import Got, Reader
from store.flow.reserve import Reserve
from store.flow.retention import ROUND_S, Retention
from store.flow.throttle import Throttle
from store.flow.walker import Walker
from store.heal.repair import Repairer
from store.heal.scrub import Scrub
from store.recover.evidence import LogWasLonger, reached
from store.recover.recovery import Recovered, recover
from store.recover.truncation import Truncator

log = logging.getLogger(__name__)

RETENTION_FIRST_S = 60.0
RECOVERY_ENDS_S = 5.0
"""So long a start that is told to stop waits for its recovery to end."""
CLOCK_BACK_MAX_MS = 60_000
"""Store times do not go back while the clock is behind by no more than this."""


class Put(NamedTuple):
    """Where a message went: bytes, bytes, messages."""

    physical_offset: int
    size: int
    queue_offset: int


class MessageStore:
    """The store under ``storePathRootDir``. Usable between ``open`` and ``close``.

    Hooks are lists of plain callables, called on the loop: ``on_append(end)``, ``on_flush(flushed)``,
    ``on_arrive(topic, queue_id, max_offset, tags_code)`` once per queue and tags code of a dispatched batch,
    ``on_broken(error)`` once, at the first error that is for ever.
    """

    def __init__(self, env: Env, config: StoreConfig, *, controller_mode: bool = False) -> None:
        self.root = config.store_path.rstrip("/") or "/"
        self.on_append: list[Callable[[int], None]] = []
        self.on_flush: list[Callable[[int], None]] = []
        self.on_arrive: list[OnArrive] = []
        self.recovered: Recovered | None = None
        self._env = env
        self._config = config
        self._controller_mode = controller_mode
        self._health = Health()
        self.on_broken = self._health.on_broken
        disk = env.disk
        self.log = CommitLog(
            env,
            config.commit_log_path or f"{self.root}/commitlog",
            config.segment_bytes,
            self._health,
            prop_crc=config.append_prop_crc,
        )
        self._queues = ConsumeQueues(disk, f"{self.root}/consumequeue", config.queue_file_bytes)
        self._index = (
            Index(disk, f"{self.root}/index", config.index_slots, config.index_entries, env.now_ms)
            if config.message_index_enable
            else None
        )
        self._multi = config.lmq_enable and config.multi_dispatch_enable
        kind = MultiDispatchParser if self._multi else DispatchParser
        self._parser = kind(delay_levels_ms(config.delay_levels))
        self.damage = DamageLedger(disk, self.root)
        self._walker = Walker(self.log, self._parser, self.damage)
        self.throttle = Throttle()
        self._indexer = Indexer(self.log, self._index, self._walker, self._health, self.throttle)
        self._dispatcher = Dispatcher(
            self.log, self._queues, self._indexer, self._parser, self._health, self.on_arrive, self.damage
        )
        self._reader = Reader(self.log, self._queues, self._index, self.damage)
        self.repairer = Repairer(
            env,
            self.log,
            self._queues,
            self._index,
            self._indexer,
            self._dispatcher,
            self._parser,
            self.damage,
            self._health,
        )
        self.scrub = Scrub(
            self.log,
            self._queues,
            self._dispatcher,
            self._parser,
            self.damage,
            self._index,
            self._indexer,
            self.repairer,
            self.throttle,
            config.scrub_megabytes_per_s << 20,
            config.check_on_start_megabytes_per_s << 20,
        )
        self._dispatcher.on_bad = self.repairer.note_ahead
        self._indexer.on_bad = self.repairer.note
        self._reader.on_rot.append(self._rotten)
        self.epochs = EpochFile(disk, config.epoch_file_path or f"{self.root}/epochFileCheckpoint")
        self.checkpoint = CheckpointFile(disk, f"{self.root}/checkpoint")
        self.was_longer = LogWasLonger(disk, self.root)
        self._flusher = Flusher(env, self.log, self._health, config.flush_interval_ms, self.on_flush)
        self.retention = Retention(env, config, self, self._health)
        self._offsets = QueueOffsets(self.log, self._queues, self._walker, self.damage)
        self._cutter = Truncator(
            env,
            self.root,
            self.log,
            self._queues,
            self._index,
            self._indexer,
            self._dispatcher,
            self._walker,
            self._reader,
            self.damage,
            self.epochs,
            self.checkpoint,
            self._offsets,
            self._health,
        )
        self._last_stamp_ms = 0
        self._reserve = Reserve(disk, self.root, config.disk_reserve_megabytes << 20)
        self._health.on_full.append(self._reserve.release)
        self._housekeeping = Housekeeping(
            env,
            self.log,
            self._queues,
            self._index,
            self._indexer,
            self._dispatcher,
            self.checkpoint,
            self._health,
            self._reserve,
            self.throttle,
            config.flush_queue_interval_ms,
            self._flusher.want,
        )
        self._lock: Lock | None = None
        self._opened = False
        self._stopping = asyncio.Event()
        self._tasks = Tasks("store", self._task_died)
        self._running: list[asyncio.Task[None]] = []
        self.log.on_roll = self._rolled
        self.log.on_grown = self._housekeeping.soon
        self._indexer.on_level = self._housekeeping.level

    # -- life ------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Lock, recover, start. Raises DiskError (files that cannot be right, another process, I/O).

        Cancelled, it tells the recovery to stop, and waits for that for a while. The lock is given back when
        the recovery has ended, or else with the process: its thread still writes.
        """
        disk = self._env.disk
        try:
            disk.makedirs(self.root)
            self._lock = disk.lock(f"{self.root}/lock")
        except BlockingIOError:
            raise DiskError(f"{self.root} is in use by another process") from None
        except OSError as error:
            raise DiskError(f"{self.root}: {error.strerror or error}") from error
        opening = Tasks("store", lambda error: None)  # whoever waits hears of it
        recovering = opening.spawn(self._env.offload(self._recover), name="recover")
        try:
            self.recovered = await asyncio.shield(recovering)
        except BaseException as error:
            if recovering.done():
                self._release()
            else:
                self._health.broke("the store was told to stop while it recovered")
                recovering.add_done_callback(self._recovery_left)
                await asyncio.wait((recovering,), timeout=RECOVERY_ENDS_S)
            if isinstance(error, OSError):
                raise DiskError(f"recovery of {self.root} failed: {error}") from error
            raise
        self._opened = True
        self._health.silent = False
        spawn = self._tasks.spawn
        self._running = [
            spawn(self._flusher.run(), name="flush"),
            spawn(self.log.allocate_ahead(self._stopping.is_set), name="allocate"),
            spawn(self._housekeeping.run(self._pause), name="housekeeping"),
            spawn(self._retain(), name="retain"),
            spawn(self.scrub.run(self._pause), name="scrub"),
            spawn(self._indexer.run(self._env, lambda: self.dispatched, self._pause), name="index"),
        ]

    def _recover(self) -> Recovered:
        disk = self._env.disk
        clean = not disk.exists(f"{self.root}/abort")
        abort = disk.open(f"{self.root}/abort", create=True)
        try:
            abort.pwrite(b"1", 0)
            abort.sync()
        finally:
            abort.close()
        disk.sync_dir(self.root)
        self._reserve.take()
        self.checkpoint.load()
        self.epochs.load(may_doubt=self._controller_mode or self._config.start_with_damaged_tables)
        if self.epochs.doubt is not None and self._config.start_with_damaged_tables:
            self.epochs.trust([])
        was = reached(self.checkpoint.now, self.epochs.last)
        recovered = recover(
            self.log,
            self._queues,
            self._index,
            self._indexer,
            self._dispatcher,
            self._parser,
            self.damage,
            self.checkpoint.now,
            clean=clean,
            controller_mode=self._controller_mode,
            check_crc=self._config.check_crc_on_recover,
            now_ms=self._env.now_ms(),
        )
        self.was_longer.compare(self.log.end, was)
        self._cutter.invalidate(self.log.end)
        self.epochs.truncate_suffix(self.log.end + 1)  # an epoch may start where the log ends, not behind
        self.rebuild_queue_offsets()
        return recovered

    def _recovery_left(self, recovering: asyncio.Future[Recovered]) -> None:
        if recovering.cancelled():
            return  # only who waits for the thread was, at the loop's end
        if (error := recovering.exception()) is not None:
            log.info("the recovery of %s ended: %s", self.root, error)
        self._release()

    async def close(self) -> None:
        """Stop and flush everything; without an error the next start is a clean one. Idempotent."""
        if not self._opened:
            return
        self._opened = False
        self._stopping.set()
        self._flusher.stop()
        self._housekeeping.stop()
        self.log.stop_allocating()
        # Not cancelled: a sync or an allocation under way needs its file open until it is over.
        await asyncio.gather(*self._running, return_exceptions=True)
        try:
            if self._health.broken is None:
                await self.caught_up()
                self._health.silent = True
                await self._env.offload(self._housekeeping.flush_all)
                if self._health.writable is None and self._dispatcher.is_level and self._queues_are_safe():
                    self._env.disk.remove(f"{self.root}/abort")
                    self._env.disk.sync_dir(self.root)
        except (OSError, DiskError) as error:
            log.error("closing %s: %s; the next start will recover", self.root, error)
        finally:
            self._release()

    def _queues_are_safe(self) -> bool:
        return self._queues.synced_until >= self.dispatched

    def _release(self) -> None:
        self._health.silent = True
        self._health.broke("the store is closed")
        self.log.close()
        self._queues.close()
        if self._index is not None:
            self._index.close()
        self.checkpoint.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _task_died(self, error: BaseException) -> None:
        log.error("a task of the store died", exc_info=error)
        self._health.broke(f"a task of the store died: {error}")

    # -- writing ---------------------------------------------------------------------------------------

    @property
    def writable(self) -> str | None:
        """None, or why not: disk full (until space returns), a failed sync (for ever)."""
        if not self._opened:
            return "the store is not open"
        return self._health.writable

    def stamp_ms(self) -> int:
        """The store timestamp for a record appended now: the clock, but not going back with it."""
        now_ms = self._env.now_ms()
        if now_ms < self._last_stamp_ms <= now_ms + CLOCK_BACK_MAX_MS:
            return self._last_stamp_ms
        self._last_stamp_ms = now_ms
        return now_ms

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Queue offset of the next record of that queue."""
        return self._offsets.table.get((topic, queue_id), 0)

    def append(self, chunks: Sequence[Buffer], size: int, dispatches: Sequence[Dispatch]) -> None:
        """Write encoded records at ``log.end``; together they fit ``log.room``. One pwrite.

        ``dispatches`` is kept: the caller does not touch it again. Raises DiskError: nothing happened,
        offsets are unchanged.
        """
        commit_log = self.log
        start = commit_log.end
        commit_log.append(chunks, size)
        self._offsets.appended(dispatches)
        end = commit_log.end
        self._dispatcher.remember(start, end, dispatches)
        for hook in self.on_append:
            hook(end)

    def put(self, message: NewMessage | list[NewMessage], *, stored_before: bool = False) -> list[Put]:
        """Encode and append messages, all of them or none, in one segment.

        Raises Refused (13) for a message too long, DiskError when the store does not take writes.
        ``stored_before``: of messages the log holds already, and which only move on, any length is taken.
        """
        messages = message if isinstance(message, list) else [message]
        reason = self.writable
        if reason is not None:
            raise DiskError(reason)
        for one in messages:
            if len(one.body) > self._config.message_bytes_max and not stored_before:
                raise Refused(f"the body has {len(one.body)} bytes, maxMessageSize is exceeded", 13)
            if not is_queue_name(one.topic, one.queue_id):
                raise Refused(f"no queue can be named {one.topic!r} {one.queue_id}", 13)
        stamp_ms = self.stamp_ms()
        records, dispatches, size = self._encode(messages, stamp_ms, stored_before)
        if size > self.log.room:
            if size > self.log.segment_bytes - BLANK_BYTES:
                raise Refused(f"{size} bytes do not fit into one segment", 13)
            self.log.roll()
            records, dispatches, size = self._encode(messages, stamp_ms, stored_before)
        self.append(records, size, dispatches)
        at = -1
        puts: list[Put] = []
        for item in dispatches:
            if item.offset != at:  # behind it come those of its light queues
                at = item.offset
                puts.append(Put(at, item.size, item.queue_offset))
        return puts

    def _encode(
        self, messages: list[NewMessage], stamp_ms: int, stored_before: bool = False
    ) -> tuple[list[bytes], list[Dispatch], int]:
        records: list[bytes] = []
        dispatches: list[Dispatch] = []
        following: dict[tuple[str, int], int] = {}
        at = self.log.end
        for one in messages:
            key = (one.topic, one.queue_id)
            queue_offset = 0
            if not one.sys_flag & TRANSACTION_PREPARED:
                queue_offset = following.get(key, self.next_offset(*key))
                following[key] = queue_offset + 1
            if self._multi:
                one = replace(one, properties=multi_dispatch.with_offsets(one, following, self.next_offset))
            if one.properties.endswith("\0"):
                one = replace(one, properties=one.properties + VALUE_END)  # else it is taken for a torn one
            raw = encode(one, queue_offset, at, stamp_ms, append_prop_crc=self._config.append_prop_crc)
            if len(raw) > self._config.message_bytes_max + OVERHEAD_BYTES_MAX and not stored_before:
                raise Refused(f"the record has {len(raw)} bytes, maxMessageSize is exceeded", 13)
            records.append(raw)
            dispatches.append(
                Dispatch(
                    at,
                    len(raw),
                    one.topic,
                    one.queue_id,
                    queue_offset,
                    self.tags_code(one.topic, one.properties, stamp_ms),
                    property_of(one.properties, UNIQ_KEY) or "",
                    property_of(one.properties, KEYS) or "",
                    stamp_ms,
                    one.sys_flag,
                )
            )
            if self._multi:
                more = multi_dispatch.dispatches(dispatches[-1], one.properties)
                following |= {(item.topic, item.queue_id): item.queue_offset + 1 for item in more}
                dispatches += more
            at += len(raw)
        return records, dispatches, at - self.log.end

    def tags_code(self, topic: str, properties: str, store_timestamp_ms: int) -> int:
        """What a queue entry carries: the hash of TAGS, or when a delayed message is due (ms)."""
        return self._parser.tags_code(topic, properties, store_timestamp_ms)

    def append_raw(self, offset: int, data: Buffer) -> None:
        """Write bytes of the master's log, which start at ``offset`` there; records may be cut anywhere.

        An empty log may start at any segment's start. Raises DiskError when ``offset`` is not ``log.end`` or
        the disk refuses; then nothing happened (of data that crosses segments: the first may be in).
        """
        commit_log = self.log
        if offset != commit_log.end:
            if commit_log.end != commit_log.min_offset:
                raise DiskError(f"bytes for {offset} came, the log ends at {commit_log.end}")
            if offset % commit_log.segment_bytes:
                raise DiskError(f"an empty log cannot start at {offset}, inside of a segment")
            self.reset(offset, keep_epochs=True)
        at = 0
        while at < len(data):
            left = commit_log.segment_bytes - commit_log.end % commit_log.segment_bytes
            part = data if at == 0 and len(data) <= left else memoryview(data)[at : at + left]
            commit_log.append((part,), len(part))
            at += len(part)
        for hook in self.on_append:
            hook(commit_log.end)

    def _rolled(self, start: int, end: int) -> None:
        self._dispatcher.remember(start, end, ())
        for hook in self.on_append:
            hook(end)

    def sync_to(self, offset: int) -> None:
        """Ask for a sync that covers ``offset``; ``log.flushed`` reaches it soon, ``on_flush`` says when."""
        self._flusher.want(offset)

    # -- confirming, cutting ---------------------------------------------------------------------------

    @property
    def confirmed(self) -> int:
        """Records that end at or below this offset may be read by consumers."""
        return self._dispatcher.confirmed

    @property
    def dispatched(self) -> int:
        """Records below this offset are in their queues."""
        return self._dispatcher.dispatched

    def confirm(self, offset: int) -> None:
        """Records ending at or below ``offset`` are dispatched, in batches, soon. Never moves back."""
        if self._opened:
            self._dispatcher.confirm(offset)

    async def caught_up(self) -> None:
        """Return when every whole confirmed record is dispatched. Raises DiskError when that cannot be."""
        await self._dispatcher.caught_up()

    @property
    def indexing_bytes(self) -> int:
        """Dispatched bytes of the log a look-up by key does not see yet: after a start, for a while."""
        return 0 if self._indexer.caught_up else max(self.dispatched - self._indexer.at, 1)

    async def indexed(self) -> None:
        """Return once look-ups by key see all that is dispatched. Raises DiskError when that cannot be."""
        await self._indexer.level()

    def truncate(self, offset: int) -> None:
        """Let everything end at ``offset``, durably: log, queues, index, offset table. Blocks.

        The epochs are the caller's to cut. Raises DiskError when ``offset`` lies outside of the log or is no
        record's start (then nothing happened), or when the disk refuses (then the store is broken).
        """
        self._cutter.truncate(offset)

    def truncate_partial_tail(self) -> int:
        """Drop a record at the end that is not there as a whole; returns the new end. Raises DiskError."""
        return self._cutter.truncate_partial_tail()

    def quarantine(self) -> str:
        """``reset``, but the log and its epochs are kept in a directory beside it, whose path is returned.

        The first ``.before-reseed``, ``.before-reseed-2``, ... that has none of the segments yet: what a
        crash interrupted goes on in the same one. Blocks. Raises DiskError.
        """
        return self._cutter.quarantine()

    def reset(self, offset: int = 0, *, keep_epochs: bool = False) -> None:
        """Drop every message; the log goes on, empty, at ``offset``, the start of a segment. Blocks.

        Raises ValueError, DiskError.
        """
        self._cutter.reset(offset, keep_epochs=keep_epochs)

    def rebuild_queue_offsets(self) -> None:
        """Make the table of next queue offsets from the queues and every record behind them. Store times go
        on from what a former master wrote."""
        newest_ms = self._offsets.rebuild(self.dispatched)
        self._last_stamp_ms = max(self._last_stamp_ms, self._dispatcher.last_timestamp_ms, newest_ms)

    # -- reading ---------------------------------------------------------------------------------------

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int,
        wanted: Callable[[int], bool] | None = None,
    ) -> Got:
        """See reading.Reader.get."""
        return self._reader.get(topic, queue_id, offset, max_count, max_bytes, wanted)

    def min_queue_offset(self, topic: str, queue_id: int) -> int:
        """First queue offset whose message is kept; 0 for an unknown queue."""
        queue = self._queues.get(topic, queue_id)
        return queue.min_offset if queue is not None else 0

    def bytes_behind(self, topic: str, queue_id: int, offset: int) -> int:
        """How much of the log lies between the start of a queue's message and the log's end; 0 when the queue
        has no such message."""
        queue = self._queues.get(topic, queue_id)
        entry = queue.entry(offset) if queue is not None else None
        return self.log.end - entry[0] if entry is not None else 0

    def max_queue_offset(self, topic: str, queue_id: int) -> int:
        """Queue offset after the last one dispatched; 0 for an unknown queue."""
        queue = self._queues.get(topic, queue_id)
        return queue.max_offset if queue is not None else 0

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, upper: bool = False) -> int:
        """See reading.Reader.offset_by_time."""
        return self._reader.offset_by_time(topic, queue_id, timestamp_ms, upper)

    def queue_store_time(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """Store timestamp (ms) of a message in a queue, or None."""
        queue = self._queues.get(topic, queue_id)
        entry = queue.entry(queue_offset) if queue is not None and queue_offset >= queue.min_offset else None
        return self._reader.store_time(entry[0]) if entry is not None else None

    def lookup(self, physical_offset: int) -> bytes | None:
        """The whole record that starts there, or None."""
        return self._reader.lookup(physical_offset)

    def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> list[bytes]:
        """See reading.Reader.query. Messages the index does not hold yet are not found: ``indexed`` first."""
        return next(filter(None, self._query(topic, key, max_count, begin_ms, end_ms)), [])

    async def query_in_turns(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
    ) -> list[bytes]:
        """``query``, with turns for others: a key may have millions of messages newer than ``end_ms``."""
        for found in self._query(topic, key, max_count, begin_ms, end_ms):
            if found is not None:
                return found
            await asyncio.sleep(0)
        return []

    def _query(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
    ) -> Iterator[list[bytes] | None]:
        try:
            yield from self._reader.query(topic, key, max_count, begin_ms, end_ms)
        except OSError as error:
            raise DiskError(f"reading the index failed: {error.strerror or error}") from error

    def queues(self) -> Iterable[tuple[str, int]]:
        """(topic, queue id) of every queue there is, in the order they were met."""
        return [(queue.topic, queue.queue_id) for queue in self._queues]

    def remove_topic(self, topic: str) -> None:
        """Drop the queues of a deleted topic. Its records stay in the log until they expire."""
        self._offsets.remove_topic(topic)
        try:
            self._queues.remove_topic(topic)
        except OSError as error:
            raise DiskError(f"removing the queues of {topic} failed: {error.strerror or error}") from error

    def _rotten(self, topic: str, queue_id: int, index: int) -> None:
        """A reader met an entry without its record: one of the two is damaged."""
        asyncio.get_running_loop().call_soon(self._mend_entry, topic, queue_id, index)

    def _mend_entry(self, topic: str, queue_id: int, index: int) -> None:
        if not self._opened:
            return
        try:
            self.repairer.mend_entry(topic, queue_id, index)
        except (DiskError, ValueError) as error:
            log.error("%s/%d %d: %s", topic, queue_id, index, error)

    # -- what runs beside ------------------------------------------------------------------------------

    async def _pause(self, seconds: float) -> bool:
        """Wait; False when the store closes."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return True
        return False

    async def _retain(self) -> None:
        wait_s = RETENTION_FIRST_S
        while await self._pause(wait_s):
            wait_s = ROUND_S
            try:
                await self.retention.round()
            except (OSError, DiskError) as error:
                log.error("retention failed: %s; trying again in %.0f s", error, wait_s)

    async def follow_log_start(self) -> None:
        """The log's start moved on: queues, index and epochs follow. Raises DiskError, OSError."""
        log_min = self.log.min_offset
        paths = [segment.path for queue in self._queues for segment in queue.drop_below(log_min)]
        if self._index is not None:
            paths += self._index.drop_below(log_min)
        self.epochs.truncate_prefix(log_min)
        self.damage.drop_below(log_min)
        disk = self._env.disk

        def work() -> None:
            for path in paths:
                disk.remove(path)

        await self._env.offload(work)
