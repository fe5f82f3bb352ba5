"""What does everybody see who watches? One look serves all viewers; nobody watches: nothing is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from admin.top.look import Look
from admin.top.view import View, view

RATE_OVER: Final = 10
"""Rates are not taken over more than so many intervals: who comes back after an hour sees those of now."""


class Poll:
    """The view of now, at most one look each ``every_ms``, whoever asks how often."""

    def __init__(self, looked: Callable[[], Awaitable[Look]], every_ms: float) -> None:
        self._looked = looked
        self.every_ms = every_ms
        self._lock = asyncio.Lock()
        self._look: Look | None = None
        self._view: View | None = None

    async def now(self, now_ms: float) -> View:
        """``now_ms``: monotonic, as ``Look.mono_ms``. Who comes while a look runs gets what it finds."""
        if (kept := self._fresh(now_ms)) is not None:
            return kept
        async with self._lock:
            if (kept := self._fresh(now_ms)) is not None:
                return kept
            before, self._look = self._look, await self._looked()
            if before is not None and self._look.mono_ms - before.mono_ms > RATE_OVER * self.every_ms:
                before = None
            self._view = view(self._look, before)
            return self._view

    def _fresh(self, now_ms: float) -> View | None:
        fresh = self._look is not None and now_ms - self._look.mono_ms < self.every_ms
        return self._view if fresh else None
