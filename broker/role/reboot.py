"""Did the machine of this store lose its memory since the log was last written?

A killed process loses nothing: what it wrote is in the page cache. A machine that lost power, or was reset,
loses what no sync had reached, and with ASYNC_FLUSH that was acknowledged. Linux tells the two apart by its
boot id. ``bootId.json`` in the store holds the boot of the last start, and whether a log that may be short
has met a master since: the answer must outlive the next kill.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from model.errors import DiskError, PeerError
from remoting.bodies import dumps, loads_object
from runtime.env import Env, read_file, write_file

log = logging.getLogger(__name__)

FILE: Final = "bootId.json"


class UncleanRebootDetector:
    """Whether this store's log may lack what it acknowledged.

    In: ``begin`` once at the start, ``settle`` when the log is known to be whole. Holds: a doubt ends by
    ``settle`` only, however often the process or the machine dies before.
    """

    def __init__(self, env: Env, directory: str) -> None:
        self.doubtful = False
        self._synced = False
        self._env = env
        self._path = f"{directory}/{FILE}"

    def begin(self, *, clean: bool, synced: bool) -> None:
        """Note the boot this process runs on. Blocks on syncs.

        ``clean``: the last stop was an orderly one; ``synced``: nothing is acknowledged before its sync. A
        store without the file was written by another program or version: then an unclean start is a doubt.
        Raises DiskError when the file cannot be read, or a doubt cannot be noted.
        """
        boot_id = self._env.boot_id()
        known = self._read()
        rebooted = not boot_id or known.get("bootId") != boot_id
        risky = not known.get("synced", synced)
        self.doubtful = bool(known.get("doubtful")) or (risky and rebooted and not clean)
        self._synced = synced
        if self.doubtful:
            log.warning("the machine lost its memory since the log was written: its end may be missing")
        try:
            self._write(boot_id)
        except OSError as error:
            # What the file says now can only make the next start doubt more.
            if self.doubtful:
                raise DiskError(f"{self._path} cannot be written: {error}") from error
            log.warning("%s cannot be written: %s", self._path, error)

    def settle(self) -> None:
        """The log has all that it acknowledged, or its group goes on without that. Blocks on syncs."""
        if not self.doubtful:
            return
        self.doubtful = False
        try:
            self._write(self._env.boot_id())
        except OSError as error:
            log.warning("%s cannot be written, the next start doubts again: %s", self._path, error)

    def _read(self) -> dict[str, Any]:
        try:
            return loads_object(read_file(self._env.disk, self._path))
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise DiskError(f"{self._path} cannot be read: {error}") from error
        except PeerError:
            # Whatever damaged it, the log may be short as well.
            log.warning("%s is not what was written there", self._path)
            return {"doubtful": True}

    def _write(self, boot_id: str) -> None:
        text = dumps({"bootId": boot_id, "doubtful": self.doubtful, "synced": self._synced})
        write_file(self._env.disk, self._path, text)
