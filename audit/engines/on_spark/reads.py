"""What does a worker read for a task? The plain functions that the local engine calls, too; nothing here
needs Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias

import pyarrow as pa

from audit.engines.lines import read_ordered, read_sent
from audit.engines.pieces import PIECES, packed, run_near, run_pieces
from audit.ledgers.columns import LEDGER
from audit.ledgers.history import SENT
from audit.reading.derived.index_files import INDEX, run_index
from audit.reading.derived.others import run_derived
from audit.reading.derived.queue_prefix import PREFIX, run_prefix
from audit.reading.derived.queue_slices import PROVED, run_slices
from audit.tables import DIGEST, LOG, Task, run_digests, run_scan

SCHEMAS: Final = {
    "digests": DIGEST,
    "scan": LOG,
    "pieces": PIECES,
    "index": INDEX,
    "derived": INDEX,
    "prefixes": PREFIX,
    "slices": PROVED,
    "lines": LEDGER,
    "sent": SENT,
}
"""What rows a kind of task has."""

Rows: TypeAlias = pa.RecordBatch | Iterable[pa.RecordBatch | pa.Table]


def read(kind: str, task: Any) -> Iterator[bytes]:
    """The rows of a task, packed. Raises OSError, ConfigError of a ledger."""
    yield from _packed(_READ[kind](task))


def read_near(topics: tuple[str, ...], keys: tuple[int, ...], task: Task) -> Iterator[bytes]:
    """As ``audit.engines.pieces.run_near``, packed. What is asked for is sent once, not with each task."""
    yield from _packed(run_near(topics, keys, task))


def _packed(found: Rows) -> Iterator[bytes]:
    for rows in [found] if isinstance(found, pa.RecordBatch) else found:
        yield packed(rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows]))


_READ: Final[dict[str, Callable[[Any], Rows]]] = {
    "digests": run_digests,
    "scan": run_scan,
    "pieces": run_pieces,
    "index": run_index,
    "derived": run_derived,
    "prefixes": run_prefix,
    "slices": run_slices,
    "lines": read_ordered,
    "sent": read_sent,
}
