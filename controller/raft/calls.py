"""What does a command come to, and who is told?"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

log = logging.getLogger(__name__)

Done = Callable[[Any, str | None], None]
"""Called with (result, None) when applied, or (None, why) when the command is certainly gone."""


@dataclass(frozen=True, slots=True)
class Failed:
    """What a command comes to when ``apply`` raised: the same text on every member."""

    text: str


def library_callback(done: Done) -> Callable[[Any, int], None]:
    """``done`` as PySyncObj calls it: with a result and a reason, 0 = success."""

    def callback(result: Any, reason: int) -> None:
        if reason == 0:
            safely(done, result, None)
        else:
            safely(done, None, "another command took its place")

    return callback


def safely(done: Done, result: Any, why: str | None) -> None:
    """Call ``done``; what it raises is logged."""
    try:
        done(result, why)
    except Exception:
        # The entry is applied; raised further, it would be applied a second time here and nowhere else.
        log.exception("the callback of a command failed")
