"""Where do the bytes of all messages go, in which order, and which of them are safe on disk?

Segments of equal size (``mappedFileSizeCommitLog``), one after the other; a physical offset is the start of
the file plus the position in it, the same on every replica. A record never crosses a segment: what it
leaves free is closed by a blank (store.files.record). Beyond ``end`` there are only zeros: every way that
moves ``end`` back, or leaves a torn write behind, erases those bytes before anything is appended, so that a
crash cannot bring records back that were cut.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from model.errors import ConfigError, DiskError
from model.ids import PhysicalOffset
from runtime.env import Buffer, Env
from store.files.health import Health
from store.files.record import BLANK_BYTES, blank, whole
from store.files.segment import Segment, SegmentDir

log = logging.getLogger(__name__)

WRITING: Final = "writing the CommitLog"
ALLOCATING: Final = "allocating a CommitLog segment"
GROWN_BYTES: Final = 8 << 20
"""So many new bytes are worth a sync before its time: what is not settled is read again after a crash."""
REWRITE_BYTES: Final = 1 << 20
PAGE_BYTES: Final = 4096
RETRY_FREE_BYTES: Final = 1 << 20
"""Free bytes from which on a write that lacked space is allowed to try again."""


class Growth:
    """When does the log's growth concern others? ``notice_at``: the offset at which to look again."""

    __slots__ = ("grown_at", "notice_at", "on_grown")

    def __init__(self) -> None:
        self.on_grown: Callable[[], None] | None = None
        self.grown_at = GROWN_BYTES
        self.notice_at = 0  # half a segment is full, or there are GROWN_BYTES new ones

    def notice(self, end: int, tail_end: int) -> None:
        """The log has passed ``notice_at`` and ends at ``end``; the tail segment ends at ``tail_end``."""
        if end > self.grown_at:
            self.grown_at = end + GROWN_BYTES
            if self.on_grown is not None:
                self.on_grown()
        self.notice_at = min(tail_end, self.grown_at)

    def roll(self, end: int, half: int) -> None:
        """The log goes on in a segment that is half full at ``half``."""
        self.grown_at = min(self.grown_at, end + GROWN_BYTES)
        self.notice_at = min(self.grown_at, half)


class SegmentAhead:
    """Makes the next segment off the loop, before the log needs it. ``ready``: it is there."""

    def __init__(self, env: Env, segments: SegmentDir, health: Health) -> None:
        self.ready: Segment | None = None
        self._env = env
        self._dir = segments
        self._health = health
        self._drops = 0  # what was begun before the last one is not kept
        self._wake = asyncio.Event()

    def look(self) -> None:
        """Look whether a segment is wanted, or the task is to stop."""
        self._wake.set()

    async def run(self, wanted: Callable[[], int | None], stopped: Callable[[], bool]) -> None:
        """Until ``stopped``. ``wanted``: where the segment starts that will be needed, None while none is."""
        while not stopped():
            await self._wake.wait()
            self._wake.clear()
            start = None if stopped() else wanted()
            if start is None or (self.ready is not None and self.ready.start == start):
                continue
            segment, drops = self._dir.new(start), self._drops
            try:
                await self._env.offload(lambda segment=segment: self._make(segment))  # type: ignore[misc]
            except OSError as error:
                segment.retire()
                self._health.failed(error, ALLOCATING)
                continue
            self._health.room(ALLOCATING)
            self._keep(segment, wanted() if drops == self._drops else None)

    def _make(self, segment: Segment) -> None:
        segment.create().allocate(self._dir.segment_bytes)
        segment.file.sync()
        self._dir.sync_dir()

    def _keep(self, segment: Segment, wanted: int | None) -> None:
        """Keep a new segment, unless the log went elsewhere while it was made."""
        if self._dir.at(segment.start) is not None:
            segment.retire()  # the loop needed it sooner and opened it itself
        elif wanted == segment.start:
            self.ready = segment
        else:
            segment.retire()
            with suppress(FileNotFoundError):  # the loop made it sooner, and it has expired since
                self._env.disk.remove(segment.path)

    def take(self, start: int) -> Segment | None:
        """The segment that starts at ``start``, if it is ready; one for another place is given up."""
        ready, self.ready = self.ready, None
        return ready if ready is not None and ready.start == start else None

    def give_back(self, segment: Segment) -> None:
        """A segment that was taken, and that the log did not go on in."""
        self.ready = segment

    def drop(self) -> None:
        """Remove the segment that is ready, or one that is being made, once it is. Raises OSError."""
        self._drops += 1
        ready, self.ready = self.ready, None
        if ready is not None:
            ready.retire()
            self._env.disk.remove(ready.path)

    def close(self) -> None:
        if self.ready is not None:
            self.ready.retire()
            self.ready = None


class CommitLog:
    """The log of one broker.

    ``end`` is the offset after the last byte written (page cache), ``flushed`` the offset below which
    everything is durable. Offsets are bytes. All calls are made on the event loop; ``sync`` and ``erase``
    block.
    """

    def __init__(
        self, env: Env, path: str, segment_bytes: int, health: Health, *, prop_crc: bool = False
    ) -> None:
        if "," in path:
            raise ConfigError(f"storePathCommitLog={path}: one directory only")
        self.end = PhysicalOffset(0)
        self.flushed = PhysicalOffset(0)
        self.generation = 0  # grows whenever ``end`` moves back: a sync begun before says nothing after
        self.segment_bytes = segment_bytes
        self.on_roll: Callable[[PhysicalOffset, PhysicalOffset], None] | None = None
        self.forgotten: list[str] = []
        """Files of segments that are no part of the log any more, oldest first: retention removes them."""
        self.prop_crc = prop_crc  # do records end with the broker's own CRC property?
        self._env = env
        self._health = health
        self._dir = SegmentDir(env.disk, path, segment_bytes)
        self._tail: Segment | None = None
        self._tail_end = 0  # where the tail segment ends; ``end`` may not pass it
        self.growth = Growth()
        self.ahead = SegmentAhead(env, self._dir, health)
        self._torn_until = 0  # a failed write left bytes between ``end`` and here

    # -- what there is ---------------------------------------------------------------------------------

    @property
    def min_offset(self) -> PhysicalOffset:
        """Offset of the first byte kept: the start of the oldest segment."""
        return PhysicalOffset(self._dir.segments[0].start) if self._dir.segments else self.end

    def segment_names(self) -> list[str]:
        """File names of the segments, oldest first."""
        return [segment.path.rpartition("/")[2] for segment in self._dir.segments]

    @property
    def room(self) -> int:
        """Bytes the next record may take in this segment; what a blank needs is already off."""
        return self.segment_bytes - self.end % self.segment_bytes - BLANK_BYTES

    @property
    def segments(self) -> Sequence[Segment]:
        return self._dir.segments

    def read(self, offset: int, size_max: int) -> bytes:
        """Raw bytes from ``offset``: never beyond ``end`` or the segment; b"" at the end.

        Raises ValueError for an offset outside of the log, DiskError when the disk does.
        """
        if not self.min_offset <= offset <= self.end:
            raise ValueError(f"offset {offset} is outside of the log [{self.min_offset}, {self.end}]")
        in_segment = offset % self.segment_bytes
        size = min(size_max, self.end - offset, self.segment_bytes - in_segment)
        if size <= 0:
            return b""
        segment = self._dir.at(offset)
        if segment is None:
            raise DiskError(f"no segment holds offset {offset}")
        return segment.read(size, in_segment)

    def whole(self, buffer: Buffer, at: int, offset: int) -> int:
        """See record.whole: of a record of this log."""
        return whole(buffer, at, offset, prop_crc=self.prop_crc)

    def need_unbroken(self) -> None:
        """Raise DiskError when the store broke, or was told to stop."""
        if self._health.broken is not None:
            raise DiskError(self._health.broken)

    def check_invariants(self) -> None:
        """Raise if a promise of the log is broken; cheap, for the segments are few."""
        assert self.flushed <= self.end, f"flushed up to {self.flushed}, the log ends at {self.end}"
        assert self.min_offset <= self.end, f"the log [{self.min_offset}, {self.end}) is less than empty"
        assert self._torn_until == 0 or self._torn_until >= self.end, "torn bytes lie behind the end"
        gap = self._dir.gap()
        assert gap is None, f"no segment before {self._dir.segments[gap or 0].start}: the log has a gap"
        tail = self._tail
        assert tail is None or tail.start <= self.end <= self._tail_end, (
            f"the log ends at {self.end}, outside of the segment at {tail and tail.start} it is written to"
        )

    # -- writing ---------------------------------------------------------------------------------------

    def append(self, chunks: Sequence[Buffer], size: int) -> None:
        """Write ``chunks`` (``size`` bytes together) at ``end`` by one pwrite.

        They must fit the segment. Raises DiskError; then ``end`` has not moved and the torn bytes are erased
        now or before the next append.
        """
        if self._tail is None or self.end + size > self._tail_end or self._torn_until:
            self._prepare(size)
        tail = self._tail
        assert tail is not None, "prepared above"
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        if len(data) != size:
            raise ValueError(f"the chunks have {len(data)} bytes, not {size}")
        if self._health.broken is not None:
            self.need_unbroken()
        try:
            (tail.opened or tail.file).pwrite(data, self.end - tail.start)
        except OSError as error:
            self._torn_until = self.end + size
            problem = self._health.failed(error, WRITING)
            self._erase_torn()
            raise problem from error
        self.end = PhysicalOffset(self.end + size)
        if self.end > self.growth.notice_at:
            self._notice()

    def _notice(self) -> None:
        if self._half_full() is not None:
            self.ahead.look()
        self.growth.notice(self.end, self._tail_end)

    def _half_full(self) -> int | None:
        """Where the next segment starts, once the tail is half full and there is no next one."""
        if self._tail is None or self.end <= self._tail_end - self.segment_bytes // 2:
            return None
        return self._tail_end if self._dir.at(self._tail_end) is None else None

    def _prepare(self, size: int) -> None:
        """Make ``append`` of ``size`` bytes possible: a segment to write to, nothing torn at its end."""
        self.need_unbroken()
        if self._torn_until and not self._erase_torn():
            raise DiskError(
                self._health.why_not_writable or "torn bytes at the end of the log cannot be erased"
            )
        if self._tail is None or self.end == self._tail_end:
            self._open_tail()
        if self.end + size > self._tail_end:
            raise ValueError(f"{size} bytes at {self.end} cross the end of the segment at {self._tail_end}")

    def roll(self) -> None:
        """Close this segment by a blank and go on in the next. Raises DiskError; then nothing has moved."""
        left = self.segment_bytes - self.end % self.segment_bytes
        if left == self.segment_bytes:
            return
        if self._torn_until or self._tail is None:
            self._prepare(0)
        old_end = self.end
        following = self._take(old_end + left)
        try:
            self.append([blank(left)] if left >= BLANK_BYTES else [bytes(left)], min(left, BLANK_BYTES))
        except DiskError:
            self.ahead.give_back(following)
            raise
        self.end = PhysicalOffset(old_end + left)
        self._use(following)
        if self.on_roll is not None:
            self.on_roll(old_end, self.end)

    def _open_tail(self) -> None:
        start = self.end - self.end % self.segment_bytes
        self._use(self._take(start))

    def _use(self, segment: Segment) -> None:
        if not self._dir.segments or self._dir.segments[-1].start < segment.start:
            self._dir.segments.append(segment)
        self._tail = segment
        self._tail_end = segment.start + self.segment_bytes
        self.growth.roll(self.end, segment.start + self.segment_bytes // 2)

    def _take(self, start: int) -> Segment:
        """The segment that starts at ``start``: there already, allocated ahead, or allocated now."""
        present = self._dir.at(start)
        if present is not None:
            return present
        ready = self.ahead.take(start)
        if ready is not None:
            return ready
        segment = self._dir.new(start)
        try:
            self._env.disk.makedirs(self._dir.path)
            segment.create().allocate(self.segment_bytes)
            # Before there is a next one: a log with a segment that is too short in its middle does not open.
            segment.file.sync()
        except OSError as error:
            segment.retire()
            raise self._health.failed(error, ALLOCATING) from error
        self._health.room(ALLOCATING)
        self._dir.names_dirty = True
        return segment

    def _erase_torn(self) -> bool:
        """Erase what a failed write left beyond ``end``; False when the disk still refuses."""
        segment = self._dir.at(self.end)
        if segment is not None:
            try:
                segment.erase(
                    self.end - segment.start, min(self._torn_until - segment.start, self.segment_bytes)
                )
            except OSError as error:
                self._health.failed(error, WRITING)
                return False
        self._torn_until = 0
        return True

    def retry_space(self) -> None:
        """After a lack of space: lift the refusal once the file system has some again. Raises OSError."""
        if self._torn_until and not self._erase_torn():
            return
        free = self._env.disk.usage(self._dir.path).free_bytes
        if free >= RETRY_FREE_BYTES:
            self._health.room(WRITING)
        if free >= self.segment_bytes:
            self._health.room(ALLOCATING)
        self.ahead.look()

    async def allocate_ahead(self, stopped: Callable[[], bool]) -> None:
        """Make the next segment once the tail is half full, off the loop, until ``stopped``."""
        await self.ahead.run(self._half_full, stopped)

    # -- syncing ---------------------------------------------------------------------------------------

    def unsynced(self) -> list[Segment]:
        """The segments that may hold bytes between ``flushed`` and ``end``."""
        first = self.flushed - self.flushed % self.segment_bytes
        return [s for s in self._dir.segments if first <= s.start < max(self.end, 1)]

    def take_names_dirty(self) -> bool:
        """Were segments made whose names are not durable yet? Asking takes the duty over."""
        dirty, self._dir.names_dirty = self._dir.names_dirty, False
        return dirty

    def sync_names(self) -> None:
        self._dir.sync_dir()

    def note_reach(self, generation: int) -> None:
        """Before a sync that was begun in ``generation``, in its thread. Blocks; raises OSError: then nothing
        may be synced."""
        if self.end > self.flushed:  # else no sync can lose anything
            self._health.before_sync(lambda: self.end if generation == self.generation else 0)

    def sync(self) -> None:
        """Make everything up to ``end`` durable now. Blocks; raises DiskError (then for ever broken)."""
        self.need_unbroken()
        target = self.end
        try:
            self.note_reach(self.generation)
            if self.take_names_dirty():
                self.sync_names()
            for segment in self.unsynced():
                segment.file.sync()
        except OSError as error:
            raise self._health.failed(error, "syncing the CommitLog", sync=True) from error
        self.flushed = target

    def overwrite(self, offset: int, data: Buffer) -> None:
        """Put ``data`` in the place of bytes the log has already; the caller syncs. Raises DiskError."""
        if not self.min_offset <= offset <= offset + len(data) <= self.end:
            raise DiskError(f"[{offset}, {offset + len(data)}) is not in the log any more")
        at = 0
        try:
            while at < len(data):
                segment = self._dir.at(offset + at)
                assert segment is not None, "the log has no gaps"
                in_segment = offset + at - segment.start
                part = memoryview(data)[at : at + self.segment_bytes - in_segment]
                segment.write(part, in_segment)
                at += len(part)
        except OSError as error:
            raise self._health.failed(error, WRITING) from error

    def rewrite(self, begin: int, until: int) -> None:
        """Write the bytes [``begin``, ``until``) once more as they are; the caller syncs. Blocks.

        After a failed sync the kernel calls pages clean that never reached the disk: only a new write lets
        a later sync cover them. What cannot be read is passed over: it is damage, and noted as such. Raises
        DiskError.
        """
        at = begin
        while at < until:
            segment = self._dir.at(at)
            assert segment is not None, "the log has no gaps"
            in_segment = at - segment.start
            size = min(REWRITE_BYTES - at % REWRITE_BYTES, until - at, self.segment_bytes - in_segment)
            self._rewrite(segment, in_segment, size)
            at += size

    def _rewrite(self, segment: Segment, at: int, size: int) -> None:
        try:
            data = segment.read(size, at)
        except DiskError as error:
            if size > PAGE_BYTES:
                for page in range(at - at % PAGE_BYTES, at + size, PAGE_BYTES):
                    begin = max(page, at)
                    self._rewrite(segment, begin, min(page + PAGE_BYTES, at + size) - begin)
            else:
                log.error("[%d, +%d) is not written again: %s", segment.start + at, size, error)
            return
        try:
            segment.write(data, at)
        except OSError as error:
            raise self._health.failed(error, WRITING) from error

    def pinned(self, begin: int, until: int) -> list[Segment]:
        """The segments that hold [``begin``, ``until``), open and pinned: the caller unpins them."""
        found = [s for s in self._dir.segments if s.start < until and begin < s.start + self.segment_bytes]
        for segment in found:
            segment.create()
            segment.pin()
        return found

    # -- moving back, dropping -------------------------------------------------------------------------

    def load(self) -> None:
        """Find the segments. Raises DiskError on a gap or a size that is not the configured one."""
        self._dir.load()
        gap = self._dir.gap()
        if gap is not None and self._ends_before(gap):
            self._drop_from(gap)
            gap = None
        if gap is not None:
            raise DiskError(
                f"{self._dir.path}: no segment between {self._dir.segments[gap - 1].start} and "
                f"{self._dir.segments[gap].start}; mappedFileSizeCommitLog is {self.segment_bytes}"
            )
        for segment in list(self._dir.segments):
            size = segment.file.size()
            if size == self.segment_bytes:
                continue
            last = segment is self._dir.segments[-1]
            if last and size < self.segment_bytes and not any(segment.file.pread(min(size, 4096), 0)):
                log.warning(
                    "%s has %d bytes and no record: a crash interrupted its allocation, removed",
                    segment.path,
                    size,
                )
                self._dir.remove(segment)
                continue
            if size > self.segment_bytes or not self._has_whole_ones():
                raise DiskError(
                    f"{segment.path} has {size} bytes; mappedFileSizeCommitLog says {self.segment_bytes}"
                )
            # As bytes that rotted: the start goes by what its files promise, a replica gives the rest.
            log.error("%s has %d bytes: the rest is lost here, a replica may have it", segment.path, size)
            segment.file.truncate(self.segment_bytes)
        end = self._dir.segments[-1].start + self.segment_bytes if self._dir.segments else 0
        self.end = self.flushed = PhysicalOffset(end)
        # The sync of the directory may be what the last process ended with.
        self._dir.names_dirty = bool(self._dir.segments)

    def _ends_before(self, gap: int) -> bool:
        """Is nothing written behind a gap? Then the log ended in what is gone, and this was made ahead."""
        segments = self._dir.segments
        sized = segments[0].file.size() == self.segment_bytes
        return sized and all(segment.is_zeros() for segment in segments[gap:])

    def _drop_from(self, gap: int) -> None:
        for segment in reversed(self._dir.segments[gap:]):
            log.error("%s holds nothing, and the file before it is gone: the log ends earlier", segment.path)
            self._dir.remove(segment)
        self._dir.sync_dir()

    def _has_whole_ones(self) -> bool:
        """Whether other files of the log have the configured size, so that one is short by mistake."""
        return any(segment.file.size() == self.segment_bytes for segment in self._dir.segments)

    def cut(self, offset: int, *, to_first_zeros: bool = False, zeros_too: bool = False) -> None:
        """Let the log end at ``offset``, durably: later segments go, newest first, then the rest of the
        segment is erased and synced. Blocks. Raises DiskError.

        ``to_first_zeros``: what lies behind is at most one stretch of bytes, so that the first block of zeros
        ends it. ``zeros_too``: zeros there are written again (Segment.erase). A crash in between leaves a log
        that ends somewhere between ``offset`` and the old end.
        """
        self.generation += 1
        until = max(self.end, self._torn_until)
        try:
            self.ahead.drop()
            while self._dir.segments and self._dir.segments[-1].start > max(
                offset, self._dir.segments[0].start
            ):
                self._dir.remove(self._dir.segments[-1])
                self._dir.sync_dir()
            segment = self._dir.at(offset)
            if segment is not None:
                segment.erase(
                    offset - segment.start,
                    min(until - segment.start, self.segment_bytes),
                    to_first_zeros=to_first_zeros,
                    zeros_too=zeros_too,
                )
                segment.file.sync()
        except OSError as error:
            raise self._health.failed(error, "cutting the CommitLog", sync=True) from error
        self._torn_until = 0
        self.end = PhysicalOffset(offset)
        self.flushed = min(self.flushed, self.end)
        self._tail = segment
        if segment is not None:
            self._use(segment)

    def reset(self, offset: int, aside: str | None = None) -> None:
        """Drop every byte; the log is empty and goes on at ``offset``, the start of a segment. Blocks.

        The segments move to the directory ``aside`` if one is given, the newest first: a crash in between
        leaves a log that is only shorter.
        """
        if offset % self.segment_bytes:
            raise ValueError(f"{offset} is not the start of a segment of {self.segment_bytes} bytes")
        self.generation += 1
        try:
            self.ahead.drop()
            while self.forgotten:
                # Before a segment of that name is made again, with the old bytes behind its end.
                with suppress(FileNotFoundError):
                    self._env.disk.remove(self.forgotten[0])
                self.forgotten.pop(0)
            while self._dir.segments:
                self._dir.remove(self._dir.segments[-1], aside)
                if aside is not None:
                    self._env.disk.sync_dir(aside)
                self._dir.sync_dir()
        except OSError as error:
            raise self._health.failed(error, "emptying the CommitLog", sync=True) from error
        self._torn_until = 0
        self.end = self.flushed = PhysicalOffset(offset)
        self._tail = None
        self._tail_end = self.growth.notice_at = 0

    def forget_first(self) -> None:
        """Take the oldest segment out of the log; its file is in ``forgotten`` from then on. Never the last
        one."""
        assert len(self._dir.segments) > 1, "the last segment stays"
        segment = self._dir.segments.pop(0)
        segment.retire()
        self.forgotten.append(segment.path)

    def close(self) -> None:
        self.ahead.close()
        self._dir.close()
