"""How do messages get their place in the log: encoded here, or as bytes of a master's log?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Final, NamedTuple

from model.codes import Response
from model.config import StoreConfig
from model.errors import DiskError, Refused
from model.ids import PhysicalOffset, QueueOffset
from model.message import KEYS, TRANSACTION_PREPARED, UNIQ_KEY, VALUE_END, ZEROS, property_of
from runtime.env import Buffer
from store.files.compiled import PACKED
from store.files.consume_queue import is_queue_name
from store.files.record import BLANK_BYTES, OVERHEAD_BYTES_MAX, Dispatch, NewMessage, encode, place, unplaced
from store.files.store_files import StoreFiles
from store.flow.dispatching import multi_dispatch
from store.flow.dispatching.queue_offsets import QueueOffsets
from store.flow.dispatching.store_flow import StoreFlow, has_light_queues

_FIRST: Final = QueueOffset(0)
CLOCK_BACK_MAX_MS: Final = 60_000
"""Store times do not go back while the clock is behind by no more than this."""


class Put(NamedTuple):
    """Where a message went: bytes, bytes, messages."""

    physical_offset: PhysicalOffset
    size: int
    queue_offset: QueueOffset


class Prepared(NamedTuple):
    """A message of an ordinary queue as a record that lacks its place: it is encoded in slices beforehand.
    Empty for one that names light queues: its offsets there are part of its properties."""

    record: bytearray | memoryview
    message: NewMessage


class Gathered(NamedTuple):
    """Records of ``messages``, one behind the other in ``data``: their places are filled in there."""

    messages: list[Prepared]
    data: bytearray


ILLEGAL: Final = Response.MESSAGE_ILLEGAL
_PUT: Final = partial(tuple.__new__, Put)  # of thousands, in one call each


class Writer:
    """Appends to one store's log; ``offsets`` says which queue offset is next. Each hook of
    ``on_append`` hears the log's new end.

    Holds: what is appended is known to the dispatcher and to ``offsets`` before anybody hears of it; bytes of
    a master (``append_raw``) to the dispatcher alone.
    """

    def __init__(
        self,
        config: StoreConfig,
        files: StoreFiles,
        flow: StoreFlow,
        now_ms: Callable[[], int],
        on_append: list[Callable[[PhysicalOffset], None]],
    ) -> None:
        self.offsets = QueueOffsets(files, flow.walker)
        self.before_append: Callable[[], None] = lambda: None
        """Called before anything is encoded or appended: who has records on their way appends them then."""
        self.begin_at: Callable[[int], None] = lambda offset: None
        """Lets the empty log begin at an offset."""
        self.appended: Buffer = b""
        """See MessageStore.appended."""
        self._config = config
        self._log = files.log
        self._dispatcher = flow.dispatcher
        self._parser = flow.parser
        self._now_ms = now_ms
        self._on_append = on_append
        self._light_queues = has_light_queues(config)
        self._quota = multi_dispatch.Quota(config, self.offsets, now_ms)
        self._last_stamp_ms = 0
        self._log.on_roll = self._rolled

    def stamp_ms(self) -> int:
        """The store timestamp for a record appended now: the clock, but not going back with it."""
        now_ms = self._now_ms()
        if now_ms < self._last_stamp_ms <= now_ms + CLOCK_BACK_MAX_MS:
            return self._last_stamp_ms
        self._last_stamp_ms = now_ms
        return now_ms

    def next_offset(self, topic: str, queue_id: int) -> QueueOffset:
        """Queue offset of the next record of that queue."""
        return self.offsets.table.get((topic, queue_id), _FIRST)

    def rebuilding_offsets(self) -> Iterator[None]:
        """See MessageStore.rebuild_queue_offsets; the steps of that."""
        before = (self._log.end, self._log.generation)
        yield from self.offsets.rebuilding(self._dispatcher.dispatched)
        after = (self._log.end, self._log.generation)
        assert before == after, f"the log became another one while its queue offsets were counted: {after}"
        newest_ms = max(self._dispatcher.last_timestamp_ms, self.offsets.newest_ms)
        self._last_stamp_ms = max(self._last_stamp_ms, newest_ms)

    def append(self, chunks: Sequence[Buffer], size: int, dispatches: Sequence[Dispatch]) -> None:
        """See MessageStore.append."""
        self.before_append()
        self.append_next(chunks, size, dispatches)

    def append_next(self, chunks: Sequence[Buffer], size: int, dispatches: Sequence[Dispatch]) -> None:
        """``append`` by who has called ``before_append``, or is who waits."""
        commit_log = self._log
        start = commit_log.end
        if dispatches:
            begin = dispatches.begin if isinstance(dispatches, PACKED) else dispatches[0].offset
            if begin != start:
                raise AssertionError(f"a record made for {begin}, and the log ends at {start}")
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        commit_log.append((data,), size)
        self.offsets.appended(dispatches)
        end = commit_log.end
        self._dispatcher.remembered.add(start, end, dispatches)
        self.appended = data
        try:
            for hook in self._on_append:
                hook(end)
        finally:
            self.appended = b""

    def _rolled(self, start: PhysicalOffset, end: PhysicalOffset) -> None:
        self._dispatcher.remembered.add(start, end, ())
        for hook in self._on_append:
            hook(end)

    # -- messages --------------------------------------------------------------------------------------

    def put(self, messages: Sequence[NewMessage], *, stored_before: bool) -> list[Put]:
        """See MessageStore.put."""
        self.before_append()
        for message in messages:
            self._check(message, stored_before)
        if self._light_queues:
            messages = self._quota.admitted(messages, stored_before=stored_before)
        stamp_ms = self.stamp_ms()
        records, dispatches, size = self._encode_all(messages, stamp_ms, stored_before)
        if size > self._log.room:
            if size > self._log.segment_bytes - BLANK_BYTES:
                raise Refused(f"{size} bytes do not fit into one segment", ILLEGAL)
            self._log.roll()
            records, dispatches, size = self._encode_all(messages, stamp_ms, stored_before)
        if self._light_queues:
            self._quota.note((item.topic, item.queue_id) for item in dispatches)
        self.append_next(records, size, dispatches)
        return _puts(dispatches)

    def _check(self, message: NewMessage, stored_before: bool) -> None:
        if len(message.body) > self._config.message_bytes_max and not stored_before:
            raise Refused(
                f"the body has {len(message.body)} bytes, maxMessageSize is exceeded",
                ILLEGAL,
            )
        if not is_queue_name(message.topic, message.queue_id):
            raise Refused(f"no queue can be named {message.topic!r} {message.queue_id}", ILLEGAL)
        if ZEROS in message.properties and not stored_before:
            raise Refused(f"the properties hold {len(ZEROS)} NULs in a row", ILLEGAL)

    def _encode_all(
        self, messages: Sequence[NewMessage], stamp_ms: int, stored_before: bool = False
    ) -> tuple[list[bytes], list[Dispatch], int]:
        """The records as they are to stand at the log's end, their dispatches, and their size together."""
        records: list[bytes] = []
        dispatches: list[Dispatch] = []
        following: dict[tuple[str, int], int] = {}
        at: int = self._log.end
        for message in messages:
            raw, found = self._encode(message, PhysicalOffset(at), stamp_ms, following)
            if len(raw) > self._config.message_bytes_max + OVERHEAD_BYTES_MAX and not stored_before:
                raise Refused(f"the record has {len(raw)} bytes, maxMessageSize is exceeded", ILLEGAL)
            records.append(raw)
            dispatches += found
            at += len(raw)
        return records, dispatches, at - self._log.end

    def _encode(
        self, message: NewMessage, at: PhysicalOffset, stamp_ms: int, following: dict[tuple[str, int], int]
    ) -> tuple[bytes, list[Dispatch]]:
        """The record at ``at`` and its places in its queue and its light queues. ``following`` has the next
        offsets of the queues the records before it go into."""
        key = (message.topic, message.queue_id)
        queue_offset = 0
        if not message.sys_flag & TRANSACTION_PREPARED:
            queue_offset = following.get(key, self.next_offset(*key))
            following[key] = queue_offset + 1
        if self._light_queues:
            text = multi_dispatch.with_offsets(message, following, self.next_offset)
            message = replace(message, properties=text)
        if message.properties.endswith("\0"):
            message = replace(message, properties=message.properties + VALUE_END)  # else it would look torn
        raw = encode(message, queue_offset, at, stamp_ms, append_prop_crc=self._config.append_prop_crc)
        properties = message.properties
        dispatch = Dispatch(
            at,
            len(raw),
            message.topic,
            message.queue_id,
            QueueOffset(queue_offset),
            self._parser.tags_code(message.topic, properties, stamp_ms),
            property_of(properties, UNIQ_KEY) or "",
            property_of(properties, KEYS) or "",
            stamp_ms,
            message.sys_flag,
        )
        if not self._light_queues:
            return raw, [dispatch]
        more = multi_dispatch.dispatches(dispatch, properties)
        following |= {(item.topic, item.queue_id): item.queue_offset + 1 for item in more}
        return raw, [dispatch, *more]

    def is_light(self, message: NewMessage) -> bool:
        """Whether it has a place in light queues: then its record is made when that is known."""
        return self._light_queues and multi_dispatch.names_queues(message.properties)

    def prepare(self, message: NewMessage, *, stored_before: bool = False) -> Prepared:
        """What takes long of ``put``, for one message. Raises as ``put``."""
        self._check(message, stored_before)
        if message.properties.endswith("\0"):
            message = replace(message, properties=message.properties + VALUE_END)  # else it would look torn
        if self.is_light(message):
            return Prepared(bytearray(), message)
        return Prepared(self._unplaced(message, stored_before), message)

    def _unplaced(self, message: NewMessage, stored_before: bool) -> bytearray:
        record = unplaced(message, append_prop_crc=self._config.append_prop_crc)
        if len(record) > self._config.message_bytes_max + OVERHEAD_BYTES_MAX and not stored_before:
            raise Refused(f"the record has {len(record)} bytes, maxMessageSize is exceeded", ILLEGAL)
        return record

    @staticmethod
    def gather(messages: list[Prepared]) -> Gathered | list[Prepared]:
        """What else can be done of ``put_prepared`` before its turn: of thousands it takes as long as a
        slice."""
        if not all(item.record for item in messages):
            return messages  # of some the length is not known
        data = bytearray().join([item.record for item in messages])
        view, at, found = memoryview(data), 0, []
        for record, message in messages:
            found.append(Prepared(view[at : at + len(record)], message))
            at += len(record)
        return Gathered(found, data)

    def put_prepared(
        self, prepared: Gathered | Sequence[Prepared], *, stored_before: bool = False
    ) -> list[Put]:
        """``put`` of what ``prepare`` made. Raises as ``put``.

        The records get their places, and no more in this turn: the dispatcher reads them from the log, in
        pieces.
        """
        self.before_append()
        messages = prepared.messages if isinstance(prepared, Gathered) else prepared
        following: dict[tuple[str, int], int] = {}
        records = self._records(messages, following, stored_before)
        sizes = list(map(len, records))
        size = sum(sizes)
        if size > self._log.room:
            if size > self._log.segment_bytes - BLANK_BYTES:
                raise Refused(f"{size} bytes do not fit into one segment", ILLEGAL)
            self._log.roll()
        stamp_ms, prop_crc = self.stamp_ms(), self._config.append_prop_crc
        offsets = self._offsets_of(messages, following)
        starts = list(accumulate(sizes[:-1], initial=int(self._log.end)))
        for record, item, at, queue_offset in zip(records, messages, starts, offsets, strict=True):
            place(record, item.message.sys_flag, queue_offset, at, stamp_ms, prop_crc=prop_crc)
        self._log.append((prepared.data,) if isinstance(prepared, Gathered) else records, size)
        self._quota.note(following)
        self.offsets.table.update(following)  # type: ignore[arg-type]
        for hook in self._on_append:
            hook(self._log.end)
        return list(map(_PUT, zip(starts, sizes, offsets, strict=True)))

    def _records(
        self, messages: Sequence[Prepared], following: dict[tuple[str, int], int], stored_before: bool
    ) -> list[bytearray | memoryview]:
        """The records without their places; ``following`` gets the next offsets of their light queues."""
        light = [item.message for item in messages if not item.record]
        if not light:
            return [item.record for item in messages]
        admitted = iter(self._quota.admitted(light, stored_before=stored_before))
        return [
            item.record or self._light_record(next(admitted), following, stored_before) for item in messages
        ]

    def _offsets_of(self, messages: Sequence[Prepared], following: dict[tuple[str, int], int]) -> list[int]:
        """The queue offset of each; ``following`` gets the next ones of their queues."""
        found: list[int] = []
        key = ("", -1)
        after = 0
        for _, message in messages:
            if message.sys_flag & TRANSACTION_PREPARED:
                found.append(0)
                continue
            if message.queue_id != key[1] or message.topic is not key[0]:
                following[key] = after
                key = (message.topic, message.queue_id)
                after = following.get(key, self.next_offset(*key))
            found.append(after)
            after += 1
        following[key] = after
        following.pop(("", -1))
        return found

    def _light_record(
        self, message: NewMessage, following: dict[tuple[str, int], int], stored_before: bool
    ) -> bytearray:
        """The record of a message that names light queues, still without its place. ``following``: as in
        ``_encode``."""
        text = multi_dispatch.with_offsets(message, following, self.next_offset)
        record = self._unplaced(replace(message, properties=text), stored_before)
        names = multi_dispatch.places(message.topic, text)
        following |= {(name, multi_dispatch.QUEUE_ID): offset + 1 for name, offset in names}
        return record

    # -- bytes of a master's log -----------------------------------------------------------------------

    def append_raw(self, offset: int, data: Buffer) -> None:
        """See MessageStore.append_raw."""
        self.before_append()
        commit_log = self._log
        if offset != commit_log.end:
            if commit_log.end != commit_log.min_offset:
                raise DiskError(f"bytes for {offset} came, the log ends at {commit_log.end}")
            if offset % commit_log.segment_bytes:
                raise DiskError(f"an empty log cannot start at {offset}, inside of a segment")
            self.begin_at(offset)
        at, size = 0, len(data)
        while at < size:
            left = commit_log.segment_bytes - commit_log.end % commit_log.segment_bytes
            part = data if at == 0 and size <= left else memoryview(data)[at : at + left]
            commit_log.append((part,), len(part))
            at += len(part)
        self._dispatcher.remember_raw(offset, data)
        for hook in self._on_append:
            hook(commit_log.end)


def _puts(dispatches: Iterable[Dispatch]) -> list[Put]:
    at = -1
    found: list[Put] = []
    for item in dispatches:
        if item.offset != at:  # behind it come those of its light queues
            at = item.offset
            found.append(Put(at, item.size, item.queue_offset))
    return found
