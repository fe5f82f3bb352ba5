"""What is to run as long as its server, and does not any more? Who asks for its health is told.

Loops of ``runtime/loops`` and ``runtime/tasks`` end by no error of what they call. What has a loop of its
own, or does something before it, may: nobody waits for it, and the server would go on with a part less.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, ParamSpec

log = logging.getLogger(__name__)

P = ParamSpec("P")


class Dead:
    """Tasks that died, by their names: why. One that begins again is no longer there."""

    def __init__(self) -> None:
        self.why: dict[str, str] = {}

    @contextmanager
    def unless_cancelled(self) -> Iterator[None]:
        """Any other end of the task than its cancellation, or a return, is one that was not foreseen."""
        task = asyncio.current_task()
        assert task is not None, "it runs in a task"
        name = task.get_name()
        self.why.pop(name, None)
        try:
            yield
        except GeneratorExit:
            raise  # the loop itself ended
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and task.cancelling():
                raise
            # Cancelled, and nobody asked for it: what it waited for was.
            if name not in self.why and isinstance(error, asyncio.CancelledError):
                log.error("%s was cancelled by what it waited for", name)  # of others ``Tasks`` tells
            self.why[name] = str(error) or type(error).__name__
            raise

    def reason(self) -> str | None:
        """The first one, for whoever asks whether all is well."""
        for name, why in self.why.items():
            others = f" (and {len(self.why) - 1} more)" if len(self.why) > 1 else ""
            return f"the task {name} died: {why}{others}"
        return None


DEAD: Final = Dead()
"""Of this process."""


def lasting(work: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, Coroutine[Any, Any, None]]:
    """For what runs until its task is cancelled, or it has nothing to do."""

    @functools.wraps(work)
    async def told(*args: P.args, **kwargs: P.kwargs) -> None:
        with DEAD.unless_cancelled():
            await work(*args, **kwargs)

    return told
