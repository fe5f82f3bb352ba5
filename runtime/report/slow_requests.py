"""Which requests took long until their answers, and from which client?

The sibling of ``slow_turns``: there a request held the event loop, here it may have waited for slaves, a disk
or another server. What is held on purpose (pulls, pops and notifications that wait for messages) is answered
elsewhere and is not among them.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

from runtime.report.complaints import Complaints

EVENT: Final = "slow_request"
KEPT: Final = 16
"""So many of the last ones are shown."""

log = logging.getLogger(__name__)


class SlowRequests:
    """Counts and tells requests of ``least_ms`` or more; 0: none is. ``now_ms``: a monotonic clock."""

    def __init__(self, name: str, now_ms: Callable[[], float], least_ms: float) -> None:
        self.least_ms = least_ms if least_ms > 0 else float("inf")
        self.by_request: Counter[str] = Counter()
        self._name = name
        self._last: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._complaints = Complaints(log, lambda: now_ms() / 1000)

    def note(self, request: str, client: str, took_ms: float) -> None:
        """``request`` of ``client`` was answered after ``took_ms``. Nothing happens below ``least_ms``.

        ``request``: the name of its code, one of about 100.
        """
        if took_ms < self.least_ms:
            return
        self.by_request[request] += 1
        fields = {"request": request, "client": client, "ms": round(took_ms)}
        self._last.append(fields)
        text = "%s: event %s request=%s client=%s ms=%d"
        extra = {"event": EVENT, "fields": fields}
        self._complaints.warn(text, self._name, EVENT, *fields.values(), extra=extra)

    def status(self) -> dict[str, Any]:
        """JSON-ready: how many by the names of their codes, and the last few."""
        return {"byRequest": dict(sorted(self.by_request.items())), "last": list(self._last)}
