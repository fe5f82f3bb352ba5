"""Which brokers answered slowly of late, so that a send that may go anywhere goes elsewhere?

The steps are those of RocketMQ's ``MQFaultStrategy`` (``sendLatencyFaultEnable``).
"""

from __future__ import annotations

from typing import Final

from runtime.env import Env

STEPS_MS: Final = (
    (15_000, 30_000),
    (5_000, 10_000),
    (3_000, 6_000),
    (1_800, 5_000),
    (550, 2_000),
)
"""An answer after so long, or no answer: the broker is avoided for so long."""


class Latencies:
    """What one producer's answers took. A broker is avoided, never shut out."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._until_ms: dict[str, float] = {}

    def note(self, address: str, took_ms: float) -> None:
        """An attempt at ``address`` ended, well or not. A quick one ends the former verdict."""
        for over_ms, avoid_ms in STEPS_MS:
            if took_ms >= over_ms:
                self._until_ms[address] = self._env.monotonic_ms() + avoid_ms
                return
        self._until_ms.pop(address, None)

    def is_slow(self, address: str) -> bool:
        until_ms = self._until_ms.get(address)
        if until_ms is None:
            return False
        if self._env.monotonic_ms() < until_ms:
            return True
        del self._until_ms[address]
        return False
