"""Stores as tables of a Spark session: ``spark.read.format("commitlog").option("table", ...).load(store)``.

    register(spark)
    spark.read.format("commitlog").load("/data/b0").groupBy("topic").count()

A path is a store's ``storePathRootDir``, or several with commas between, or a list: directories or URLs that
each worker can read. Nothing is written. What a running broker has written when the table is planned is what
it has.

Options that read less than all, whole segments where they can: ``offsetFrom`` and ``offsetUntil``
(physical), ``timeFrom`` and ``timeUntil`` (when it was stored, ms), ``topic``, ``queueId``; ``columns``: only
these are made. With ``pushFilters`` = ``true`` and Spark's own ``spark.sql.python.filterPushdown.enabled``
filters on these columns do the same. An option that a table cannot use is an error.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.pandas.types import from_arrow_schema

from audit.engines import options as told
from audit.engines.on_spark.session import packages
from audit.engines.options import NAME
from audit.engines.stream import EVENT, StreamReader, fails_on_loss
from audit.engines.tables import TABLES, PushingReader, TableReader, Wanted, schema_of
from model.errors import ConfigError


def register(session: SparkSession) -> None:
    """Make the format known to a session."""
    session.dataSource.register(CommitLogSource)


def ship(session: SparkSession) -> None:
    """Send our packages to the workers of a session on a cluster, where they are not installed: for tables,
    and for ``SparkEngine``. They are there until the session's context ends. Call it before ``register``: a
    format has what was sent until then."""
    # Workers that start later fetch it from here.
    folder = Path(tempfile.mkdtemp(prefix="keelmq-audit-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    session.sparkContext.addPyFile(str(packages(folder)))


class CommitLogSource(DataSource):
    """See the module. ``table``: one of ``TABLES``, by default ``records``."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def _table(self, *, stream: bool | None = None) -> str:
        """Raises ConfigError on a table, or an option, that there is not."""
        table = told.lowered(self.options).get("table", "records")
        if table not in TABLES:
            raise ConfigError(f"format {NAME}: no table {table!r}; there are {', '.join(TABLES)}")
        told.check(table, TABLES[table], self.options, stream=stream)
        return table

    def schema(self) -> Any:
        table = self._table()
        told.flag(self.options, told.PUSHED)
        columns = schema_of(table, Wanted.of(self.options).columns)
        columns = columns if fails_on_loss(self.options) else columns.append(EVENT)
        told.look(table, told.paths(self.options))
        return from_arrow_schema(columns)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        table = self._table(stream=True)
        return StreamReader(table, told.paths(self.options), Wanted.of(self.options), self.options)

    def reader(self, schema: Any) -> DataSourceReader:
        # Spark refuses a reader that can push filters unless its own setting lets it.
        made = PushingReader if told.flag(self.options, told.PUSHED) else TableReader
        return made(self._table(stream=False), told.paths(self.options), Wanted.of(self.options))
