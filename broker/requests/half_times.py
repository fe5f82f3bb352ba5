"""When is the producer of a half message asked about it? By the half's age, where a clock can tell it."""

from __future__ import annotations

from typing import Final

from broker.requests.properties import changed, int_property
from store.files.record import Record
from store.flow.writing import CLOCK_BACK_MAX_MS

IMMUNITY_S: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"


def wait_ms(half: Record, usual_ms: int) -> int:
    """How old it is to be: its producer may want to be asked late."""
    immunity_s = int_property(half.properties, IMMUNITY_S)
    return immunity_s * 1000 if immunity_s is not None and immunity_s > 0 else usual_ms


def is_ahead(half: Record, now_ms: int) -> bool:
    """Whether a clock stored it that was wrong, or the one of now is: its age says nothing. A store time is
    ahead of a successor's clock by at most so much."""
    return half.store_timestamp_ms > now_ms + CLOCK_BACK_MAX_MS


def with_rest(half: Record, age_ms: int) -> str:
    """The properties of one that waits on where it is written anew."""
    immunity_s = int_property(half.properties, IMMUNITY_S) or 0
    return changed(half.properties, {IMMUNITY_S: str(max(immunity_s - age_ms // 1000, 1))})
