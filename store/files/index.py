"""Which messages does a key name, over all index files of a store?

The files are ``store.files.index_file``: the newest takes entries, the others are full. What finds no place
while the disk is full is owed, and goes first when there is room.

After an unclean stop nobody knows which sync was the last good one. A flush goes file by file, so only the
last file with entries, and the newest, can be ahead of the disk: they are unproven. Their slots are read into
memory, and the next flush writes slots, header and names again. Until then no flush runs, and the checkpoint
says nothing new of the index.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Final

from model.errors import DiskError
from model.ids import PhysicalOffset, is_number
from model.message import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from runtime.env import Disk
from store.files.index_file import STILL_LOOKING, IndexFile, Item
from store.files.key_hash import MASK, KeyHash, absolute
from store.files.record import Dispatch

if TYPE_CHECKING:
    from runtime.native._native import Block

log = logging.getLogger(__name__)

_FOREVER_MS: Final = 1 << 62
_NAME_CHARS: Final = 17


class Index:
    """All index files of a store, oldest first; the last one takes entries."""

    def __init__(self, disk: Disk, path: str, slots: int, entries: int, now_ms: Callable[[], int]) -> None:
        self.path = path
        self.files: list[IndexFile] = []
        self.hash = KeyHash()
        self._disk = disk
        self._slots = slots
        self._entries = entries
        self._now_ms = now_ms
        self.removed = False  # loading met a file that cannot be right
        self._owed: list[Item] = []  # no file could be made for them
        self._full: list[IndexFile] = []  # full files whose last entries are not written yet
        self._names_dirty = self._names_in_flight = False
        self._flushing: list[IndexFile] = []
        self._pictures = 0
        self._copied = False  # is the picture of what a flush writes whole?

    def load(self, *, clean: bool = True) -> None:
        """Read the headers; a file that cannot be right is removed: the index is made from the log.

        ``clean``: the last process ended with good syncs of all there is."""
        for name in self._disk.listdir(self.path):
            if len(name) != _NAME_CHARS or not is_number(name):
                continue
            file = IndexFile(self._disk, f"{self.path}/{name}", self._slots, self._entries)
            try:
                file.load()
            except DiskError as error:
                log.warning("%s; removed", error)
                file.close()
                self._disk.remove(file.path)
                self.removed = True
            else:
                self.files.append(file)
        self._put_in_order()
        if not clean and self.files:
            self._names_dirty = True
            with_entries = [file for file in self.files if file.head.count > 1]
            for file in {*with_entries[-1:], self.files[-1]}:
                file.unproven = True
            self._full += [file for file in self.files[:-1] if file.unproven]

    def _put_in_order(self) -> None:
        """By what they hold: a name is local time, and a RocketMQ that made them had an hour twice in autumn.
        One whose header and first entry do not both say where it begins stays behind the one before it."""
        begin, begins = PhysicalOffset(-1), {}
        for file in self.files:
            if file.head.count > 1 and file.entry(1)[1] == file.head.begin_offset:
                begin = file.head.begin_offset
            begins[file] = begin
        self.files.sort(key=begins.__getitem__)

    @property
    def owes(self) -> bool:
        """Are there messages no file could be made for?"""
        return bool(self._owed)

    @property
    def slots(self) -> int:
        """Slots of each file."""
        return self._slots

    @property
    def unproven(self) -> bool:
        """Is there a file that no flush may pass, as its slots are not in memory yet?"""
        return any(file.unproven for file in self.files)

    def prove(self) -> None:
        """Read the slots of unproven files, so that the next flush writes them. Blocks; raises OSError."""
        for file in self.files:
            if file.unproven:
                file.writable()

    def in_need(self) -> IndexFile | None:
        """The next file whose slots must be in memory and are not: unproven ones, then the one that takes
        entries."""
        for file in self._full:
            if file.unproven:
                return file
        last = self.files[-1] if self.files else None
        if last is not None and last.unproven:
            return last
        return None if last is None or last.is_full or last.table is not None else last

    @property
    def end_offset(self) -> PhysicalOffset:
        """Offset of the last message indexed, -1 when there is none: those up to here are skipped."""
        ends = (file.head.end_offset for file in reversed(self.files) if file.head.count > 1)
        return next(ends, PhysicalOffset(-1))

    @property
    def end_timestamp_ms(self) -> int:
        return self.files[-1].head.end_timestamp_ms if self.files else 0

    def current(self) -> IndexFile:
        """The file that takes the next entry, made when there is none with room. Raises OSError."""
        last = self.files[-1] if self.files else None
        if last is not None and not last.is_full:
            last.writable()
            return last
        self._disk.makedirs(self.path)
        file = IndexFile(self._disk, f"{self.path}/{self._name()}", self._slots, self._entries)
        try:
            file.create()
        except OSError:
            file.close()
            if self._disk.exists(file.path):
                self._disk.remove(file.path)
            raise
        if last is not None and last.is_dirty:
            self._full.append(last)
        self.files.append(file)
        self._names_dirty = True
        return file

    def _name(self) -> str:
        """The local time, or what follows the last name: an hour comes twice in autumn, clocks are set back,
        and who reads the files goes by their names."""
        now_ms = self._now_ms()
        moment = datetime.fromtimestamp(now_ms / 1000)
        name = int(f"{moment:%Y%m%d%H%M%S}{now_ms % 1000:03}")
        there = (int(file.path.rpartition("/")[2]) + 1 for file in self.files)
        name = max(name, *(other for other in there if other < 10**_NAME_CHARS), 0)
        while self._disk.exists(f"{self.path}/{name:0{_NAME_CHARS}}"):
            name += 1
        return f"{name:0{_NAME_CHARS}}"

    def put_many(self, dispatches: Iterable[Dispatch]) -> None:
        """Index messages, oldest first, under their unique key and each word of their keys. Rolled back
        messages, and those indexed already, are skipped. Raises OSError when a new file cannot be made;
        what found no place is kept and goes first at the next call."""
        hash_of = self.hash
        items = self._owed
        seen = items[-1][1] if items else self.end_offset
        self._owed = []
        add = items.append
        starts_of: str | None = None
        starts: dict[str, int] = {}
        tails = hash_of.tails
        for offset, _, topic, _, _, _, uniq_key, keys, stored_ms, sys_flag in dispatches:
            if offset <= seen or sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
                continue
            if uniq_key:
                if topic != starts_of:
                    starts_of, starts = topic, hash_of.starts(topic)
                # As in KeyHash.__call__: a call for each key costs more than the sum. No exception for
                # a start that is not known: one send at a time, most ids begin a new one.
                start, tail = starts.get(uniq_key[:-4]), tails.get(uniq_key[-4:])
                if start is None or tail is None:
                    value = hash_of.learn(topic, uniq_key)
                    starts = hash_of.starts(topic)
                else:
                    value = (start + tail) & MASK
                    if value >= 0x80000000:
                        value = absolute(value)
                add((value, offset, stored_ms))
            if keys:
                for word in keys.split(" "):
                    if word:
                        add((hash_of(topic, word), offset, stored_ms))
        at = 0
        while at < len(items):
            try:
                file = self.current()
            except OSError:
                self._owed = items[at:]
                raise
            part = items[at : at + file.entries_max - file.head.count]
            file.add(part)
            at += len(part)

    def put_packed(self, block: Block, first: int, until: int, most: int) -> bool:
        """``put_many`` of the messages in these places if they have at most ``most`` keys, fit the
        newest file and none are owed; False: nothing has happened."""
        last = self.files[-1] if self.files else None
        if last is None or self._owed or last.table is None:
            return False
        seen = last.head.end_offset if last.head.count > 1 else self.end_offset
        return last.add_packed(block, first, until, seen, most)

    def add_late(self, dispatches: Iterable[Dispatch]) -> None:
        """Index messages behind which others were indexed already, as far as they are not in it yet.

        Their entries carry the time of the newest one: a lookup goes from new to old, and ends at a time
        before what was asked for. Raises OSError.
        """
        items = [
            (self.hash(item.topic, key), item.offset, item.store_timestamp_ms)
            for item in dispatches
            for key in self.missing(item)
        ]
        for key_hash, offset, stored_ms in items:
            file = self.current()
            newest = (
                (file.head.end_offset, file.head.end_timestamp_ms)
                if file.head.count > 1
                else (offset, stored_ms)
            )
            file.add([(key_hash, offset, max(stored_ms, newest[1]))])
            file.head.end_offset, file.head.end_timestamp_ms = newest  # still the last message dispatched

    def missing(self, item: Dispatch) -> list[str]:
        """Those of a message's keys it is not found by. Raises OSError.

        Of a key with many newer messages it is taken to be: to look through all of them, for each message of
        that key, would hold the loop for minutes.
        """
        if item.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
            return []
        return [
            key
            for key in filter(None, (item.uniq_key, *item.keys.split(" ")))
            if not any(
                offset in (item.offset, STILL_LOOKING)
                for offset in self.find(item.topic, key, 0, _FOREVER_MS)
            )
        ]

    def names(self, item: Dispatch) -> bool:
        """Whether a message is found by each of its keys, and no entry says another time of it. Raises
        OSError."""
        return not self.missing(item) and not any(
            file.other_time(self.hash(item.topic, key), item.offset, item.store_timestamp_ms)
            for key in filter(None, (item.uniq_key, *item.keys.split(" ")))
            for file in self.files
        )

    def find(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[PhysicalOffset]:
        """Physical offsets of messages that may carry ``key``, newest first, and now and then STILL_LOOKING.
        Raises OSError."""
        key_hash = self.hash(topic, key)
        for file in self.files[::-1]:
            if file.holds_time(begin_ms, end_ms):
                yield from file.find(key_hash, begin_ms, end_ms)

    def truncate(self, offset: int) -> None:
        """Forget messages at or behind ``offset``, durably. Blocks; raises OSError."""
        self._drop_picture()
        self._owed = [item for item in self._owed if item[1] < offset]
        while self.files and (self.files[-1].head.begin_offset >= offset or self.files[-1].head.count <= 1):
            file = self.files.pop()
            file.close()
            self._disk.remove(file.path)
            self._disk.sync_dir(self.path)
        self._full = [file for file in self._full if file in self.files]
        self.prove()
        if self.files and self.files[-1].head.end_offset >= offset:
            self.files[-1].truncate(offset)
            if not self._flushing:
                self.begin_flush()()
                self.end_flush(True)

    def begin_flush(self) -> Callable[[], None]:
        """``picture`` at once, and the call that writes it, perhaps off the loop. ``end_flush`` follows."""
        for _ in self.picture():
            pass
        return self.write_picture

    def picture(self) -> Iterator[None]:
        """Copy what a flush has to write, a part with each step (see IndexFile.picture); one at a time.

        Then ``write_picture`` if ``pictured``, then ``end_flush``.
        """
        self._pictures += 1
        number = self._pictures
        self._copied = False
        self._flushing = [one for one in dict.fromkeys((*self._full, *self.files[-1:])) if one.is_dirty]
        for file in tuple(self._flushing):
            for _ in file.picture():
                yield
                if number != self._pictures:
                    return
        self._names_in_flight, self._names_dirty = self._names_dirty, False
        self._copied = True

    @property
    def pictured(self) -> bool:
        """Is the picture whole? Not when a cut came in between: that has written everything itself."""
        return self._copied

    def write_picture(self) -> None:
        """Write what ``picture`` copied, durably. Blocks, may run off the loop; raises OSError."""
        if self._names_in_flight:
            self._disk.sync_dir(self.path)
            self._disk.sync_dir(self.path.rpartition("/")[0])
        for file in tuple(self._flushing):
            file.write_picture()

    def _drop_picture(self) -> None:
        """Forget a picture that is not whole; nothing of it was written."""
        if self._flushing and not self._copied:
            self._pictures += 1
            self.end_flush(False)

    def end_flush(self, done: bool) -> None:
        for file in self._flushing:
            file.end_flush(done)
        self._flushing = []
        self._copied = False
        self._names_dirty |= self._names_in_flight and not done
        self._names_in_flight = False
        if done:
            for file in self._full:
                if not file.is_dirty:
                    file.table = None  # full and written: its slots need not stay in memory
            self._full = [file for file in self._full if file.is_dirty]

    def drop_below(self, log_min: int) -> list[str]:
        """Take files whose last message lies below ``log_min`` off the list; returns their paths."""
        gone: list[str] = []
        while (
            len(self.files) > 1
            and self.files[0].head.end_offset < log_min
            and self.files[0] not in self._flushing
        ):
            file = self.files.pop(0)
            self._full = [other for other in self._full if other is not file]
            file.close()
            gone.append(file.path)
        return gone

    def destroy(self) -> None:
        """Drop every file. Raises OSError."""
        self._drop_picture()
        self._owed.clear()
        for file in self.files:
            file.close()
        self.files.clear()
        self._full.clear()
        self._names_dirty = False  # there is no directory any more whose names could be synced
        if self._disk.is_dir(self.path):
            self._disk.rmtree(self.path)
            self._disk.sync_dir(self.path.rpartition("/")[0])

    def close(self) -> None:
        for file in self.files:
            file.close()
