"""Did a disk refuse for want of room, and has it some again?"""

from __future__ import annotations

import contextlib
import errno
import logging
from typing import Final

from controller.raft.codec import BATCH_BYTES_MAX
from runtime.env import Disk

log = logging.getLogger(__name__)

NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def no_room(error: BaseException | None) -> bool:
    """Whether ``error``, or what it came from, is a disk without room: that passes by itself."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            return True
        error = error.__cause__
    return False


def has_room(disk: Disk, directory: str) -> bool:
    """Whether the disk takes a batch as long as any, by writing one beside.

    Reopening a journal would prove nothing: that writes only where there is something already.
    """
    path = f"{directory}/raft.room"
    room = True
    try:
        file = disk.open(path, create=True)
        try:
            file.pwrite(bytes(BATCH_BYTES_MAX), 0)
            file.sync()
        finally:
            file.close()
    except OSError as error:
        log.debug("%s has no room yet: %s", directory, error)
        room = False
    with contextlib.suppress(OSError):
        disk.remove(path)
    return room
