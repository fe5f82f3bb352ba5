"""What do the replicas hold where one is wrong? One record of a window, decoded and in hex, copy by copy.

Only what the finding is about is read: the record's head, and the rows of its bytes in which copies differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from audit.findings import Finding
from audit.reading.layout import Replica, bytes_at
from audit.reading.records.record import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN, Parsed, parse
from audit.results.blame.right import Right
from audit.results.losses import Window

RECORDS_MAX: Final = 8
ROW_BYTES: Final = 16
_ROWS_MAX: Final = 8
_READ_BYTES_MAX: Final = 1024 * 1024
_HEAD_BYTES: Final = 96
_SOUND: Final = "a readable record"
_OF_ONE_COPY: Final = frozenset(
    {
        "crc_mismatch",
        "bytes_differ",
        "unreadable_region",
        "phys_offset_mismatch",
        "divergent_suffix",
        "short_tail",
    }
)
"""Another copy is right; what is wrong otherwise is wrong in all."""
_KINDS: Final = _OF_ONE_COPY | frozenset(
    {
        "extra_tail",
        "acked_missing",
        "acked_unknown",
        "acked_mismatch",
        "acked_out_of_order",
        "dup_queue_offset",
        "queue_order",
        "queue_gap",
        "dup_message",
    }
)


@dataclass(frozen=True, slots=True)
class Row:
    """Bytes from ``offset`` on, each with whether copies differ in it."""

    offset: int
    cells: tuple[tuple[str, bool], ...]
    text: str


@dataclass(frozen=True, slots=True)
class Copy:
    """``fields``: name, value, whether copies differ in it; ``rows``: of all copies the same offsets;
    ``sound``: it can be read, is the message, and no finding blames it."""

    replica: str
    said: str
    sound: bool
    fields: tuple[tuple[str, str, bool], ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Evidence:
    """The first record of a window, on each replica that has a file there; equal copies are one."""

    window: Window
    copies: tuple[Copy, ...]


def evidence(
    windows: Iterable[Window], replicas: Sequence[Replica], findings: Sequence[Finding] = ()
) -> list[Evidence]:
    """Of the first window of each kind, replica and epoch. Raises nothing."""
    found: list[Evidence] = []
    seen: set[object] = set()
    right = Right(findings, replicas)
    for w in windows:
        if len(found) == RECORDS_MAX:
            break
        fault = (w.kind, w.replica, w.epoch)
        if w.kind in _KINDS and w.phys_offset >= 0 and seen.isdisjoint({w.phys_offset, fault}):
            copies = _copies(w, replicas, right)
            if copies:
                seen |= {w.phys_offset, fault}
                found.append(Evidence(w, copies))
    return found


def stamp(ms: int) -> str:
    """Milliseconds since 1970 as people read them; empty for none."""
    if not 0 <= ms < 1 << 47:
        return ""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"


def _copies(w: Window, replicas: Sequence[Replica], right: Right) -> tuple[Copy, ...]:
    held = [(r, *_parsed(r, w.phys_offset)) for r in replicas if r.segment_at(w.phys_offset) is not None]
    size = _size(w, [parsed for _, parsed, _ in held])
    raws = [_read(r, w.phys_offset, size) for r, _, _ in held]
    values = [_fields(r, parsed, raw) for (r, parsed, _), raw in zip(held, raws, strict=True)]
    differing = _differing(raws, size)
    merged: dict[Copy, list[str]] = {}
    for (r, _, said), raw, own in zip(held, raws, values, strict=True):
        rows = tuple(_row(raw, w.phys_offset, number, differing) for number in _chosen(differing, size))
        fields = tuple((name, value, _unlike(name, values)) for name, value in own.items())
        wrong = w.replica == r.name or right.is_named(r, w.phys_offset, w.phys_offset + 1)
        merged.setdefault(_copy(w, wrong, said, fields, rows), []).append(r.name)
    return tuple(replace(copy, replica=", ".join(names)) for copy, names in merged.items())


def _differing(raws: Sequence[bytes], size: int) -> set[int]:
    """The indexes of bytes that are not the same in all copies."""
    return {at for at in range(size) if len({raw[at : at + 1] for raw in raws}) > 1}


def _unlike(name: str, values: Sequence[dict[str, str]]) -> bool:
    return len({own.get(name) for own in values}) > 1


def _size(w: Window, parsed: Sequence[Parsed]) -> int:
    """How many bytes are compared: of the longest record, or of what the window says is none."""
    sizes = [one.size for one in parsed if one.record is not None]
    if sizes:
        return min(max(*sizes, RECORD_BYTES_MIN), _READ_BYTES_MAX)
    return min(max(RECORD_BYTES_MIN, w.until - w.phys_offset), _HEAD_BYTES)


def _copy(
    w: Window, wrong: bool, said: str, fields: tuple[tuple[str, str, bool], ...], rows: tuple[Row, ...]
) -> Copy:
    key = next((value for name, value, _ in fields if name == "key"), w.first_key)
    other = w.kind.startswith("acked_") and bool(w.first_key) and key != w.first_key
    sound = said == _SOUND and not other and not (w.kind in _OF_ONE_COPY and wrong)
    said = f"{_SOUND}, but another message" if other and said == _SOUND else said
    return Copy("", said, sound, fields, rows)


def _read(r: Replica, offset: int, size: int) -> bytes:
    try:
        return bytes_at(r, offset, size)
    except OSError:
        return b""


def _parsed(r: Replica, offset: int) -> tuple[Parsed, str]:
    """The record there, and what to say of it."""
    raw = _read(r, offset, _READ_BYTES_MAX)
    segment = r.segment_at(offset)
    assert segment is not None, "asked where there is a file"
    parsed = parse(raw, 0, offset, r.segment_end(segment))
    if not raw:
        return parsed, "cannot be read"
    if not any(raw[:_HEAD_BYTES]):
        return parsed, "zeros"
    if offset >= r.end:
        return parsed, "behind the end of this log"
    if parsed.record is None:
        return parsed, f"no record: {parsed.problem}" if parsed.problem != "blank" else "the segment's end"
    return parsed, f"damaged: {parsed.problem}" if parsed.problem else _SOUND


def _fields(r: Replica, parsed: Parsed, raw: bytes) -> dict[str, str]:
    record = parsed.record
    if record is None or len(raw) < RECORD_BYTES_MIN or int.from_bytes(raw[4:8]) not in (MAGIC_V1, MAGIC_V2):
        return {}
    written = int.from_bytes(raw[8:12])
    return {
        "topic": record.topic,
        "queue": f"{record.queue_id} @ {record.queue_offset}",
        "key": record.uniq_key or "none",
        "stored": stamp(record.store_timestamp_ms) or str(record.store_timestamp_ms),
        "born": stamp(int.from_bytes(raw[40:48], signed=True)) or "no time",
        "size": f"{record.size} bytes",
        "says it is at": str(int.from_bytes(raw[28:36], signed=True)),
        "body's CRC": f"{written:08x}"
        + ("" if written == record.body_crc else f", computed {record.body_crc:08x}"),
        "epoch": str(r.epoch_at(record.offset)) if r.epoch_at(record.offset) >= 0 else "unknown",
    }


def _chosen(differing: set[int], size: int) -> list[int]:
    """Numbers of the rows that are shown: those in which copies differ; the head if none does."""
    rows = sorted({at // ROW_BYTES for at in differing})
    if not rows:
        return list(range(min(_ROWS_MAX - 2, (size + ROW_BYTES - 1) // ROW_BYTES)))
    return sorted({0, *rows[: _ROWS_MAX - 1]})


def _row(raw: bytes, begin: int, number: int, differing: set[int]) -> Row:
    at = number * ROW_BYTES
    part = raw[at : at + ROW_BYTES]
    cells = tuple((f"{byte:02x}", at + n in differing) for n, byte in enumerate(part))
    return Row(begin + at, cells, "".join(chr(b) if 32 <= b < 127 else "·" for b in part))
