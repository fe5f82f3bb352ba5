"""What do many plain records say? The columns of a window's records at once, in numpy.

What ``parse`` says of each, without a step in Python for each field: nearly every record of a log is plain,
and an audit's time is this. What is not plain ends the stretch, and is looked at alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from audit.reading.records.record import (
    MAGIC_V1,
    PROPERTY_CRC,
    RECORD_BYTES_MAX,
    RECORD_BYTES_MIN,
    UNIQ,
    crc32,
    tags_code,
    text_property,
)
from model.message import COMPRESSED, INNER_BATCH, SCHEDULE_TOPIC, java_hash

_HEAD: Final = np.dtype(
    {
        "names": ["size", "magic", "crc", "queue", "place", "offset", "flag", "stored", "body"],
        "formats": [">i4", ">u4", ">u4", ">i4", ">i8", ">i8", ">i4", ">i8", ">i4"],
        "offsets": [0, 4, 8, 12, 20, 28, 36, 56, 84],
        "itemsize": 88,
    }
)
"""The fixed part of a record with IPv4 hosts, up to its body."""
_ODD: Final = COMPRESSED | 0x10 | 0x20 | INNER_BATCH
_TAGS: Final = b"TAGS\x01"
_END: Final = 2
_WORD: Final = 8
_GUESS_BYTES_MAX: Final = 128
_UP_TO: Final = np.array([(1 << 8 * (n + 1)) - 1 for n in range(_WORD)], np.uint64)
"""Bits of so many bytes of a word and one more."""


class Plain(NamedTuple):
    """Columns of consecutive records, as ``Record`` has them."""

    offset: Any
    until: Any
    topic: pa.Array
    queue_id: Any
    queue_offset: Any
    uniq_key: pa.Array
    body_crc: Any
    plain_crc: Any
    sys_flag: Any
    advance: Any
    tags_code: Any

    def __len__(self) -> int:
        return len(self.offset)


def take(data: bytes, base: int, position: int, stop: int) -> Plain | None:
    """The plain records from ``position`` on that ``data``, which begins at ``base``, holds whole and that
    begin before ``stop``; None when the first is none."""
    starts, sizes = _chain(data, position - base, stop - base)
    if not len(starts):
        return None
    bytes_of = np.frombuffer(data, np.uint8)
    head = np.ndarray((len(data) - 87,), "V88", data, strides=(1,))[starts].view(_HEAD)
    body_at = starts + 88
    topic_at = body_at + head["body"]
    ends = starts + sizes
    good = (head["magic"] == MAGIC_V1) & (head["offset"] == starts + base) & (head["flag"] & _ODD == 0)
    good &= (head["body"] >= 0) & (head["body"] <= sizes - RECORD_BYTES_MIN)
    count = _leading(good)
    name_at = topic_at[:count] + 1
    names_end = name_at + bytes_of[topic_at[:count]]
    fits = names_end + 2 <= ends[:count]
    count = _leading(fits)
    names_end = names_end[:count]
    properties = bytes_of[names_end].astype(np.int64) << 8 | bytes_of[names_end + 1]
    sound = names_end + 2 + properties == ends[:count]
    sound &= (bytes_of[ends[:count] - 1] != 0) | (properties == 0)
    sound &= _words(data)[ends[:count] - 20] != int.from_bytes(PROPERTY_CRC[:_WORD], "little")
    count = _leading(sound)
    crcs = _crcs(data, body_at[:count], topic_at[:count])
    count = _leading(crcs == head["crc"][:count])
    if not count:
        return None
    return _columns(
        data, base, head[:count], starts[:count], name_at[:count], names_end[:count], ends[:count]
    )


def _chain(data: bytes, at: int, stop: int) -> tuple[Any, Any]:
    """Where records start if each one's size is right, and the sizes: of those that are held whole."""
    unpack = struct.Struct(">i").unpack_from
    last = len(data)
    limit = min(stop, last - RECORD_BYTES_MIN + 1)
    starts: list[int] = []
    note = starts.append
    while at < limit:
        (size,) = unpack(data, at)
        if not RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX or at + size > last:
            break
        note(at)
        at += size
    found = np.array(starts, np.int64)
    return found, np.diff(found, append=np.int64(at))


def _leading(good: Any) -> int:
    """How many are true before the first that is not."""
    return int(np.argmin(good)) if not good.all() else len(good)


def _words(data: bytes) -> Any:
    """The eight bytes at each index."""
    return np.ndarray((len(data) - _WORD + 1,), "<u8", data, strides=(1,))


def _crcs(data: bytes, begin: Any, end: Any) -> Any:
    found = [crc32(data[a:b]) for a, b in zip(begin.tolist(), end.tolist(), strict=True)]
    return np.array(found, np.uint32) & np.uint32(0x7FFFFFFF)


def _columns(
    data: bytes, base: int, head: Any, starts: Any, name_at: Any, names_end: Any, ends: Any
) -> Plain:
    begins = names_end + 2
    topic = _texts(data, name_at, names_end - name_at)
    keys = _keys(data, begins, ends)
    return Plain(
        starts + base,
        ends + base,
        topic,
        head["queue"].astype(np.int32),
        head["place"].astype(np.int64),
        keys,
        head["crc"].astype(np.int64),
        np.full(len(starts), -1, np.int64),
        head["flag"].astype(np.int32),
        np.ones(len(starts), np.int32),
        _tags(data, begins, ends, topic, head["stored"]),
    )


def _cells(data: bytes, at: Any, size: int) -> Any:
    """The ``size`` bytes at each index, a row each."""
    rows = np.ndarray((len(data) - size + 1,), f"V{size}", data, strides=(1,))[at]
    return rows.view(np.uint8).reshape(len(at), size)


def _texts(data: bytes, at: Any, lengths: Any) -> pa.Array:
    """Texts of so many bytes each, as ``decode("utf-8", "replace")`` reads them."""
    length = int(lengths[0])
    if length and (lengths == length).all():
        raw = _cells(data, at, length).reshape(-1)
    else:
        begins = np.cumsum(lengths) - lengths
        raw = np.frombuffer(data, np.uint8)[np.repeat(at - begins, lengths) + np.arange(int(lengths.sum()))]
    if len(raw) and raw.max() >= 0x80:
        pairs = zip(at.tolist(), lengths.tolist(), strict=True)
        return pa.array([data[a : a + n].decode("utf-8", "replace") for a, n in pairs], pa.string())
    offsets = np.zeros(len(at) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.StringArray.from_buffers(
        len(at), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(raw))
    )


def _marks(data: bytes, mark: bytes, begins: Any, ends: Any) -> tuple[Any, Any]:
    """Where a property's mark stands first, -1 for nowhere; and whether it stands there as a name, and
    nowhere behind."""
    find: Callable[[bytes, int, int], int] = data.find
    guess = find(mark, int(begins[0]), int(ends[0])) - int(begins[0])
    if guess >= 0 and _all_there(data, mark, begins, ends, guess):
        found, named = begins + guess, np.ones(len(begins), bool)
    else:
        pairs = zip(begins.tolist(), ends.tolist(), strict=True)
        found = np.array([find(mark, a, b) for a, b in pairs], np.int64)
        named = (found == begins) | (np.frombuffer(data, np.uint8)[found - 1] == _END)
    if data.count(mark, int(begins[0]), int(ends[-1])) > np.count_nonzero(found >= 0):
        rows = zip(found.tolist(), ends.tolist(), strict=True)
        named &= np.array([at < 0 or find(mark, at + 1, end) < 0 for at, end in rows], bool)
    return found, named


def _all_there(data: bytes, mark: bytes, begins: Any, ends: Any, after: int) -> bool:
    """Does the mark stand first as a name so many bytes behind each beginning, as where one client wrote?"""
    if after > _GUESS_BYTES_MAX or int((ends - begins).min()) < after + len(mark):
        return False
    size = after + len(mark)
    cells = _cells(data, begins, size)
    if not (cells[:, after:] == np.frombuffer(mark, np.uint8)).all():
        return False
    if after == 0:
        return True
    if not (cells[:, after - 1] == _END).all() or (cells[:, 0] == mark[0]).any():
        return False
    return not ((cells[:, : after - 1] == _END) & (cells[:, 1:after] == mark[0])).any()


def _keys(data: bytes, begins: Any, ends: Any) -> pa.Array:
    at, named = _marks(data, UNIQ, begins, ends)
    values = at + len(UNIQ)
    length = data.find(b"\x02", int(values[0]), int(ends[0])) - int(values[0])
    if at.min() >= 0 and named.all() and length > 0 and int((ends - values).min()) > length:
        # Of one length all, as clients make them: then the byte behind ends each, and none ends before.
        cells = _cells(data, values, length + 1)
        if (cells[:, -1] == _END).all() and not (cells[:, :-1] == _END).any():
            return _texts(data, values, np.full(len(values), length, np.int64))
    pairs = zip(begins.tolist(), ends.tolist(), strict=True)
    return pa.array([text_property(data, UNIQ, a, b) for a, b in pairs], pa.string())


def _tags(data: bytes, begins: Any, ends: Any, topic: pa.Array, stored: Any) -> Any:
    found = np.zeros(len(begins), np.int64)
    at, named = _marks(data, _TAGS, begins, ends)
    delayed = np.asarray(pa.compute.equal(topic, SCHEDULE_TOPIC))
    short = (at >= 0) & named & ~delayed
    values = np.where(short, at + len(_TAGS), 0)
    short &= values + _WORD <= len(data)
    # A value of less than eight bytes, with the byte that ends it, is one number.
    cells = _cells(data, np.minimum(values, len(data) - _WORD), _WORD)
    ended = cells == _END
    lengths = ended.argmax(axis=1)
    short &= ended.any(axis=1) & (values + lengths < ends)
    words = cells.view("<u8").reshape(-1) & _UP_TO[lengths]
    for word in pa.array(words[short]).unique().to_pylist():
        text = int(word).to_bytes(_WORD, "little").partition(b"\x02")[0].decode("utf-8", "replace")
        found[short & (words == word)] = java_hash(text)
    for row in np.flatnonzero(((at >= 0) & ~short) | delayed).tolist():
        name = topic[row].as_py()
        found[row] = tags_code(data, int(begins[row]), int(ends[row]), name, int(stored[row]))
    return found
