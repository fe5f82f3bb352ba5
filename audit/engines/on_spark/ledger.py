"""The lines of a ledger where the log's records are: read by the workers, or sent to them by the driver."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

import numpy as np
import pyarrow.parquet as pq
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import RDD
from pyspark.errors import PySparkException

from audit.engines.lines import ranges, sent_ranges
from audit.engines.on_spark.cluster import ALONE, KEPT, Cluster, release
from audit.engines.on_spark.spreading import Element, in_parts, part_of, shuffled, spread_out, tables
from audit.engines.pieces import unpacked
from audit.ledgers.ledger import OF_LINES, OF_SENT, Ledger, Told, digest_of
from model.errors import ConfigError

log = logging.getLogger(__name__)

LINES: Final = "lines"
SENT: Final = "sent"
"""Kinds of rows."""
_OF: Final = {LINES: OF_LINES, SENT: OF_SENT}


class LedgerRows:
    """LEDGER and SENT rows of one ledger, in its parts, kept. A cluster reads them itself; where its workers
    do not see the file as the driver saw it (it is on this machine alone, grows, or is another one there),
    they go through the driver."""

    def __init__(self, cluster: Cluster, ledger: Ledger) -> None:
        self._cluster = cluster
        self.ledger = ledger
        self._kept: dict[str, RDD[Element]] = {}

    def lines(self) -> RDD[Element]:
        return self._rows(LINES)

    def sent(self) -> RDD[Element]:
        return self._rows(SENT)

    def _rows(self, kind: str) -> RDD[Element]:
        if kind not in self._kept:
            self._kept[kind] = self._made(kind)
        return self._kept[kind]

    def _made(self, kind: str) -> RDD[Element]:
        ledger, sent = self.ledger, kind == SENT
        if self._cluster.reads_here:
            files = list(enumerate(ledger.parquet(sent=sent)))
            return self._in_parts(self._cluster.each(files, ALONE).flatMap(partial(_of_file, kind)))
        rows = None
        try:
            path = _named_alike(ledger.path)
            read = self._cluster.read(kind, sent_ranges(path) if sent else ranges(path), ALONE)
            rows = self._in_parts(read.flatMap(partial(_spread, kind, ledger.parts)))
            if _seen(rows, kind) == self._asked(kind):
                return rows
        except (PySparkException, Py4JError, ConfigError, OSError) as error:
            log.info("no worker reads the ledger: %s", str(error).partition("\n")[0])
        if rows is not None:
            release(rows)
        every = ledger.table(sent=sent)
        elements = list(spread_out(kind, every, part_of(every["uniq_key"], ledger.parts)))
        return self._in_parts(self._cluster.each(elements, ALONE))

    def _in_parts(self, elements: RDD[Element]) -> RDD[Element]:
        return shuffled(elements, self.ledger.parts).persist(KEPT)

    def _asked(self, kind: str) -> tuple[int, int]:
        """How many rows the driver saw, and their digest."""
        ledger, sent = self.ledger, kind == SENT
        return (ledger.sends if sent else len(ledger)), ledger.digest(sent=sent)

    def same(self) -> bool:
        """Are the rows still all of the driver's? What workers keep may be lost, and is read again then, of a
        file that may have been cut meanwhile."""
        return all(_seen(rows, kind) == self._asked(kind) for kind, rows in self._kept.items())

    def close(self) -> None:
        release(*self._kept.values())
        self._kept.clear()


def _of_file(kind: str, part: tuple[int, str]) -> Iterator[Element]:
    """The rows of a part that the driver wrote."""
    number, path = part
    rows = pq.read_table(path, use_threads=False)
    yield from spread_out(kind, rows, np.full(len(rows), number))


def _spread(kind: str, parts: int, raw: bytes) -> Iterator[Element]:
    (rows,) = unpacked(raw, 1)
    yield from spread_out(kind, rows, part_of(rows["uniq_key"], parts))


def _seen(rows: RDD[Element], kind: str) -> tuple[int, int]:
    """How many rows there are, and their digest."""
    counts = in_parts(partial(_counted, kind, _OF[kind]), rows).collect()
    return sum(count for count, _ in counts), sum(digest for _, digest in counts)


def _counted(kind: str, told: Told, part: int, elements: Iterable[Element]) -> Iterator[tuple[int, int]]:
    for table in tables(kind, elements):
        yield len(table), digest_of(table, told)


def _named_alike(path: str) -> str:
    """A name that is the same file's in a worker's folder."""
    return path if "://" in path else os.path.abspath(path)
