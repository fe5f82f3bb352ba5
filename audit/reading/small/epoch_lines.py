"""What does the text of an epoch file say, and is it as it was written?"""

from __future__ import annotations

import zlib
from itertools import pairwise

from audit.rows.numbers import LAST


def parse_epochs(raw: bytes) -> tuple[list[tuple[int, int]], str]:
    """(entries as (epoch, start offset), problem); the problem is empty when the file is sound."""
    lines = raw.decode("utf-8", "replace").rstrip("\n").split("\n")
    try:
        count, written = int(lines[0]), int(lines[1])
        entries = []
        for line in lines[2:]:
            epoch, _, start = line.partition("-")
            entries.append((int(epoch), int(start)))
    except (IndexError, ValueError):
        return [], f"not an epoch file: {raw[:60]!r}"
    if any(abs(number) > LAST for entry in entries for number in entry):
        return [], f"numbers of more than 64 bits: {raw[:60]!r}"
    body = "".join(f"{epoch}-{start}\n" for epoch, start in entries)
    computed = zlib.crc32(body.encode()) & 0x7FFFFFFF
    if written not in (0, computed):
        return entries, f"CRC {written}, computed {computed}"
    if count != len(entries):
        return entries, f"count {count}, entries {len(entries)}"
    if raw.rstrip(b"\n") != f"{lines[0]}\n{lines[1]}\n{body}".encode().rstrip(b"\n") or not _plain(lines):
        return entries, f"not in its form: {raw[:60]!r}"
    if entries != sorted(entries) or any(a[1] >= b[1] for a, b in pairwise(entries)):
        return entries, "entries do not ascend"
    return entries, ""


def _plain(lines: list[str]) -> bool:
    return all(part.isascii() and part.isdigit() for line in lines for part in line.split("-"))
