"""A store in memory and a connection that only remembers, for tests of one part alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from model.errors import DiskError
from model.ids import PhysicalOffset, QueueOffset
from runtime.direct import NO_DESCRIPTOR
from store.files.record import BLANK_BYTES, Dispatch, DispatchParser, NewMessage, blank, encode
from store.flow.writing import Put


class FakeConnection:
    """What PendingAcks and the fast path use of a connection."""

    def __init__(self, remote: str = "127.0.0.1:40000") -> None:
        self.remote = remote
        self.attributes: dict[str, Any] = {}
        self.written: list[bytes] = []
        self.again: list[bytes] = []
        self.closed = self.goes_first = False
        self.held = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    write_now = write

    def at_once(self, data: bytes) -> int:
        return NO_DESCRIPTOR

    def write_rest(self, data: bytes, sent: int) -> None:
        raise AssertionError("no descriptor was told")

    def handle_again(self, frames: Iterable[bytes]) -> None:
        self.again += frames

    def send(self, command: Any) -> None:
        raise AssertionError("answers leave as bytes here")

    def close(self) -> None:
        self.closed = True

    def hold(self, held: bool) -> None:
        self.held = held

    @property
    def data(self) -> bytes:
        return b"".join(self.written)


class FakeLog:
    def __init__(self, segment_bytes: int) -> None:
        self.data = bytearray()
        self.flushed = 0
        self.segment_bytes = segment_bytes

    @property
    def end(self) -> int:
        return len(self.data)

    @property
    def room(self) -> int:
        return self.segment_bytes - self.end % self.segment_bytes - BLANK_BYTES

    def roll(self) -> None:
        left = self.segment_bytes - self.end % self.segment_bytes
        self.data += blank(left) + bytes(left - BLANK_BYTES)


class FakeOffsets:
    """``table``: (topic, queue id) -> offset of the next message."""

    def __init__(self) -> None:
        self.table: dict[tuple[str, int], int] = {}


class FakeStore:
    """Appends and puts as the store does, in memory and at a fixed time."""

    def __init__(self, now_ms: int = 1_700_000_000_000, segment_bytes: int = 1 << 20) -> None:
        self.log = FakeLog(segment_bytes)
        self.now_ms = now_ms
        self.why_not_writable: str | None = None
        self.dispatches: list[Dispatch] = []
        self.appends = 0
        self.fail_appends = 0
        self.offsets = FakeOffsets()
        self.writer = self
        self.before_append: Callable[[], None] = lambda: None
        self._parser = DispatchParser([0, 1000, 5000, 10000])

    def stamp_ms(self) -> int:
        return self.now_ms

    def next_offset(self, topic: str, queue_id: int) -> int:
        return self.offsets.table.get((topic, queue_id), 0)

    def append(self, chunks: Sequence[Any], size: int, dispatches: Sequence[Dispatch]) -> None:
        self.before_append()
        self.append_next(chunks, size, dispatches)

    def append_next(self, chunks: Sequence[Any], size: int, dispatches: Sequence[Dispatch]) -> None:
        if self.fail_appends:
            self.fail_appends -= 1
            raise DiskError("disk full")
        data = b"".join(chunks)
        assert len(data) == size, "size is the length of the chunks"
        assert size <= self.log.room, "records never cross a segment"
        self.log.data += data
        self.dispatches += dispatches
        self.appends += 1
        for one in dispatches:
            self.offsets.table[one.topic, one.queue_id] = one.queue_offset + 1

    @property
    def next_offsets(self) -> dict[tuple[str, int], int]:
        return dict(self.offsets.table)

    def put(self, message: NewMessage | list[NewMessage], *, stored_before: bool = False) -> list[Put]:
        self.before_append()
        messages = message if isinstance(message, list) else [message]
        total = sum(len(encode(m, 0, 0, 0)) for m in messages)
        if total > self.log.room:
            self.log.roll()
        puts, chunks, dispatches = [], [], []
        offset = self.log.end
        nexts: dict[tuple[str, int], int] = {}
        for one in messages:
            key = (one.topic, one.queue_id)
            queue_offset = nexts.get(key, self.next_offset(*key))
            nexts[key] = queue_offset + 1
            raw = encode(one, queue_offset, offset, self.now_ms)
            chunks.append(raw)
            dispatches.append(self._parser.one(raw, 0, len(raw)))
            puts.append(Put(PhysicalOffset(offset), len(raw), QueueOffset(queue_offset)))
            offset += len(raw)
        self.append(chunks, offset - self.log.end, dispatches)
        return puts

    def sync_to(self, offset: int) -> None:
        return None
