"""What did the last stop leave: all files in order, all that the process wrote, or perhaps less?

The file ``abort`` is there from a start to the clean stop, as RocketMQ has it; what RocketMQ writes into it
nobody reads. Here it says on which boot of the machine the log was last made durable or written: on the same
boot the page cache has all that a killed process wrote. ``LOST`` stands there when that is not so, because a
sync failed: the kernel may drop pages that it could not write.
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

    ``on_noted``: others have it on the disk that the log may lack its end, so it need not stand here."""

    def __init__(self, disk: Disk, root: str, boot_id: str) -> None:
        self.found = Stop.UNKNOWN
        self.sync_failed = False  # in this run: nothing else is written from here on
        self._disk = disk
        self._root = root
        self._path = f"{root}/abort"
        self._boot = boot_id.encode()[:TEXT_BYTES_MAX]

    def begin(self) -> Stop:
        """The store is in use from now on; what did the last stop leave? Raises OSError."""
        if not self._disk.exists(self._path):
            self.found = Stop.ORDERLY
            self._write(self._boot)
        else:
            text = read_file(self._disk, self._path)
            self._write(
                text
            )  # it may be in the page cache only. And before all else: does the disk take that?
            same_boot = self._boot != b"" and text == self._boot
            # A note that was cut short has the rest of the boot's name behind it.
            lost = text.startswith(LOST)
            self.found = Stop.LOST if lost else Stop.KILLED if same_boot else Stop.UNKNOWN
        self._disk.sync_dir(self._root)
        return self.found

    def on_recovered(self) -> None:
        """All that was found is durable. Raises OSError."""
        if self.found is Stop.UNKNOWN and not self.sync_failed:
            self._write(self._boot)

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
            self._write(self._boot)

    def remove(self) -> None:
        """Raises OSError."""
        self._disk.remove(self._path)
        self._disk.sync_dir(self._root)

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
