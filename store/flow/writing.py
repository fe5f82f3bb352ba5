"""How do messages get their place in the log: encoded here, or as bytes of a master's log?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from model.config import StoreConfig
from model.errors import DiskError, Refused
from model.ids import PhysicalOffset, QueueOffset
from model.message import KEYS, TRANSACTION_PREPARED, UNIQ_KEY, VALUE_END, property_of
from runtime.env import Buffer
from store.files.consume_queue import is_queue_name
from store.files.record import BLANK_BYTES, OVERHEAD_BYTES_MAX, Dispatch, NewMessage, encode, place
from store.files.store_files import StoreFiles
from store.flow import multi_dispatch
from store.flow.queue_offsets import QueueOffsets
from store.flow.store_flow import StoreFlow, has_light_queues

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

    record: bytearray
    message: NewMessage
    tags_code: int
    uniq_key: str
    keys: str


class Writer:
    """Appends to one store's log; ``offsets`` says which queue offset is next. Calls ``on_append(end)``.

    Holds: what is appended is known to the dispatcher and to ``offsets`` before anybody hears of it.
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

    def rebuild_offsets(self) -> None:
        """See MessageStore.rebuild_queue_offsets."""
        newest_ms = self.offsets.rebuild(self._dispatcher.dispatched)
        self._last_stamp_ms = max(self._last_stamp_ms, self._dispatcher.last_timestamp_ms, newest_ms)
        self.offsets.check_none_given_twice()

    def append(self, chunks: Sequence[Buffer], size: int, dispatches: Sequence[Dispatch]) -> None:
        """See MessageStore.append."""
        self.before_append()
        commit_log = self._log
        start = commit_log.end
        if dispatches and dispatches[0].offset != start:
            raise AssertionError(f"a record made for {dispatches[0].offset}, and the log ends at {start}")
        commit_log.append(chunks, size)
        self.offsets.appended(dispatches)
        end = commit_log.end
        self._dispatcher.remember(start, end, dispatches)
        for hook in self._on_append:
            hook(end)

    def _rolled(self, start: PhysicalOffset, end: PhysicalOffset) -> None:
        self._dispatcher.remember(start, end, ())
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
                raise Refused(f"{size} bytes do not fit into one segment", 13)
            self._log.roll()
            records, dispatches, size = self._encode_all(messages, stamp_ms, stored_before)
        if self._light_queues:
            self._quota.note(dispatches)
        self.append(records, size, dispatches)
        return _puts(dispatches)

    def _check(self, message: NewMessage, stored_before: bool) -> None:
        if len(message.body) > self._config.message_bytes_max and not stored_before:
            raise Refused(f"the body has {len(message.body)} bytes, maxMessageSize is exceeded", 13)
        if not is_queue_name(message.topic, message.queue_id):
            raise Refused(f"no queue can be named {message.topic!r} {message.queue_id}", 13)

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
                raise Refused(f"the record has {len(raw)} bytes, maxMessageSize is exceeded", 13)
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

    def prepare(self, message: NewMessage) -> Prepared:
        """What takes long of ``put``, for one message of a batch. Raises as ``put``."""
        self._check(message, stored_before=False)
        if message.properties.endswith("\0"):
            message = replace(message, properties=message.properties + VALUE_END)  # else it would look torn
        if self.is_light(message):
            return Prepared(bytearray(), message, 0, "", "")
        record = bytearray(encode(message, 0, 0, 0, append_prop_crc=self._config.append_prop_crc))
        if len(record) > self._config.message_bytes_max + OVERHEAD_BYTES_MAX:
            raise Refused(f"the record has {len(record)} bytes, maxMessageSize is exceeded", 13)
        properties = message.properties
        return Prepared(
            record,
            message,
            self._parser.tags_code(message.topic, properties, 0),
            property_of(properties, UNIQ_KEY) or "",
            property_of(properties, KEYS) or "",
        )

    def put_prepared(self, messages: Sequence[Prepared]) -> list[Put]:
        """``put`` of messages of one queue, neither prepared nor delayed. Raises as ``put``."""
        self.before_append()
        if not all(item.record for item in messages):
            return self._put_with_light(messages)
        size = sum(len(item.record) for item in messages)
        if size > self._log.room:
            if size > self._log.segment_bytes - BLANK_BYTES:
                raise Refused(f"{size} bytes do not fit into one segment", 13)
            self._log.roll()
        stamp_ms = self.stamp_ms()
        topic, queue_id = messages[0].message.topic, messages[0].message.queue_id
        queue_offset: int = self.next_offset(topic, queue_id)
        at: int = self._log.end
        dispatches: list[Dispatch] = []
        new, sys_flag = tuple.__new__, messages[0].message.sys_flag
        prop_crc = self._config.append_prop_crc
        for record, _, tags_code, uniq_key, keys in messages:
            place(record, sys_flag, queue_offset, at, stamp_ms, prop_crc=prop_crc)
            total = len(record)
            item = (at, total, topic, queue_id, queue_offset, tags_code, uniq_key, keys, stamp_ms, sys_flag)
            dispatches.append(new(Dispatch, item))
            queue_offset += 1
            at += total
        self.append([item.record for item in messages], size, dispatches)
        return _puts(dispatches)

    def _put_with_light(self, messages: Sequence[Prepared]) -> list[Put]:
        """``put_prepared`` when some of the records are still to be made."""
        stamp_ms = self.stamp_ms()
        records, dispatches, size = self._placed(messages, stamp_ms)
        if size > self._log.room:
            if size > self._log.segment_bytes - BLANK_BYTES:
                raise Refused(f"{size} bytes do not fit into one segment", 13)
            self._log.roll()
            records, dispatches, size = self._placed(messages, stamp_ms)
        self.append(records, size, dispatches)
        return _puts(dispatches)

    def _placed(
        self, messages: Sequence[Prepared], stamp_ms: int
    ) -> tuple[list[Buffer], list[Dispatch], int]:
        """As ``_encode_all``."""
        records: list[Buffer] = []
        dispatches: list[Dispatch] = []
        following: dict[tuple[str, int], int] = {}
        at: int = self._log.end
        prop_crc = self._config.append_prop_crc
        for record, message, tags_code, uniq_key, keys in messages:
            if not record:
                raw, found = self._encode(message, PhysicalOffset(at), stamp_ms, following)
                records.append(raw)
                dispatches += found
                at += len(raw)
                continue
            key = (message.topic, message.queue_id)
            offset = QueueOffset(following.get(key, self.next_offset(*key)))
            following[key] = offset + 1
            place(record, message.sys_flag, offset, at, stamp_ms, prop_crc=prop_crc)
            size, flags = len(record), message.sys_flag
            dispatches.append(
                Dispatch(PhysicalOffset(at), size, *key, offset, tags_code, uniq_key, keys, stamp_ms, flags)
            )
            records.append(record)
            at += size
        return records, dispatches, at - self._log.end

    # -- bytes of a master's log -----------------------------------------------------------------------

    def append_raw(self, offset: int, data: Buffer, begin_at: Callable[[int], None]) -> None:
        """See MessageStore.append_raw. ``begin_at`` lets the empty log begin at an offset."""
        self.before_append()
        commit_log = self._log
        if offset != commit_log.end:
            if commit_log.end != commit_log.min_offset:
                raise DiskError(f"bytes for {offset} came, the log ends at {commit_log.end}")
            if offset % commit_log.segment_bytes:
                raise DiskError(f"an empty log cannot start at {offset}, inside of a segment")
            begin_at(offset)
        at = 0
        while at < len(data):
            left = commit_log.segment_bytes - commit_log.end % commit_log.segment_bytes
            part = data if at == 0 and len(data) <= left else memoryview(data)[at : at + left]
            commit_log.append((part,), len(part))
            at += len(part)
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
