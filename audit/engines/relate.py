"""Do queues, keys and acknowledgements agree with the records? Asked of all rows, in Arrow and numpy.

``audit.engines.spark`` asks the same questions of a cluster; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from audit.engines.entries import entered
from audit.reading.queue_files import QueueFile
from audit.tables import (
    ACKED,
    CHUNK,
    DAMAGE,
    DUPLICATES,
    EXTENTS,
    LOG,
    QUEUES,
    RECORD,
    RUNS,
    TAKEN,
    Again,
    Entered,
    EntryBounds,
    Tail,
    View,
)
from model.message import INNER_BATCH

# Topics in which one message may stand more than once.
SYSTEM_TOPIC: Final = r"^(%RETRY%|%DLQ%|SCHEDULE_TOPIC_XXXX$|rmq_sys_|RMQ_SYS_|TRANS_CHECK_MAX_TIME_TOPIC$)"
# Topics in which a message may stand instead of where its sender was told: delayed, or in a transaction.
WAITING_TOPIC: Final = r"^(SCHEDULE_TOPIC_XXXX$|rmq_sys_|RMQ_SYS_)"
PREPARED: Final = 0x4
ROLLBACK: Final = 0xC


class LocalLog:
    """All LOG rows in memory."""

    def __init__(self, table: pa.Table) -> None:
        row = table["row"].to_numpy()
        self._chunks = table.filter(pa.array(row == CHUNK))
        self._damage = table.filter(pa.array(row == DAMAGE))
        self._records = table.filter(pa.array(row == RECORD))
        self._views: dict[View, pa.Table] = {}
        self._joined: dict[View, pa.Table] = {}

    def chunks(self) -> pa.Table:
        return self._chunks

    def damage(self) -> pa.Table:
        return self._damage

    def record_count(self) -> int:
        return len(self._records)

    def close(self) -> None:
        self._views.clear()
        self._joined.clear()

    def _view(self, view: View) -> pa.Table:
        if view not in self._views:
            offset = self._records["offset"].to_numpy()
            replica = self._records["replica"].to_numpy()
            keep = replica == view.replica
            if view.base != view.replica:
                inside = np.zeros(len(offset), dtype=bool)
                for begin, end in view.equal:
                    inside |= (offset >= begin) & (offset < end)
                # A replica's own scan reaches back to a record's start: what the base has there is the same.
                keep = (keep & ~inside) | ((replica == view.base) & inside)
            table = self._records.filter(pa.array(keep))
            self._views[view] = table.sort_by("offset")
        return self._views[view]

    def broken_queues(self, view: View, before: pa.Table, most: int, *, whole: bool) -> pa.Table:
        table = pa.concat_tables([before, self._queued(view).select(QUEUES.names).cast(QUEUES)])
        if not len(table):
            return RUNS.empty_table()
        topics = table["topic"].combine_chunks().dictionary_encode()
        queue = (
            topics.indices.to_numpy().astype(np.int64) << 32
            | table["queue_id"].to_numpy().astype(np.int64) & 0xFFFFFFFF
        )
        order = np.argsort(queue, kind="stable")
        queue, was_read = queue[order], order >= len(before)
        place = table["queue_offset"].to_numpy()[order]
        end = place + table["advance"].to_numpy()[order]
        new_queue = np.concatenate(([True], queue[1:] != queue[:-1]))
        (begins,) = np.nonzero(new_queue | np.concatenate(([True], place[1:] != end[:-1])))
        (queues,) = np.nonzero(new_queue[begins])  # the first run of each queue
        runs = np.diff(np.append(queues, len(begins)))
        broken = runs > 1
        if whole:
            firsts = begins[queues]
            broken |= was_read[firsts] & (place[firsts] != 0)
        number = np.arange(len(begins)) - np.repeat(queues, runs) + 1
        runs_of = np.repeat(runs, runs)
        (keep,) = np.nonzero(np.repeat(broken, runs) & ((number <= most) | (number == runs_of)))
        last = np.append(begins[1:], len(queue))[keep] - 1
        rows = table.take(pa.array(order[begins[keep]])).drop_columns(["advance"])
        more = {
            "end": end[last],
            "last": table["offset"].to_numpy()[order[last]],
            "number": number[keep],
            "runs": runs_of[keep],
        }
        for name, values in more.items():
            rows = rows.append_column(name, pa.array(values.astype(np.int64)))
        return rows.select(RUNS.names).cast(RUNS).sort_by("offset")

    def first_taken(self, view: View, places: pa.Table) -> pa.Table:
        rows = self._queued(view).select(["topic", "queue_id", "queue_offset", "offset"])
        rows = places.join(rows, TAKEN.names[:3], join_type="inner")
        rows = rows.filter(pc.greater_equal(rows["offset"], rows["since"]))
        return (
            rows.group_by(TAKEN.names).aggregate([("offset", "min")]).rename_columns([*TAKEN.names, "offset"])
        )

    def last_places(self, view: View, begin: int, end: int) -> pa.Table:
        table = _within(self._queued(view), begin, end).select(QUEUES.names)
        last = table.group_by(["topic", "queue_id"]).aggregate([("offset", "max")])
        return table.filter(pc.is_in(table["offset"], value_set=last["offset_max"])).cast(QUEUES)

    def keyed(self, view: View, begin: int, end: int) -> pa.Table:
        table = _within(self._view(view), begin, end)
        users = pc.invert(pc.match_substring_regex(table["topic"], SYSTEM_TOPIC))
        table = table.filter(pc.and_(users, pc.not_equal(table["uniq_key"], "")))
        return table.select(DUPLICATES.names).cast(DUPLICATES)

    def duplicates(self, view: View) -> pa.Table:
        table = self._view(view)
        counts = pc.value_counts(table["uniq_key"])
        many = counts.filter(pc.greater(counts.field("counts"), 1)).field("values")
        table = table.filter(
            pc.and_(pc.is_in(table["uniq_key"], value_set=many), pc.not_equal(table["uniq_key"], ""))
        )
        table = table.filter(pc.invert(pc.match_substring_regex(table["topic"], SYSTEM_TOPIC)))
        pairs = table.group_by(["topic", "uniq_key"]).aggregate([("offset", "count")])
        pairs = pairs.filter(pc.greater(pairs["offset_count"], 1))
        found = table.join(pairs.drop_columns(["offset_count"]), ["topic", "uniq_key"], join_type="inner")
        return found.select(DUPLICATES.names).cast(DUPLICATES).sort_by("offset")

    def _join(self, ledger: pa.Table, view: View) -> pa.Table:
        """Each ledger line with the best record for it: the exact one, else the same body, else the first."""
        if view not in self._joined:
            columns = [
                "topic",
                "queue_id",
                "queue_offset",
                "uniq_key",
                "body_crc",
                "plain_crc",
                "offset",
                "until",
            ]
            records = self._view(view).select(columns)
            records = records.rename_columns(
                [c if c in ("uniq_key", "offset", "until") else f"found_{c}" for c in columns]
            )
            wanted = pc.is_in(records["uniq_key"], value_set=ledger["uniq_key"].combine_chunks())
            joined = ledger.join(records.filter(wanted), "uniq_key", join_type="left outer")
            there = pc.is_valid(joined["offset"])
            body = pc.or_(
                pc.equal(joined["found_body_crc"], joined["body_crc"]),
                pc.equal(joined["found_plain_crc"], joined["body_crc"]),
            )
            place = pc.and_(
                pc.and_(
                    pc.equal(joined["found_topic"], joined["topic"]),
                    pc.equal(joined["found_queue_id"], joined["queue_id"]),
                ),
                pc.and_(
                    pc.equal(joined["found_queue_offset"], joined["queue_offset"]),
                    pc.or_(
                        pc.less(joined["phys_offset"], 0), pc.equal(joined["phys_offset"], joined["offset"])
                    ),
                ),
            )
            place = pc.or_(place, pc.match_substring_regex(joined["found_topic"], WAITING_TOPIC))
            # 0 exact, 1 the body elsewhere, 2 another body, 3 nothing
            rank = pc.if_else(there, pc.if_else(body, pc.if_else(place, 0, 1), 2), 3)
            joined = joined.append_column("rank", pc.cast(pc.fill_null(rank, 3), pa.int64()))
            joined = joined.sort_by([("line", "ascending"), ("rank", "ascending"), ("offset", "ascending")])
            line = joined["line"].to_numpy()
            first = np.concatenate(([True], line[1:] != line[:-1])) if len(line) else np.zeros(0, bool)
            self._joined[view] = joined.filter(pa.array(first))
        return self._joined[view]

    def acked(self, ledger: pa.Table, view: View, start: int, again: tuple[Again, ...]) -> pa.Table:
        joined = self._join(ledger, view)
        if not len(joined):
            return ACKED.empty_table()
        missing = joined.filter(pc.equal(joined["rank"], 3))
        mismatch = joined.filter(pc.and_(pc.greater(joined["rank"], 0), pc.less(joined["rank"], 3)))
        placed = joined.filter(
            pc.and_(pc.less(joined["rank"], 3), pc.equal(joined["found_topic"], joined["topic"]))
        )
        told = placed["phys_offset"]
        placed = placed.filter(pc.or_(pc.less(told, 0), pc.greater_equal(told, start)))
        parts = [
            _acked("missing", missing),
            _acked("mismatch", mismatch),
            _acked("order", placed.filter(pa.array(_out_of_order(placed, again)))),
        ]
        return pa.concat_tables(parts).sort_by([("fault", "ascending"), ("line", "ascending")])

    def positions(self, keys: list[str], view: View) -> pa.Table:
        table = self._view(view).select(["uniq_key", "offset", "until"])
        return table.filter(pc.is_in(table["uniq_key"], value_set=pa.array(keys, pa.string())))

    def queue_starts(self, view: View) -> pa.Table:
        table = self._queued(view)
        starts = table.group_by(["topic", "queue_id"]).aggregate([("queue_offset", "min")])
        return starts.rename_columns(["topic", "queue_id", "queue_offset"])

    def queue_ends(self, view: View) -> pa.Table:
        table = self._queued(view)
        end = pc.add(table["queue_offset"], pc.cast(table["advance"], pa.int64()))
        ends = table.append_column("end", end).group_by(["topic", "queue_id"]).aggregate([("end", "max")])
        return ends.select(["topic", "queue_id", "end_max"]).rename_columns(
            ["topic", "queue_id", "queue_offset"]
        )

    def _queued(self, view: View) -> pa.Table:
        table = self._view(view)
        kind = table["sys_flag"].to_numpy() & ROLLBACK
        return table.filter(pa.array((kind != PREPARED) & (kind != ROLLBACK)))

    def queue_extents(self, view: View) -> pa.Table:
        table = self._queued(view)
        table = table.filter(pa.array((table["sys_flag"].to_numpy() & INNER_BATCH) == 0))
        extents = table.group_by(["topic", "queue_id"]).aggregate(
            [("offset", "min"), ("until", "max"), ("queue_offset", "min"), ("offset", "count")]
        )
        columns = ["topic", "queue_id", "offset_min", "until_max", "queue_offset_min", "offset_count"]
        return extents.select(columns).rename_columns(EXTENTS)

    def entered(self, view: View, files: Sequence[QueueFile], bounds: EntryBounds) -> Entered:
        return entered(self._queued(view), files, bounds)

    def acked_behind(self, ledger: pa.Table, view: View, offset: int) -> Tail:
        joined = self._join(ledger, view)
        behind = joined.filter(
            pc.and_(pc.less(joined["rank"], 3), pc.greater_equal(joined["offset"], offset))
        ).sort_by("offset")
        if not len(behind):
            return Tail(0, -1, -1, "")
        last = int(pc.max(behind["until"]).as_py())
        return Tail(len(behind), behind["offset"][0].as_py(), last, behind["uniq_key"][0].as_py())


def _within(table: pa.Table, begin: int, end: int) -> pa.Table:
    return table.filter(pc.and_(pc.greater_equal(table["offset"], begin), pc.less(table["offset"], end)))


def _acked(fault: str, table: pa.Table) -> pa.Table:
    columns: dict[str, Any] = {"fault": pa.array([fault] * len(table), pa.string())}
    for name in ACKED.names[1:]:
        source = "found_body_crc" if name == "found_crc" else name
        columns[name] = table[source]
    filled = pa.table(columns).cast(ACKED)
    for name in ("offset", "until", "found_queue_id", "found_queue_offset", "found_crc"):
        at = filled.schema.get_field_index(name)
        filled = filled.set_column(at, ACKED.field(name), filled[name].fill_null(-1))
    at = filled.schema.get_field_index("found_topic")
    return filled.set_column(at, ACKED.field("found_topic"), filled["found_topic"].fill_null(""))


def _out_of_order(placed: pa.Table, again: tuple[Again, ...]) -> Any:
    """Which of the lines stand in the log in an order the acknowledgements exclude.

    Within a queue, as long as its topic was not created again: by the queue offsets the broker answered; and,
    where the ledger has times, a message acknowledged before another one was begun may not stand behind it.
    """
    n = len(placed)
    wrong = np.zeros(n, dtype=bool)
    if not n:
        return wrong
    topics = placed["topic"].combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)
    queue = topics << 32 | placed["queue_id"].to_numpy().astype(np.int64) & 0xFFFFFFFF
    told = placed["queue_offset"].to_numpy()
    offset = placed["offset"].to_numpy()
    life = np.zeros(n, dtype=np.int64)
    for topic, queue_id, begin in again:
        of = pc.and_(pc.equal(placed["topic"], topic), pc.equal(placed["queue_id"], queue_id)).to_numpy()
        life += of & (offset >= begin)
    by_told = np.lexsort((offset, told, life, queue))
    same = queue[by_told][1:] == queue[by_told][:-1]
    same &= life[by_told][1:] == life[by_told][:-1]
    back = same & (offset[by_told][1:] < offset[by_told][:-1])
    wrong[by_told[1:][back]] = True
    begun, acked = placed["begun_ms"].to_numpy(), placed["acked_ms"].to_numpy()
    timed = np.flatnonzero((begun >= 0) & (acked >= 0))
    order = timed[np.lexsort((offset[timed], queue[timed]))]
    for rows in np.split(order, np.flatnonzero(np.diff(queue[order])) + 1):
        if len(rows) > 1:
            earliest_behind = np.minimum.accumulate(acked[rows][::-1])[::-1][1:]
            wrong[rows[:-1][earliest_behind < begun[rows][:-1]]] = True
    return wrong


def collect(batches: list[pa.RecordBatch]) -> LocalLog:
    """The log made of every task's batches."""
    return LocalLog(pa.Table.from_batches(batches, schema=LOG))
