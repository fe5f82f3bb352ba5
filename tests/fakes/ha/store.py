"""A store of plain bytes for the tests of replication: what ``ha`` needs of a MessageStore."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from model.errors import DiskError
from store.flow.upkeep.throttle import Throttle
from store.recover.abort_file import AbortFile
from store.recover.evidence import LogWasLonger
from tests.fakes.disk.memory import FaultyDisk


class Entry(NamedTuple):
    epoch: int
    start: int


class FakeEpochs:
    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.unreadable: str | None = None
        self.classic_from: int | None = None

    @property
    def last(self) -> Entry | None:
        return self.entries[-1] if self.entries else None

    def append(self, epoch: int, start: int) -> None:
        last = self.last
        if last == (epoch, start):
            return
        if last is not None and (epoch <= last.epoch or start < last.start):
            raise ValueError(f"epoch {epoch} at {start} cannot follow {last}")
        kept = self.entries[:-1] if last is not None and last.start == start else self.entries
        self.entries = [*kept, Entry(epoch, start)]

    def leave(self, end: int) -> None:
        if self.entries and (self.classic_from is None or self.classic_from > end):
            self.classic_from = end

    def replace(self, entries: Sequence[tuple[int, int]]) -> None:
        self.entries = [Entry(*entry) for entry in entries]

    def labelled(self) -> None:
        self.classic_from = None

    def trust(self, entries: Sequence[tuple[int, int]]) -> None:
        self.entries, self.unreadable, self.classic_from = [Entry(*entry) for entry in entries], None, None

    def truncate_suffix(self, offset: int) -> None:
        self.entries = [entry for entry in self.entries if entry.start < offset]


class FakeDamage:
    """No byte is known to be damaged."""

    ranges: tuple[()] = ()

    def at(self, offset: int) -> None:
        return None

    def overlaps(self, begin: int, end: int) -> bool:
        return False

    def next_begin(self, offset: int, default: int) -> int:
        return default


class FakeLog:
    def __init__(self, segment_bytes: int) -> None:
        self.data = bytearray()
        self.min_offset = 0
        self.flushed = 0
        self.generation = 0
        self.segment_bytes = segment_bytes

    @property
    def end(self) -> int:
        return self.min_offset + len(self.data)

    def read(self, offset: int, size_max: int) -> bytes:
        if offset < self.min_offset:
            raise DiskError(f"{offset} is deleted")
        size_max = min(size_max, self.segment_bytes - offset % self.segment_bytes)
        at = offset - self.min_offset
        return bytes(self.data[at : at + size_max])

    def whole(self, data: bytes, at: int, offset: int) -> int:
        """Records end where ten divides the offset; 0: ``data`` ends before the record does."""
        size = 10 - offset % 10
        return size if at + size <= len(data) else 0


class FakeStore:
    """Records have ``record_bytes`` each; a sync happens when ``flush`` is called."""

    def __init__(self, *, segment_bytes: int = 4096, record_bytes: int = 10) -> None:
        self.log = FakeLog(segment_bytes)
        self.appended = b""
        self.epochs = FakeEpochs()
        self.damage = FakeDamage()
        self.throttle = Throttle()
        self.confirmed = 0
        self.recovered: None = None
        self.was_longer = LogWasLonger(FaultyDisk(), "/store")
        self.abort = AbortFile(FaultyDisk(), "/store", "boot")
        self.why_not_writable: str | None = None
        self.on_append: list[Callable[[int], None]] = []
        self.on_flush: list[Callable[[int], None]] = []
        self.on_broken: list[Callable[[BaseException], None]] = []
        self.synced_to = 0
        self.auto_flush = True
        self.cuts: list[int] = []
        self.fail_appends = False
        self.put_asides: list[bytes] = []
        self._record_bytes = record_bytes

    @property
    def confirmed_records_end(self) -> int:
        """Every byte is a record of its own here."""
        return self.confirmed

    @property
    def dispatched(self) -> int:
        return self.log.end - self.log.end % self._record_bytes

    def grow(self, data: bytes) -> None:
        """What a client's send does on a master."""
        self.log.data += data
        self.appended = data
        for hook in self.on_append:
            hook(self.log.end)
        self.appended = b""

    def append_raw(self, offset: int, data: bytes) -> None:
        if self.fail_appends:
            self.why_not_writable = "no space left"
            raise DiskError("no space left")
        if offset != self.log.end:
            if self.log.data:
                raise DiskError(f"{offset} is not the end {self.log.end}")
            self.log.min_offset = offset
        self.log.data += data
        for hook in self.on_append:
            hook(self.log.end)

    def confirm(self, offset: int) -> None:
        assert offset <= self.log.end
        self.confirmed = max(self.confirmed, offset)

    def confirm_copied(self, offset: int) -> None:
        self.confirm(min(offset, self.log.end))

    def hurry(self) -> None:
        pass

    def truncate(self, offset: int) -> None:
        self.cuts.append(offset)
        if offset % self._record_bytes:
            raise DiskError(f"{offset} is not a record boundary")
        del self.log.data[offset - self.log.min_offset :]
        self.confirmed = min(self.confirmed, offset)
        self.log.flushed = min(self.log.flushed, offset)

    def quarantine(self) -> str:
        self.put_asides.append(bytes(self.log.data))
        self.log.data.clear()
        self.log.min_offset = self.log.flushed = self.confirmed = 0
        self.epochs.entries = []
        return f"/aside-{len(self.put_asides)}"

    def truncate_partial_tail(self) -> int:
        extra = self.log.end % self._record_bytes
        if extra:
            del self.log.data[-extra:]
        return self.log.end

    def rebuild_queue_offsets(self) -> None:
        pass

    def sync_to(self, offset: int) -> None:
        self.synced_to = max(self.synced_to, offset)
        if self.auto_flush:
            self.flush()

    def flush(self) -> None:
        self.log.flushed = self.log.end
        for hook in self.on_flush:
            hook(self.log.flushed)
