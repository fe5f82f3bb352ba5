"""How does a program without an event loop use what needs one? The loop runs on a thread of its own."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, ThreadPoolExecutor
from concurrent.futures import Future as Future  # what begin returns
from contextlib import suppress
from typing import Any, Final, TypeVar

T = TypeVar("T")
A = TypeVar("A")

GRACE_S: Final = 10.0
"""So long may work that was cancelled take to its end: a client's start, to take back what it began."""


class LoopThread:
    """``run`` is for every thread but the loop's own; ``worker`` lets plain functions be called from it."""

    def __init__(self, name: str, workers_max: int = 1) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.ending = threading.RLock()
        """For those that end what runs on it, and then call ``stop``: one at a time."""
        self._stopped = False
        self._begins = threading.Lock()
        self._workers = ThreadPoolExecutor(workers_max, thread_name_prefix=f"{name} worker")
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What ``work`` returns or raises. A KeyboardInterrupt of the caller cancels it, and is raised when
        it has ended, or after ``GRACE_S``. Raises RuntimeError as ``begin``, also when it is stopped
        meanwhile.
        """
        future = self.begin(work)
        try:
            return future.result()
        except CancelledError:
            if self._stopped:
                raise RuntimeError("it was stopped") from None
            raise
        except BaseException:
            if future.cancel():
                with suppress(RuntimeError, CancelledError):  # stopped meanwhile
                    self.begin(_end(work)).result()
            raise

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """A future of what ``work`` returns or raises. Raises RuntimeError on the loop's thread, and
        when it is stopped.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("the event loop's own thread cannot wait for it")
        with self._begins:  # what begins before the end is told of it
            if not self._stopped:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise RuntimeError("it is stopped")

    def worker(self, function: Callable[[A], T]) -> Callable[[A], Coroutine[Any, Any, T]]:
        """``function`` to be awaited: it is called on a thread of its own, in the context of who awaits."""

        async def call(argument: A) -> T:
            context = contextvars.copy_context()
            return await self._loop.run_in_executor(self._workers, context.run, function, argument)

        return call

    def stop(self) -> None:
        """End the loop. A worker that is called now goes on to its end, which nobody hears of."""
        with self._begins:
            if self._stopped:
                return
            self._stopped = True
        asyncio.run_coroutine_threadsafe(_cancel_the_rest(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._workers.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()


async def _end(work: Coroutine[Any, Any, Any]) -> None:
    """Wait for the task of ``work``, which was cancelled: the future of its caller is over at once."""
    tasks = [task for task in asyncio.all_tasks() if task.get_coro() is work]
    if tasks:
        await asyncio.wait(tasks, timeout=GRACE_S)


async def _cancel_the_rest() -> None:
    """As ``asyncio.run`` does: no task is left in the middle."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
