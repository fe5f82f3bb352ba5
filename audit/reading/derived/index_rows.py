"""What do a store's IndexFiles say? Every entry of one file; nothing is judged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from audit.reading.derived.index_files import (
    ENTRY,
    ENTRY_BYTES,
    HEADER_BYTES,
    Log,
    entries_max,
    hashes_at,
    heads,
    slots_of,
)
from audit.reading.layout import Replica
from audit.reading.storage import open_storage

INDEXED: Final = pa.schema(
    [
        ("file", pa.string()),
        ("number", pa.int64()),  # of the entry, from 1 on
        ("key_hash", pa.int32()),  # of TOPIC#KEY
        ("offset", pa.int64()),  # physical
        ("stored_ms", pa.int64()),  # to the second, counted from the file's first record
        ("before", pa.int64()),  # number of the entry before it in its slot, 0: none
    ]
)
_BATCH: Final = 65536


def index_parts(replica: Replica) -> list[dict[str, Any]]:
    """One for each file that has entries. Raises OSError, also when a file does not say where they begin."""
    log = Log(
        replica.start, replica.end, replica.segment_bytes, tuple((s.base, s.file) for s in replica.segments)
    )
    storage = open_storage(replica.location)
    found = []
    try:
        known = 0
        for head in heads(storage):
            slots = slots_of(storage, head, hashes_at(storage, log, head.begin_offset))
            # All files of a store have one size and as many slots.
            slots = known = slots or known
            count = min(head.following, entries_max(head.size, slots)) - 1 if slots else 0
            if head.following > 1 and count < 1:
                raise OSError(22, "where its entries begin cannot be told", head.file)
            if count > 0:
                told = {"location": replica.location, "file": head.file, "begin_ms": head.begin_ms}
                found.append({**told, "at": HEADER_BYTES + 4 * slots + ENTRY_BYTES, "count": count})
    finally:
        storage.close()
    return found


def read_index(part: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    """INDEXED rows. Raises OSError."""
    storage = open_storage(part["location"])
    try:
        for first in range(0, part["count"], _BATCH):
            size = min(_BATCH, part["count"] - first) * ENTRY_BYTES
            raw = storage.read(part["file"], part["at"] + first * ENTRY_BYTES, size)
            rows = np.frombuffer(raw[: len(raw) // ENTRY_BYTES * ENTRY_BYTES], ENTRY)
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array([part["file"]] * len(rows), pa.string()),
                    pa.array(np.arange(first + 1, first + 1 + len(rows), dtype=np.int64)),
                    pa.array(rows["hash"].astype(np.int32)),
                    pa.array(rows["offset"].astype(np.int64)),
                    pa.array(rows["seconds"].astype(np.int64) * 1000 + part["begin_ms"]),
                    pa.array(rows["before"].astype(np.int64)),
                ],
                schema=INDEXED,
            )
    finally:
        storage.close()
