"""How are peers that misbehave put into the log without filling it?

A flood of bad frames is a line each and nothing else; written at full speed it would cost the disk and hide
what matters.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final

LINES_AT_ONCE: Final = 10
PER_S: Final = 1.0
KEYS_MAX: Final = 256


class Complaints:
    """Up to ``LINES_AT_ONCE`` lines, then one a second; the next line says how many were left out."""

    def __init__(self, log: logging.Logger, now_s: Callable[[], float]) -> None:
        self._log = log
        self._now_s = now_s
        self._left = float(LINES_AT_ONCE)
        self._since_s: float | None = None
        self.left_out = 0
        self.total = 0

    def warn(
        self,
        text: str,
        *values: object,
        extra: Mapping[str, Any] | None = None,
        level: int = logging.WARNING,
        exc_info: bool = False,
    ) -> None:
        """``log.warning``, when there is room. ``extra``: for the JSON log, see admin.host.logs."""
        self.total += 1
        if not self._has_room():
            self.left_out += 1
            return
        self._left -= 1
        more = f" ({self.left_out} more such lines left out)" if self.left_out else ""
        self.left_out = 0
        self._log.log(level, text + "%s", *values, more, extra=extra, exc_info=exc_info)

    def tell_left_out(self, text: str, *values: object) -> None:
        """A line about those left out, when there are some and there is room: no other line may follow."""
        if self.left_out and self._has_room():
            self._left -= 1
            self._log.warning(text + " (%d more such lines left out)", *values, self.left_out)
            self.left_out = 0

    @property
    def is_quiet(self) -> bool:
        """Whether it owes nothing, and was not used for as long as it takes to have all lines again."""
        return self._has_room() and not self.left_out and self._left >= LINES_AT_ONCE

    def _has_room(self) -> bool:
        now_s = self._now_s()
        passed = 0.0 if self._since_s is None else max(0.0, now_s - self._since_s)
        self._since_s = now_s
        self._left = min(self._left + passed * PER_S, float(LINES_AT_ONCE))
        return self._left >= 1


class Mistakes(Complaints):
    """Of ours, that a request brought to light: whoever found it can repeat it."""

    def exception(self, text: str, *values: object) -> None:
        """``log.exception``, when there is room."""
        self.warn(text, *values, level=logging.ERROR, exc_info=True)


class ServerComplaints(Complaints):
    """Of one server, about its peers; ``log_of_mistakes`` has its own rate: no flood hides ours."""

    def __init__(self, log: logging.Logger, now_s: Callable[[], float]) -> None:
        super().__init__(log, now_s)
        self.log_of_mistakes = Mistakes(log, now_s)


class ComplaintsByKey:
    """A rate for each key, so that a noisy one hides no other. Beyond ``keys_max`` keys that are not quiet,
    the rest share one rate."""

    def __init__(self, log: logging.Logger, now_s: Callable[[], float], keys_max: int = KEYS_MAX) -> None:
        self._log = log
        self._now_s = now_s
        self._keys_max = keys_max
        self._by: dict[Hashable, tuple[Complaints, str]] = {}
        self._rest = Complaints(log, now_s)

    def warn(self, key: Hashable, about: str, text: str, *values: object) -> None:
        """As ``Complaints.warn``. ``about``: what lines of this key are about, in that of those left out."""
        self._of(key, about).warn(text, *values)

    def tell_left_out(self) -> None:
        """For those that nothing follows; called now and then."""
        for complaints, about in list(self._by.values()):
            complaints.tell_left_out("%s", about)
        self._rest.tell_left_out("others")
        self._by = {key: item for key, item in self._by.items() if not item[0].is_quiet}

    def _of(self, key: Hashable, about: str) -> Complaints:
        found = self._by.get(key)
        if found is None:
            if len(self._by) >= self._keys_max:
                return self._rest
            found = self._by[key] = (Complaints(self._log, self._now_s), about)
        return found[0]
