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

from audit.engines.lines import ranges
from audit.ledger import DIGEST_BETWEEN, DIGEST_MS_MAX, DIGEST_NUMBERS, DIGEST_TEXTS, DIGEST_TIMES, Ledger
from model.errors import ConfigError

log = logging.getLogger(__name__)

Load = Callable[[list[dict[str, Any]]], DataFrame]


def reads_here(session: SparkSession) -> bool:
    """Do the workers read this machine's files?"""
    return str(session.sparkContext.master).startswith("local")


def lines(session: SparkSession, ledger: Ledger, load: Load) -> DataFrame:
    """LEDGER rows, kept. A cluster reads them itself; where its workers do not see the file as the driver saw
    it (it is on this machine alone, grows, or is another one there), they go through the driver."""
    if reads_here(session):
        return session.read.parquet(*ledger.parquet()).persist()
    rows = None
    try:
        rows = load(ranges(_named_alike(ledger.path))).persist()
        if _seen(rows) == [(len(ledger), ledger.digest())]:
            return rows
    except (PySparkException, Py4JError, ConfigError, OSError) as error:
        log.info("no worker reads the ledger: %s", str(error).partition("\n")[0])
    if rows is not None:
        rows.unpersist()
    return session.createDataFrame(ledger.table()).persist()


def _seen(rows: DataFrame) -> list[Any]:
    """How many lines the workers read, and their digest: as ``audit.ledger.digest_of`` makes it."""
    numbers = [F.col(name) for name in DIGEST_NUMBERS]
    times = [
        F.when(F.abs(name) < DIGEST_MS_MAX, F.floor(F.col(name) * 1000)).otherwise(-1)
        for name in DIGEST_TIMES
    ]
    row = F.concat_ws(DIGEST_BETWEEN, *numbers, *times, *DIGEST_TEXTS)
    return rows.agg(F.count("*"), F.sum(F.crc32(row))).collect()


def _named_alike(path: str) -> str:
    """A name that is the same file's in a worker's folder."""
    return path if "://" in path else os.path.abspath(path)


def sent(session: SparkSession, ledger: Ledger) -> DataFrame:
    """SENT rows: a drill's history is short."""
    if reads_here(session):
        return session.read.parquet(*ledger.parquet(sent=True))
    return session.createDataFrame(ledger.table(sent=True))
