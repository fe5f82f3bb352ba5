"""Which record is each acknowledged message? The ledger joined with a view, part by part of its keys.

A part is small whatever the lengths of ledger and log. ``audit.engines.on_spark`` runs these functions on a
cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from audit.engines.order import out_of_order
from audit.engines.spill import Rows
from audit.ledgers.columns import LEDGER, WAITING_TOPIC
from audit.ledgers.ledger import Ledger
from audit.reading.records.transactions import COMMITTED, HALF_TOPIC, OPEN, ROLLED_BACK, UNTOLD
from audit.rows.intervals import Interval
from audit.rows.parts import Folder, Parts
from audit.tables import ACKED, Again, SearchedView, Tail, View
from model.message import COMPRESSED, TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK

ANOTHER: Final = 2
MISPLACED: Final = 3
NOTHING: Final = 4
ENDED_SOMEHOW: Final = 5
"""Ranks: 0 the exact record, 1 the body elsewhere, 2 another body, 3 nothing but a record that names another
place than where it stands, 4 nothing, 5 nothing but the half of a transaction that ended, and nothing tells
how."""
RECORDS: Final = pa.schema(
    [
        ("found_topic", pa.string()),
        ("found_queue_id", pa.int32()),
        ("found_queue_offset", pa.int64()),
        ("uniq_key", pa.string()),
        ("found_body_crc", pa.int64()),  # of what a consumer gets: decompressed; -1: that cannot be done
        ("offset", pa.int64()),
        ("until", pa.int64()),
        ("misplaced", pa.bool_()),  # it names another place than where it stands
    ]
)
ENDS: Final = pa.schema(
    [("found_queue_id", pa.int32()), ("found_queue_offset", pa.int64()), ("how", pa.int64())]
)
FOUND: Final = RECORDS.append(pa.field("how", pa.int64()))
JOINED: Final = pa.schema(
    [
        *LEDGER,
        # ``how``: the message's transaction ended
        *[field for field in FOUND if field.name not in ("uniq_key", "misplaced")],
        ("rank", pa.int64()),
    ]
)
_FAR: Final = 1 << 62
_TABLE_LINES: Final = 4_000
"""Whose faults are in one table: who reads it makes an object of each."""


class Joined:
    """Each ledger line with the best record for it: the exact one, else the same body, else the first."""

    def __init__(self, rows: Rows, ledger: Ledger, view: View, folder: Folder) -> None:
        found = Parts(folder, FOUND, ledger.parts)
        count = sum(rows.count(replica) for replica in {view.base, view.replica})
        halves = _Halves(folder, count // _ROWS + 1)
        for batch in candidates(rows, view, unnamed=ledger.has_unnamed):
            batch = opened(halves.without(batch))
            found.add(batch, ledger.part_of(batch["uniq_key"]))
        for table in halves.told(rows.ended(view)):
            found.add(table, ledger.part_of(table["uniq_key"]))
        self._parts = Parts(folder, JOINED, ledger.parts)
        for n in range(ledger.parts):
            own = best(ledger.part(n), found.batches(n))
            self._parts.add(own, np.full(len(own), n))
        self.borders = rows.borders(view, _ROWS)

    def __len__(self) -> int:
        return len(self._parts)

    def part(self, number: int) -> pa.Table:
        """Rows as those of the ledger's part, with their ``rank``; -1 and "" where there is no record."""
        return self._parts.part(number)

    def behind(self, offset: int, lacking: Joined | None = None) -> Tail:
        """The messages whose records are at or behind ``offset``; those only, with their bodies, that
        ``lacking`` has nowhere."""
        # Both have the ledger's lines in one order.
        others = (lacking.part(n) if lacking is not None else None for n in range(len(self)))
        return together(tail(self.part(n), offset, other) for n, other in enumerate(others))


_ROWS: Final = 200_000


def tail(part: pa.Table, offset: int, lacking: pa.Table | None) -> Tail:
    """Of JOINED rows, and those of another view of the same lines."""
    there = pc.less(part["rank"], MISPLACED if lacking is None else ANOTHER)
    if lacking is not None:
        there = pc.and_(there, pc.greater_equal(lacking["rank"], ANOTHER))
    part = part.filter(pc.and_(there, pc.greater_equal(part["offset"], offset)))
    if not len(part):
        return _NO_TAIL
    first = part.slice(int(np.argmin(part["offset"].to_numpy())), 1)
    until = pc.max(part["until"]).as_py()
    return Tail(len(part), first["offset"][0].as_py(), until, first["uniq_key"][0].as_py())


def together(tails: Iterable[Tail]) -> Tail:
    """Of all of them."""
    some = [one for one in tails if one.records]
    if not some:
        return _NO_TAIL
    first = min(some, key=lambda one: one.first)
    return Tail(sum(one.records for one in some), first.first, max(one.until for one in some), first.uniq_key)


_NO_TAIL: Final = Tail(0, -1, -1, "")


def candidates(rows: Rows, view: View, *, unnamed: bool) -> Iterator[pa.RecordBatch]:
    """RECORDS rows of what a consumer may get, also of what has no key if there is an ``unnamed`` line."""
    columns = [name.removeprefix("found_") for name in RECORDS.names]
    for batch in rows.batches(view, ["replica", *columns[:-1], "plain_crc", "sys_flag"]):
        if not unnamed:  # all of them were in one part
            batch = batch.filter(pc.not_equal(batch["uniq_key"], ""))
        batch = batch.append_column(columns[-1], pa.array(rows.misplaced(batch)))
        yield told_bodies(delivered(batch)).select(columns).rename_columns(RECORDS.names)


def opened(batch: pa.RecordBatch) -> pa.RecordBatch:
    """FOUND rows of RECORDS rows that are none of a transaction's."""
    return batch.append_column("how", pa.array(np.full(len(batch), OPEN)))


class _Halves:
    """The halves of a view, each with how its transaction ended. They wait in parts of their places, in which
    op records name them."""

    def __init__(self, folder: Folder, parts: int) -> None:
        self._folder, self._count = folder, parts
        self._halves = Parts(folder, RECORDS, parts)
        self._there = False

    def without(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch without its halves, which are kept."""
        is_half = pc.equal(batch["found_topic"], HALF_TOPIC)
        if not pc.any(is_half, min_count=0).as_py():
            return batch
        self._there = True
        self._add(self._halves, batch.filter(is_half))
        return batch.filter(pc.invert(is_half))

    def told(self, ended: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """FOUND rows. ``ended``: ENDED rows of the view."""
        if not self._there:
            return
        ends = Parts(self._folder, ENDS, self._count)
        for table in ended:
            self._add(ends, ends_of(table))
        for n in range(self._count):
            yield ended_halves(self._halves.part(n), ends.part(n))

    def _add(self, parts: Parts, rows: pa.RecordBatch | pa.Table) -> None:
        parts.add(rows, rows["found_queue_offset"].to_numpy() % self._count)


def ends_of(ended: pa.Table) -> pa.Table:
    """ENDS rows of ENDED rows."""
    return ended.select(["queue_id", "queue_offset", "tags_code"]).rename_columns(ENDS.names)


def ended_halves(halves: pa.Table, ends: pa.Table) -> pa.Table:
    """FOUND rows of the RECORDS rows of halves, and of ENDS rows of their places."""
    places = ENDS.names[:2]
    how = ends.group_by(places).aggregate([("how", "max")]).rename_columns(ENDS.names)
    told = halves.join(how, places, join_type="left outer", use_threads=False)
    told = told.set_column(told.schema.get_field_index("how"), "how", pc.fill_null(told["how"], OPEN))
    return told.select(FOUND.names)


def delivered(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Without what no consumer gets: a message of a transaction that is prepared or undone tells nobody that
    it was sent. Where messages wait it is one that may come."""
    kind = batch["sys_flag"].to_numpy() & TRANSACTION_MASK
    undone = pa.array((kind == TRANSACTION_PREPARED) | (kind == TRANSACTION_ROLLBACK))
    if not pc.any(undone, min_count=0).as_py():
        return batch
    return batch.filter(pc.or_(pc.invert(undone), pc.match_substring_regex(batch["topic"], WAITING_TOPIC)))


def told_bodies(batch: pa.RecordBatch) -> pa.RecordBatch:
    """``body_crc`` of the bodies as they were sent: of what is said to be compressed, decompressed."""
    packed = pa.array((batch["sys_flag"].to_numpy() & COMPRESSED) != 0)
    sent = pc.if_else(packed, batch["plain_crc"], batch["body_crc"])
    return batch.set_column(batch.schema.get_field_index("body_crc"), "body_crc", sent)


def best(ledger: pa.Table, found: Iterable[pa.Table]) -> pa.Table:
    """JOINED rows, by line, of LEDGER rows and FOUND rows, among which those of their keys are."""
    keys = ledger["uniq_key"].combine_chunks()
    near = [table.filter(pc.is_in(table["uniq_key"], value_set=keys)) for table in found]
    records = pa.concat_tables([FOUND.empty_table(), *near])
    joined = ledger.join(records, "uniq_key", join_type="left outer", use_threads=False)
    there = pc.is_valid(joined["offset"])
    body = pc.equal(joined["found_body_crc"], joined["body_crc"])
    told = joined["phys_offset"]
    place = pc.equal(joined["found_topic"], joined["topic"])
    place = pc.and_(place, pc.equal(joined["found_queue_id"], joined["queue_id"]))
    place = pc.and_(place, pc.equal(joined["found_queue_offset"], joined["queue_offset"]))
    place = pc.and_(place, pc.or_(pc.less(told, 0), pc.equal(told, joined["offset"])))
    place = pc.or_(place, pc.match_substring_regex(joined["found_topic"], WAITING_TOPIC))
    half, how = _ends(joined)
    # Of a transaction that ended a message stands where it was sent to, not where its sender was told.
    sent_to = pc.and_(
        pc.equal(joined["found_topic"], joined["topic"]),
        pc.equal(joined["found_queue_id"], joined["queue_id"]),
    )
    place = pc.or_(place, pc.and_(pa.array(~half & (how > OPEN)), sent_to))
    rank = pc.if_else(there, pc.if_else(body, pc.if_else(place, 0, 1), 2), NOTHING)
    rank = pc.cast(pc.fill_null(rank, NOTHING), pa.int64()).to_numpy()
    rank = np.where(np.asarray(pc.fill_null(joined["misplaced"], False)), MISPLACED, rank)
    rank = np.where(half & (how == UNTOLD), ENDED_SOMEHOW, np.where(half & (how == COMMITTED), NOTHING, rank))
    joined = joined.set_column(joined.schema.get_field_index("how"), "how", pa.array(how))
    joined = joined.append_column("rank", pa.array(rank))
    joined = joined.sort_by([("line", "ascending"), ("rank", "ascending"), ("offset", "ascending")])
    line = joined["line"].to_numpy()
    first = np.concatenate(([True], line[1:] != line[:-1])) if len(line) else np.zeros(0, bool)
    joined = joined.filter(pa.array(first))
    columns = [
        joined[field.name].fill_null("" if field.type == pa.string() else -1)
        if field.name.startswith("found_") or field.name in ("offset", "until")
        else joined[field.name]
        for field in JOINED
    ]
    return _without_found(pa.table(columns, schema=JOINED))


def _ends(joined: pa.Table) -> tuple[Any, Any]:
    """Which rows are halves, and how the transaction of each row's message ended: of a half that is open, or
    was rolled back, none of it. One that was written anew while its producer was asked has several places:
    where one of them was committed, no other one waits."""
    half = np.asarray(pc.fill_null(pc.equal(joined["found_topic"], HALF_TOPIC), False))
    own = np.asarray(pc.fill_null(joined["how"], OPEN))
    own = np.where(own == ROLLED_BACK, OPEN, own)
    line = joined["line"].to_numpy()
    committed = np.isin(line, line[half & (own == COMMITTED)])
    untold = np.isin(line, line[half & (own == UNTOLD)])
    how = np.where(committed, COMMITTED, np.where(half, own, np.where(untold, UNTOLD, OPEN)))
    return half, how.astype(np.int64)


def faults(
    joined: Sequence[Joined], asked: Sequence[SearchedView], again: tuple[Again, ...], folder: Folder
) -> Iterator[pa.Table]:
    """ACKED rows; all rows of a line are in one table, which is small whatever the parts are."""
    orders = [
        out_of_order((placed(own.part(n), ask) for n in range(len(own))), own.borders, again, folder)
        for own, ask in zip(joined, asked, strict=True)
    ]
    for n in range(len(joined[0])):
        yield from part_faults([own.part(n) for own in joined], asked, orders)


def part_faults(
    parts: Sequence[pa.Table], asked: Sequence[SearchedView], orders: Sequence[Any]
) -> Iterator[pa.Table]:
    """ACKED rows of the same lines, as JOINED rows of each view have them. ``orders``: lines that stand in a
    wrong order there."""
    known = [_marked(_known(part, ask), late) for part, ask, late in zip(parts, asked, orders, strict=True)]
    for at in range(0, len(known[0]), _TABLE_LINES):
        table = _faults_of([part.slice(at, _TABLE_LINES) for part in known])
        if len(table):
            yield table


def _known(part: pa.Table, ask: SearchedView) -> pa.Table:
    """With a column that says which of its messages tell their place; those that a wrong record has elsewhere
    than told are not there."""
    wrong = _within(part["offset"].to_numpy(), ask.wrong)
    told, rank = part["phys_offset"].to_numpy(), part["rank"].to_numpy()
    elsewhere = (told >= 0) & (told != part["offset"].to_numpy())
    rank = np.where(wrong & elsewhere, np.maximum(rank, NOTHING), rank)
    part = part.set_column(part.schema.get_field_index("rank"), "rank", pa.array(rank))
    part = _without_found(part) if wrong.any() else part
    return part.append_column("known", pa.array(~wrong))


def _within(offsets: Any, intervals: Sequence[Interval]) -> Any:
    """Which of them lie in one of the ascending intervals?"""
    edges = np.array([edge for interval in intervals for edge in interval], np.int64)
    return np.searchsorted(edges, offsets, side="right") % 2 == 1


def _marked(part: pa.Table, order: Any) -> pa.Table:
    """With a column that says which of its lines are among those of ``order``, in a wrong order."""
    return part.append_column("late", pa.array(np.isin(part["line"].to_numpy(), order, assume_unique=True)))


def _faults_of(parts: Sequence[pa.Table]) -> pa.Table:
    """ACKED rows of the same lines, as each view has them."""
    parts = _ended_anywhere(parts)
    held = [np.where(_tells(part), part["offset"].to_numpy(), _FAR) for part in parts]
    tables = []
    for at, part in enumerate(parts):
        others = [offsets for other, offsets in enumerate(held) if other != at]
        elsewhere = np.minimum.reduce(others) if others else np.full(len(part), _FAR)
        part = part.append_column("held", pa.array(np.where(elsewhere == _FAR, -1, elsewhere)))
        rank = part["rank"].to_numpy()
        tables += [
            _acked("misplaced", at, part.filter(pa.array(rank == MISPLACED))),
            _acked("missing", at, part.filter(pa.array(rank == NOTHING))),
            _acked("untold", at, part.filter(pa.array(rank == ENDED_SOMEHOW))),
            _acked("mismatch", at, part.filter(pa.array((rank > 0) & (rank < MISPLACED)))),
            _acked("order", at, part.filter(part["late"])),
        ]
    return pa.concat_tables(tables)


def _tells(part: pa.Table) -> Any:
    """Of which messages does a view tell where they are?"""
    return (part["rank"].to_numpy() < MISPLACED) & part["known"].to_numpy(zero_copy_only=False)


def _ended_anywhere(parts: Sequence[pa.Table]) -> list[pa.Table]:
    """The same, where a half waits in no log whose transaction ended in another: a log that ends before."""
    ends = [np.where(part["rank"].to_numpy() >= MISPLACED, part["how"].to_numpy(), OPEN) for part in parts]
    how = np.maximum.reduce(ends)
    if not how.any():
        return list(parts)
    out = []
    for part in parts:
        waits = np.asarray(pc.equal(part["found_topic"], HALF_TOPIC)) & (part["rank"].to_numpy() < MISPLACED)
        rank = np.where(how == COMMITTED, NOTHING, np.where(how == UNTOLD, ENDED_SOMEHOW, 0))
        rank = np.where(waits & (how > OPEN), rank, part["rank"].to_numpy())
        at = part.schema.get_field_index("rank")
        out.append(_without_found(part.set_column(at, "rank", pa.array(rank))))
    return out


def _without_found(part: pa.Table) -> pa.Table:
    """Of what is nothing, nothing was found."""
    nothing = pa.array(np.isin(part["rank"].to_numpy(), (MISPLACED, NOTHING)))
    for at, field in enumerate(part.schema):
        if field.name.startswith("found_") or field.name in ("offset", "until"):
            none = pa.scalar("" if field.type == pa.string() else -1, field.type)
            part = part.set_column(at, field, pc.if_else(nothing, none, part[field.name]))
    return part


def placed(part: pa.Table, ask: SearchedView) -> pa.Table:
    """The lines whose messages stand in the topic that was told, and were not taken by retention. Of a
    transaction that ended the sender was told no place there; and of one that was delivered later, where
    nothing tells whether retention took what was told, not this one."""
    there = pc.and_(pc.less(part["rank"], MISPLACED), pc.equal(part["found_topic"], part["topic"]))
    there = pc.and_(there, pc.equal(part["how"], OPEN))
    there = pc.and_(there, pa.array(~_within(part["offset"].to_numpy(), ask.wrong)))
    told = part["phys_offset"]
    same = pc.equal(part["found_queue_offset"], part["queue_offset"])
    same = pc.and_(pc.and_(same, pc.equal(part["found_queue_id"], part["queue_id"])), pc.less(told, 0))
    return part.filter(pc.and_(there, pc.or_(same, pc.greater_equal(told, ask.start))))


def _acked(fault: str, asked: int, rows: pa.Table) -> pa.Table:
    columns: dict[str, Any] = {
        "fault": pa.array([fault] * len(rows), pa.string()),
        "asked": pa.array([asked] * len(rows), pa.int32()),
    }
    for name in ACKED.names[2:]:
        columns[name] = rows["found_body_crc" if name == "found_crc" else name]
    return pa.table(columns).cast(ACKED)
