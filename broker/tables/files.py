"""How do the tables of a broker (topics, groups, offsets) get to disk and back?

The files are RocketMQ's ``config/*.json``: pretty-printed fastjson with bare integer keys, the same once more
as ``.bak``, both sealed (``store/files/sealed``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from model.errors import DiskError, PeerError
from remoting import bodies
from runtime.env import Env
from runtime.tasks import Tasks
from runtime.turns import Slice, Turns
from store.files.sealed import CRC_KEY, read_copies, seal, unseal, write_copies

log = logging.getLogger(__name__)

WRITE_DELAY_S: Final = 0.05  # changes that come together are written together


class ConfigFile:
    """One ``config/*.json``: loaded once, then written soon after each ``changed``.

    ``content`` gives the table as JSON values at the moment of writing; before, ``prepare`` does what takes
    long in slices, one of those that share ``turns`` at a time. A write that fails is logged and
    tried again after ``retry_s``; the table in memory is the newest.
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
        prepare: Callable[[Slice], Awaitable[None]] | None = None,
        turns: Turns | None = None,
    ) -> None:
        self._env = env
        self.path = path
        self._content = content
        self._tasks = tasks
        self._delay_s = delay_s
        self._retry_s = retry_s
        self._prepare = prepare
        self._turns = Turns(env.monotonic_ms) if turns is None else turns
        self.lost: str | None = None
        """Why no copy could be read; nothing is written then until ``found`` is called."""
        self._dirty = False
        self._writer: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()

    @property
    def closed(self) -> bool:
        return False

    def load(self) -> dict[str, Any] | None:
        """The table on disk, from ``.bak`` when the file is absent or damaged; None when there is neither,
        or (``lost``) when none of them can be read. Raises OSError."""
        try:
            found, whole = read_copies(self._env.disk, self.path, _mend)
        except DiskError as error:
            self.lost = str(error)
            return None
        if found is not None and not whole:
            log.warning("%s was damaged: restored from its other copy", self.path)
            self.changed()
        return None if found is None else _parse(found)

    def found(self) -> None:
        """The table is complete again: it was copied, or begins empty by order of the configuration."""
        if self.lost is not None:
            self.lost = None
            self.changed()

    def changed(self) -> None:
        """Write the table soon; several changes within the delay make one write."""
        self._dirty = True
        if self._writer is None or self._writer.done():
            self._writer = self._tasks.spawn(self._write_soon(), name=f"write {self.path.rpartition('/')[2]}")

    async def _write_soon(self) -> None:
        while self._dirty and self.lost is None:
            await asyncio.sleep(self._delay_s)
            try:
                await self.flush()
            except OSError as error:
                log.error("cannot write %s, trying again: %s", self.path, error)
                await asyncio.sleep(self._retry_s)

    async def flush(self) -> None:
        """Write now if anything changed since the last write. Raises OSError; the change stays noted then."""
        async with self._writing:
            if not self._dirty or self.lost is not None:
                return
            async with self._turns.take(self) as turn:
                if self._prepare is not None:
                    await self._prepare(turn)
                self._dirty = False
                content = self._content()
                await asyncio.sleep(0)
                text = bodies.dumps_dialect(content, indent=True)
            try:
                await self._env.offload(lambda: self._write(seal(text)))
            except OSError:
                self._dirty = True
                raise

    async def write_now(self) -> None:
        """``flush``, which goes on when the caller is cancelled: two writes would mix. Raises OSError,
        and DiskError while the table is lost: then nothing is written."""
        if self.lost is not None:
            raise DiskError(self.lost)

        async def write() -> OSError | None:
            try:
                await self.flush()
            except OSError as error:
                return error
            return None

        writing = self._tasks.spawn(write(), name=f"write {self.path.rpartition('/')[2]} now")
        await asyncio.wait((writing,))
        error = writing.result()
        if error is not None:
            raise error

    def _write(self, data: bytes) -> None:
        self._env.disk.makedirs(self.path.rpartition("/")[0])
        write_copies(self._env.disk, self.path, data)


def _mend(data: bytes) -> bytes:
    content = unseal(data)
    _parse(content)
    return content


def _parse(data: bytes) -> dict[str, Any]:
    """Raises DiskError."""
    try:
        value = bodies.loads(data)
    except PeerError as error:
        raise DiskError(str(error)) from None
    if not isinstance(value, dict):
        raise DiskError(f"expected an object, found {type(value).__name__}")
    value.pop(CRC_KEY, None)
    return value
