"""How do the tables of a broker (topics, groups, offsets) get to disk and back?

The files are RocketMQ's ``config/*.json``: pretty-printed fastjson with bare integer keys, the same once more
as ``.bak``, both sealed (``store/files/sealed``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from broker.tables.change_file import UP_TO, ChangeFile
from model.errors import DiskError, PeerError
from remoting import bodies
from remoting.slices import joined
from runtime.env import Env
from runtime.tasks import SerialCalls, Tasks
from runtime.turns import Slice, Turns
from store.files.sealed import CRC_KEY, read_copies, seal, unseal, write_copies

log = logging.getLogger(__name__)

WRITE_DELAY_S: Final = 0.05  # changes that come together are written together
FIRST_DELAY_S: Final = 0.2
WHOLE_BYTES: Final = 64 << 10
"""A table of fewer bytes is written as a whole at each change."""
MERGE_S: Final = 60.0
MERGE_BYTES: Final = 1 << 20
"""Changes stand beside the table for so long, or until they have so many bytes, or a quarter of its own."""

DEPTH: Final = 4
"""Of a file: down to one mode of one group, and one policy of one user."""


@dataclass(frozen=True)
class Source:
    """Where the content of a file comes from.

    ``content`` gives the table as JSON values that do not change with it: they are written in slices. Before,
    ``prepare`` does in slices what takes long. ``mark`` counts the table's changes, and ``since`` gives those
    after a mark, None when that cannot be told; ``prepare_since`` goes before it as ``prepare`` does.
    ``before_write`` is waited for between the content is taken and it is written; it raises OSError.
    """

    content: Callable[[], dict[str, Any]]
    prepare: Callable[[Slice], Awaitable[None]] | None = None
    mark: Callable[[], int] = lambda: 0
    since: Callable[[int], dict[str, Any] | None] = lambda mark: None
    prepare_since: Callable[[int, Slice], Awaitable[None]] | None = None
    before_write: Callable[[], Awaitable[None]] | None = None


class _Pace(NamedTuple):
    """How long after a change a table is written, how long after a failure it is tried again, and since when
    the process runs, where that makes its first writes sooner."""

    delay_s: float
    retry_s: float
    begun_ms: float = float("-inf")


class ConfigFile:
    """One ``config/*.json``: loaded once, then written soon after each ``changed``.

    A small table is written as a whole. Of a large one the changes go to the change file; the table itself
    is written after ``MERGE_S`` or ``MERGE_BYTES`` of them, and at the stop, one of those that share
    ``turns`` at a time. A write that fails is logged and tried again after ``retry_s``: the table in memory
    stays the truth.
    """

    def __init__(
        self,
        env: Env,
        path: str,
        source: Source,
        tasks: Tasks,
        *,
        delay_s: float = WRITE_DELAY_S,
        retry_s: float = 1.0,
        turns: Turns | None = None,
    ) -> None:
        self._env = env
        self.path = path
        self._source = source
        self._tasks = tasks
        self._pace = _Pace(delay_s, retry_s)
        self._turns = Turns(env.monotonic_ms) if turns is None else turns
        self.lost: str | None = None
        """Why no copy could be read; nothing is written then until ``found`` is called."""
        self.later: list[dict[str, Any]] = []
        """Changes on disk that ``load`` found beside the table, in order."""
        self._dirty = False
        self._wake = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._writes = SerialCalls(env.offload)
        self._changes = ChangeFile(env.disk, path)
        self._on_disk = _OnDisk()

    goes_first = True  # of those who write files, all do

    @property
    def closed(self) -> bool:
        return False

    def load(self) -> dict[str, Any] | None:
        """The table on disk, from ``.bak`` when the file is absent or damaged; ``later`` has its changes
        since. None when there is neither, or (``lost``) when none of them can be read. Raises OSError."""
        try:
            found, whole = read_copies(self._env.disk, self.path, _mend)
            table = None if found is None else _parse(found)
            number = None if table is None else table.pop(UP_TO, None)
            self.later = self._changes.load(number)
        except DiskError as error:
            self.lost = str(error)
            return None
        self._on_disk = _OnDisk(self._source.mark(), len(found or b""), number is not None)
        if self.later:
            self._on_disk.unmerged_ms = self._env.monotonic_ms()
        if found is not None and not whole:
            log.warning("%s was damaged: written anew from its other copy", self.path)
            self.write_anew()
        return table

    def loaded(self) -> None:
        """What ``load`` gave, and what came later, is in the table."""
        self.later = []
        if self._on_disk.mark is not None:
            self._on_disk.mark = self._source.mark()

    def hurry_at_first(self) -> None:
        """Until the process has run for as long as changes are gathered, write them sooner. Otherwise one
        that dies again and again before would write none of them, while consumers that live go on from
        where they are: what they lose when they are restarted would add up."""
        self._pace = self._pace._replace(begun_ms=self._env.monotonic_ms())

    def _wait_s(self) -> float:
        ran_s = (self._env.monotonic_ms() - self._pace.begun_ms) / 1000
        return min(self._pace.delay_s, FIRST_DELAY_S) if ran_s < self._pace.delay_s else self._pace.delay_s

    def found(self) -> None:
        """The table is complete again: it was copied, or begins empty by order of the configuration."""
        if self.lost is not None:
            self.lost = None
            self.write_anew()

    def write_anew(self) -> None:
        """Write all of the table soon: what changed is not known."""
        self._on_disk.mark = None
        self.changed()

    def changed(self) -> None:
        """Write the change soon; several within the delay make one write."""
        self._dirty = True
        self._wake.set()
        if self._writer is None or self._writer.done():
            self._writer = self._tasks.spawn(self._write_soon(), name=f"write {self.path.rpartition('/')[2]}")

    async def _write_soon(self) -> None:
        while self.lost is None and (self._dirty or self._on_disk.unmerged_ms is not None):
            try:
                if self._dirty:
                    await asyncio.sleep(self._wait_s())
                    await self.flush()
                else:
                    await self._merge_in_time()
            except OSError as error:
                log.error("cannot write %s, trying again: %s", self.path, error)
                await asyncio.sleep(self._pace.retry_s)

    async def _merge_in_time(self) -> None:
        since_ms = self._on_disk.unmerged_ms
        assert since_ms is not None, "there are changes beside the table"
        self._wake.clear()
        left_s = MERGE_S - (self._env.monotonic_ms() - since_ms) / 1000
        try:
            async with asyncio.timeout(max(left_s, 0)):
                await self._wake.wait()
        except TimeoutError:
            await self.merge()

    async def flush(self) -> None:
        """Write now if anything changed since the last write. Raises OSError; the change stays noted then."""
        async with self._writing:
            if not self._dirty or self.lost is not None:
                return
            if not await self._append():
                await self._write_whole()

    async def merge(self) -> None:
        """Write the table if its changes stand beside it, or are not written. Raises OSError."""
        async with self._writing:
            if self.lost is not None or not (self._dirty or self._on_disk.unmerged_ms is not None):
                return
            await self._write_whole()

    async def _append(self) -> bool:
        """Write the changes alone; False when the table is to be written."""
        on_disk = self._on_disk
        if on_disk.mark is None or on_disk.size < WHOLE_BYTES:
            return False
        if self._changes.size > max(MERGE_BYTES, on_disk.size // 4) or not on_disk.numbered:
            return False
        if self._source.prepare_since is not None:
            # Not in turn: a change that is waited for would stand behind a whole table.
            await self._source.prepare_since(on_disk.mark, Slice(self._env.monotonic_ms))
        mark = self._source.mark()
        change = self._source.since(on_disk.mark)
        if change is None:
            return False
        self._dirty = False
        await self._offload(lambda: self._changes.append(change))
        on_disk.mark = mark
        if on_disk.unmerged_ms is None:
            on_disk.unmerged_ms = self._env.monotonic_ms()
        return True

    async def _write_whole(self) -> None:
        async with self._turns.take(self) as turn:
            if self._source.prepare is not None:
                await self._source.prepare(turn)
            mark, content = self._source.mark(), self._source.content()
            self._dirty = False
            await turn.pause()
            number = self._changes.covered()
            numbered = number > 0 or self._on_disk.size >= WHOLE_BYTES  # others stay as RocketMQ writes them
            if numbered:
                content = {**content, UP_TO: number}
            text = await joined(bodies.pieces(content, strict=False, depth=DEPTH, line="\n"), turn)
        await self._offload(lambda: self._write(seal(text)))
        self._on_disk = _OnDisk(mark=mark, size=len(text), numbered=numbered)

    async def _offload(self, write: Callable[[], None]) -> None:
        try:
            if self._source.before_write is not None:
                await self._source.before_write()
            await self._writes.run(write)
        except (OSError, asyncio.CancelledError):
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
        self._changes.clear()


@dataclass
class _OnDisk:
    """What is on disk: everything up to ``mark`` of the table (None: that is not known), ``size`` bytes of it
    in the JSON, which tells its number of changes if ``numbered``; since when there are changes beside it."""

    mark: int | None = None
    size: int = 0
    numbered: bool = False
    unmerged_ms: float | None = None


def _mend(data: bytes) -> bytes:
    content = unseal(data)
    _parse(content)
    return content


def _parse(data: bytes) -> dict[str, Any]:
    """Raises DiskError."""
    try:
        value = bodies.loads(data, bodies.BELIEVED)
    except PeerError as error:
        raise DiskError(str(error)) from None
    if not isinstance(value, dict):
        raise DiskError(f"expected an object, found {type(value).__name__}")
    value.pop(CRC_KEY, None)
    return value
