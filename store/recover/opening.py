"""How does a store begin and end: one process at a time, recovered before it is used, marked until its stop?

The file ``lock`` keeps other processes out; ``abort`` tells of an unclean stop (``abort_file``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from model.config import StoreConfig
from model.errors import DiskError
from runtime.env import Env, Lock
from runtime.tasks import Tasks
from store.files.store_files import StoreFiles
from store.flow.dispatching.store_flow import StoreFlow
from store.recover.abort_file import AbortFile, Stop
from store.recover.evidence import LogWasLonger, reached
from store.recover.recovery import Recovered, recover

log = logging.getLogger(__name__)

RECOVERY_ENDS_S = 5.0
"""A start that is told to stop waits so long for its recovery to end."""


class Opening:
    """Lock, recovery off the loop, and their end. The recovery calls ``before`` when it begins and ``after``
    when the files are one truth."""

    def __init__(
        self,
        env: Env,
        config: StoreConfig,
        root: str,
        files: StoreFiles,
        flow: StoreFlow,
        *,
        controller_mode: bool,
        before: Callable[[], object],
        after: Callable[[], None],
    ) -> None:
        self.lock: Lock | None = None
        self.was_longer = LogWasLonger(env.disk, root)
        self.abort = AbortFile(env.disk, root, env.boot_id())
        self._keeps_abort = False
        self._env = env
        self._config = config
        self._root = root
        self._files = files
        self._flow = flow
        self._controller_mode = controller_mode
        self._before = before
        self._after = after
        self._noting = Tasks("store")
        files.health.on_sync_failed = self._on_sync_failed

    async def run(self) -> Recovered:
        """See MessageStore.open.

        Cancelled, it tells the recovery to stop, and waits for that for a while. The lock is given back when
        the recovery has ended, or else with the process: its thread still writes.
        """
        self._take_lock()
        opening = Tasks("store", lambda error: None)  # the waiter gets the error
        recovering = opening.spawn(self._env.offload(self._recover), name="recover")
        try:
            return await asyncio.shield(recovering)
        except BaseException as error:
            if recovering.done():
                self.release()
            else:
                self._files.health.broke("the store was told to stop while it recovered")
                recovering.add_done_callback(self._recovery_left)
                await asyncio.wait((recovering,), timeout=RECOVERY_ENDS_S)
            if isinstance(error, OSError):
                raise DiskError(f"recovery of {self._root} failed: {error}") from error
            raise

    def _take_lock(self) -> None:
        disk = self._env.disk
        try:
            disk.makedirs(self._root)
            self.lock = disk.lock(f"{self._root}/lock")
        except BlockingIOError:
            raise DiskError(f"{self._root} is in use by another process") from None
        except FileExistsError as error:
            where = error.filename or self._root
            raise DiskError(f"storePathRootDir={self._root}: {where} is no directory") from None
        except OSError as error:
            raise DiskError(f"storePathRootDir={self._root}: {error.strerror or error}") from error

    def _recover(self) -> Recovered:
        stop = self.abort.begin()
        self._before()
        epochs, config = self._files.epochs, self._config
        self._files.checkpoint.load()
        epochs.load(may_be_unreadable=self._controller_mode or config.start_with_damaged_tables)
        if epochs.unreadable is not None and config.start_with_damaged_tables:
            epochs.trust([])
        was = max(reached(self._files.checkpoint.now, epochs.last), self.abort.reached)
        if config.flush_disk_type == "ASYNC_FLUSH":  # else nothing is acknowledged before its sync
            self._files.health.before_sync = self.abort.before_sync
            self._files.health.before_cut = self.abort.before_cut
        recovered = recover(
            self._files,
            self._flow,
            clean=stop is Stop.ORDERLY,
            killed=stop is Stop.KILLED,
            reached=self.abort.reached,
            controller_mode=self._controller_mode,
            check_crc=config.check_crc_on_recover,
            now_ms=self._env.now_ms(),
        )
        # A record that came in part counted for nobody: nothing is missing with it.
        self.was_longer.compare(max(self._files.log.end, recovered.partial_until), was)
        self._after()
        self.abort.on_recovered()
        return recovered

    def _on_sync_failed(self) -> None:
        """Sync the note off the loop, if this is the loop: that disk may take long, and others wait."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self.abort.on_sync_failed()
        else:
            self.abort.write_lost()  # for a start on this boot: a thread may wait for that disk, too
            self._noting.spawn(self._env.offload(self.abort.on_sync_failed), name="abort")

    async def noted(self) -> None:
        """Until a failed sync stands in ``abort``."""
        await self._noting.join()

    def start_failed(self) -> None:
        """The server may not have noted what an unclean stop before tells of the log: the next start is to
        find that again, however orderly this one ends."""
        self._keeps_abort = self.abort.found is not Stop.ORDERLY

    def stopped_cleanly(self) -> None:
        """The next start may believe the files. Raises OSError."""
        if self._keeps_abort:
            return
        self.abort.remove()

    def _recovery_left(self, recovering: asyncio.Future[Recovered]) -> None:
        if recovering.cancelled():
            return  # only the waiter for the thread was, at the loop's end
        if (error := recovering.exception()) is not None:
            log.info("the recovery of %s ended: %s", self._root, error)
        self.release()

    def release(self) -> None:
        """Close the files and give the lock back."""
        self._files.close()
        self.abort.close()
        if self.lock is not None:
            self.lock.release()
            self.lock = None
