"""Are the first bytes of keelmq's file as they were written? Its mark and CRC tell; RocketMQ's has none."""

from __future__ import annotations

import zlib
from typing import Final

PAGE_BYTES: Final = 4096
CHECKPOINT_MARK: Final = b"KQ02"
CHECKPOINT_PARTS: Final = ((0, 40), (72, 88))
"""What the CRC of a checkpoint is of."""
CHECKPOINT_END: Final = 104
"""With the note for audits, which goes with the seal."""


def seal_problem(raw: bytes, mark: bytes, parts: tuple[tuple[int, int], ...], end: int) -> str:
    """``raw``: the file; ``mark``: stands at 64, behind it the CRC-32 of ``parts``. Without a mark there are
    zeros up to ``end``. Empty: it is as it was written."""
    if len(raw) != PAGE_BYTES:
        return f"{len(raw)} bytes, expected {PAGE_BYTES}"
    if not is_sealed_by(raw, mark):
        if raw[64:68] != bytes(4):
            return f"the mark is {raw[64:68]!r}"
        return "bytes without the mark before them" if any(raw[68:end]) else ""
    written = int.from_bytes(raw[68:72])
    computed = zlib.crc32(b"".join(raw[a:b] for a, b in parts))
    return "" if written == computed else f"CRC {written:08x}, computed {computed:08x}"


def is_sealed_by(raw: bytes, mark: bytes) -> bool:
    return len(raw) == PAGE_BYTES and raw[64:68] == mark


def checkpoint_problem(raw: bytes) -> str:
    return seal_problem(raw, CHECKPOINT_MARK, CHECKPOINT_PARTS, CHECKPOINT_END)
