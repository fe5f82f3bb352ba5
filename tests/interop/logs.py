"""What is in the CommitLog of a store, of either kind?"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

from store.files.record import decode, measure

_RECORD_SIZE = struct.Struct(">i")


def read_log(store: Path) -> tuple[int, bytes]:
    """The first offset of a CommitLog and its bytes up to the last whole record."""
    files = sorted(path for path in (store / "commitlog").glob("*") if path.name.isdigit())
    if not files:
        return 0, b""
    begin = int(files[0].name)
    data = b"".join(path.read_bytes() for path in files)
    at = 0
    while at < len(data):
        if _RECORD_SIZE.unpack_from(data, at)[0] == 0:
            break
        step = measure(data, at, begin + at)
        if step == 0:
            break
        at += abs(step)
    return begin, data[:at]


def end_of(store: Path) -> int:
    begin, data = read_log(store)
    return begin + len(data)


def messages_of(store: Path, topic: str) -> dict[tuple[int, int], bytes]:
    """(queue, queue offset) -> body of every message of ``topic`` in the log."""
    begin, data = read_log(store)
    found: dict[tuple[int, int], bytes] = {}
    at = 0
    while at < len(data):
        step = measure(data, at, begin + at)
        if step > 0:
            record = decode(data, at)
            if record.topic == topic:
                place = (record.queue_id, record.queue_offset)
                assert place not in found, f"queue offset {place} was given twice"
                found[place] = bytes(record.body)
        at += abs(step)
    return found


def assert_same_logs(stores: Mapping[str, Path]) -> int:
    """The logs of these stores are byte-identical; returns their length in bytes."""
    logs = {name: read_log(store) for name, store in stores.items()}
    (first, (begin, data)), *others = logs.items()
    for name, (other_begin, other) in others:
        assert other_begin == begin, f"{name} begins at {other_begin}, {first} at {begin}"
        if other != data:
            at = next((i for i, (a, b) in enumerate(zip(data, other, strict=False)) if a != b), -1)
            raise AssertionError(
                f"{name} ({len(other)} bytes) and {first} ({len(data)} bytes) differ from {begin + at}"
            )
    return len(data)
