"""Are records read by compiled code here, and what does it say of them? Its columns as numpy's and Arrow's.

Where it was not built (``runtime/native``), or a worker has only what was shipped with a job, numpy says the
same, some times slower (``audit.reading.records.plain``).
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from audit.reading.records.plain import Plain
from audit.reading.records.record import Record
from model.message import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from runtime.native._native import Columns

_CHECKED_SIZES: Final = (*range(260), 4096, 65537)


@lru_cache(maxsize=1)
def _module() -> Any:
    """None: not here, or its CRC is not zlib's. Brokers write by the same code, so that is looked at."""
    try:
        from runtime import native
    except ImportError:  # a cluster's worker
        return None
    found = native.module()
    if found is None:
        return None
    data = bytes(n * n * 7 >> 3 & 255 for n in range(max(_CHECKED_SIZES)))
    same = all(found.crc32(data[:size]) == zlib.crc32(data[:size]) for size in _CHECKED_SIZES)
    return found if same else None


def columns(most: int) -> Columns | None:
    """Room for so many records; None: there is no compiled code."""
    module = _module()
    return module.Columns(most, SCHEDULE_TOPIC) if module is not None else None


def add(rows: Columns, record: Record) -> None:
    """A record that was looked at alone."""
    rows.add(
        record.offset,
        record.size,
        record.topic.encode(),
        record.queue_id,
        record.queue_offset,
        record.uniq_key.encode(),
        record.body_crc,
        record.plain_crc,
        record.sys_flag,
        record.advance,
        record.tags_code,
    )


def plain(rows: Columns) -> Plain:
    """All that is there, of which ``rows`` is rid afterwards."""
    count, offset, until, topic_ends, topics, queue, place, key_ends, keys, crc, sent, flag, advance, tags = (
        rows.taken()
    )
    return Plain(
        np.frombuffer(offset, np.int64),
        np.frombuffer(until, np.int64),
        pa.StringArray.from_buffers(count, pa.py_buffer(topic_ends), pa.py_buffer(topics)),
        np.frombuffer(queue, np.int32),
        np.frombuffer(place, np.int64),
        pa.StringArray.from_buffers(count, pa.py_buffer(key_ends), pa.py_buffer(keys)),
        np.frombuffer(crc, np.int64),
        np.frombuffer(sent, np.int64),
        np.frombuffer(flag, np.int32),
        np.frombuffer(advance, np.int32),
        np.frombuffer(tags, np.int64),
    )
