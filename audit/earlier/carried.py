"""What do segments that need not be read again hold of queues and keys? Kept beside their digests.

For each content one file with the last place of every queue in it, and one with the keys of its messages.
Replicas whose segments are equal share them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from audit.reading.derived.queue_files import Queue
from audit.tables import COPIES, QUEUES, ScannedLog, View
from model.errors import ConfigError

CLEAN: Final = pa.schema(
    [
        ("location", pa.string()),
        ("file", pa.string()),
        ("size", pa.int64()),
        ("mtime_ns", pa.int64()),
        ("end", pa.int64()),
        ("content", pa.string()),
        ("since", pa.string()),
    ]
)
KEYS: Final = pa.schema([("topic", pa.string()), ("uniq_key", pa.string()), ("offset", pa.int64())])
KEYED_ROWS_MAX: Final = 1_000_000
"""Whose keys are asked for at once, or a segment's: each time a cluster looks through all it keeps."""
_SEPARATOR: Final = "\x01"  # stands in no topic


@dataclass(frozen=True, slots=True)
class Clean:
    """A full segment of a replica in which nothing was wrong. ``since``: when it was read, UTC."""

    location: str
    file: str
    size: int
    mtime_ns: int
    end: int  # physical
    content: str  # names the files of what it holds
    since: str

    @property
    def key(self) -> tuple[str, str]:
        return self.location, self.file

    @property
    def stamp(self) -> tuple[int, int]:
        return self.size, self.mtime_ns


@dataclass(frozen=True, slots=True)
class Carried:
    """``queues``: QUEUES rows, the last place of each queue before the border."""

    queues: pa.Table
    of_keys: tuple[Path, ...]
    keys: int = 0

    def extents(self, read: AbstractSet[Queue]) -> list[dict[str, Any]]:
        """EXTENTS of the queues that have no record in what was read, as far as they are known."""
        return [
            {**row, "until": row["offset"] + 1, "records": 1}
            for row in self.queues.to_pylist()
            if (row["topic"], row["queue_id"]) not in read and row["advance"] == 1
        ]

    def copies(self, rows: pa.Table) -> pa.Table:
        """COPIES: those of ``rows`` whose messages stand before the border, too."""
        if not len(rows) or not self.of_keys:
            return COPIES.empty_table()
        first: dict[str, int] = {}
        named = _named(rows)
        for path in self.of_keys:
            with path.open("rb") as raw, pq.ParquetFile(raw) as file:  # Arrow takes no path that is no text
                for batch in file.iter_batches(columns=KEYS.names):
                    before = pa.table(batch)
                    there = _named(before)
                    twice = pc.is_in(there, value_set=named)
                    offsets = before["offset"].filter(twice).to_pylist()
                    for name, offset in zip(there.filter(twice).to_pylist(), offsets, strict=True):
                        first[name] = min(first.get(name, offset), offset)
        if not first:
            return COPIES.empty_table()
        again = pc.is_in(named, value_set=pa.array(first, pa.string()))
        found = [first[name] for name in named.filter(again).to_pylist()]
        return rows.filter(again).append_column("first", pa.array(found, pa.int64())).cast(COPIES)


NOTHING: Final = Carried(QUEUES.empty_table(), ())


def _named(rows: pa.Table) -> pa.Array:
    return pc.binary_join_element_wise(rows["topic"], rows["uniq_key"], _SEPARATOR).combine_chunks()


class Carries:
    """The folder of the state. What it says of contents never changes: they are named by what is in them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self) -> list[Clean]:
        """The segments whose contents are all there. Raises ConfigError."""
        rows = [Clean(**row) for row in rows_of(self._folder / "segments.parquet", CLEAN)]
        return [
            row for row in rows if self._queues(row.content).exists() and self._keys(row.content).exists()
        ]

    def load(self, trusted: Sequence[Clean]) -> Carried:
        """``trusted`` in log order: a queue goes on from the last segment that has it."""
        last: dict[Queue, dict[str, Any]] = {}
        for clean in trusted:
            for row in rows_of(self._queues(clean.content), QUEUES):
                last[row["topic"], row["queue_id"]] = row
        paths = tuple(self._keys(clean.content) for clean in trusted)
        queues = pa.Table.from_pylist(sorted(last.values(), key=lambda row: row["offset"]), schema=QUEUES)
        return Carried(queues, paths, sum(_count(path) for path in paths))

    def keep(self, scanned: ScannedLog, view: View, begins: Sequence[int], size: int) -> dict[int, str]:
        """The contents of segments of ``size`` bytes that were read, by where they begin, ascending."""
        found: dict[int, str] = {}
        if not begins:
            return found
        self._folder.mkdir(parents=True, exist_ok=True)
        queues = scanned.last_places(view, begins[0], begins[-1] + size, size).sort_by("offset")
        for few in _together(begins, size, _segments_at_once(scanned, size)):
            keys = scanned.keyed(view, few[0], few[-1] + size)
            keys = keys.select(KEYS.names).cast(KEYS).sort_by("offset")
            for begin in few:
                written = [bytes_of(_part(table, begin, begin + size)) for table in (queues, keys)]
                content = hashlib.blake2b(b"".join(written), digest_size=16).hexdigest()
                for path, raw in zip((self._queues(content), self._keys(content)), written, strict=True):
                    replace(path, raw)
                found[begin] = content
        return found

    def write(self, rows: Iterable[Clean]) -> None:
        """The segments of this audit; contents of no segment are removed."""
        rows = list(rows)
        self._folder.mkdir(parents=True, exist_ok=True)
        table = pa.Table.from_pylist([asdict(row) for row in rows], schema=CLEAN)
        replace(self._folder / "segments.parquet", bytes_of(table))
        kept = {"segments", "files"} | {row.content for row in rows}
        for path in self._folder.glob("*.parquet"):
            if path.name.partition(".")[0] not in kept:
                path.unlink()

    def _queues(self, content: str) -> Path:
        return self._folder / f"{content}.queues.parquet"

    def _keys(self, content: str) -> Path:
        return self._folder / f"{content}.keys.parquet"


def _segments_at_once(scanned: ScannedLog, size: int) -> int:
    chunks = scanned.chunks()
    read_bytes = pc.sum(pc.subtract(chunks["until"], chunks["offset"])).as_py() or 0
    return max(1, KEYED_ROWS_MAX * read_bytes // (size * max(1, scanned.record_count())))


def _together(begins: Sequence[int], size: int, most: int) -> Iterator[list[int]]:
    """Segments that follow each other, at most so many."""
    few: list[int] = []
    for begin in begins:
        if few and (len(few) >= most or begin != few[-1] + size):
            yield few
            few = []
        few.append(begin)
    if few:
        yield few


def _part(rows: pa.Table, begin: int, end: int) -> pa.Table:
    """Those of a stretch, of rows by offset."""
    offsets = rows["offset"].to_numpy()
    first, behind = (int(at) for at in np.searchsorted(offsets, [begin, end]))
    return rows.slice(first, behind - first).combine_chunks()


def rows_of(path: Path, schema: pa.Schema) -> list[dict[str, Any]]:
    """What an earlier audit wrote; nothing if it did not. Raises ConfigError."""
    if not path.exists():
        return []
    try:
        with path.open("rb") as raw:
            rows: list[dict[str, Any]] = pq.read_table(raw, schema=schema).to_pylist()
    except (pa.ArrowInvalid, OSError) as error:
        raise ConfigError(f"{path}: not the state of an earlier audit: {error}; use --full") from None
    return rows


def _count(path: Path) -> int:
    with path.open("rb") as raw:
        return int(pq.read_metadata(raw).num_rows)


def bytes_of(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue())


def replace(path: Path, raw: bytes) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(raw)
    temporary.replace(path)
