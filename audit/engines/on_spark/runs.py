"""Which places of queues follow each other? Runs, as ``audit.engines.queue_runs`` makes them, on Spark."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from audit.rows.numbers import LAST

QUEUE: Final = ["topic", "queue_id"]
STRETCH_BYTES: Final = 256 * 1024 * 1024
"""Of the log: a queue's places are looked at one stretch a task."""


def place_behind() -> Column:
    """The place behind a record, as ``audit.rows.numbers.sums`` has it."""
    return F.coalesce(F.try_add(F.col("queue_offset"), F.col("advance")), F.lit(LAST))


def queue_runs(rows: DataFrame, most: int) -> DataFrame:
    """Runs of each queue with their ``number``; of each stretch the first ``most``, one more and the last."""
    return _runs(_runs_of_stretches(rows, most))


def _runs_of_stretches(rows: DataFrame, most: int) -> DataFrame:
    """Runs of each queue in each stretch of the log: so one long queue is the work of many tasks.

    Of each the first ``most`` and one more, and the last; ``n`` is a run's number in its stretch."""
    stretch = F.floor(F.col("offset") / STRETCH_BYTES)
    along = Window.partitionBy(*QUEUE, "stretch").orderBy("offset")
    end = place_behind()
    begins = F.coalesce(F.lag(end).over(along) != F.col("queue_offset"), F.lit(True))
    runs = (
        rows.withColumn("stretch", stretch)
        .withColumn("begins", begins.cast("long"))
        .withColumn("n", F.sum("begins").over(along))
        .groupBy(*QUEUE, "stretch", "n")
        .agg(
            F.min("offset").alias("offset"),
            F.min_by("queue_offset", "offset").alias("queue_offset"),
            F.max_by(end, "offset").alias("end"),
            F.min_by("uniq_key", "offset").alias("uniq_key"),
            F.max("offset").alias("last"),
            F.min_by("late", "offset").alias("late"),
        )
    )
    last = F.max("n").over(Window.partitionBy(*QUEUE, "stretch"))
    return runs.withColumn("ns", last).filter((F.col("n") <= most + 1) | (F.col("n") == F.col("ns")))


def _runs(parts: DataFrame) -> DataFrame:
    """Runs of each queue with their ``number``: one that goes on in the next stretch is one."""
    along = Window.partitionBy(*QUEUE).orderBy("offset")
    goes_on = F.lag("end").over(along) == F.col("queue_offset")
    first = F.when(F.coalesce(goes_on, F.lit(False)), 0).otherwise(1)
    step = F.when(F.col("n") == 1, first).otherwise(F.col("n") - F.lag("n").over(along))
    return (
        parts.withColumn("step", step)
        .withColumn("number", F.sum("step").over(along))
        .groupBy(*QUEUE, "number")
        .agg(
            F.min("offset").alias("offset"),
            F.min_by("queue_offset", "offset").alias("queue_offset"),
            F.max_by("end", "offset").alias("end"),
            F.min_by("uniq_key", "offset").alias("uniq_key"),
            F.max("last").alias("last"),
            F.min_by("late", "offset").alias("late"),
        )
    )
