"""A store whose numbers are as large and as small as 64 bits hold."""

from __future__ import annotations

import struct
from pathlib import Path

from tests.audit.stores import SEGMENT, LogWriter, enter, patch

LAST = (1 << 63) - 1
FIRST = -1 << 63
_PLACE_AT = 20
"""In a record, of its place in the queue."""

_PLACES = {
    0: {5: LAST},
    1: {2: LAST},
    2: {0: FIRST},
    3: {4: LAST, 5: LAST},
    4: {3: FIRST, 4: LAST - 1},
}
"""By queue: which record says which place."""
_ENTRIES = {5: [(1, LAST, 129), (3, FIRST, -1)], 6: [(2, 1 << 62, 0x7FFFFFFE)]}
"""By queue: at which place an entry names which record, of which size."""


def extreme(root: Path) -> Path:
    writer = LogWriter(root / "extreme", start=SEGMENT)
    of: dict[int, list[int]] = {}
    for n in range(42):
        of.setdefault(n % 7, []).append(writer.add(f"m{n}".encode() * 9, key=f"m{n}", queue_id=n % 7))
    for n in range(5):
        stamp = 1_700_000_000_000 + n
        late = {"topic": "SCHEDULE_TOPIC_XXXX", "queue_id": 2, "stamp": stamp, "more": "DELAY\x013\x02"}
        writer.add(b"late", key=f"late{n}", **late)  # type: ignore[arg-type]
        writer.rows[-1]["tags_code"] = FIRST if n == 2 else stamp + 10_000
    writer.write_queues()
    for queue_id, places in _PLACES.items():
        for n, place in places.items():
            patch(writer.root, of[queue_id][n] + _PLACE_AT, struct.pack(">q", place))
    for queue_id, entries in _ENTRIES.items():
        for place, offset, size in entries:
            enter(writer.root, "T", queue_id, place, struct.pack(">qiq", offset, size, LAST))
    writer.confirm(epochs=[(1, 0)])
    return writer.root
