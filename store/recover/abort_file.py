"""What did the last stop leave: all files in order, all that the process wrote, or perhaps less?

The file ``abort`` is there from a start to the clean stop, as RocketMQ has it; what RocketMQ writes into it
nobody reads. Here it says on which boot of the machine the log was last made durable or written: on the same
boot the page cache has all that a killed process wrote. ``LOST`` stands there when that is not so, because a
sync failed: the kernel may drop pages that it could not write. A process that is killed before it hears of
that leaves the second line: how far the log reached when its last sync began, 20 digits. It is never above
where a log ends that lost nothing, and while a sync of the log runs never below, on the disk, where the log
ended as that was begun.
"""

from __future__ import annotations

import enum
import errno
import logging
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Final

from model.ids import is_number
from runtime.env import Disk, File, read_file
from store.files.health import FULL

log = logging.getLogger(__name__)

LOST: Final = b"a sync failed"
TEXT_BYTES_MAX: Final = 256


class Stop(enum.Enum):
    ORDERLY = enum.auto()
    KILLED = enum.auto()  # only the process died
    LOST = enum.auto()  # a sync failed before
    UNKNOWN = enum.auto()  # the machine may have lost power


class AbortFile:
    """In: ``begin``, then ``on_recovered``; ``on_sync_failed`` at any time; ``remove`` at the clean stop.

    ``on_noted``: others have it on the disk that the log may lack its end, so it need not stand here.
    ``reached``: where the log ended once, by a process that was killed; 0: it says nothing."""

    def __init__(self, disk: Disk, root: str, boot_id: str) -> None:
        self.found = Stop.UNKNOWN
        self.reached = 0
        self.sync_failed = False  # in this run: nothing else is written from here on
        self._says_reach = False  # it may: there is nothing in the file that matters more
        self._text = b""  # as it was written last
        self._line = 0  # in the page cache
        self._written = self._synced = 0  # how often it was written there, and how often by its last sync
        self._warned = False
        self._disk = disk
        self._root = root
        self._path = f"{root}/abort"
        self._boot = boot_id.encode()[:TEXT_BYTES_MAX]
        self._file: File | None = None  # open throughout: with no descriptor left, lines are still written
        self._lock = Lock()  # of what is written, not of syncs: the loop never waits for one

    def begin(self) -> Stop:
        """The store is in use from now on; what did the last stop leave? Raises OSError."""
        if not self._disk.exists(self._path):
            self.found = Stop.ORDERLY
            self._open()
            self._begin_line()
        else:
            text = read_file(self._disk, self._path)
            self._open()
            self._write(text)  # it may be in the page cache only
            self._opened().sync()  # and before all else: does the disk take that?
            boot, _, reached = text.partition(b"\n")
            same_boot = self._boot != b"" and boot == self._boot
            # A note that was cut short has the rest of the boot's name behind it.
            lost = text.startswith(LOST)
            self.found = Stop.LOST if lost else Stop.KILLED if same_boot else Stop.UNKNOWN
            if self.found is Stop.KILLED and is_number(reached):
                self.reached = self._line = int(reached)
            self._says_reach = self.found is Stop.KILLED  # what a failed sync of the recovery drops is missed
        self._disk.sync_dir(self._root)
        return self.found

    def _open(self) -> None:
        self._file = self._disk.open(self._path, create=True)

    def on_recovered(self) -> None:
        """All that was found is durable, and what ``reached`` tells of the log is noted. Raises OSError."""
        if self.found is Stop.LOST:
            return
        if self.found is Stop.UNKNOWN or self._line:
            self._begin_line()
        self._says_reach = self._boot != b""

    def before_sync(self, end: Callable[[], int]) -> None:
        """The log ends at ``end()``, and a sync of it begins: no lower line is on the disk from here on.
        Blocks. Raises OSError: this disk failed, as the log's sync would have, and may drop the line."""
        if not self._disk.exists(self._path):
            self._make_anew()
        if not self._sync(self._raise_line(end)):
            return
        # The log's sync takes along what came meanwhile: of that the page cache tells, if it may.
        self._raise_line(end)

    def _make_anew(self) -> None:
        """Somebody removed it: what we have open is found by no start. Raises OSError."""
        with self._lock:
            if self._file is None:
                return  # it was closed, or removed by ourselves
            try:
                anew = self._disk.open(self._path, create=True)
            except OSError as error:  # no descriptor is free, and the log's sync needs none
                log.warning("%s is gone, and cannot be made again: %s", self._path, error)
                return
            log.warning("%s is gone: it is made again, as it tells the next start of a kill", self._path)
            former, self._file = self._file, anew
            former.close()
            self._write(self._text)
            self._written += 1
        self._disk.sync_dir(self._root)

    def _raise_line(self, end: Callable[[], int]) -> int:
        """Which of the writes made the line what it is; 0: it says nothing."""
        with self._lock:
            line = max(self._line, end())
            if not self._says_reach or self.sync_failed:
                return 0
            if line != self._line:
                try:
                    self._put_line(line)
                except OSError as error:
                    if error.errno not in FULL:
                        raise
                    # A full one that copies on write may still take the sync of what has its blocks.
                    if not self._warned:
                        log.warning("%s cannot be written, how far the log reached: %s", self._path, error)
                    self._warned = True
                    return 0
            self._warned = False
            return self._written

    def before_cut(self, end: int) -> None:
        """The log is about to be cut to ``end``, and synced. Blocks. Raises OSError: it is not to be cut."""
        with self._lock:
            if not self._says_reach or self.sync_failed:
                return
            if end != self._line:
                self._put_line(end)
            written = self._written
        self._sync(written)

    def on_sync_failed(self) -> None:
        """Blocks. If the disk refuses this, too, the next start may read it in the page cache, or not."""
        self.write_lost(sync=True)

    def write_lost(self, *, sync: bool = False) -> None:
        """Without ``sync``: into the page cache."""
        try:
            with self._lock:
                self.sync_failed = True
                self._write(LOST)
            if sync:
                self._opened().sync()
        except OSError as error:
            log.warning("%s cannot be written: %s", self._path, error)

    def on_noted(self) -> None:
        """Raises OSError."""
        if self.found is Stop.LOST:
            self._begin_line()
            self._says_reach = self._boot != b""

    def remove(self) -> None:
        """Raises OSError."""
        self._says_reach = False
        self.close()
        with suppress(FileNotFoundError):  # somebody else removed it
            self._disk.remove(self._path)
        self._disk.sync_dir(self._root)

    def close(self) -> None:
        with self._lock:  # no thread writes into what has that descriptor next
            file, self._file = self._file, None
        if file is not None:
            file.close()

    def _begin_line(self) -> None:
        """Durably: this boot, and nothing of the log."""
        with self._lock:
            if self.sync_failed:
                return
            self._put_line(0)
            written = self._written
        self._sync(written)

    def _sync(self, written: int) -> bool:
        """Let that write be on the disk; was it not?"""
        if written <= self._synced:
            return False
        self._opened().sync()
        self._synced = written
        return True

    def _put_line(self, line: int) -> None:
        """Of one length, so that a full disk takes the next one, too."""
        self._write(b"%s\n%020d" % (self._boot, line))
        self._line = line
        self._written += 1

    def _write(self, text: bytes) -> None:
        file, self._text = self._opened(), text
        file.pwrite(text, 0)
        if file.size() > len(text):
            file.truncate(len(text))

    def _opened(self) -> File:
        if self._file is None:
            raise OSError(errno.EBADF, "the store is closed", self._path)
        return self._file
