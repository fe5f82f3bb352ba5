"""When is a log put aside that cannot be continued from the master's (``autoReseed``)?"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from ha.slave.own_log import CannotGoOnError
from ha.slave.parts import Parts
from runtime.backoff import Backoff

log = logging.getLogger(__name__)

RESEEDS_MAX: Final = 3
"""So many logs are put aside in a row at the most: each stays on the disk."""
RESEED_FIRST_MS: Final = 5000
RESEED_MAX_MS: Final = 60_000
"""After the first one there is a wait, that grows: the gap may have been a passing one."""
RESEED_STEADY_MS: Final = 3_600_000
"""A copy that could be continued for this long ends the row."""


class Reseeds:
    """Puts logs aside that cannot be continued (``autoReseed``): how many in a row, and when the next one."""

    def __init__(self, parts: Parts, before: Callable[[], Awaitable[None]]) -> None:
        """``before`` returns when a log may be put aside, or cut that may be counted on. Raises MqError,
        OSError: not now."""
        self.aside: list[str] = []
        """Where logs went that could not be continued, in the life of this process."""
        self.before = before
        self._env, self._store, self._config = parts
        self._row = 0  # logs put aside in a row
        self._wait = Backoff(parts.env.random, RESEED_FIRST_MS, RESEED_MAX_MS)
        self._from_ms = float("-inf")  # no log is put aside before
        self._torn_ms = float("-inf")  # when the log could not be continued the last time

    def why_not_aside(self, error: CannotGoOnError) -> str | None:
        """Why the log is not put aside although ``autoReseed`` is set, or None.

        Not when the master lacks bytes we know to be confirmed: then it is perhaps the master that should be
        re-seeded, and an operator decides. Nor when what was copied in its place fares no better.
        """
        if not self._config.auto_reseed:
            return None
        confirmed = self._store.confirmed
        if error.master_end < confirmed:
            lacks = f"from {error.master_end} to {confirmed}"
            return f"not put aside: the master lacks what is confirmed here, {lacks}"
        before_ms, self._torn_ms = self._torn_ms, self._env.monotonic_ms()
        if self._torn_ms - before_ms >= RESEED_STEADY_MS:
            self._row = 0
            self._wait.reset()
        if self._row >= RESEEDS_MAX:
            return f"not put aside: {self._row} logs were in a row, and no copy could be continued"
        if self._row and self._torn_ms < self._from_ms:
            return "put aside later: the last copy could not be continued either"
        return None

    @property
    def on(self) -> bool:
        return self._config.auto_reseed

    def put_aside(self, error: CannotGoOnError) -> None:
        """Begin with an empty log. Raises DiskError, OSError."""
        end = self._store.log.end
        aside = self._store.quarantine()
        log.warning("the log up to %d was put aside in %s; copying the master's: %s", end, aside, error)
        self._env.events.add("reseeding", reason=str(error), aside=aside)
        self.aside.append(aside)
        self._row += 1
        self._from_ms = self._torn_ms + self._wait.next_s() * 1000
