"""Which record is each acknowledged message? ``audit.engines.acknowledged``, in Spark's words."""

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from audit.engines.acknowledged import ANOTHER, ENDED_SOMEHOW, MISPLACED, NOTHING
from audit.engines.relate import PREPARED, ROLLBACK
from audit.ledgers.columns import WAITING_TOPIC
from audit.reading.records.transactions import COMMITTED, HALF_TOPIC, OPEN, ROLLED_BACK, UNTOLD
from model.message import COMPRESSED

_FOUND: Final = ("topic", "queue_id", "queue_offset", "body_crc")


def with_ends(records: DataFrame, ended: DataFrame) -> DataFrame:
    """With how each half ended, as ``audit.reading.records.transactions`` has it. ``ended``: ENDED rows."""
    place = ["queue_id", "queue_offset"]
    ended = ended.groupBy(*place).agg(F.max("tags_code").alias("own"))
    is_half = F.col("topic") == HALF_TOPIC
    halves = records.filter(is_half).join(ended, place, "left").fillna(OPEN, ["own"])
    return records.filter(~is_half).withColumn("own", F.lit(OPEN).cast("long")).unionByName(halves)


def best(lines: DataFrame, records: DataFrame) -> DataFrame:
    """Each ledger line with the best record for it."""
    records = records.withColumn("body_crc", told_body()).select(
        *("uniq_key", "offset", "until", "own", "misplaced"),
        *[F.col(name).alias(f"found_{name}") for name in _FOUND],
    )
    joined = _ends(lines.join(records, "uniq_key", "left"))
    body = F.col("found_body_crc") == F.col("body_crc")
    sent_to = (F.col("found_topic") == F.col("topic")) & (F.col("found_queue_id") == F.col("queue_id"))
    exact = sent_to & (F.col("found_queue_offset") == F.col("queue_offset"))
    exact = exact & ((F.col("phys_offset") < 0) | (F.col("phys_offset") == F.col("offset")))
    ended = ~F.col("half") & (F.col("how") > OPEN) & sent_to
    place = exact | ended | F.col("found_topic").rlike(WAITING_TOPIC)
    rank = (
        F.when(F.col("offset").isNull() | (F.col("half") & (F.col("how") == COMMITTED)), NOTHING)
        .when(F.col("half") & (F.col("how") == UNTOLD), ENDED_SOMEHOW)
        .when(F.col("misplaced"), MISPLACED)
        .when(~body, ANOTHER)
        .when(~place, 1)
        .otherwise(0)
    )
    first = Window.partitionBy("line").orderBy("rank", "offset")
    rows = joined.withColumn("rank", rank).withColumn("n", F.row_number().over(first))
    return without_found(rows.filter(F.col("n") == 1).drop("n", "half", "own", "misplaced"))


def delivered() -> Column:
    """As ``audit.engines.acknowledged`` has it."""
    kind = F.col("sys_flag").bitwiseAND(ROLLBACK)
    return ((kind != PREPARED) & (kind != ROLLBACK)) | F.col("topic").rlike(WAITING_TOPIC)


def told_body() -> Column:
    """As ``audit.engines.acknowledged`` has it."""
    packed = F.col("sys_flag").bitwiseAND(COMPRESSED) != 0
    return F.when(packed, F.col("plain_crc")).otherwise(F.col("body_crc"))


def _ends(joined: DataFrame) -> DataFrame:
    """As ``audit.engines.acknowledged`` has it."""
    half = F.coalesce(F.col("found_topic") == HALF_TOPIC, F.lit(False))
    own = F.when(F.col("own").isNull() | (F.col("own") == ROLLED_BACK), OPEN).otherwise(F.col("own"))
    joined = joined.withColumn("half", half).withColumn("own", own)
    most = F.max("own").over(Window.partitionBy("line"))
    of_half = F.when(F.col("half"), F.col("own")).otherwise(most)
    return joined.withColumn("how", F.when(most == COMMITTED, COMMITTED).otherwise(of_half))


def without_found(joined: DataFrame) -> DataFrame:
    """As ``audit.engines.acknowledged`` has it."""
    names = [name for name in joined.columns if name.startswith("found_") or name in ("offset", "until")]
    there = {name: F.when(~F.col("rank").isin(MISPLACED, NOTHING), F.col(name)) for name in names}
    return joined.withColumns(there)


def ended_anywhere(joined: list[DataFrame]) -> list[DataFrame]:
    """As ``audit.engines.acknowledged`` has it."""
    if len(joined) < 2:
        return joined
    ends = [own.filter((F.col("rank") >= MISPLACED) & (F.col("how") > OPEN)) for own in joined]
    every = reduce(DataFrame.unionByName, [own.select("line", "how") for own in ends])
    every = every.groupBy("line").agg(F.max("how").alias("ended"))
    waits = (F.col("found_topic") == HALF_TOPIC) & (F.col("rank") < MISPLACED)
    rank = F.when(F.col("ended") == COMMITTED, NOTHING).otherwise(ENDED_SOMEHOW)
    rank = F.when(waits & F.col("ended").isNotNull(), rank).otherwise(F.col("rank"))
    return [
        without_found(own.join(every, "line", "left").withColumn("rank", rank).drop("ended"))
        for own in joined
    ]
