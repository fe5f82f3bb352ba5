"""How is a cluster asked? Its workers read every byte by ``audit.engines.on_spark.source``, then SQL.

``local[*]`` or any cluster by ``master``; workers open the stores by path or URL, so a cluster needs them
mounted or in an object store. A failed task that Spark runs again reads twice and yields the same rows.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from operator import add, or_
from typing import Any, Final

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from audit.engines.acknowledged import ANOTHER, ENDED_SOMEHOW, MISPLACED, NOTHING
from audit.engines.on_spark import digests
from audit.engines.on_spark.acknowledged import (
    best,
    delivered,
    ended_anywhere,
    told_body,
    with_ends,
    without_found,
)
from audit.engines.on_spark.entries import cell, entered
from audit.engines.on_spark.java import Java, find_java
from audit.engines.on_spark.ledger import LedgerRows
from audit.engines.on_spark.records import PiecedRows, Rows, WholeRows
from audit.engines.on_spark.runs import QUEUE, place_behind, queue_runs
from audit.engines.on_spark.session import GATEWAY, spread, start_session, submitted_session
from audit.engines.on_spark.source import LogSource, load
from audit.engines.relate import PREPARED, ROLLBACK, SYSTEM_TOPIC
from audit.engines.slices import last_place, planned
from audit.engines.spill import MISPLACED as MISPLACED_KIND
from audit.ledgers.history import REFUSED, UNKNOWN
from audit.ledgers.ledger import Ledger
from audit.reading.derived.index_files import INDEX, INDEX_ORDER, IndexTask
from audit.reading.derived.others import DerivedTask
from audit.reading.derived.queue_files import ENTRIES, Queue, QueueFile
from audit.reading.derived.queue_prefix import PREFIX, PrefixTask
from audit.reading.derived.queue_slices import PROVED, SliceTask
from audit.reading.records.scan import DIGEST_BYTES
from audit.reading.records.transactions import OPEN
from audit.rows.intervals import Interval
from audit.rows.parts import Folder
from audit.tables import (
    ACKED,
    COMPARED,
    COPIES,
    DUPLICATES,
    ENDED,
    EXTENTS,
    FOLDED,
    LACKING,
    LOG,
    QUEUES,
    RECORD,
    RUNS,
    STRANGERS,
    TAKEN,
    Again,
    EngineError,
    Entered,
    EntryBounds,
    SearchedView,
    Tail,
    Task,
    View,
)
from model.message import INNER_BATCH, LMQ_PREFIX


@contextmanager
def spark_errors() -> Iterator[None]:
    """Spark's failures as EngineError: the first lines of the reason, without the JVM's stack."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        text = str(error).strip().splitlines()
        last = next((line for line in reversed(text) if line and not line.startswith((" ", "\t"))), "")
        raise EngineError(f"Spark failed: {text[0] if text else error!r} {last}".strip()) from error


STREAMED_ROWS: Final = 10_000
NAMED_MAX: Final = 64
"""Stretches that a plan names."""
DAMAGE_ORDER: Final = ["replica", "offset", "kind"]


def describe(session: SparkSession, what: str | None) -> None:
    """What Spark's pages and event log call the jobs that come now."""
    session.sparkContext.setJobDescription(what and f"keelmq audit: {what}")  # type: ignore[arg-type]


class SparkEngine:
    """The program's session, which is left running; without one, a session made for one audit, in the JVM of
    ``spark-submit`` if that started the program.

    ``conf``: Spark's configuration, for a session that is made."""

    name = "spark"

    def __init__(self, master: str | None = None, conf: Mapping[str, str] | None = None) -> None:
        self._java: Java | None = None
        self._folder: Folder | None = None
        active = SparkSession.getActiveSession()
        if active is not None:
            self._session = active
        elif GATEWAY in os.environ:
            self._folder = Folder()
            with spark_errors():
                self._session = submitted_session(self._folder.path, master, conf or {})
        else:
            self._java = find_java()
            try:
                with spark_errors():
                    self._session = start_session(master or "local[*]", self._java, conf or {})
            except BaseException:  # also when interrupted: nobody else knows the directory
                self._java.close()
                raise
        self._session.dataSource.register(LogSource)

    @spark_errors()
    def warm_up(self) -> None:
        """Plan a source once: the first plan starts Python processes that later ones do not need."""
        self._load("digests", []).count()

    def _load(self, kind: str, tasks: list[Task]) -> DataFrame:
        return load(self._session, kind, [t.to_json() for t in tasks])

    @spark_errors()
    def compared(self, tasks: list[Task]) -> pa.Table:
        describe(self._session, "digests")
        spread(self._session, sum(task.end - task.start for task in tasks) // DIGEST_BYTES)
        return digests.compared(self._load("digests", tasks)).toArrow().cast(COMPARED)

    @spark_errors()
    def folded(self, tasks: list[Task], segment_bytes: int) -> pa.Table:
        if not tasks:
            return FOLDED.empty_table()
        describe(self._session, "digests of segments")
        spread(self._session, sum(task.end - task.start for task in tasks) // DIGEST_BYTES)
        return digests.folded(self._load("digests", tasks), segment_bytes).toArrow().cast(FOLDED)

    @spark_errors()
    def scan(self, tasks: list[Task]) -> SparkLog:
        describe(self._session, "scan")
        if not tasks:
            empty = self._session.createDataFrame([], from_arrow_schema(LOG))
            return SparkLog(self._session, WholeRows(empty))
        return SparkLog(self._session, PiecedRows(self._session, partial(load, self._session), tasks))

    @spark_errors()
    def index(self, tasks: list[IndexTask]) -> pa.Table:
        if not tasks:
            return INDEX.empty_table()
        describe(self._session, "index files")
        found = load(self._session, "index", [t.to_json() for t in tasks]).toArrow().cast(INDEX)
        return found.sort_by(INDEX_ORDER)

    @spark_errors()
    def derived(self, tasks: list[DerivedTask]) -> pa.Table:
        describe(self._session, "batches, extensions and timers")
        found = load(self._session, "derived", [t.to_json() for t in tasks]).toArrow().cast(INDEX)
        return found.sort_by(INDEX_ORDER)

    @spark_errors()
    def prefixes(self, tasks: list[PrefixTask]) -> pa.Table:
        if not tasks:
            return PREFIX.empty_table()
        describe(self._session, "queue files that changed")
        return load(self._session, "prefixes", [t.to_json() for t in tasks]).toArrow().cast(PREFIX)

    def close(self) -> None:
        if self._folder is None and self._java is None:
            if self._session.sparkContext._jsc is not None:  # else its program has stopped it
                describe(self._session, None)
            return
        self._session.stop()
        for made in (self._folder, self._java):
            if made is not None:
                made.close()


class SparkLog:
    """What pieces of the logs tell answers most questions; for others records are a cached frame, of which
    each question collects only the rows that are wrong."""

    def __init__(self, session: SparkSession, rows: Rows) -> None:
        self._session = session
        self._rows = rows
        self._joined: dict[View, DataFrame] = {}
        self._ledger: LedgerRows | None = None
        spread(session, self.record_count())

    def _ask(self, what: str) -> None:
        describe(self._session, what)

    def chunks(self) -> pa.Table:
        return self._rows.chunks

    def damage(self) -> Iterator[pa.Table]:
        left = sum(self.chunks()["queue_offset"].to_pylist())
        if not left:
            return
        self._ask("damage")
        for table in self._damage(left):
            left -= len(table)
            yield table
        if left:  # a worker lost what it kept, and the store is another one by now
            raise EngineError("the damage of a log was read again, and was not the same")

    def _damage(self, count: int) -> Iterator[pa.Table]:
        rows = self._rows.damage
        if count > STREAMED_ROWS:
            yield from _streamed(rows.orderBy(*DAMAGE_ORDER), LOG, "offset")
            return
        with spark_errors():
            found = rows.toArrow().cast(LOG)
        yield found.sort_by([(name, "ascending") for name in DAMAGE_ORDER])

    def record_count(self) -> int:
        return sum(self.chunks()["records"].to_pylist())

    def close(self) -> None:
        for frame in self._joined.values():
            frame.unpersist()
        self._joined.clear()
        if self._ledger is not None:
            self._ledger.close()
        self._rows.close()
        # Frames lie in cycles and keep plans in the JVM, of whose memory Python's collector knows nothing.
        gc.collect()

    def _view(self, view: View, frame: DataFrame | None = None, row: int = RECORD) -> DataFrame:
        """``frame``: of some of the records. ``row``: what is asked for instead of records."""
        records = (self._rows.whole() if frame is None else frame).filter(F.col("row") == row)
        if view.base == view.replica:
            return records.filter(F.col("replica") == view.replica)
        inside = _within_any(view.equal)
        return records.filter(
            ((F.col("replica") == view.replica) & ~inside) | ((F.col("replica") == view.base) & inside)
        )

    def _queued(self, view: View, frame: DataFrame | None = None) -> DataFrame:
        kind = F.col("sys_flag").bitwiseAND(ROLLBACK)
        return self._view(view, frame).filter((kind != PREPARED) & (kind != ROLLBACK))

    @property
    def _damaged(self) -> bool:
        return any(self.chunks()["queue_offset"].to_pylist())

    def _marked(self, records: DataFrame) -> DataFrame:
        """With a column that says which of them name another place than where they stand."""
        if not self._damaged:
            return records.withColumn("misplaced", F.lit(False))
        place = ["replica", "offset"]
        own = self._rows.damage.filter(F.col("kind") == MISPLACED_KIND).select(*place).distinct()
        own = own.withColumn("misplaced", F.lit(True))
        return records.join(own, place, "left").fillna(False, ["misplaced"])

    def _of_queues(self, view: View, *, placed: bool) -> DataFrame:
        rows = self._queued(view)
        return self._marked(rows).filter(~F.col("misplaced")) if placed and self._damaged else rows

    @spark_errors()
    def broken_queues(self, view: View, before: pa.Table, most: int, *, whole: bool) -> pa.Table:
        self._ask("places of queues")
        told = self._rows.told.broken_queues(view, before, most, whole=whole)
        if told is not None:
            return told
        rows = self._queued(view).select(*QUEUES.names, F.lit(True).alias("was_read"))
        if len(before):
            carried = self._session.createDataFrame(before)
            rows = rows.unionByName(carried.select(*QUEUES.names, F.lit(False).alias("was_read")))
        first = F.col("was_read") & (F.col("queue_offset") != 0) if whole else F.lit(False)
        runs = queue_runs(rows.withColumn("late", first), most)
        all_of = Window.partitionBy(*QUEUE)
        late = F.max((F.col("number") == 1) & F.col("late")).over(all_of)
        found = (
            runs.withColumn("runs", F.max("number").over(all_of))
            .filter((F.col("number") <= most) | (F.col("number") == F.col("runs")))
            .withColumn("broken", (F.col("runs") > 1) | late)
            .filter("broken")
        )
        return found.select(*RUNS.names).orderBy("offset").toArrow().cast(RUNS)

    @spark_errors()
    def first_taken(self, view: View, places: pa.Table) -> pa.Table:
        self._ask("places taken first")
        rows = self._queued(view).select(*TAKEN.names[:3], "offset")
        rows = rows.join(F.broadcast(self._session.createDataFrame(places)), TAKEN.names[:3])
        rows = rows.filter(F.col("offset") >= F.col("since"))
        return rows.groupBy(*TAKEN.names).agg(F.min("offset").alias("offset")).toArrow()

    @spark_errors()
    def last_places(self, view: View, begin: int, end: int, size: int) -> pa.Table:
        self._ask("last places of queues")
        told = self._rows.told.last_places(view, begin, end, size)
        if told is not None:
            return told
        rows = _within(self._queued(view), begin, end)
        columns = [F.max_by(name, "offset").alias(name) for name in QUEUES.names[3:]]
        rows = rows.withColumn("segment", F.col("offset") - F.col("offset") % size)
        last = rows.groupBy("topic", "queue_id", "segment").agg(F.max("offset").alias("offset"), *columns)
        return last.select(*QUEUES.names).toArrow().cast(QUEUES)

    @spark_errors()
    def keyed(self, view: View, begin: int, end: int) -> pa.Table:
        self._ask("keys of a stretch")
        return _within(self._of_users(view), begin, end).select(*DUPLICATES.names).toArrow().cast(DUPLICATES)

    def _of_users(self, view: View, frame: DataFrame | None = None) -> DataFrame:
        return self._view(view, frame).filter((F.col("uniq_key") != "") & ~F.col("topic").rlike(SYSTEM_TOPIC))

    def copies(self, view: View) -> Iterator[pa.Table]:
        self._ask("messages that stand twice")
        with spark_errors():
            hashes = self._rows.twice(view)
            if hashes == []:
                return
            frame = self._rows.near(hashes=hashes) if hashes is not None else None
        rows = self._of_users(view, frame).select(*DUPLICATES.names)
        # Eight bytes of each record are shuffled; bodies, keys and topics only of those that may stand twice.
        rows = rows.withColumn("hash", F.xxhash64("topic", "uniq_key"))
        many = rows.groupBy("hash").count().filter(F.col("count") > 1).select("hash")
        near = rows.join(many, "hash", "left_semi")
        first = near.groupBy("topic", "uniq_key").agg(F.min("offset").alias("first"))
        found = near.join(first, ["topic", "uniq_key"]).filter(F.col("offset") > F.col("first"))
        yield from _streamed(found.select(*COPIES.names).orderBy("offset"), COPIES, "offset")

    @spark_errors()
    def queue_starts(self, view: View, *, placed: bool = False) -> pa.Table:
        self._ask("starts of queues")
        told = None if placed and self._damaged else self._rows.told.queue_starts(view)
        if told is not None:
            return told
        starts = (
            self._of_queues(view, placed=placed)
            .groupBy("topic", "queue_id")
            .agg(F.min("queue_offset").alias("queue_offset"))
        )
        return starts.toArrow()

    @spark_errors()
    def queue_ends(self, view: View, *, placed: bool = False) -> pa.Table:
        self._ask("ends of queues")
        told = None if placed and self._damaged else self._rows.told.queue_ends(view)
        if told is not None:
            return told
        end = F.max(place_behind()).alias("queue_offset")
        return self._of_queues(view, placed=placed).groupBy("topic", "queue_id").agg(end).toArrow()

    @spark_errors()
    def queue_extents(self, view: View, *, placed: bool = False) -> pa.Table:
        self._ask("extents of queues")
        told = None if placed and self._damaged else self._rows.told.queue_extents(view)
        if told is not None:
            return told
        rows = self._of_queues(view, placed=placed).filter(F.col("sys_flag").bitwiseAND(INNER_BATCH) == 0)
        extents = rows.groupBy("topic", "queue_id").agg(
            F.min("offset").alias("offset"),
            F.max("until").alias("until"),
            F.min("queue_offset").alias("queue_offset"),
            F.count("*").alias("records"),
        )
        return extents.select(*EXTENTS).toArrow()

    @spark_errors()
    def entered(self, view: View, files: Sequence[QueueFile], bounds: EntryBounds) -> Entered:
        self._ask("queue entries")
        told = self._rows.told
        slices = told.slices(view)
        asked = planned(files, slices, bounds) if slices is not None else {}
        right = self._right(asked)
        last = {queue: last_place(slices[queue]) for queue in right if slices and queue in slices}
        left = [file for file in files if (file.topic, file.queue_id) not in right]
        if not left:
            return Entered(ENTRIES.empty_table(), LACKING.empty_table(), last)
        topics = sorted({file.topic for file in left})
        light = slices is None or any(topic.startswith(LMQ_PREFIX) for topic in topics)
        frame = self._rows.whole() if light else self._rows.near(topics=topics)
        entries = load(self._session, "entries", [file.to_json() for file in left])
        found = entered(self._session, self._queued(view, frame), entries, left, bounds)
        return found._replace(last=found.last | last)

    def _right(self, asked: Mapping[Queue, list[SliceTask]]) -> set[Queue]:
        """The queues whose entries are those of their records, and no others."""
        tasks = [task.to_json() for own in asked.values() for task in own]
        if not tasks:
            return set()
        found = load(self._session, "slices", tasks).toArrow()
        rows = zip(*(found[name].to_pylist() for name in PROVED.names), strict=True)
        counts = Counter((topic, queue_id) for topic, queue_id, right in rows if right)
        return {queue for queue, own in asked.items() if counts[queue] == len(own)}

    def strangers(self, ledger: Ledger, view: View) -> Iterator[pa.Table]:
        self._ask("messages that nobody sent")
        of_key = self._rows_of(ledger).sent().groupBy("topic", "uniq_key")
        sent = of_key.agg(F.min("outcome").alias("outcome"), F.collect_set("sent_crc").alias("crcs"))
        rows = self._view(view).filter(F.col("topic").isin(sorted(ledger.topics)))
        rows = rows.join(sent, ["topic", "uniq_key"], "left")
        body = F.array_contains("crcs", told_body())
        strange = (F.col("outcome") == REFUSED) | ((F.col("outcome") == UNKNOWN) & ~body)
        rows = rows.filter(F.col("outcome").isNull() | strange)
        rows = rows.withColumn("outcome", F.coalesce("outcome", F.lit(-1).cast("tinyint")))
        yield from _streamed(rows.select(*STRANGERS.names).orderBy("offset"), STRANGERS, "offset")

    def _rows_of(self, ledger: Ledger) -> LedgerRows:
        if self._ledger is None:
            spread(self._session, max(len(ledger), self.record_count()))
            self._ledger = LedgerRows(self._session, ledger, partial(load, self._session))
        return self._ledger

    @spark_errors()
    def asked_all(self) -> bool:
        if self._ledger is None:
            return True
        self._ask("the ledger once more")
        return self._ledger.same()

    def _join(self, ledger: Ledger, view: View) -> DataFrame:
        if view not in self._joined:
            lines = self._rows_of(ledger).lines()
            # All that have no key would be one task's.
            keyed = F.lit(ledger.has_unnamed) | (F.col("uniq_key") != "")
            records = self._marked(self._view(view).filter(keyed & delivered()))
            self._joined[view] = best(lines, with_ends(records, self._view(view, row=ENDED))).persist()
        return self._joined[view]

    def acked(
        self, ledger: Ledger, asked: Sequence[SearchedView], again: tuple[Again, ...]
    ) -> Iterator[pa.Table]:
        self._ask("acknowledged messages")
        with spark_errors():
            joined = ended_anywhere([self._known(self._join(ledger, ask.view), ask.wrong) for ask in asked])
            found = [
                self._faults(own, ask.start, again).withColumn("asked", F.lit(at))
                for at, (own, ask) in enumerate(zip(joined, asked, strict=True))
            ]
            rows = reduce(DataFrame.unionByName, found)
            if len(asked) > 1:
                rows = self._held(rows, joined)
            else:
                rows = rows.withColumn("held", F.lit(-1).cast("long"))
        yield from _streamed(rows.select(*ACKED.names).orderBy("line", "asked", "fault"), ACKED, "line")

    def _known(self, joined: DataFrame, wrong: Sequence[Interval]) -> DataFrame:
        """As ``audit.engines.acknowledged`` has it."""
        stands = F.coalesce(_within_any(wrong), F.lit(False))
        elsewhere = (F.col("phys_offset") >= 0) & (F.col("phys_offset") != F.col("offset"))
        rank = F.when(stands & elsewhere, F.greatest("rank", F.lit(NOTHING))).otherwise(F.col("rank"))
        return without_found(joined.withColumn("known", ~stands).withColumn("rank", rank))

    def _held(self, rows: DataFrame, joined: Sequence[DataFrame]) -> DataFrame:
        """With where the other views have the message, or -1."""
        places = [
            own.filter((F.col("rank") < MISPLACED) & F.col("known")).select(
                "line", F.col("offset").alias("place"), F.lit(at).alias("where")
            )
            for at, own in enumerate(joined)
        ]
        there = F.col("where") != F.col("asked")
        lowest = (
            rows.select("line", "asked")
            .distinct()
            .join(reduce(DataFrame.unionByName, places), "line")
            .groupBy("line", "asked")
            .agg(F.min(F.when(there, F.col("place"))).alias("held"))
        )
        rows = rows.join(lowest, ["line", "asked"], "left")
        return rows.withColumn("held", F.coalesce("held", F.lit(-1)))

    def _faults(self, joined: DataFrame, start: int, again: tuple[Again, ...]) -> DataFrame:
        placed = joined.filter((F.col("rank") < MISPLACED) & (F.col("found_topic") == F.col("topic")))
        placed = placed.filter(F.col("how") == OPEN)
        begun = [
            (F.col("topic") == topic) & (F.col("queue_id") == queue_id) & (F.col("offset") >= begin)
            for topic, queue_id, begin in again
        ]
        life = _flat(add, [of.cast("int") for of in begun], F.lit(0))
        same = F.col("found_queue_id") == F.col("queue_id")
        same = same & (F.col("found_queue_offset") == F.col("queue_offset"))
        placed = placed.filter(((F.col("phys_offset") < 0) & same) | (F.col("phys_offset") >= start))
        placed = placed.filter(F.col("known"))
        placed = placed.withColumn("life", life)
        told = Window.partitionBy("topic", "queue_id", "life").orderBy("queue_offset", "offset")
        # From the end on: of a frame that ends where all rows end, Spark looks at the rest anew for each row.
        behind = (
            Window.partitionBy("topic", "queue_id")
            .orderBy(F.desc("offset"))
            .rowsBetween(Window.unboundedPreceding, Window.currentRow - 1)
        )
        timed = (F.col("begun_ms") >= 0) & (F.col("acked_ms") >= 0)
        back = F.col("offset") < F.col("before")
        late = timed & (F.col("earliest") < F.col("begun_ms"))
        order = (
            placed.withColumn("before", F.lag("offset").over(told))
            .withColumn("earliest", F.min(F.when(timed, F.col("acked_ms"))).over(behind))
            .filter(back | late)
        )
        held = F.when(F.col("rank") == NOTHING, "missing").when(F.col("rank") == MISPLACED, "misplaced")
        held = held.when(F.col("rank") == ENDED_SOMEHOW, "untold").otherwise("mismatch")
        return _fault(held, joined.filter(F.col("rank") > 0)).unionByName(_fault(F.lit("order"), order))

    @spark_errors()
    def acked_behind(self, ledger: Ledger, view: View, offset: int, lacking: View | None = None) -> Tail:
        self._ask("acknowledged messages behind an end")
        rows = self._join(ledger, view).filter((F.col("rank") < MISPLACED) & (F.col("offset") >= offset))
        if lacking is not None:
            without = self._join(ledger, lacking).filter(F.col("rank") >= ANOTHER).select("line")
            rows = rows.filter(F.col("rank") < ANOTHER).join(without, "line", "left_semi")
        row = rows.agg(
            F.count("*").alias("records"),
            F.min("offset").alias("first"),
            F.max("until").alias("until"),
            F.min_by("uniq_key", "offset").alias("key"),
        ).first()
        if row is None or not row["records"]:
            return Tail(0, -1, -1, "")
        return Tail(row["records"], row["first"], row["until"], row["key"])


def _streamed(rows: DataFrame, schema: pa.Schema, together: str) -> Iterator[pa.Table]:
    """The rows as small tables, a partition at a time on the driver; those of one ``together``, by which they
    are sorted, are in one."""
    waiting: list[dict[str, Any]] = []
    with spark_errors():
        # Not the frame's own iterator: its jobs begin when the query has ended, and stay in the scheduler.
        for row in rows.rdd.toLocalIterator():
            if len(waiting) >= STREAMED_ROWS and row[together] != waiting[-1][together]:
                yield pa.Table.from_pylist(waiting, schema=schema)
                waiting = []
            waiting.append(row.asDict())
    if waiting:
        yield pa.Table.from_pylist(waiting, schema=schema)


def _flat(join: Callable[[Column, Column], Column], columns: list[Column], none: Column) -> Column:
    """All of them joined, as a tree that is no deeper than need be: Spark walks it by recursion."""
    while len(columns) > 1:
        joined = [join(a, b) for a, b in zip(columns[::2], columns[1::2], strict=False)]
        columns = joined + columns[len(joined) * 2 :]
    return columns[0] if columns else none


def _within_any(intervals: Sequence[tuple[int, int]]) -> Column:
    """Does the offset lie in one of the ascending intervals? A plan that named thousands would take longer
    than the question."""
    offset = F.col("offset")
    if len(intervals) > NAMED_MAX:
        return cell(offset, [edge for interval in intervals for edge in interval]) % 2 == 1
    return _flat(or_, [(offset >= begin) & (offset < end) for begin, end in intervals], F.lit(False))


def _within(rows: DataFrame, begin: int, end: int) -> DataFrame:
    return rows.filter((F.col("offset") >= begin) & (F.col("offset") < end))


def _fault(fault: Column, rows: DataFrame) -> DataFrame:
    columns = []
    for field in ACKED:
        if field.name in ("asked", "held"):
            continue
        if field.name == "fault":
            columns.append(fault.alias("fault"))
            continue
        column = F.col("found_body_crc" if field.name == "found_crc" else field.name)
        missing = "" if field.type == pa.string() else -1
        columns.append(F.coalesce(column, F.lit(missing)).alias(field.name))
    return rows.select(*columns)
