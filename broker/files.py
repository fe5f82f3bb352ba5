"""How do the tables of a broker (topics, groups, offsets) get to disk and back?

The files are RocketMQ's ``config/*.json``: pretty-printed fastjson with bare integer keys, the former content
beside it as ``.bak``, which is read when the current one is missing or torn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from model.errors import DiskError, PeerError
from remoting import bodies
from runtime.env import Env, read_file, write_file
from runtime.tasks import Tasks

log = logging.getLogger(__name__)

WRITE_DELAY_S: Final = 0.05  # changes that come together are written together


class ConfigFile:
    """One ``config/*.json``: loaded once, then written soon after each ``changed``.

    ``content`` gives the table as JSON values at the moment of writing. A write that fails is logged and
    tried again after ``retry_s``: the table in memory stays the truth.
    """

    def __init__(
        self,
        env: Env,
        path: str,
        content: Callable[[], dict[str, Any]],
        tasks: Tasks,
        *,
        delay_s: float = WRITE_DELAY_S,
        retry_s: float = 1.0,
    ) -> None:
        self._env = env
        self.path = path
        self._content = content
        self._tasks = tasks
        self._delay_s = delay_s
        self._retry_s = retry_s
        self._dirty = False
        self._writer: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()

    def load(self) -> dict[str, Any] | None:
        """The table on disk, from ``.bak`` when the file is absent or torn; None when there is neither.

        Raises DiskError when files exist and none of them can be read as JSON.
        """
        problem: str | None = None
        for path in (self.path, self.path + ".bak"):
            try:
                data = bodies.loads(read_file(self._env.disk, path))
            except FileNotFoundError:
                continue
            except PeerError as error:
                problem = f"{path}: {error}"
                log.error("%s is not readable, trying its backup: %s", path, error)
                continue
            if isinstance(data, dict):
                return data
            problem = f"{path}: expected an object, found {type(data).__name__}"
        if problem is not None:
            raise DiskError(f"no readable copy of {self.path}: {problem}")
        return None

    def changed(self) -> None:
        """Write the table soon; several changes within the delay make one write."""
        self._dirty = True
        if self._writer is None or self._writer.done():
            self._writer = self._tasks.spawn(self._write_soon(), name=f"write {self.path.rpartition('/')[2]}")

    async def _write_soon(self) -> None:
        while self._dirty:
            await asyncio.sleep(self._delay_s)
            try:
                await self.flush()
            except OSError as error:
                log.error("cannot write %s, trying again: %s", self.path, error)
                await asyncio.sleep(self._retry_s)

    async def flush(self) -> None:
        """Write now if anything changed since the last write. Raises OSError; the change stays noted then."""
        async with self._writing:
            if not self._dirty:
                return
            self._dirty = False
            data = bodies.dumps_dialect(self._content(), indent=True)
            try:
                await self._env.offload(lambda: self._write(data))
            except OSError:
                self._dirty = True
                raise

    def _write(self, data: bytes) -> None:
        self._env.disk.makedirs(self.path.rpartition("/")[0])
        write_file(self._env.disk, self.path, data, backup=True)
