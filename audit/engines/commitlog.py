"""Stores as tables of a Spark session: ``spark.read.format("commitlog").option("table", ...).load(store)``.

    register(spark)
    spark.read.format("commitlog").load("/data/b0").groupBy("topic").count()

A path is a store's ``storePathRootDir``, or several with commas between: directories or URLs that each worker
can read. Nothing is written. What a running broker has written when the table is planned is what it has.

Options that read less than all, whole segments where they can: ``offsetFrom`` and ``offsetUntil``
(physical), ``timeFrom`` and ``timeUntil`` (when it was stored, ms), ``topic``, ``queueId``; ``columns``: only
these are made. With ``pushFilters`` = ``true`` and Spark's own ``spark.sql.python.filterPushdown.enabled``
filters on these columns do the same.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.pandas.types import from_arrow_schema

from audit.engines.stream import EVENT, StreamReader, fails_on_loss
from audit.engines.tables import NAME, TABLES, PushingReader, TableReader, Wanted, schema_of
from model.errors import ConfigError


def register(session: SparkSession) -> None:
    """Make the format known to a session."""
    session.dataSource.register(CommitLogSource)


class CommitLogSource(DataSource):
    """See the module. ``table``: one of ``TABLES``, by default ``records``."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def _table(self) -> str:
        table = self.options.get("table", "records")
        if table not in TABLES:
            raise ConfigError(f"format {NAME}: no table {table!r}; there are {', '.join(TABLES)}")
        return table

    def schema(self) -> Any:
        table = schema_of(self._table(), Wanted.of(self.options).columns)
        return from_arrow_schema(table if fails_on_loss(self.options) else table.append(EVENT))

    def _paths(self) -> list[str]:
        paths = [path for path in self.options.get("path", "").split(",") if path]
        if not paths:
            raise ConfigError(f"format {NAME}: load() needs the path of a store")
        return paths

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return StreamReader(self._table(), self._paths(), Wanted.of(self.options), self.options)

    def reader(self, schema: Any) -> DataSourceReader:
        if not fails_on_loss(self.options):
            raise ConfigError(f"format {NAME}: failOnDataLoss is an option of streams")
        paths = self._paths()
        # Spark refuses a reader that can push filters unless its own setting lets it.
        pushed = self.options.get("pushFilters", "false").lower() == "true"
        made = PushingReader if pushed else TableReader
        return made(self._table(), paths, Wanted.of(self.options))
