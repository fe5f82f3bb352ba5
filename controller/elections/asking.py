"""How long are the candidates of an election waited for?

All of them normally answer within milliseconds, and the wait ends there. After ``SOON_MS`` those that are
missing are waited for only while the election would find nobody without them, or nobody that is certainly
there: a broker on a slow disk or link is slow, not dead.

Pure: times are monotonic milliseconds, given by the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

SOON_S: Final = 0.1
SOON_MS: Final = SOON_S * 1000
LONGEST_WAIT_SHARE: Final = 1 / 3
"""Of the heartbeat timeout: a broker that needs as long as that to answer will soon count as dead anyway."""
LONGEST_WAIT_MAX_S: Final = 1.0
"""A broker that asks for an election gives up after 3 s, some of which its master may need to step down."""

ASKED_GAP_MS: Final = 5000.0
"""A broker that is refused asks again sooner than that."""


def longest_wait_s(timeouts_ms: Iterable[int], *, until_dead: bool = False) -> float:
    """For how long brokers with these heartbeat timeouts are waited for at most. ``until_dead``: as long as
    one that is silent counts as alive; nobody waits for the answer of such an election."""
    timeout_s = max(timeouts_ms, default=0) / 1000
    longest_s = timeout_s if until_dead else min(timeout_s * LONGEST_WAIT_SHARE, LONGEST_WAIT_MAX_S)
    return max(longest_s, SOON_S)


class Inquiry:
    """One question to the candidates: how far is your log, and do you still hear the master?

    ``number`` tells its answers from those of an earlier one.
    """

    def __init__(self, number: int, asked: Collection[int], longest_s: float, now_ms: float) -> None:
        self.number = number
        self.asked = frozenset(asked)
        self.pending = set(asked)
        self.heard: set[int] = set()  # answered, whatever it was
        self.answered: set[int] = set()  # said how far their logs are
        self.following: set[int] = set()  # still hear the master
        self._began_ms = now_ms
        self._until_ms = now_ms + longest_s * 1000

    def on_answer(self, broker_id: int, *, told_end: bool, following: bool, reached: bool) -> None:
        self.pending.discard(broker_id)
        if told_end or reached:
            self.heard.add(broker_id)
        if told_end:
            self.answered.add(broker_id)
        if following:
            self.following.add(broker_id)

    def is_over(self, now_ms: float, decided: Callable[[], bool]) -> bool:
        """Whether all have answered; or, after ``SOON_MS``, what the answers so far decide; or time is up."""
        if not self.pending or now_ms >= self._until_ms:
            return True
        return now_ms >= self._began_ms + SOON_MS and decided()

    def look_ms(self, now_ms: float) -> float:
        """When to look again without an answer: that may decide it, too, as the master may be heard again."""
        soon_ms = self._began_ms + SOON_MS
        return soon_ms if now_ms < soon_ms else min(self._until_ms, now_ms + SOON_MS)


class AskedFor:
    """Since when an election of a group's epoch is asked for again and again: each request is short."""

    def __init__(self) -> None:
        self._spans: dict[str, tuple[int, float, float]] = {}  # group -> (epoch, first, last)

    def since_ms(self, name: str, epoch: int, now_ms: float) -> float:
        """It is asked for now; the time of the first request."""
        known, first_ms, last_ms = self._spans.get(name, (-1, 0.0, 0.0))
        if known != epoch or now_ms - last_ms > ASKED_GAP_MS:
            first_ms = now_ms
        self._spans[name] = epoch, first_ms, now_ms
        return first_ms
