"""How long are the candidates of an election waited for?

All of them normally answer within milliseconds, and nobody is waited for longer than that. After ``SOON_S``
those that are missing are waited for only while the election would find nobody without them, or nobody that
is certainly there: a broker on a slow disk or link is slow, not dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from runtime.tasks import Tasks

SOON_S: Final = 0.1
PATIENCE_SHARE: Final = 1 / 3
"""Of the heartbeat timeout: who needs as long as that to say a word will soon count as dead anyway."""
PATIENCE_MAX_S: Final = 1.0
"""A broker that asks for an election gives up after 3 s, some of which its master may have to make way."""


def patience_s(timeouts_ms: Iterable[int]) -> float:
    """For how long brokers with these heartbeat timeouts are waited for at most."""
    return max(min(max(timeouts_ms, default=0) / 1000 * PATIENCE_SHARE, PATIENCE_MAX_S), SOON_S)


async def gather(
    asks: Iterable[Coroutine[Any, Any, None]], longest_s: float, decided: Callable[[], bool]
) -> None:
    """Run ``asks`` until all have ended; or until ``SOON_S`` are over and ``decided``; or until ``longest_s``
    are. What has not ended then is cancelled. None of them may raise."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    tasks = Tasks("asking")
    pending = {tasks.spawn(ask, name="ask") for ask in asks}
    try:
        while pending:
            passed_s = loop.time() - began
            if passed_s >= longest_s or (passed_s >= SOON_S and decided()):
                return
            # Then step by step: without an answer something may decide it, the master may be heard again.
            wait_s = SOON_S - passed_s if passed_s < SOON_S else min(longest_s - passed_s, SOON_S)
            _, pending = await asyncio.wait(
                pending, timeout=max(wait_s, 0.001), return_when=asyncio.FIRST_COMPLETED
            )
    finally:
        await tasks.cancel()
