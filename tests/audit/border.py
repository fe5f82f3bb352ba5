"""Stores whose log ends behind two full segments: the border of an incremental audit."""

from __future__ import annotations

from pathlib import Path

from tests.audit.stores import LogWriter, copies, patch, record

BORDER = 2 * 4096
PLACES = 5
"""Of queue 7, all of them before the border."""


def made(root: Path, count: int = 3) -> tuple[list[Path], LogWriter]:
    """Three segments, of which two are full. Queue 7 has records in the first only."""
    writer = LogWriter(root / "origin")
    for n in range(PLACES):
        writer.add(b"x" * 30, key=f"q{n}", queue_id=7, stamp=1000)
    writer.fill(80)
    assert BORDER < writer.end < BORDER + 4096
    writer.confirm(epochs=[(1, 0)])
    return copies(writer.root, count), writer


def append(stores: list[Path], writer: LogWriter, place: int, key: str, *, queue_id: int = 7) -> int:
    """One more record on every replica; returns where it stands."""
    at = writer.end
    raw = record(at, place, b"x" * 30, key=key, queue_id=queue_id, stamp=9000)
    for store in stores:
        patch(store, at, raw)
    writer.end += len(raw)
    return at
