"""Which messages of a queue does a SQL92 expression let through, and how far was looked for them?

Queues hold tag codes only, so each record is read. A look ends when enough was found, or after LOOK_MS: the
consumer is told to come again at once where it ended, and others have their turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from model.sql92 import Filter
from store.files.record import decode
from store.flow.reading import GetStatus, Got

LOOK_MS: Final = 5.0
STEP: Final = 32
"""Records read at once."""
RECORDS_MAX: Final = 2048
"""Of one look, also where no time passes (under simulation)."""


def look(
    get: Callable[[int, int], Got],
    chooses: Filter,
    offset: int,
    count_max: int,
    bytes_max: int,
    clock_ms: Callable[[], float],
) -> Got:
    """Up to ``count_max`` messages from queue offset ``offset`` on that ``chooses`` takes, of ``bytes_max``
    or a little more. ``get(offset, count_max)`` reads the queue. NO_MATCHED: none of those looked at."""
    until_ms = clock_ms() + LOOK_MS
    found: list[bytes] = []
    size = looked = 0
    got = first = get(offset, min(count_max, STEP))
    while got.status is GetStatus.FOUND:
        for chunk in got.chunks:
            for raw in split(chunk):
                looked += 1
                if chooses(properties(decode(raw, check_crc=False).properties)):
                    found.append(raw)
                    size += len(raw)
        first = got
        enough = len(found) >= count_max or size >= bytes_max
        if enough or looked >= RECORDS_MAX or clock_ms() >= until_ms:
            break
        got = get(got.next_offset, min(count_max - len(found), STEP))
    if not looked:
        return first
    status = GetStatus.FOUND if found else GetStatus.NO_MATCHED
    return Got(status, first.next_offset, first.min_offset, first.max_offset, found, len(found))


def split(chunk: bytes) -> list[bytes]:
    """The whole records one after the other."""
    view, at, found = memoryview(chunk), 0, []
    while at < len(chunk):
        size = int.from_bytes(view[at : at + 4], "big")
        found.append(bytes(view[at : at + size]))
        at += size
    return found


def properties(text: str) -> dict[str, str]:
    """Name -> value; of one that is there twice the last, as in the original's decoder."""
    pairs = (part.partition("\x01") for part in text.split("\x02"))
    return {name: value for name, separator, value in pairs if separator}
