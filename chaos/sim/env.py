"""What does one simulated process get as its ``Env``? Virtual clocks, seeded chance, slow offloaded calls."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from chaos.sim.disk import Machine, SimDisk
from chaos.sim.loop import Life, SimLoop
from chaos.sim.net import Fabric, SimNetwork
from runtime.report.events import Event, EventLog

if TYPE_CHECKING:
    from runtime.env import Disk, Env, Network

T = TypeVar("T")

EPOCH_MS: Final = 1_700_000_000_000
"""Wall-clock time of virtual second 0: 2023-11-14 22:13:20 UTC."""


class SimEnv:
    """One life's world; ``Env`` of ``runtime.env``. Its wall clock is ``skew_ms`` ahead of the others'."""

    def __init__(
        self,
        loop: SimLoop,
        life: Life,
        fabric: Fabric,
        machine: Machine,
        host: str,
        *,
        seed: int | str,
        watch: Callable[[Event], None] | None = None,
        offload_s: tuple[float, float] = (0.0001, 0.002),
    ) -> None:
        self._loop = loop
        self._machine = machine
        self._offload_s = offload_s
        self.host = host
        self.skew_ms = 0
        self.disk: Disk = SimDisk(machine, life)
        self.network: Network = SimNetwork(fabric, life, host)
        self.ha_network = self.network
        self.random = random.Random(f"env:{seed}:{life.name}:{life.index}")
        self._latencies = random.Random(f"offload:{seed}:{life.name}:{life.index}")
        self.events = EventLog(self.now_ms, watch)

    def now_ms(self) -> int:
        return EPOCH_MS + int(self._loop.now_s * 1000) + self.skew_ms

    def monotonic_ms(self) -> float:
        return self._loop.now_s * 1000

    def boot_id(self) -> str:
        return f"{self._machine.name}.{self._machine.counts.powerless}"

    def memory_bytes(self) -> int:
        return 24 << 30  # what the original takes where the system does not tell

    async def offload(self, call: Callable[[], T]) -> T:
        """Run ``call`` at one moment within a seeded delay. As with a thread, it happens even when the
        waiter is cancelled meanwhile; it does not when the process is killed first."""
        answer: asyncio.Future[T] = self._loop.create_future()
        low, high = self._offload_s
        delay = self._latencies.uniform(low, high) + self._machine.faults.slow_s
        at = self._latencies.random() * delay
        self._loop.call_later(at, self._run_offloaded, call, answer, delay - at)
        return await answer

    def _run_offloaded(self, call: Callable[[], T], answer: asyncio.Future[T], rest_s: float) -> None:
        try:
            result = call()
        except Exception as error:  # noqa: BLE001
            # As run_in_executor: whatever the call raises reaches the one who awaits it.
            self._loop.call_later(rest_s, _set_error, answer, error)
        else:
            self._loop.call_later(rest_s, _set_result, answer, result)


def _set_result(answer: asyncio.Future[T], result: T) -> None:
    if not answer.done():
        answer.set_result(result)


def _set_error(answer: asyncio.Future[T], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


def _is_an_env(env: SimEnv) -> Env:
    return env
