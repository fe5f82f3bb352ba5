"""How does a command end that started processes, when it is told to end? In order, by any signal, once.

Ctrl-C, SIGTERM and SIGHUP all do what Ctrl-C does: the running task is cancelled, or the running code
interrupted, so that ``finally`` blocks mend what was broken and end what was started. A further signal does
not cut that short, which would leave processes behind; it makes waits for an orderly end give up
(``hurried``), and what still runs is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType
from typing import Any, Final, TypeVar

T = TypeVar("T")

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Ending:
    """One command's end. ``task`` is what a signal cancels while there is one; ``quiet``: it started nothing
    that has to be waited for."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.begun = False
        self.hurried = False
        self.uncut = False
        self.task: asyncio.Task[Any] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None

    def heard(self, number: int, frame: FrameType | None) -> None:
        if self.begun:
            self.hurried = True
            return
        self.begun = True
        if not self.quiet:
            with contextlib.suppress(OSError):  # after SIGHUP the terminal is gone
                os.write(sys.stderr.fileno(), b"ending in order; a second signal ends it at once\n")
        if self.task is not None and self.loop is not None:
            # In a signal handler only this wakes a loop that waits for its sockets.
            self.loop.call_soon_threadsafe(self.task.cancel)
        elif not self.uncut:
            raise KeyboardInterrupt


_current: _Ending | None = None


def hurried() -> bool:
    """Whether somebody asked a second time: no more waiting for an orderly end."""
    return _current is not None and _current.hurried


@contextlib.contextmanager
def in_order(*, quiet: bool = False) -> Iterator[None]:
    """Within this block signals end the command in order; ``quiet``: without a word. A signal that was
    ignored before stays ignored (nohup). In the main thread only; blocks do not nest."""
    global _current
    ending = _Ending(quiet)
    before = {number: signal.getsignal(number) for number in SIGNALS}
    _current = ending
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, ending.heard)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _current = None


@contextlib.contextmanager
def uncut() -> Iterator[None]:
    """A signal that comes while this block runs interrupts after it: for what ends processes one by one."""
    ending = _current
    if ending is None or ending.begun:
        yield
        return
    ending.uncut = True
    try:
        yield
    finally:
        ending.uncut = False
    if ending.begun and ending.task is None:
        raise KeyboardInterrupt


def run(
    work: Coroutine[Any, Any, T], loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> T:
    """Run ``work`` on a loop of its own, within ``in_order``. Raises KeyboardInterrupt when it was told to
    end, after its ``finally`` blocks."""
    ending = _current
    assert ending is not None, "run within in_order"

    async def cancellable() -> T:
        ending.task, ending.loop = asyncio.current_task(), asyncio.get_running_loop()
        if ending.begun:  # the signal came before there was a task
            raise asyncio.CancelledError
        try:
            return await work
        finally:
            ending.task = None

    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(cancellable())
    except asyncio.CancelledError:
        if ending.begun:
            raise KeyboardInterrupt from None
        raise
    finally:
        work.close()
