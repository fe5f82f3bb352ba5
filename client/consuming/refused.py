"""What does a consumer do about an answer that would be the same again? It says so once, and asks seldom.
What fails for long it says once, too, and asks as ever.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from client.refusals import is_final
from model.errors import Refused
from runtime.backoff import Backoff
from runtime.env import Env

FIRST_MS: Final = 1_000
LONGEST_MS: Final = 15_000
"""So long after an operator gave the right, at most, the consumer goes on."""
LASTS_MS: Final = 5_000
"""What fails for so long may not pass by itself: a failover is shorter."""


@dataclass(slots=True)
class _Failing:
    since_ms: float
    told: bool = False


class Refusals:
    """Of one consumer. ``what``: an operation, as the log names it."""

    def __init__(self, log: logging.Logger, consumer: str, env: Env) -> None:
        self._log = log
        self._consumer = consumer
        self._env = env
        self._open: dict[str, tuple[int, Backoff]] = {}
        self._failing: dict[str, _Failing] = {}

    def on_error(
        self, what: str, error: Exception, again_s: float, *, level: int = logging.INFO, needed: bool = False
    ) -> float:
        """How long to wait before the next try. ``again_s``, ``level``: of what may pass by itself.
        ``needed``: nothing is consumed meanwhile."""
        text = str(error) or type(error).__name__
        if not is_final(error) or not isinstance(error, Refused):
            if not needed or not self._told(what, text):
                self._log.log(level, "consumer %s: %s: %s", self._consumer, what, text)
            return again_s
        code, backoff = self._open.get(what, (None, None))
        if backoff is None or code != error.code:
            backoff = Backoff(self._env.random, FIRST_MS, LONGEST_MS)
            self._open[what] = (int(error.code), backoff)
            self._log.warning("consumer %s: %s is refused: %s", self._consumer, what, text)
        return max(again_s, backoff.next_s())

    def _told(self, what: str, text: str) -> bool:
        """Whether it is said already, or now, that ``what`` fails for long."""
        now_ms = self._env.monotonic_ms()
        failing = self._failing.setdefault(what, _Failing(now_ms))
        if failing.told or now_ms - failing.since_ms < LASTS_MS:
            return failing.told
        failing.told = True
        self._log.warning(
            "consumer %s: %s fails since %.0f s, and is tried again: %s",
            *(self._consumer, what, (now_ms - failing.since_ms) / 1000, text),
        )
        return True

    def on_good(self, what: str) -> None:
        failing = self._failing.pop(what, None) if self._failing else None
        if failing is not None and failing.told:
            self._log.info("consumer %s: %s works again", self._consumer, what)
        if self._open and self._open.pop(what, None) is not None:
            self._log.info("consumer %s: %s is not refused any more", self._consumer, what)
