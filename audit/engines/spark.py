"""How is a cluster asked? Its workers read every byte by ``audit.engines.on_spark.reads``. What they tell is
put together by plain jobs, whose functions are the local engine's.

``local[*]`` or any cluster by ``master``; workers open the stores by path or URL, so a cluster needs them
mounted or in an object store. A failed task that Spark runs again reads twice and yields the same rows.
"""

from __future__ import annotations

import gc
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from typing import Final

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from audit.engines.on_spark import digests
from audit.engines.on_spark.acknowledged import Acknowledged
from audit.engines.on_spark.cluster import Cluster, in_turn
from audit.engines.on_spark.entries import EnteredRows, cut
from audit.engines.on_spark.java import Java, find_java
from audit.engines.on_spark.queues import Queues
from audit.engines.on_spark.records import PiecedRows
from audit.engines.on_spark.session import GATEWAY, start_context, submitted_context
from audit.engines.on_spark.users import Users
from audit.engines.slices import last_place, planned
from audit.ledgers.ledger import Ledger
from audit.reading.derived.index_files import INDEX, INDEX_ORDER, IndexTask
from audit.reading.derived.others import DerivedTask
from audit.reading.derived.queue_files import ENTRIES, Queue, QueueFile
from audit.reading.derived.queue_prefix import PREFIX, PrefixTask
from audit.reading.derived.queue_slices import PROVED, SliceTask
from audit.reading.records.scan import DIGEST_BYTES
from audit.rows.parts import Folder
from audit.tables import (
    FOLDED,
    LACKING,
    Again,
    EngineError,
    Entered,
    EntryBounds,
    SearchedView,
    Tail,
    Task,
    View,
    bytes_of,
)
from model.message import LMQ_PREFIX


@contextmanager
def spark_errors() -> Iterator[None]:
    """Spark's failures as EngineError: the reason, without the JVM's stack."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise EngineError(f"Spark failed: {reason(str(error)) or repr(error)}") from error
    except ConnectionError as error:  # files are read by the workers
        raise EngineError(f"Spark failed: its JVM has ended, or was killed ({error})") from error


def reason(text: str) -> str:
    """What a worker's Python raised; or what Spark says of the task that failed, or of itself."""
    python = text.partition(TRACEBACK)[2]
    lines = [line for line in (python or text).splitlines() if line.strip()]
    lines = list(takewhile(lambda line: not line.startswith("\tat "), lines))
    if python:
        lines = [line for line in lines if not line.startswith((" ", "\t"))][-1:]
    elif lines and CALLED in lines[0]:
        lines = lines[1:]
    said = lines[0].strip().removeprefix(": ") if lines else ""
    if NO_MODULE.search(said):
        said += f" (on a worker: {__package__}.commitlog.ship(session) sends it there)"
    return said.rpartition("most recent failure: ")[2]


NO_MODULE: Final = re.compile(rf"No module named '{re.escape(__name__.partition('.')[0])}[.']")
TRACEBACK: Final = "Traceback (most recent call last)"
CALLED: Final = "An error occurred while calling"
"""What Py4J begins with, of each error in the JVM."""
DESCRIPTION: Final = "spark.job.description"


class SparkEngine:
    """The program's session or context, which is left running; without one, a context made for one audit, in
    the JVM of ``spark-submit`` if that started the program.

    ``conf``: Spark's configuration, for a context that is made."""

    name = "spark"

    def __init__(self, master: str | None = None, conf: Mapping[str, str] | None = None) -> None:
        self._java: Java | None = None
        self._folder: Folder | None = None
        # What is active is so in its own thread.
        active = SparkSession.getActiveSession() or SparkSession._instantiatedSession
        context = SparkContext._active_spark_context
        if active is not None:
            self._cluster = Cluster(active.sparkContext, active)
        elif context is not None:
            self._cluster = Cluster(context)
        elif GATEWAY in os.environ:
            self._folder = Folder()
            with spark_errors():
                self._cluster = Cluster(submitted_context(self._folder.path, master, conf or {}))
        else:
            self._java = find_java()
            try:
                with spark_errors():
                    master = master or (conf or {}).get("spark.master") or "local[*]"
                    self._cluster = Cluster(start_context(master, self._java, conf or {}))
            except BaseException:  # also when interrupted: nobody else knows the directory
                self._java.close()
                raise
        self._described = self._cluster.context.getLocalProperty(DESCRIPTION)

    @spark_errors()
    def warm_up(self) -> None:
        """Run a job: the first one starts Python processes that later ones do not need."""
        self._cluster.table("digests", [], 0)

    @spark_errors()
    def compared(self, tasks: list[Task]) -> pa.Table:
        self._cluster.describe("digests")
        self._cluster.spread(bytes_of(tasks) // DIGEST_BYTES)
        return digests.compared(self._cluster, tasks)

    @spark_errors()
    def folded(self, tasks: list[Task], segment_bytes: int) -> pa.Table:
        if not tasks:
            return FOLDED.empty_table()
        self._cluster.describe("digests of segments")
        self._cluster.spread(bytes_of(tasks) // DIGEST_BYTES)
        return digests.folded(self._cluster, tasks, segment_bytes)

    @spark_errors()
    def scan(self, tasks: list[Task]) -> SparkLog:
        self._cluster.describe("scan")
        return SparkLog(self._cluster, PiecedRows(self._cluster, tasks))

    @spark_errors()
    def index(self, tasks: list[IndexTask]) -> pa.Table:
        if not tasks:
            return INDEX.empty_table()
        self._cluster.describe("index files")
        return self._cluster.table("index", tasks, sum(t.until - t.begin for t in tasks)).sort_by(INDEX_ORDER)

    @spark_errors()
    def derived(self, tasks: list[DerivedTask]) -> pa.Table:
        self._cluster.describe("batches, extensions and timers")
        size = sum(size for task in tasks for _, size in (*task.files, *task.entries))
        return self._cluster.table("derived", tasks, size).sort_by(INDEX_ORDER)

    @spark_errors()
    def prefixes(self, tasks: list[PrefixTask]) -> pa.Table:
        if not tasks:
            return PREFIX.empty_table()
        self._cluster.describe("queue files that changed")
        return self._cluster.table("prefixes", tasks, sum(task.known for task in tasks))

    def close(self) -> None:
        if self._folder is None and self._java is None:
            if not self._cluster.is_stopped:
                self._cluster.context.setLocalProperty(DESCRIPTION, self._described)  # type: ignore[arg-type]
            return
        with suppress(Py4JError, ConnectionError):  # of a JVM that ended
            self._cluster.context.stop()
        for made in (self._folder, self._java):
            if made is not None:
                made.close()


class SparkLog:
    """What pieces of the logs tell answers most questions of queues. For the others, and for those of
    messages, records are read once more."""

    def __init__(self, cluster: Cluster, rows: PiecedRows) -> None:
        self._cluster = cluster
        self._rows = rows
        self._queues = Queues(cluster, rows)
        self._users = Users(cluster, rows.tasks, rows.chunks)
        self._ledger: Acknowledged | None = None
        cluster.spread(self.record_count())

    def _ask(self, what: str) -> None:
        self._cluster.describe(what)

    def chunks(self) -> pa.Table:
        return self._rows.chunks

    def damage(self) -> Iterator[pa.Table]:
        left = sum(self.chunks()["queue_offset"].to_pylist())
        if not left:
            return
        self._ask("damage")
        with spark_errors():
            for table in self._rows.damage():
                left -= len(table)
                yield table
        if left:  # a worker lost what it kept, and the store is another one by now
            raise EngineError("the damage of a log was read again, and was not the same")

    def record_count(self) -> int:
        return sum(self.chunks()["records"].to_pylist())

    def close(self) -> None:
        if self._ledger is not None:
            self._ledger.close()
        self._rows.close()
        # What lies in cycles keeps objects in the JVM, of whose memory Python's collector knows nothing.
        gc.collect()

    @property
    def _damaged(self) -> bool:
        return any(self.chunks()["queue_offset"].to_pylist())

    @spark_errors()
    def broken_queues(self, view: View, before: pa.Table, most: int, *, whole: bool) -> pa.Table:
        self._ask("places of queues")
        told = self._rows.told.broken_queues(view, before, most, whole=whole)
        if told is not None:
            return told
        return self._queues.broken_queues(view, before, most, whole=whole)

    @spark_errors()
    def first_taken(self, view: View, places: pa.Table) -> pa.Table:
        self._ask("places taken first")
        return self._queues.first_taken(view, places)

    @spark_errors()
    def last_places(self, view: View, begin: int, end: int, size: int) -> pa.Table:
        self._ask("last places of queues")
        told = self._rows.told.last_places(view, begin, end, size)
        if told is not None:
            return told
        return self._queues.last_places(view, begin, end, size)

    @spark_errors()
    def keyed(self, view: View, begin: int, end: int) -> pa.Table:
        self._ask("keys of a stretch")
        return self._users.keyed(view, begin, end)

    def copies(self, view: View) -> Iterator[pa.Table]:
        self._ask("messages that stand twice")
        with spark_errors():
            hashes = self._rows.twice(view)
            if hashes != []:
                yield from self._users.copies(view, hashes)

    @spark_errors()
    def queue_starts(self, view: View, *, placed: bool = False) -> pa.Table:
        self._ask("starts of queues")
        placed &= self._damaged
        told = None if placed else self._rows.told.queue_starts(view)
        return told if told is not None else self._queues.queue_starts(view, placed=placed)

    @spark_errors()
    def queue_ends(self, view: View, *, placed: bool = False) -> pa.Table:
        self._ask("ends of queues")
        placed &= self._damaged
        told = None if placed else self._rows.told.queue_ends(view)
        return told if told is not None else self._queues.queue_ends(view, placed=placed)

    @spark_errors()
    def queue_extents(self, view: View, *, placed: bool = False) -> pa.Table:
        self._ask("extents of queues")
        placed &= self._damaged
        told = None if placed else self._rows.told.queue_extents(view)
        return told if told is not None else self._queues.queue_extents(view, placed=placed)

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
        found = self._entered(view, left, bounds, told=slices is not None)
        return found._replace(last=found.last | last)

    def _entered(self, view: View, files: list[QueueFile], bounds: EntryBounds, *, told: bool) -> Entered:
        """Entry by entry. ``told``: the records of the files' topics are enough."""
        topics = sorted({file.topic for file in files})
        near = told and not any(topic.startswith(LMQ_PREFIX) for topic in topics)
        rows = self._rows.near(topics) if near else self._rows.whole()
        cuts = cut(self.chunks(), view, self._cluster.partitions(1 << 20))
        entries = EnteredRows(self._cluster, rows, cuts, view, files)
        try:
            return entries.judged(bounds)
        finally:
            entries.close()

    def _right(self, asked: Mapping[Queue, list[SliceTask]]) -> set[Queue]:
        """The queues whose entries are those of their records, and no others."""
        tasks = [task for own in asked.values() for task in own]
        if not tasks:
            return set()
        found = self._cluster.table("slices", tasks, sum(task.bytes for task in tasks))
        rows = zip(*(found[name].to_pylist() for name in PROVED.names), strict=True)
        counts = Counter((topic, queue_id) for topic, queue_id, right in rows if right)
        return {queue for queue, own in asked.items() if counts[queue] == len(own)}

    def _of(self, ledger: Ledger) -> Acknowledged:
        if self._ledger is None:
            self._cluster.spread(max(len(ledger), self.record_count()))
            self._ledger = Acknowledged(self._cluster, ledger, self._rows.tasks, self._rows.chunks)
        return self._ledger

    def strangers(self, ledger: Ledger, view: View) -> Iterator[pa.Table]:
        self._ask("messages that nobody sent")
        with spark_errors():
            yield from in_turn(self._of(ledger).strangers(view))

    @spark_errors()
    def asked_all(self) -> bool:
        if self._ledger is None:
            return True
        self._ask("the ledger once more")
        return self._ledger.lines.same()

    def acked(
        self, ledger: Ledger, asked: Sequence[SearchedView], again: tuple[Again, ...]
    ) -> Iterator[pa.Table]:
        self._ask("acknowledged messages")
        with spark_errors():
            yield from in_turn(self._of(ledger).faults(asked, again))

    @spark_errors()
    def acked_behind(self, ledger: Ledger, view: View, offset: int, lacking: View | None = None) -> Tail:
        self._ask("acknowledged messages behind an end")
        return self._of(ledger).behind(view, offset, lacking)
