"""What if a sync cannot even begin, because a directory cannot be opened?

Then nothing was lost: it is done again, whole, when there are descriptors. A sync that began and failed is
another matter (``store.files.health``), and is raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from runtime.descriptors import OUT_OF_DESCRIPTORS
from runtime.env import Env
from store.files.health import Health

AGAIN_S: Final = 0.2
TRIES: Final = 150
WAITING: Final = "waiting for descriptors"


async def synced(env: Env, health: Health, sync: Callable[[], object]) -> None:
    """Run ``sync`` off the loop. Raises OSError: it failed, or there were no descriptors for TRIES times."""
    for left in reversed(range(TRIES)):
        try:
            await env.offload(sync)
            break
        except OSError as error:
            if error.errno not in OUT_OF_DESCRIPTORS or not left:
                raise
            health.full(WAITING, f"a sync waits: {error.strerror}")
        await asyncio.sleep(AGAIN_S)
    health.room(WAITING)
