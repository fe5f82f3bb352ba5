"""How does a service keep what is in step with what should be, for ever?

A level-triggered loop looks at the whole state in each turn and does what is missing. An event only ends the
wait, so a lost event, or one that came in the middle of a turn, costs time and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from model.errors import MqError
from runtime.backoff import Backoff
from runtime.report.lasting import lasting
from runtime.tasks import LONGEST_S

log = logging.getLogger(__name__)

UNTIL_WOKEN: Final = float("inf")
"""What ``step`` returns when there is nothing to do before the next event."""
EXPECTED: Final = (MqError, OSError, ValueError)
"""What a peer, a disk or a network may cause. Anything else is a mistake of ours, and is logged as one."""


@lasting
async def level_triggered(
    step: Callable[[], Awaitable[float | None]],
    wake: asyncio.Event,
    period_s: float,
    backoff: Backoff,
    what: str,
    *,
    on_error: Callable[[Exception], None] | None = None,
    ended: Callable[[], bool] = lambda: False,
    patience_s: float = 0.0,
) -> None:
    """Run ``step``, wait until ``wake`` is set or ``period_s`` is over, and so on until ``ended``.

    ``step`` may return how many seconds to wait this time instead (0 = go on at once). Where it raises, the
    next turn comes after ``backoff``, or with the next ``wake``. ``on_error`` gets the ``EXPECTED`` errors;
    without it the first of a row is a warning that begins with ``what``, the others are debug lines. A row
    that is over within ``patience_s`` is an info line instead.
    """
    row = _Row(what, patience_s)
    while not ended():
        # Before the step: what happens while it runs is looked at in the next turn.
        wake.clear()
        try:
            wait_s = await step()
        except EXPECTED as error:
            wait_s = backoff.next_s()
            try:
                (on_error or row.on_error)(error)
            except Exception:
                log.exception("%s: telling of %r failed", what, error)
        except Exception:
            wait_s = backoff.next_s()
            log.exception("%s failed; next try in %.2f s", what, wait_s)
        else:
            row.end()
            backoff.reset()
        await _rest(wake, period_s if wait_s is None else wait_s)


class _Row:
    """Errors that follow each other: what is told of them."""

    def __init__(self, what: str, patience_s: float) -> None:
        self._what = what
        self._patience_s = patience_s
        self._since_s: float | None = None
        self._warned = False

    def on_error(self, error: Exception) -> None:
        now_s = asyncio.get_running_loop().time()
        first = self._since_s is None
        since_s = self._since_s = now_s if self._since_s is None else self._since_s
        level = logging.INFO if first else logging.DEBUG
        if not self._warned and now_s - since_s >= self._patience_s:
            level, self._warned = logging.WARNING, True
        log.log(level, "%s: %s", self._what, str(error) or type(error).__name__)

    def end(self) -> None:
        self._since_s, self._warned = None, False


async def _rest(wake: asyncio.Event, wait_s: float) -> None:
    if wait_s <= 0 or wake.is_set():
        await asyncio.sleep(0)  # other tasks first, also when every step wants to go on at once
        return
    if wait_s == UNTIL_WOKEN:
        await wake.wait()
        return
    # A timeout would cancel the wait, and costs more than most turns.
    alarm = asyncio.get_running_loop().call_later(min(wait_s, LONGEST_S), wake.set)
    try:
        await wake.wait()
    finally:
        alarm.cancel()
