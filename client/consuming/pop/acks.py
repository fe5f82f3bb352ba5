"""When is a message acknowledged? What ends while a request is under way shares the next one."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from client.consuming.pop.calls import ACKS_MAX, PopCalls, Popped, is_final
from model.codes import Response
from model.errors import MqError, Refused
from runtime.env import Env

log = logging.getLogger(__name__)

AGAIN_S: Final = 0.3
"""Between two tries, unless the route changes before."""


async def surely(env: Env, calls: PopCalls, popped: Popped, act: Callable[[], Awaitable[None]]) -> str:
    """Do ``act``, again and again while ``popped`` is hidden from others; why it did not work, or nothing."""
    while True:
        try:
            await act()
            return ""
        except (OSError, MqError) as error:
            why = str(error) or type(error).__name__
            if is_final(error) or env.monotonic_ms() >= popped.until_ms:
                return why
            log.debug("message %s: %s", popped.message.msg_id, why)
        await calls.session.routes.changed(popped.topic, AGAIN_S)


class Acks:
    """The acknowledgements of one topic at one group of brokers; ``run`` is one task."""

    def __init__(self, env: Env, calls: PopCalls) -> None:
        self._env = env
        self._calls = calls
        self._waiting: deque[tuple[Popped, asyncio.Future[str]]] = deque()
        self._wake = asyncio.Event()
        self._one_by_one = False

    async def ack(self, popped: Popped) -> str:
        """Why it is not acknowledged, or nothing. One that is not comes again."""
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting.append((popped, done))
        self._wake.set()
        return await done

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                count = 1 if self._one_by_one else min(ACKS_MAX, len(self._waiting))
                taken = [self._waiting.popleft() for _ in range(count)]
                why = await self._send([popped for popped, _ in taken])
                for _, done in taken:
                    if not done.done():
                        done.set_result(why)

    async def _send(self, popped: list[Popped]) -> str:
        longest = max(popped, key=lambda one: one.until_ms)

        async def act() -> None:
            try:
                await self._calls.ack(popped)
            except Refused as error:
                if error.code != Response.REQUEST_CODE_NOT_SUPPORTED or len(popped) == 1:
                    raise
                self._one_by_one = True  # a broker of RocketMQ 5.0: it knows no batches
                for one in popped:
                    await self._calls.ack([one])

        return await surely(self._env, self._calls, longest, act)
