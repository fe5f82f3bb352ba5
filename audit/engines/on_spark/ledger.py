"""The lines of a ledger where the log's records are: read by the workers, or sent to them by the driver."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from audit.engines.lines import ranges, sent_ranges
from audit.ledgers.ledger import DIGEST_BETWEEN, DIGEST_MS_MAX, OF_LINES, OF_SENT, Ledger, Told
from model.errors import ConfigError

log = logging.getLogger(__name__)

Load = Callable[[str, list[dict[str, Any]]], DataFrame]
"""(kind, parts) -> the rows of that kind, which the workers read."""


def reads_here(session: SparkSession) -> bool:
    """Do the workers read this machine's files?"""
    return str(session.sparkContext.master).startswith("local")


class LedgerRows:
    """LEDGER and SENT rows of one ledger, kept. A cluster reads them itself; where its workers do not see the
    file as the driver saw it (it is on this machine alone, grows, or is another one there), they go through
    the driver."""

    def __init__(self, session: SparkSession, ledger: Ledger, load: Load) -> None:
        self._session, self._load = session, load
        self.ledger = ledger
        self._kept: dict[str, DataFrame] = {}
        self._read: list[str] = []  # kinds that the workers read

    def lines(self) -> DataFrame:
        return self._rows("lines")

    def sent(self) -> DataFrame:
        return self._rows("sent")

    def _rows(self, kind: str) -> DataFrame:
        if kind not in self._kept:
            self._kept[kind] = self._made(kind)
        return self._kept[kind]

    def _made(self, kind: str) -> DataFrame:
        ledger, sent = self.ledger, kind == "sent"
        if reads_here(self._session):
            return self._session.read.parquet(*ledger.parquet(sent=sent)).persist()
        rows = None
        try:
            path = _named_alike(ledger.path)
            rows = self._load(kind, sent_ranges(path) if sent else ranges(path)).persist()
            if _seen(rows, _OF[kind]) == [self._asked(kind)]:
                self._read.append(kind)
                return rows
        except (PySparkException, Py4JError, ConfigError, OSError) as error:
            log.info("no worker reads the ledger: %s", str(error).partition("\n")[0])
        if rows is not None:
            rows.unpersist()
        return self._session.createDataFrame(ledger.table(sent=sent)).persist()

    def _asked(self, kind: str) -> tuple[int, int]:
        """How many rows the driver saw, and their digest."""
        return self._count(kind), self.ledger.digest(sent=kind == "sent")

    def _count(self, kind: str) -> int:
        return self.ledger.sends if kind == "sent" else len(self.ledger)

    def same(self) -> bool:
        """Are the rows still all of the driver's, and those that the workers read the same? What these keep
        may be lost, and is read again then, of a file that may have been cut meanwhile; and a session may be
        set to read on where a file is gone."""
        return all(self._is_whole(kind, frame) for kind, frame in self._kept.items())

    def _is_whole(self, kind: str, frame: DataFrame) -> bool:
        if kind in self._read:
            return _seen(frame, _OF[kind]) == [self._asked(kind)]
        return frame.count() == self._count(kind)

    def close(self) -> None:
        for frame in self._kept.values():
            frame.unpersist()
        self._kept.clear()


_OF = {"lines": OF_LINES, "sent": OF_SENT}


def _seen(rows: DataFrame, told: Told) -> list[Any]:
    """How many rows the workers read, and their digest: as ``audit.ledgers.ledger.digest_of`` makes it."""
    numbers = [F.col(name) for name in told.numbers]
    times = [
        F.when(F.abs(name) < DIGEST_MS_MAX, F.floor(F.col(name) * 1000)).otherwise(-1) for name in told.times
    ]
    row = F.concat_ws(DIGEST_BETWEEN, *numbers, *times, *told.texts)
    return rows.agg(F.count("*"), F.coalesce(F.sum(F.crc32(row)), F.lit(0))).collect()


def _named_alike(path: str) -> str:
    """A name that is the same file's in a worker's folder."""
    return path if "://" in path else os.path.abspath(path)
