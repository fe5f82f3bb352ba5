"""After how much silence of the other side does a link end? Pure."""

from __future__ import annotations

from typing import Final

from model.config import BrokerConfig

ROCKETMQ_SILENCE_MS: Final = 20_000
"""A RocketMQ broker sends something every 5 s, and gives its peers this long: ``haHousekeepingInterval``."""


def patience_ms(config: BrokerConfig, *, rocketmq_peer: bool) -> int:
    """After how much silence a link ends, ms."""
    own_ms = config.ha_housekeeping_ms
    return max(own_ms, ROCKETMQ_SILENCE_MS) if rocketmq_peer else own_ms


def excused_ms(heard_ms: float, late_ms: float, silence_ms: float, now_ms: float) -> float:
    """Since when the other side is silent, when the look at it at ``now_ms`` is ``late_ms`` late and a
    silence of ``silence_ms`` would end the link.

    A process that looks that late stood still itself, and perhaps its whole machine: the time does not count.
    """
    return min(heard_ms + late_ms, now_ms) if late_ms > silence_ms / 2 else heard_ms
