"""A broker's store with messages and consumer offsets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from runtime.os_env import OsEnv
from tests.store.support import fill, opened, records_of

OFFSETS = '{"offsetTable":{"T@cg":{"0":3}}}'


def filled(root: Path, counts: list[int], between: Any = lambda: None) -> None:
    """A store with so many messages more at each step; ``between`` is called while it is open."""

    async def body() -> None:
        async with opened(OsEnv(), root=str(root)) as store:
            for count in counts:
                await fill(store, count)
                store.sync_to(store.log.end)
                between()

    (root / "config").mkdir(parents=True, exist_ok=True)
    asyncio.run(body())
    (root / "config" / "consumerOffset.json").write_text(OFFSETS)


def records(root: Path) -> list[tuple[int, int, int, bytes]]:
    """What consumers get of a store that is opened as a broker opens it."""

    async def body() -> list[tuple[int, int, int, bytes]]:
        async with opened(OsEnv(), root=str(root)) as store:
            await store.caught_up()
            return [
                (r.queue_id, r.queue_offset, r.physical_offset, r.body)
                for queue_id in (0, 1)
                for r in records_of(store, queue_id=queue_id)
            ]

    return asyncio.run(body())
