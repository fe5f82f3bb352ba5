"""Which messages were acknowledged? Reads ledgers: JSON lines or Parquet, a file or a folder, one line a
message, with the columns of ``audit.ledgers.columns``.

``{"uniq_key","topic","queue_id","queue_offset","body_crc"}`` are needed; ``phys_offset`` is optional, as are
``begun_ms`` and ``acked_ms`` (any one clock): with both, a message acknowledged before another was begun must
stand before it in its queue. ``body_crc`` is crc32 & 0x7fffffff of the body as sent (before compression).

The history of a drill is one too: its acknowledged sends are the lines, and what was sent at all is known.

The lines lie in temporary files, in parts by the hash of their keys, so that a ledger may be of any length.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain, islice
from typing import Any, Final, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from audit.ledgers import history
from audit.ledgers.columns import LEDGER, NEEDED, from_rows, of_column, untold
from audit.ledgers.history import SENT, is_blank, json_object, lines_of
from audit.ledgers.watched import WatchedFile, WatchedFolder
from audit.reading.storage import codec_of
from audit.rows.parts import Folder, Parts, hashes
from audit.sources.arrow import connected
from audit.sources.location import CODECS, shown, without_secrets
from model.errors import ConfigError

__all__ = [
    "DIGEST_BETWEEN",
    "DIGEST_MS_MAX",
    "LEDGER",
    "OF_LINES",
    "OF_SENT",
    "Ledger",
    "Line",
    "Told",
    "digest_of",
    "from_rows",
    "is_parquet",
    "json_files",
    "of_parquet",
    "parquet_of",
    "read_ledger",
]


class Told(NamedTuple):
    """Columns that a digest is made of, by how each is written."""

    numbers: tuple[str, ...]
    times: tuple[str, ...]
    texts: tuple[str, ...]


OF_LINES: Final = Told(
    ("queue_id", "queue_offset", "phys_offset", "body_crc"), ("begun_ms", "acked_ms"), ("topic", "uniq_key")
)
OF_SENT: Final = Told(("sent_crc", "outcome"), (), ("topic", "uniq_key"))
DIGEST_BETWEEN: Final = "|"
DIGEST_MS_MAX: Final = 1e15
"""Of larger times, and of those that are no number, a digest says nothing else."""
_BATCH_LINES: Final = 20_000
_PART_BYTES: Final = 4 * 1024 * 1024
"""Of JSON: about 25,000 lines."""
_PART_LINES: Final = 25_000
_PACKED: Final = 10
"""A compressed ledger is about so many times larger."""


class Line(NamedTuple):
    """What one line says of its message."""

    topic: str
    queue_id: int
    queue_offset: int
    body_crc: int
    phys_offset: int  # -1: it does not say


class Ledger:
    """LEDGER rows, and SENT rows of a history. Messages of one key are in one part, by ``part_of``."""

    def __init__(self, tables: Iterable[pa.Table], parts: int, sent: Iterable[pa.Table] = ()) -> None:
        self._folder = Folder()
        self.path = ""  # where it was read
        self.lines = 0
        self.sends = 0  # of a history
        self.topics: set[str] = set()  # of which each send is known
        self.has_unnamed = False  # a line whose key is empty
        try:
            self._parts = Parts(self._folder, LEDGER, parts)
            for table in tables:
                self.lines += len(table)
                self.has_unnamed |= bool(pc.any(pc.equal(table["uniq_key"], "")).as_py())
                self._parts.add(table, self.part_of(table["uniq_key"]))
            self._sent = Parts(self._folder, SENT, parts)
            for table in sent:
                self.sends += len(table)
                self.topics.update(pc.unique(table["topic"]).to_pylist())
                self._sent.add(table, self.part_of(table["uniq_key"]))
        except BaseException:
            self._folder.close()
            raise
        self._by_key = lru_cache(maxsize=2)(self._lines_by_key)

    def __len__(self) -> int:
        return self.lines

    @property
    def parts(self) -> int:
        return len(self._parts)

    def part_of(self, keys: pa.ChunkedArray | pa.Array) -> Any:
        """Number of the part of each key."""
        return (hashes(keys) % np.uint64(self.parts)).astype(np.int64)

    def part(self, number: int) -> pa.Table:
        """LEDGER rows, by line."""
        return self._parts.part(number)

    def sent(self, number: int) -> pa.Table:
        """SENT rows of a part."""
        return self._sent.part(number)

    def table(self, *, sent: bool = False) -> pa.Table:
        """All lines, in memory; or all SENT rows."""
        tables = pa.concat_tables(map(self.sent if sent else self.part, range(self.parts)))
        return tables if sent else tables.sort_by("line")

    def digest(self, *, sent: bool = False) -> int:
        """Of all lines, or SENT rows, whatever their order."""
        of, told = (self.sent, OF_SENT) if sent else (self.part, OF_LINES)
        return sum(digest_of(of(n), told) for n in range(self.parts))

    def parquet(self, *, sent: bool = False) -> list[str]:
        """All lines, or SENT rows, as Parquet files, which are there until ``close``."""
        files = []
        for n in range(self.parts):
            files.append(self._folder.file("lines"))
            pq.write_table(self.sent(n) if sent else self.part(n), files[-1])
        return files

    def lines_of(self, uniq_key: str) -> list[Line]:
        """Each line of a message."""
        key = pa.array([uniq_key], pa.string())
        return self._by_key(int(self.part_of(key)[0])).get(uniq_key, [])

    def _lines_by_key(self, number: int) -> dict[str, list[Line]]:
        rows = self.part(number)
        columns = [rows[name].to_pylist() for name in ("uniq_key", *Line._fields)]
        found: dict[str, list[Line]] = {}
        for key, *line in zip(*columns, strict=True):
            found.setdefault(key, []).append(Line(*line))
        return found

    def close(self) -> None:
        self._folder.close()


def read_ledger(path: str) -> Ledger:
    """Raises ConfigError naming the line that cannot be right, or when there is none: a wrong file would
    prove anything. Raises OSError when unreadable."""
    name = shown(path)
    if "://" not in path and os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise ConfigError(f"{name}: a ledger is a file: it is read twice, which a pipe cannot be")
    try:
        if is_parquet(path):
            ledger = _from_parquet(path)
        else:
            ledger = _from_folder(path) if os.path.isdir(path) else _from_lines(path)
    except OSError as error:
        # What a stream that is unpacked says of itself names no file.
        raise error if error.filename else OSError(error.errno or 5, str(error), name) from None
    ledger.path = path
    if not len(ledger):
        ledger.close()
        raise ConfigError(f"{name}: no message is listed in this ledger")
    return ledger


def _from_lines(path: str) -> Ledger:
    watched = WatchedFile(path)
    parts = watched.size * (_PACKED if codec_of(path) else 1) // _PART_BYTES + 1
    if history.is_history(path):
        acknowledged = history.acknowledged(path, watched.open)
        ledger = Ledger(_tables(acknowledged), parts, history.sent(path, watched.open))
    else:
        file, _ = watched.open(path)
        with file:
            ledger = Ledger(_tables(_json_lines(shown(path), lines_of(file))), parts)
    return _still(ledger, watched)


def _from_folder(path: str) -> Ledger:
    watched = {file: WatchedFile(file) for file in json_files(path)}
    sizes = (of.size * (_PACKED if codec_of(file) else 1) for file, of in watched.items())

    def rows() -> Iterator[tuple[str, dict[str, Any]]]:
        for file, of in watched.items():
            opened, _ = of.open(file)
            with opened:
                yield from _json_lines(file, lines_of(opened))

    return _still(Ledger(_tables(rows()), sum(sizes) // _PART_BYTES + 1), *watched.values())


def _still(ledger: Ledger, *watched: WatchedFile | WatchedFolder) -> Ledger:
    """The ledger, if its files are still those that were looked at. Raises OSError."""
    try:
        for one in watched:
            one.check()
    except BaseException:
        ledger.close()
        raise
    return ledger


def is_parquet(path: str) -> bool:
    """A file or a folder of Parquet. Raises ConfigError on a folder of several kinds of files."""
    if "://" not in path and os.path.isdir(path):
        return not json_files(path)
    return path.partition("?")[0].rstrip("/").endswith(".parquet")


def json_files(path: str) -> list[str]:
    """The files of a folder of JSON lines, as Spark writes them, by name; none: it has Parquet. Raises
    ConfigError on other files among them, and on histories."""
    names = sorted(name for name in os.listdir(path) if not name.startswith((".", "_")))
    if "commitlog" in names:
        raise ConfigError(f"{shown(path)}: this is a store, as it has a commitlog, and no ledger")
    found = [name for name in names if _OF_LINES.search(name)]
    if found and len(found) < len(names):
        other = next(name for name in names if name not in found)
        raise ConfigError(f"{shown(path)}: a folder of JSON lines has no other files: {other}")
    files = [os.path.join(path, name) for name in found]
    if histories := [file for file in files if history.is_history(file)]:
        raise ConfigError(f"{histories[0]}: a history is one file, this folder is a ledger")
    return files


_OF_LINES: Final = re.compile(r"\.(json|jsonl|ndjson)(\.(" + "|".join(CODECS) + r"))?$", re.IGNORECASE)


def parquet_of(path: str) -> ds.Dataset:
    """A Parquet ledger, here or where Arrow or fsspec read. Raises ConfigError on what is none, OSError."""
    try:
        if "://" not in path:
            return ds.dataset(path, format="parquet")
        files, root = connected(path)
        return ds.dataset(root, format="parquet", filesystem=files)
    except (pa.ArrowInvalid, FileNotFoundError) as error:
        raise _no_parquet(path, error) from None


def _no_parquet(path: str, error: Exception) -> ConfigError:
    """What to say of what Arrow cannot read."""
    why = without_secrets(str(error), path)
    if "://" not in path and os.path.isdir(path):
        why = f"a folder has Parquet, or JSON lines in files named .json or .jsonl: {why}"
    return ConfigError(f"{shown(path)}: {why}")


def digest_of(rows: pa.Table, told: Told = OF_LINES) -> int:
    """The sum of the CRCs of all LEDGER rows, each with every column but its number, or of SENT rows. A
    cluster's workers make it of what they read (``audit.engines.on_spark.ledger``)."""
    columns = [rows[name].to_pylist() for name in told.numbers]
    columns += [_micros(rows[name]).tolist() for name in told.times]
    columns += [rows[name].to_pylist() for name in told.texts]
    return sum(crc32(DIGEST_BETWEEN.join(map(str, row)).encode()) for row in zip(*columns, strict=True))


def _micros(times_ms: pa.ChunkedArray) -> Any:
    """Whole microseconds: a float is written differently by each program."""
    values = times_ms.to_numpy()
    with np.errstate(all="ignore"):
        return np.where(np.abs(values) < DIGEST_MS_MAX, np.floor(values * 1000), -1).astype(np.int64)


def _tables(rows: Iterable[tuple[str, dict[str, Any]]]) -> Iterator[pa.Table]:
    rows = iter(rows)
    line = 0
    for first in rows:
        table = from_rows(chain([first], islice(rows, _BATCH_LINES - 1)), line)
        line += len(table)
        yield table


def _json_lines(path: str, lines: Iterable[bytes]) -> Iterable[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(lines, 1):
        if is_blank(line):
            continue
        where = f"{path}:{number}"
        yield where, json_object(line, where)


def _from_parquet(path: str) -> Ledger:
    found = parquet_of(path)
    try:
        count = found.count_rows()
    except pa.ArrowInvalid as error:
        raise _no_parquet(path, error) from None
    watched = WatchedFolder(path, found.files, found.filesystem.get_file_info)
    return _still(Ledger(of_parquet(path, found), count // _PART_LINES + 1), watched)


def of_parquet(path: str, found: ds.Dataset) -> Iterator[pa.Table]:
    """LEDGER rows of a Parquet ledger. Each file has its own columns: what is optional and not there is -1.
    Raises ConfigError naming a file and the column that cannot be right."""
    line = 0
    # One file after the other: rows have no other order, and more of them would be in memory.
    for file in found.get_fragments():
        own = file.path.rpartition("/")[2]
        name = file.path if "://" not in path else shown(path)
        for table in _of_file(name if name.endswith(own) else f"{name}: {own}", file, line):
            line += len(table)
            yield table


def _of_file(path: str, file: Any, line: int) -> Iterator[pa.Table]:
    """``line``: the number of the first. Raises ConfigError."""
    there = file.physical_schema.names
    if missing := [name for name in NEEDED if name not in there]:
        why = " from the file: in a folder's name it is not read" if f"{missing[0]}=" in file.path else ""
        raise ConfigError(f"{path}: column {missing[0]} is missing{why}")
    names = [name for name in LEDGER.names[1:] if name in there]
    if twice := [name for name in names if there.count(name) > 1]:
        raise ConfigError(f"{path}: column {twice[0]} is there twice")
    batches = file.to_batches(columns=names, batch_size=_BATCH_LINES, batch_readahead=1, use_threads=False)
    row = 1
    for batch in batches:
        n = len(batch)
        told = [
            of_column(path, name, batch[name], row) if name in names else untold(name, n)
            for name in LEDGER.names[1:]
        ]
        yield pa.table([pa.array(range(line, line + n), pa.int64()), *told], schema=LEDGER)
        line += n
        row += n
