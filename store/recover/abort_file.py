"""What did the last stop leave: all files in order, all that the process wrote, or perhaps less?

The file ``abort`` is there from a start to the clean stop, as RocketMQ has it; what RocketMQ writes into it
nobody reads. Here it says on which boot of the machine the log was last made durable or written: on the same
boot the page cache has all that a killed process wrote. ``LOST`` stands there when that is not so, because a
sync failed: the kernel may drop pages that it could not write. A process that is killed before it hears of
that leaves the second line: how far the log reached when its last sync began, 20 digits.
"""

from __future__ import annotations

import enum
import logging
from typing import Final

from runtime.env import Disk, read_file

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
        self._warned = False
        self._disk = disk
        self._root = root
        self._path = f"{root}/abort"
        self._boot = boot_id.encode()[:TEXT_BYTES_MAX]

    def begin(self) -> Stop:
        """The store is in use from now on; what did the last stop leave? Raises OSError."""
        if not self._disk.exists(self._path):
            self.found = Stop.ORDERLY
            self._write(self._text(0))
        else:
            text = read_file(self._disk, self._path)
            self._write(
                text
            )  # it may be in the page cache only. And before all else: does the disk take that?
            boot, _, reached = text.partition(b"\n")
            same_boot = self._boot != b"" and boot == self._boot
            # A note that was cut short has the rest of the boot's name behind it.
            lost = text.startswith(LOST)
            self.found = Stop.LOST if lost else Stop.KILLED if same_boot else Stop.UNKNOWN
            if self.found is Stop.KILLED and reached.isdigit():
                self.reached = int(reached)
        self._disk.sync_dir(self._root)
        return self.found

    def on_recovered(self) -> None:
        """All that was found is durable, and what ``reached`` tells of the log is noted. Raises OSError."""
        if self.found is Stop.LOST or self.sync_failed:
            return
        if self.found is Stop.UNKNOWN or self.reached:
            self._write(self._text(0))
        self._says_reach = self._boot != b""

    def on_reach(self, end: int) -> None:
        """The log ends at ``end``, and a sync of it begins, or it is about to be cut to there. Into the page
        cache: it is for a start on this boot. A disk that refuses it may still take the sync."""
        if not self._says_reach or self.sync_failed:
            return
        try:
            self._write(self._text(end), sync=False)
            self._warned = False
        except OSError as error:
            if not self._warned:
                log.warning("%s cannot be written, how far the log reached: %s", self._path, error)
            self._warned = True
        if self.sync_failed:
            self.write_lost()  # another thread's failed meanwhile: that matters more

    def on_sync_failed(self) -> None:
        """Blocks. If the disk refuses this, too, the next start may read it in the page cache, or not."""
        self.write_lost(sync=True)

    def write_lost(self, *, sync: bool = False) -> None:
        """Without ``sync``: into the page cache."""
        self.sync_failed = True
        try:
            self._write(LOST, sync=sync)
        except OSError as error:
            log.warning("%s cannot be written: %s", self._path, error)

    def on_noted(self) -> None:
        """Raises OSError."""
        if self.found is Stop.LOST and not self.sync_failed:
            self._write(self._text(0))
            self._says_reach = self._boot != b""

    def remove(self) -> None:
        """Raises OSError."""
        self._says_reach = False
        self._disk.remove(self._path)
        self._disk.sync_dir(self._root)

    def _text(self, reached: int) -> bytes:
        """Of one length, so that a full disk takes the next one, too."""
        return b"%s\n%020d" % (self._boot, reached)

    def _write(self, text: bytes, *, sync: bool = True) -> None:
        file = self._disk.open(self._path, create=True)
        try:
            file.pwrite(text, 0)
            if file.size() > len(text):
                file.truncate(len(text))
            if sync:
                file.sync()
        finally:
            file.close()
