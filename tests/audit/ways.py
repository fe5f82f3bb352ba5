"""The ways of reading a log: record by record, numpy's columns, and the compiled ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final
from unittest import mock

from audit.reading.records import compiled
from audit.reading.records.plain import Plain
from audit.reading.records.record import Damage, Record
from audit.reading.records.scan import Chunk, scan, scan_columns

SEGMENT = 1 << 16
HAS_COMPILED: Final = compiled.columns(1) is not None
WAYS: Final = ("numpy", "compiled") if HAS_COMPILED else ("numpy",)
Told = tuple[list[Record], Chunk, list[Damage]]


@contextlib.contextmanager
def only(way: str) -> Iterator[None]:
    """The columns of this way."""
    if way == "compiled":
        yield
    else:
        with mock.patch.object(compiled, "columns", return_value=None):
            yield


def rows_of(found: Plain) -> Iterator[Record]:
    """Times are not kept in columns: 0 stands for them."""
    for at in range(len(found)):
        yield Record(
            int(found.offset[at]),
            int(found.until[at]) - int(found.offset[at]),
            found.topic[at].as_py(),
            int(found.queue_id[at]),
            int(found.queue_offset[at]),
            found.uniq_key[at].as_py(),
            int(found.body_crc[at]),
            int(found.plain_crc[at]),
            int(found.sys_flag[at]),
            0,
            int(found.advance[at]),
            int(found.tags_code[at]),
        )


def walked(
    data: bytes,
    way: str = "",
    *,
    span: tuple[int, int] = (0, SEGMENT),
    log_end: int = SEGMENT,
    plain: bool = True,
    batch: int = 65536,
) -> Told:
    """Record by record, unless a ``way`` is named."""
    call: Any = scan_columns if way else scan
    with only(way):
        run = call(lambda o, n: data[o : o + n], *span, 0, SEGMENT, log_end, plain=plain, batch=batch)
        rows: list[Record] = []
        while True:
            try:
                found = next(run)
            except StopIteration as stop:
                return [row._replace(store_timestamp_ms=0) for row in rows], *stop.value
            rows += rows_of(found) if isinstance(found, Plain) else found
