"""Who is told that a certificate ends soon? The log, once a day."""

from __future__ import annotations

import logging
from typing import Final

from runtime.tls.validity import Validity

SOON_MS: Final = 14 * 24 * 3600 * 1000
"""So long before its end a certificate is complained about, once a day."""
_DAY_MS: Final = 24 * 3600 * 1000


class Reminder:
    """Of the certificate of one server. ``what``: how its lines begin."""

    def __init__(self, log: logging.Logger, what: str) -> None:
        self._log = log
        self._what = what
        self._reminded_ms = 0

    def look(self, own: Validity | None, now_ms: int) -> None:
        if own is None or own.not_after_ms - now_ms >= SOON_MS or now_ms - self._reminded_ms <= _DAY_MS:
            return
        self._reminded_ms = now_ms
        ends = "expired" if own.not_after_ms <= now_ms else "expires"
        self._log.warning("%s %s at %s: renew it", self._what, ends, own.not_after)
