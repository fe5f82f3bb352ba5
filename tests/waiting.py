"""How tests wait for what other tasks bring about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def until(condition: Callable[[], object], what: str = "", timeout_s: float = 10.0) -> None:
    """Wait for ``condition``; fail with ``what`` when it does not come.

    Wait for what is asserted next, not for what comes a turn before it: ``make jitter`` tells them apart.
    """
    try:
        async with asyncio.timeout(timeout_s):
            await brought_about(condition)
    except TimeoutError:
        raise AssertionError(f"did not happen: {what or condition}") from None


async def brought_about(condition: Callable[[], T], each_s: float = 0.002) -> T:
    """The first true value of ``condition``. ``tests/jitter.py`` has one that looks at other times."""
    while not (value := condition()):  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(each_s)
    return value
