"""Where is a NameServer's table of namespaces and keys kept? In ``kvConfig.json``, as RocketMQ writes it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Final

from model.errors import DiskError, PeerError, Refused
from namesrv.kv import KvTable
from remoting.bodies import believed_object, dumps
from remoting.slices import joined
from runtime.env import Env, read_file, write_file
from runtime.tasks import SerialCalls
from runtime.turns import Slice

log = logging.getLogger(__name__)

VALUES_A_PIECE: Final = 1000


class KvFile:
    """``table`` is what holds. A change holds once it is on disk; no ``path``: nothing is kept."""

    def __init__(self, env: Env, path: str) -> None:
        self._env = env
        self._path = path
        self.table = KvTable()
        self.error: str | None = None
        """Why the last change was not written."""
        self._changing = asyncio.Lock()
        self._writes = SerialCalls(env.offload)

    async def change(self, namespace: str, key: str, value: str | None) -> None:
        """Give ``key`` a value, or take it away (None). Raises Refused when it cannot be written."""
        async with self._changing:  # changes reach the file in the order they reach the table
            changed = self.table.with_value(namespace, key, value)
            if self._path:
                await self._save(changed)
            self.table = changed

    async def _save(self, table: KvTable) -> None:
        data = await joined(_written(table), Slice(self._env.monotonic_ms))
        try:
            await self._writes.run(partial(self._write, data))
        except OSError as error:
            self.error = f"cannot save {self._path}: {error}"
            log.error("namesrv: %s", self.error)
            raise Refused(self.error) from error
        self.error = None

    def _write(self, data: bytes) -> None:
        self._env.disk.makedirs(self._path.rpartition("/")[0] or ".")
        write_file(self._env.disk, self._path, data, backup=True)

    def load(self) -> None:
        """Raises DiskError, OSError."""
        if not self._path or not self._env.disk.exists(self._path):
            return
        # What is read counts from now on: the sync of its name may be what the last process ended with.
        self._env.disk.sync_dir(self._path.rpartition("/")[0] or ".")
        try:
            table = believed_object(read_file(self._env.disk, self._path)).get("configTable", {})
        except PeerError as error:
            raise DiskError(f"{self._path}: {error}") from None
        if not isinstance(table, dict) or not all(isinstance(values, dict) for values in table.values()):
            raise DiskError(f"{self._path}: configTable is not a table of tables")
        self.table = KvTable({n: {str(k): str(v) for k, v in values.items()} for n, values in table.items()})


def _written(table: KvTable) -> Iterator[str]:
    """As ``dumps_dialect`` of all of it, but that ``VALUES_A_PIECE`` values stand in a line."""
    before = '{\n\t"configTable":{'
    for namespace, values in table.items():
        yield f"{before}\n\t\t{dumps(namespace).decode()}:"
        yield from _values(values, "{\n\t\t\t", "\n\t\t}", ",\n\t\t\t")
        before = ","
    yield "\n\t}\n}" if before == "," else before + "}\n}"


def answer_of(values: Mapping[str, str]) -> Iterable[str]:
    """The pieces of an answer with the values of one namespace."""
    return _values(values, '{"table":{', "}}")


def _values(values: Mapping[str, str], begin: str, end: str, between: str = ",") -> Iterator[str]:
    """The members of a map of texts, many in one piece: what there is of such a table never changes."""
    left = iter(values.items())
    before = begin
    while some := dict(islice(left, VALUES_A_PIECE)):
        yield before + dumps(some).decode()[1:-1]
        before = between
    yield end if before is between else begin + end
