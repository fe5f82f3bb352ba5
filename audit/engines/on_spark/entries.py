"""``audit.engines.entries`` on a cluster: the entries are joined with the records by physical offset."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from audit.reading.queue_files import ENTRIES, EXTENSION_BELOW, QueueFile
from audit.reading.record import STORED_FROM
from audit.tables import UNENTERED, Entered, EntryBounds
from model.message import LMQ_PREFIX, SCHEDULE_TOPIC

PLACE = ["topic", "queue_id", "queue_offset"]


def entered(
    session: SparkSession,
    records: DataFrame,
    entries: DataFrame,
    files: Sequence[QueueFile],
    bounds: EntryBounds,
) -> Entered:
    """``records``: those of one log that belong into queues."""
    records = records.select(*UNENTERED.names)
    named = records.select(*[F.col(name).alias(f"r_{name}") for name in UNENTERED.names])
    tags = (
        (F.col("topic") == SCHEDULE_TOPIC)
        | ((F.col("entry_tags") < EXTENSION_BELOW) & F.lit(any(file.extended for file in files)))
        | (F.col("entry_tags") == F.col("r_tags_code"))
    )
    place = (
        (F.col("r_topic") == F.col("topic"))
        & (F.col("r_queue_id") == F.col("queue_id"))
        & (F.col("r_queue_offset") == F.col("queue_offset"))
    )
    right = (
        (F.col("entry_offset") == F.col("r_offset"))
        & (F.col("entry_size") == F.col("r_until") - F.col("r_offset"))
        & (F.col("topic").startswith(LMQ_PREFIX) | (place & tags))
    )
    joined = entries.join(named, right, "left")
    if any(file.topic == SCHEDULE_TOPIC for file in files):
        joined = _without_odd_dues(joined)
    joined = joined.persist()
    try:
        concern = (F.col("entry_offset") < 0) | (
            (F.col("entry_offset") >= bounds.start) & (F.col("entry_offset") < bounds.until)
        )
        wrong = joined.filter(F.col("r_offset").isNull() & concern).select(*ENTRIES.names)
        there = sorted({(file.topic, file.queue_id) for file in files})
        present = session.createDataFrame(there, "topic string, queue_id int")
        places = joined.filter(F.col("r_offset").isNotNull()).select(*PLACE)
        last = places.groupBy("topic", "queue_id").agg(F.max("queue_offset").alias("last")).collect()
        unentered = (
            records.filter(F.col("offset") >= bounds.start)
            .join(F.broadcast(present), ["topic", "queue_id"])
            .join(places, PLACE, "left_anti")
            .select(*UNENTERED.names)
        )
        return Entered(
            wrong.toArrow().cast(ENTRIES),
            unentered.toArrow().cast(UNENTERED),
            {(row["topic"], row["queue_id"]): row["last"] for row in last},
        )
    finally:
        joined.unpersist()


def _without_odd_dues(joined: DataFrame) -> DataFrame:
    """No record for a delayed message that is due before it was stored, or otherwise than both its
    neighbours, which agree."""
    delayed = (F.col("topic") == SCHEDULE_TOPIC) & (F.col("r_tags_code") >= STORED_FROM)
    queue = Window.partitionBy("topic", "queue_id").orderBy("queue_offset")
    delay = F.col("entry_tags") - F.col("r_tags_code")
    judged = joined.filter(delayed).select(
        *PLACE,
        delay.alias("delay"),
        F.lag(delay).over(queue).alias("before"),
        F.lead(delay).over(queue).alias("behind"),
    )
    alone = (F.col("before") == F.col("behind")) & (F.col("delay") != F.col("before"))
    odd = judged.filter((F.col("delay") < 0) | alone)
    joined = joined.join(odd.select(*PLACE, F.lit(True).alias("odd")), PLACE, "left")
    kept = [
        F.when(F.col("odd").isNull(), F.col(name)).alias(name) if name.startswith("r_") else F.col(name)
        for name in joined.columns
        if name != "odd"
    ]
    return joined.select(*kept)
