"""What does a command come to, and which caller hears of it?"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from model.errors import MqError, Unknown

log = logging.getLogger(__name__)

Done = Callable[[Any, str | None], None]
"""Called with (result, None) when applied, or (None, why) when the command is certainly gone."""


@dataclass(frozen=True, slots=True)
class Failed:
    """What a command comes to when ``apply`` raised: the same text on every member."""

    text: str


@dataclass(slots=True)
class StateMachine:
    """What the committed commands act on.

    ``apply(command) -> answer`` must depend on nothing but former commands and must not raise; if it does,
    the proposer gets an error and the log goes on. ``snapshot()`` and ``restore(data)`` copy the state.
    """

    apply: Callable[[bytes], bytes]
    snapshot: Callable[[], bytes]
    restore: Callable[[bytes], None]
    _first: bytes | None = field(default=None, init=False)

    def begin(self) -> None:
        """The state before the first command, also where the member begins anew."""
        if self._first is None:
            self._first = self.snapshot()
        else:
            self.restore(self._first)


class Callers:
    """The callers that wait for a command or a read."""

    def __init__(self) -> None:
        self._pending: set[asyncio.Future[Any]] = set()
        self._read: asyncio.Future[Any] | None = None  # whose question is not on its way yet

    def shared_read(
        self, read: Callable[[Done], None], refused: Callable[[], MqError]
    ) -> asyncio.Future[Any]:
        """Begin a read, or join the one whose question is not on its way yet. Do not cancel the future."""
        if self._read is None:
            self._read, done = self.expect(refused)
            read(done)
        return self._read

    def question_leaves(self) -> None:
        """Reads that begin from now on may follow commits that the question under way does not cover."""
        self._read = None

    def expect(self, refused: Callable[[], MqError]) -> tuple[asyncio.Future[Any], Done]:
        """A future, and what the node calls to fulfil it. ``refused``: the error of a command that is
        certainly gone."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_retrieve)

        def done(result: Any, why: str | None) -> None:
            self._pending.discard(future)
            if future.done():
                return
            if why is None:
                future.set_result(result)
            else:
                future.set_exception(refused())

        self._pending.add(future)
        return future, done

    @staticmethod
    async def wait(future: asyncio.Future[Any], timeout_s: float) -> Any:
        """Raises Unknown after ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise Unknown(f"no majority of the Controllers agreed within {timeout_s:g} s") from None

    def release(self, error: MqError) -> None:
        """All that wait get ``error``."""
        for future in list(self._pending):
            if not future.done():
                future.set_exception(error)
        self._pending.clear()


def _retrieve(future: asyncio.Future[Any]) -> None:
    """A caller that left at its deadline leaves no exception unheard."""
    if not future.cancelled():
        future.exception()


def library_callback(done: Done) -> Callable[[Any, int], None]:
    """``done`` as PySyncObj calls it: with a result and a reason, 0 = success."""

    def callback(result: Any, reason: int) -> None:
        if reason == 0:
            safely(done, result, None)
        else:
            safely(done, None, "another command took its place")

    return callback


def safely(done: Done, result: Any, why: str | None) -> None:
    """Call ``done``; what it raises is logged."""
    try:
        done(result, why)
    except Exception:
        # The entry is applied; raised further, it would be applied a second time here and nowhere else.
        log.exception("the callback of a command failed")
