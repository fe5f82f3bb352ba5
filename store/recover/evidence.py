"""Does the log reach as far as other files of this store say it once did?

The checkpoint and the epochs are written behind the log, and synced. A log that ends before what they say has
lost its end: its disk was replaced, a mount is missing, somebody removed segments. So has one that ends, on
the same boot, before what ``abort`` says: the sync failed that was to write the rest. Recovery makes these
files agree with the log it finds, so what they said is noted in ``logWasLonger`` before, until the broker has
noted for itself that it is suspect. Real brokers' checkpoints are not asked: theirs may lag behind a cut.
"""

from __future__ import annotations

import logging
from typing import Final

from model.ids import is_number
from runtime.env import Disk, read_file, write_file
from store.files.checkpoint import Checkpoint
from store.files.epoch_file import EpochEntry

log = logging.getLogger(__name__)

FILE: Final = "logWasLonger"


def reached(checkpoint: Checkpoint, last: EpochEntry | None) -> int:
    """The offset, bytes, that the log reached for certain when these files were written."""
    ends = [0 if last is None else last.start]
    if checkpoint.trusted:
        ends += [checkpoint.settled_offset, checkpoint.master_flushed_offset, checkpoint.confirm_offset]
    return max(ends)


class LogWasLonger:
    """The note that this log ended further once. ``end``: where, bytes; None = nothing is missing."""

    def __init__(self, disk: Disk, root: str) -> None:
        self.end: int | None = None
        self._disk = disk
        self._path = f"{root}/{FILE}"

    def compare(self, end: int, was: int) -> None:
        """Note durably when the log ends at ``end`` but ended at ``was``. Raises OSError.

        Recovery has cut log and queues by then. Checkpoint and epochs follow after this: a crash before that
        leaves them as they are, and the next start notes it.
        """
        try:
            text = read_file(self._disk, self._path).strip()
            known = int(text) if is_number(text) else end + 1  # damaged: then it says so much only
        except FileNotFoundError:
            known = -1
        longest = max(was, known)
        if longest <= end and known < 0:
            return
        self.end = longest
        log.warning("the log ends at %d, other files of the store say it reached %d", end, longest)
        if longest > known:
            write_file(self._disk, self._path, str(longest).encode())

    def forget(self) -> None:
        """The broker has noted that its log is suspect. Raises OSError."""
        self.end = None
        if self._disk.exists(self._path):
            self._disk.remove(self._path)
            self._disk.sync_dir(self._path.rpartition("/")[0] or ".")
