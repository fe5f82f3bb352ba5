"""What does a consumer do about an answer that would be the same again? It says so once, and asks seldom."""

from __future__ import annotations

import logging
from typing import Final

from client.refusals import is_final
from model.errors import Refused
from runtime.backoff import Backoff
from runtime.env import Env

FIRST_MS: Final = 1_000
LONGEST_MS: Final = 15_000
"""So long after an operator gave the right, at most, the consumer goes on."""


class Refusals:
    """Of one consumer. ``what``: an operation, as the log names it."""

    def __init__(self, log: logging.Logger, consumer: str, env: Env) -> None:
        self._log = log
        self._consumer = consumer
        self._random = env.random
        self._open: dict[str, tuple[int, Backoff]] = {}

    def on_error(self, what: str, error: Exception, again_s: float, *, level: int = logging.INFO) -> float:
        """How long to wait before the next try. ``again_s``, ``level``: of what may pass by itself."""
        text = str(error) or type(error).__name__
        if not is_final(error) or not isinstance(error, Refused):
            self._log.log(level, "consumer %s: %s: %s", self._consumer, what, text)
            return again_s
        code, backoff = self._open.get(what, (None, None))
        if backoff is None or code != error.code:
            backoff = Backoff(self._random, FIRST_MS, LONGEST_MS)
            self._open[what] = (int(error.code), backoff)
            self._log.warning("consumer %s: %s is refused: %s", self._consumer, what, text)
        return max(again_s, backoff.next_s())

    def on_good(self, what: str) -> None:
        if self._open and self._open.pop(what, None) is not None:
            self._log.info("consumer %s: %s is not refused any more", self._consumer, what)
