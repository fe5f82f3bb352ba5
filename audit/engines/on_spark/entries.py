"""``audit.engines.entries`` on a cluster: the entries are joined with the records by physical offset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from audit.reading.derived.queue_files import ENTRIES, EXTENSION_BELOW, QueueFile
from audit.reading.records.record import STORED_FROM
from audit.rows.numbers import FIRST
from audit.tables import LACKING, UNENTERED, Entered, EntryBounds
from model.message import LMQ_PREFIX, SCHEDULE_TOPIC

PLACE = ["topic", "queue_id", "queue_offset"]
STRETCH_PLACES: Final = 1_000_000
"""Of a queue, whose runs one task looks for."""


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
            _runs(unentered, wrong, bounds.cuts).toArrow().cast(LACKING),
            {(row["topic"], row["queue_id"]): row["last"] for row in last},
        )
    finally:
        joined.unpersist()


def _runs(unentered: DataFrame, wrong: DataFrame, cuts: Sequence[int]) -> DataFrame:
    """LACKING rows: consecutive places whose records ascend are one, for the driver may not hold each record
    of a store that has no entries. Alone is a record that a wrong entry names, or that reaches over a cut."""
    first, last = cell(F.col("offset"), cuts), cell(F.col("until") - 1, cuts)
    named = wrong.select(*PLACE, F.lit(True).alias("named")).distinct()
    along = Window.partitionBy("topic", "queue_id", "stretch").orderBy("queue_offset", "offset")
    place, offset = F.col("queue_offset"), F.col("offset")
    taken = F.lead(place).over(along) == place  # by the last of several records
    goes_on = (
        (F.try_add(F.lag(place).over(along), F.lit(1)) == place)
        & (F.lag(offset).over(along) < offset)
        & (F.lag("cell").over(along) == F.col("cell"))
        & ~F.col("alone")
        & ~F.lag("alone").over(along)
    )
    return (
        unentered.join(named, PLACE, "left")
        .withColumn("cell", first)
        .withColumn("alone", F.col("named").isNotNull() | (first != last))
        .withColumn("stretch", F.floor(place / STRETCH_PLACES))
        .withColumn("taken", F.coalesce(taken, F.lit(False)))
        .filter(~F.col("taken"))
        .withColumn("begins", F.when(F.coalesce(goes_on, F.lit(False)), 0).otherwise(1))
        .withColumn("run", F.sum("begins").over(along))
        .groupBy("topic", "queue_id", "stretch", "run")
        .agg(
            F.min("queue_offset").alias("queue_offset"),
            *[F.min_by(name, "queue_offset").alias(name) for name in UNENTERED.names[3:]],
            F.max("until").alias("reach"),
            F.count("*").alias("records"),
        )
        .select(*LACKING.names)
    )


def cell(offset: Column, cuts: Sequence[int]) -> Column:
    """How many of the ascending cuts are not behind the offset: looked for by halves."""
    if not cuts:
        return F.lit(0)
    among = F.split(F.lit(",".join(map(str, cuts))), ",").cast("array<bigint>")
    steps = F.array(*[F.lit(1 << n) for n in reversed(range(len(cuts).bit_length()))])
    return F.aggregate(
        steps,
        F.lit(0),
        lambda at, step: F.when(F.get(among, at + step - 1) <= offset, at + step).otherwise(at),
    )


def _without_odd_dues(joined: DataFrame) -> DataFrame:
    """No record for a delayed message that is due before it was stored, or otherwise than both its
    neighbours, which agree."""
    delayed = (F.col("topic") == SCHEDULE_TOPIC) & (F.col("r_tags_code") >= STORED_FROM)
    queue = Window.partitionBy("topic", "queue_id").orderBy("queue_offset")
    delay = F.coalesce(F.try_subtract(F.col("entry_tags"), F.col("r_tags_code")), F.lit(FIRST))
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
