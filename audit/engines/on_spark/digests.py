"""In which ranges do replicas hold the same bytes? Asked where the digests are, so that the driver gets a row
a replica and stretch in which one answer stands, not one a range."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from audit.earlier.folding import BETWEEN, WITHIN
from audit.tables import COMPARED, FOLDED

STRETCH_BYTES: Final = 1 << 30
"""Of the log, that one task looks along."""


def compared(digests: DataFrame) -> DataFrame:
    """COMPARED rows of DIGEST rows."""
    held = F.sort_array(F.collect_list(F.struct("replica", "digest"))).alias("held")
    by_range = digests.groupBy("start", "end").agg(held)
    # The place of the first replica with the same bytes says which are equal; a worker without fast hashes
    # makes digests of another length, which a stretch may not hide.
    like = F.transform(
        "held",
        lambda one: F.struct(
            one["replica"], F.length(one["digest"]), F.array_position(F.col("held.digest"), one["digest"])
        ),
    )
    along = Window.partitionBy("stretch").orderBy("start", "end")
    goes_on = (F.lag("end").over(along) == F.col("start")) & (F.lag("like").over(along) == F.col("like"))
    runs = (
        by_range.withColumn("like", like)
        .withColumn("stretch", F.floor(F.col("start") / STRETCH_BYTES))
        .withColumn("begins", F.when(F.coalesce(goes_on, F.lit(False)), 0).otherwise(1))
        .withColumn("run", F.sum("begins").over(along))
        .groupBy("stretch", "run")
        .agg(
            F.min_by("held", "start").alias("held"),
            F.min("start").alias("start"),
            F.max("end").alias("end"),
            F.count("*").alias("ranges"),
        )
        .withColumn("one", F.explode("held"))
    )
    return runs.select("one.replica", "start", "end", "one.digest", "ranges").select(*COMPARED.names)


def folded(digests: DataFrame, segment_bytes: int) -> DataFrame:
    """FOLDED rows of DIGEST rows, as ``audit.earlier.folding`` makes them."""
    ranges = F.sort_array(F.collect_list(F.struct("start", "end", "digest")))
    text = F.transform(
        "held",
        lambda one: F.concat_ws(
            WITHIN, one["start"].cast("string"), one["end"].cast("string"), F.lower(F.hex(one["digest"]))
        ),
    )
    return (
        digests.withColumn("segment", F.floor(F.col("start") / segment_bytes))
        .withColumn("size", F.length("digest"))
        .groupBy("replica", "segment")
        .agg(
            F.min("start").alias("start"),
            F.max("end").alias("end"),
            F.count("*").alias("ranges"),
            F.min("size").alias("shortest"),
            F.max("size").alias("longest"),
            ranges.alias("held"),
        )
        .withColumn("digest", F.unhex(F.sha2(F.concat_ws(BETWEEN, text), 256)))
        .select(*FOLDED.names)
    )
