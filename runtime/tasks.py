"""Who owns a task: nothing runs detached, and a task that dies is heard."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from runtime.report.lasting import lasting

log = logging.getLogger(__name__)

T = TypeVar("T")

LONGEST_S: Final = 1e9
"""No loop's clock takes more than a few times of it."""


class Tasks:
    """The tasks of one service. A task that ends with an error calls ``on_error`` (default: log it with its
    traceback); ``cancel`` ends all of them and waits."""

    def __init__(self, owner: str, on_error: Callable[[BaseException], None] | None = None) -> None:
        self._owner = owner
        self._on_error = on_error
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in order of birth, so that a seed replays

    def spawn(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, name=f"{self._owner}.{name}")
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        if self._on_error is not None:
            self._on_error(error)
        else:
            log.error("%s failed", task.get_name(), exc_info=error)

    async def join(self) -> None:
        """Wait until all have ended by themselves; errors are told as ever."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def cancel(self) -> None:
        current = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not current]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class SerialCalls:
    """Calls off the event loop, by ``offload`` of an ``Env``, one after the other in the order asked for.

    A caller that is cancelled leaves its call running, as a thread cannot be stopped: the next one begins
    when it has ended.
    """

    def __init__(self, offload: Callable[[Callable[[], Any]], Awaitable[Any]]) -> None:
        self._offload = offload
        self._turn = asyncio.Lock()  # fair

    @property
    def busy(self) -> bool:
        return self._turn.locked()

    async def run(self, call: Callable[[], T]) -> T:
        await self._turn.acquire()
        running: asyncio.Future[T] = asyncio.ensure_future(self._offload(call))
        running.add_done_callback(lambda _: self._turn.release())
        return await asyncio.shield(running)


@lasting
async def every(period_s: float, step: Callable[[], Any], *, what: str) -> None:
    """Call ``step`` (plain or async) each ``period_s``, for ever; an error is logged and the next turn comes.

    For level-triggered loops only, where the next turn repairs what this one could not.
    """
    while True:
        await asyncio.sleep(min(period_s, LONGEST_S))
        try:
            result = step()
            if asyncio.iscoroutine(result):
                await result
        except Exception:
            log.exception("%s failed; trying again in %.1f s", what, period_s)
