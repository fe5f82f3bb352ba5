"""What a drill was told is stored, as the ledger of an audit: JSON lines, or Parquet by the file's name."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from admin.outfile import write_whole
from chaos.history import History
from model.errors import ConfigError

PARQUET: Final = ".parquet"


def check(path: Path) -> None:
    """Raises ConfigError when Parquet is asked for and nothing writes it."""
    if path.suffix == PARQUET:
        try:
            import pyarrow  # noqa: F401
        except ModuleNotFoundError:
            raise ConfigError("Parquet needs pyarrow: pip install 'keelmq[audit]'") from None


def write(history: History, path: Path) -> None:
    """Raises CannotWrite, OSError."""
    rows = list(history.ledger())
    if path.suffix != PARQUET:
        write_whole(path, "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    whole = {
        "queue_id": pa.int32(),
        "queue_offset": pa.int64(),
        "phys_offset": pa.int64(),
        "body_crc": pa.int64(),
    }
    schema = pa.schema(
        [
            *((name, pa.string()) for name in ("uniq_key", "topic")),
            *whole.items(),
            *((name, pa.float64()) for name in ("begun_ms", "acked_ms")),
        ]
    )
    draft = path.with_name(path.name + ".new")
    pq.write_table(pa.Table.from_pylist(rows, schema), draft)
    os.replace(draft, path)
