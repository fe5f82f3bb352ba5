"""Where are the rows of a scan on a cluster? What pieces of the log tell is kept; records are read again, and
kept, only for a question that the pieces do not answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from audit.engines.pieces import KEYS, PIECE, TWICE_MAX, NearTask, PieceTask, twice
from audit.engines.told import Told
from audit.tables import CHUNK, DAMAGE, LOG, EngineError, Task, View

Load = Callable[[str, list[dict[str, Any]]], DataFrame]
"""(kind, tasks) -> rows of ``audit.engines.on_spark.source``."""

PART_BYTES: Final = 256 * 1024 * 1024
"""Of the log, whose keys' hashes one task compares: 20 MB, where records are of 100 bytes."""
PARTS_MAX: Final = 1024
NEAR_BYTES_MIN: Final = 64 * 1024 * 1024
"""Of the log; what is smaller is read whole."""
NEAR_MAX: Final = 2
"""Frames of some of the records."""
NAMED_MAX: Final = 1_000_000
"""Topics and hashes in all tasks."""


class Rows(Protocol):
    """The rows of a scan."""

    @property
    def chunks(self) -> pa.Table: ...
    @property
    def damage(self) -> DataFrame:
        """LOG rows."""

    @property
    def told(self) -> Told:
        """What pieces say together."""

    def twice(self, view: View) -> list[int] | None:
        """Hashes of all keys of users that may stand twice in a view; None: not known."""

    def whole(self) -> DataFrame:
        """LOG rows, kept."""

    def near(self, *, topics: Sequence[str] = (), hashes: Sequence[int] = ()) -> DataFrame:
        """At least the LOG rows of the records of these topics, or whose keys have these hashes."""

    def close(self) -> None: ...


class WholeRows:
    """All rows of a scan as a cached frame."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame.persist()
        # One job reads everything; what is asked later comes from the cache.
        self.chunks = _chunks(self._frame)
        self.told = Told(None, LOG.empty_table)

    @property
    def damage(self) -> DataFrame:
        return self._frame.filter(F.col("row") == DAMAGE)

    def twice(self, view: View) -> list[int] | None:
        return None

    def whole(self) -> DataFrame:
        return self._frame

    def near(self, *, topics: Sequence[str] = (), hashes: Sequence[int] = ()) -> DataFrame:
        return self._frame

    def close(self) -> None:
        self._frame.unpersist()


class PiecedRows:
    """What the pieces of each task tell, cached: some rows a queue and piece, and eight bytes a key."""

    def __init__(self, session: SparkSession, load: Load, tasks: list[Task]) -> None:
        self._session, self._load, self._tasks = session, load, tasks
        self._bytes = sum(task.end - task.start for task in tasks)
        parts = min(PARTS_MAX, self._bytes // PART_BYTES + 1)
        self._frame = load("pieces", [PieceTask(task, parts).to_json() for task in tasks]).persist()
        self._read: dict[Any, DataFrame] = {}
        try:
            heads = self._frame.filter(F.col("row").isin(CHUNK, PIECE)).drop("told").toArrow().cast(LOG)
        except BaseException:
            self._frame.unpersist()  # the session may be the program's
            raise
        self.chunks = heads.filter(pc.equal(heads["row"], CHUNK))
        self.told = Told(heads.filter(pc.equal(heads["row"], PIECE)), self._fetch)

    def _fetch(self) -> pa.Table:
        return self._frame.filter(F.col("row") == PIECE).select("replica", "offset", "told").toArrow()

    @property
    def damage(self) -> DataFrame:
        return self._frame.filter(F.col("row") == DAMAGE).drop("told")

    def twice(self, view: View) -> list[int] | None:
        pieces = self.told.of(view)
        if pieces is None:
            return None
        if not pieces:
            return []
        rows = self._frame.filter(F.col("row") == KEYS).select("replica", "offset", "queue_id", "told")
        if len(pieces) < len(self.told.pieces):
            named = [(piece.replica, piece.first) for piece in pieces]
            taken = self._session.createDataFrame(named, "replica int, offset long")
            rows = rows.join(F.broadcast(taken), ["replica", "offset"])
        # Plain: what takes Arrow tables needs pandas, which no worker need have.
        own = F.udf(twice, "array<long>", useArrow=False)
        parts = (
            rows.groupBy("queue_id")
            .agg(F.collect_list("told").alias("told"))
            .select(own("told").alias("told"))
        )
        found = [row[0] for row in parts.select(F.explode("told")).limit(TWICE_MAX).collect()]
        return found if len(found) < TWICE_MAX else None

    def whole(self) -> DataFrame:
        return self._kept("scan", [task.to_json() for task in self._tasks], "scan")

    def near(self, *, topics: Sequence[str] = (), hashes: Sequence[int] = ()) -> DataFrame:
        key = (*topics, *hashes)
        many = len(key) * len(self._tasks) > NAMED_MAX or len(self._read) >= NEAR_MAX
        if "scan" in self._read or self._bytes < NEAR_BYTES_MIN or (many and key not in self._read):
            return self.whole()
        tasks = [NearTask(task, tuple(topics), tuple(hashes)).to_json() for task in self._tasks]
        return self._kept("near", tasks, key)

    def _kept(self, kind: str, tasks: list[dict[str, Any]], key: Any) -> DataFrame:
        if key not in self._read:
            frame = self._load(kind, tasks).persist()
            self._read[key] = frame
            if not _same(_chunks(frame), self.chunks):
                raise EngineError("a log was read again, and was not the same")
        return self._read[key]

    def close(self) -> None:
        for frame in (*self._read.values(), self._frame):
            frame.unpersist()


def _chunks(frame: DataFrame) -> pa.Table:
    return frame.filter(F.col("row") == CHUNK).toArrow().cast(LOG)


def _same(a: pa.Table, b: pa.Table) -> bool:
    """Whether tasks met the same records, and as much damage."""
    order = [("replica", "ascending"), ("offset", "ascending")]
    return bool(a.sort_by(order).equals(b.sort_by(order)))
