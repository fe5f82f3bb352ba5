"""A group of push consumers whose members come and go while the cluster is being broken: does it handle all
that was acknowledged?"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Final

from chaos.drills.live.disks import lied
from chaos.history import History, Ok
from client.consuming.consumer import ConsumeOptions, PushConsumer
from client.message import Received
from model.errors import MqError
from runtime.env import Env

GROUP: Final = "GID_drill_push"
MEMBERS: Final = 2
STAYS_S: Final = (1.0, 4.0)
GIVES_BACK: Final = 0.01
"""The share of messages that are not handled when they come first: they come again by the retry topic."""
CLIENT: Final = 1000
"""The number of its first member's Env."""
SHOWN: Final = 3


class PushGroup:
    """Runs until ``settle``. ``handled``: keys that a member took; ``came``: members that joined."""

    def __init__(
        self, env_of: Callable[[int], Env], namesrv: Sequence[str], topic: str, chance: random.Random
    ) -> None:
        self._env_of, self._namesrv, self._topic, self._chance = env_of, namesrv, topic, chance
        self._members: list[PushConsumer] = []
        self._settled = asyncio.Event()
        self.came = self.failed = 0
        self.handled: set[str] = set()
        self.given_back: set[str] = set()

    async def run(self) -> None:
        """Members come and go until the group settles; some stay."""
        for _ in range(MEMBERS):
            await self._come()
        while not await self._settles_within(self._chance.uniform(*STAYS_S)):
            await self._go()
            await self._settles_within(self._chance.random())
            await self._come()

    def settle(self) -> None:
        """From now on members stay, and give nothing back."""
        self._settled.set()

    async def close(self) -> None:
        while self._members:
            await self._go()

    async def _settles_within(self, wait_s: float) -> bool:
        try:
            async with asyncio.timeout(wait_s):
                return await self._settled.wait()
        except TimeoutError:
            return False

    async def _come(self) -> None:
        member = PushConsumer(
            self._env_of(CLIENT + self.came),
            GROUP,
            self._namesrv,
            self.listen,
            subscriptions={self._topic: "*"},
            options=ConsumeOptions(from_first=True, poll_ms=1000, rebalance_s=2.0, commit_s=1.0),
        )
        self.came += 1
        self._members.append(member)
        try:
            await member.start()
        except (MqError, OSError):
            self.failed += 1  # nobody could be asked: its own loops go on trying

    async def _go(self) -> None:
        member = self._members.pop(0)
        try:
            await member.stop()
        except (MqError, OSError):
            self.failed += 1

    async def listen(self, messages: list[Received]) -> bool:
        """Take them, or now and then give one back."""
        for message in messages:
            key = message.msg_id
            again = key in self.given_back or self._settled.is_set()
            if not again and self._chance.random() < GIVES_BACK:
                self.given_back.add(key)
                return False
            self.handled.add(key)
        return True

    def not_handled(self, history: History, *, clocks_true: bool) -> list[str]:
        """Acknowledged messages that no member took, in words. What was given back waits by the clock of a
        broker: nothing is asked of it where somebody set one, nor of any where a disk lied and lost power."""
        if lied(history.events):
            return []
        taken = self.handled if clocks_true else self.handled | self.given_back
        acked = [event.key for event in history.events if isinstance(event, Ok)]
        left = [key for key in acked if key not in taken]
        if not left:
            return []
        told = ", ".join(left[:SHOWN])
        return [f"{len(left)} of {len(acked)} acknowledged messages were never handled by {GROUP}: {told}"]
