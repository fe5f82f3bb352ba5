"""How far did the log reach, by what its store says besides: checkpoint, queues, known damage?

A checkpoint was written behind the log, and is believed. An entry of a queue counts after an unclean stop,
and where there is no such checkpoint; never by its word alone: one flipped bit moves it anywhere. The first
row that fits counts, of entries that lie behind where the log seems to end:

    the log before has a later message of the queue         no: that one would stand behind it
    a whole record of another size stands there             no
    what stands there says its place, or the entry's size   yes
    it begins where the log seems to end, or where another  yes: they are of one row
    that counts ends
    else                                                    no

So does damage that was noted (``damagedRanges``): it counts if a sound record stands behind it. Where none
does, whatever told whoever noted it is asked anew.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from model.message import TRANSACTION_PREPARED
from store.files.checkpoint import Checkpoint
from store.files.damage import may_have
from store.files.record import HEAD, Record
from store.offline.directory import StoreDirectory
from store.offline.queues.places import Queue, places_of

_ROW_BYTES: Final = 8 << 20
"""A row of entries whose records are all gone is followed so far: no write that a crash cut was longer."""
_LAST_ONES: Final = 64
"""So many last entries of each queue are looked up."""


class LogReach:
    """``end``: so far the log is known to have gone; hears of the sound records on the way there."""

    def __init__(self, store: StoreDirectory, checkpoint: Checkpoint, reach: int) -> None:
        self._store = store
        told: int = max(checkpoint.confirm_offset, checkpoint.master_flushed_offset)
        self._asks_queues = not store.stopped_cleanly or not told
        self._following: dict[Queue, int] = {}
        untils = sorted((item.until for item in store.damaged()), reverse=True)
        noted = next((at for at in untils if at > max(told, reach) and store.is_sound(at)), 0)
        self.end = max(told, reach, noted)

    def take(self, record: Record) -> None:
        if self._asks_queues and not record.sys_flag & TRANSACTION_PREPARED:
            self._following[record.topic, record.queue_id] = record.queue_offset + places_of(record)

    def is_behind(self, offset: int) -> bool:
        """Does the log seem to end at ``offset``, and is it known to go on?"""
        if offset >= self.end and self._asks_queues:
            self.end = max(self.end, self._queued(offset))
        return offset < self.end

    def _queued(self, offset: int) -> int:
        """Where the last record ends that an entry names and something bears out; 0 if there is none."""
        end, row = 0, dict[int, int]()
        for queue in self._store.queues():
            last = deque[tuple[int, int]](maxlen=_LAST_ONES)
            for index, at, size, _ in self._store.queue_entries(*queue):
                if at < offset or index < self._following.get(queue, 0):
                    continue
                last.append((at, size))
                if at < offset + _ROW_BYTES and self._may_stand(at, size):
                    row[at] = size
            found = (at + size for at, size in reversed(last) if at + size > end and self._stands(at, size))
            end = next(found, end)
        while offset in row:
            offset += row.pop(offset)
            end = max(end, offset)
        return end

    def _may_stand(self, at: int, size: int) -> bool:
        """Is there no whole record of another size?"""
        segment = self._store.segment_at(at)
        if segment is None or not may_have(size, segment.end - at):
            return False
        return self._head(at)[0] == size or not self._store.is_sound(at)

    def _stands(self, at: int, size: int) -> bool:
        """Does what is there say so?"""
        head = self._head(at)
        return (head[0] == size or head[6] == at > 0) and self._may_stand(at, size)

    def _head(self, at: int) -> tuple[int, ...]:
        found: tuple[int, ...] = HEAD.unpack(
            self._store.log_bytes(at, at + HEAD.size).ljust(HEAD.size, b"\0")
        )
        return found
