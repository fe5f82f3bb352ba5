"""Until when may a master believe that nobody else was elected?

A keelmq master asks for a lease with its heartbeats and counts it from the moment it *sent* the question. The
Raft leader grants what is left of ``duration_ms`` since the newest moment at which a majority certainly still
followed it. With s that moment, the lease ends at the latest at s + duration. The leader that comes next
begins after s, because the majority that elects it still followed the former one at s; and it waits for
``duration_ms`` (and the drift of two clocks) before it elects another where that matters.
docs/decisions/0005-lease.md has the whole argument.

Pure: times are monotonic milliseconds, given by the caller.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from controller.elections.liveness import Broker, Heartbeat
from controller.groups.group import Rule
from model.leases import DURATION_MAX_MS, duration_ms

DRIFT: Final = 0.02
"""Two clocks may differ so much in speed."""


class Leases:
    """What this Controller granted, and what a former leader may have granted."""

    def __init__(self) -> None:
        self._until: dict[Broker, float] = {}
        self._led_ms = float("-inf")

    def lead(self, now_ms: float) -> None:
        """From now on this Controller decides; former leaders' leases are not known to it."""
        self._until.clear()
        self._led_ms = now_ms

    def grant(self, broker: Broker, timeout_ms: int, *, followed_ms: float | None, now_ms: float) -> int:
        """Milliseconds the broker may count from the sending of the question heard now; 0 = none.

        ``followed_ms``: ``Raft.followed_ms``.
        """
        if followed_ms is None:
            return 0
        left_ms = int(duration_ms(timeout_ms) - max(now_ms - followed_ms, 0))
        if left_ms <= 0:
            return 0
        until_ms = now_ms + left_ms + duration_ms(timeout_ms) * DRIFT
        self._until[broker] = max(until_ms, self._until.get(broker, until_ms))
        return left_ms

    def release(self, broker: Broker) -> None:
        """The broker itself said that it does not act as master any more."""
        self._until[broker] = float("-inf")

    def granted_to(self, group: str) -> list[int]:
        """Brokers this Controller granted a lease to, sorted; it may be over."""
        return sorted(broker_id for name, broker_id in self._until if name == group)

    def until_ms(self, broker: Broker, beat: Heartbeat | None, rule: Rule | None = None) -> float:
        """When the broker's last lease is over at the latest. ``rule``: of the epoch it may still lead.
        ``beat``: its newest heartbeat, if any; it counts where the rule does not say, because a link that was
        down since may have brought it before the broker was restarted with other times."""
        registered_ms = 0 if rule is None else rule.timeout_ms
        if not registered_ms and beat is not None and not beat.leases:
            return float("-inf")
        known = self._until.get(broker)
        if known is not None:
            return known
        said_ms = registered_ms or (0 if beat is None else beat.timeout_ms)
        longest_ms = duration_ms(said_ms) if said_ms else DURATION_MAX_MS
        return self._led_ms + longest_ms * (1 + DRIFT)


def matters(beat: Heartbeat | None, members: Collection[int], chosen: int, rule: Rule | None = None) -> bool:
    """Whether the master of ``rule`` and ``beat`` could confirm anything that ``chosen`` lacks or does not
    hear of. ``members``: those that forgot nothing.

    One that waits for every member cannot while ``chosen`` is a member: a broker that was elected
    acknowledges nothing to its former master any more.
    """
    said = None if rule is None else rule.all_ack
    all_ack = said if said is not None else beat is not None and beat.all_ack
    return not all_ack or chosen not in members
