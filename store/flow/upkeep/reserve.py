"""Is there room for a role change when the disk is full?

A file of ``diskReserveMegabytes`` takes up space while there is some. When a write or an allocation of the
log lacks space, or nearly none is left, it is removed: epochs, identity, tables and the checkpoint are
written into what it held, while messages are refused. They are taken again once the file could be made again.
"""

from __future__ import annotations

import errno
import logging
from typing import Final

from runtime.descriptors import OUT_OF_DESCRIPTORS
from runtime.env import Disk

log = logging.getLogger(__name__)

FILE_NAME: Final = "reserve"
SPARE_BYTES: Final = 1 << 20
"""So much must be free beside the reserve before messages are taken again."""


class Reserve:
    """``held``: the file is there. With 0 bytes there is none, and it always counts as held."""

    def __init__(self, disk: Disk, root: str, size: int) -> None:
        self.held = size == 0
        self._disk = disk
        self._root = root
        self._path = f"{root}/{FILE_NAME}"
        self._bytes = size

    def take(self) -> bool:
        """Make the file if there is space; is it there? Blocks. Raises OSError other than lack of space."""
        if self.held:
            return True
        try:
            if self._disk.usage(self._root).free_bytes < self._bytes + SPARE_BYTES:
                return False
            file = self._disk.open(self._path, create=True)
            try:
                file.allocate(self._bytes)
            finally:
                file.close()
        except OSError as error:
            if error.errno not in OUT_OF_DESCRIPTORS | {errno.ENOSPC, errno.EDQUOT}:
                raise
            self.release()
            return False
        self.held = True
        return True

    def release(self) -> None:
        """Give the space back to the file system. A failure is logged: it makes nothing worse."""
        if not self._bytes:
            return
        self.held = False
        try:
            if self._disk.exists(self._path):
                self._disk.remove(self._path)
                log.error("disk full: released the %d-byte reserve", self._bytes)
        except OSError as error:
            log.error("the reserve cannot be released: %s", error)

    def is_low(self) -> bool:
        """Is nearly nothing left beside the file? Raises OSError."""
        return self._bytes > 0 and self._disk.usage(self._root).free_bytes < self._bytes // 4
