"""How tests wait for what other tasks bring about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], what: str = "", timeout_s: float = 10.0) -> None:
    """Wait for ``condition``; fail with ``what`` when it does not come."""
    try:
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"did not happen: {what or condition}") from None
