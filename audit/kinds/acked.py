"""Is every acknowledged message there, once, with its body, on every replica that should hold it?

``acked_missing``, ``acked_unknown``, ``acked_mismatch``, ``acked_out_of_order``. The base's log is joined
with the ledger; a replica proved equal shares the result, another one is asked for the part in which it
differs. What a log is too short for belongs to its ``short_tail``; what retention removed from every log is
counted, not reported.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import pyarrow as pa

from audit.findings import ERROR, WARN, Finding
from audit.kinds.facts import Facts
from audit.kinds.logs.damage import Damages
from audit.kinds.unplaced import Unplaced
from audit.ledgers.columns import WAITING_TOPIC
from audit.ledgers.ledger import Ledger
from audit.plan import own_parts
from audit.reading.layout import Replica
from audit.rows.bounded import NO_REST, Rest
from audit.rows.intervals import Interval
from audit.tables import Again, ScannedLog, SearchedView, View

KINDS: Final = {
    "missing": "acked_missing",
    "untold": "acked_unknown",
    "mismatch": "acked_mismatch",
    "order": "acked_out_of_order",
}
STRAYED: Final = "nothing but a record that stands elsewhere than it says"
_SENT_BACK: Final = ("%RETRY%", "%DLQ%")
Row = dict[str, Any]
Damaged = Callable[[str, int, int], bool]
"""Is there damage in a stretch of a replica's log?"""


class Harm(NamedTuple):
    """What was ``taken`` from a log is missing, not too old. A copy that is ``damaged`` is none where no
    other is right. ``wrong``: where a replica's records tell no place of their messages."""

    taken: Sequence[Interval]
    damaged: Damaged
    wrong: Callable[[int], tuple[Interval, ...]] = lambda at: ()


NO_HARM: Final = Harm((), lambda replica, begin, end: False)


@dataclass(slots=True)
class AckedResult:
    findings: list[Finding]
    expired: int  # ledger lines older than any log


@dataclass(frozen=True, slots=True)
class _Places:
    """Where messages stand in any log."""

    facts: Facts
    unplaced: Unplaced
    taken: Sequence[Interval]  # what logs lack, and no retention removed
    damaged: Damaged

    def where(self, row: Row) -> int:
        """Where the message stands or should stand; -1 when nothing tells."""
        if row["offset"] >= 0:
            return int(row["offset"])
        return int(row["held"] if row["held"] >= 0 else row["phys_offset"])

    def held(self, row: Row) -> bool:
        """Whether any log holds the message at all."""
        return bool(row["offset"] >= 0 or row["held"] >= 0)

    def expired(self, row: Row) -> bool:
        """Whether retention took the message from every log."""
        if row["fault"] == "missing" and row.get("strayed"):
            return False  # retention takes whole files, and moves none
        if row["fault"] == "missing":
            where = self.where(row)
            return self._before_all(row, where) and not self._was_taken(where)
        # what is there is a copy: delivered later, or sent again
        copy = row["fault"] == "mismatch" and not (_is_altered(row) or _is_readdressed(row))
        return copy and self._before_all(row, int(row["phys_offset"]))

    def lacks(self, row: Row, at: int) -> bool:
        """Whether this log need not have the message: retention took it, or the log ends before it, which its
        own row says already."""
        r, told = self.facts.replicas[at], int(row["phys_offset"])
        if row["fault"] == "mismatch":
            first = told if told >= 0 else int(row["held"])  # where it was before it was delivered
            altered = _is_altered(row) and (told < 0 or self._before_all(row, told))
            if 0 <= first < r.start and not altered and not (told < 0 and _is_readdressed(row)):
                return True
        return self.held(row) and not r.start <= self.where(row) < r.end

    def begins_behind(self, row: Row, at: int) -> bool:
        """Whether a log begins behind a message of which nothing tells where it stood, by its queue."""
        place = row["topic"], int(row["queue_id"]), int(row["queue_offset"])
        return self.where(row) < 0 and self.unplaced.before(at, *place)

    def _was_taken(self, where: int) -> bool:
        """Did a replica have the place when its broker stopped, or has it yet, unreadable?"""
        return any(begin <= where < end for begin, end in self.taken)

    def _before_all(self, row: Row, where: int) -> bool:
        """Does each log that reaches it begin behind it? One that ends before, or has another history there,
        says nothing of it."""
        if where < 0:
            return self.unplaced.expired(row["topic"], int(row["queue_id"]), int(row["queue_offset"]))
        reaching = [r.start for at, r in enumerate(self.facts.replicas) if self._reaches(at, where)]
        return bool(reaching) and where < min(reaching)

    def _reaches(self, at: int, where: int) -> bool:
        """Of a history that the group left a log has what was sent to it, so far as that can be read."""
        r = self.facts.replicas[at]
        if r.empty or where >= r.end or self.facts.histories.reach(at) > where:
            return not r.empty and where < r.end
        unread = not r.covers(where, where + 1) or self.damaged(r.name, where, where + 1)
        return r.start <= where and unread


def check(
    facts: Facts,
    log: ScannedLog,
    ledger: Ledger,
    views: dict[int, View],
    damages: Damages,
    again: tuple[Again, ...],
    rest: Rest = NO_REST,
    harm: Harm = NO_HARM,
) -> AckedResult:
    """Join the ledger with every log; one row for a message on all replicas (``*``), else one a replica.
    What was taken from a log, or may lie in what is damaged, is missing, not too old.

    What is not listed one by one goes to ``rest``."""
    shared = _sharing(facts, views)
    asked = [facts.reference, *(at for at in views if at != facts.reference and at not in shared)]
    unplaced = Unplaced(facts, log, views, damages, harm.taken)
    places = _Places(facts, unplaced, harm.taken, harm.damaged)
    found = rest.bounded("acknowledged messages", by=("topic", "queue_id"))
    orders = _Orders()
    expired = 0
    for table in log.acked(
        ledger, [SearchedView(views[at], facts.replicas[at].start, harm.wrong(at)) for at in asked], again
    ):
        gone, wrong = _by_line(places, table, asked, shared)
        expired += len(gone)
        for line, faults in wrong.items():
            for f in _of_message(places, set(views), faults, harm.damaged):
                orders.note(line, f)
                found.add(line, f)
    return AckedResult([orders.explained(f) for f in found.findings()], expired)


def _by_line(
    places: _Places, table: pa.Table, asked: Sequence[int], shared: Sequence[int]
) -> tuple[set[int], dict[int, dict[str, dict[int, Row]]]]:
    """Lines whose messages are too old, and of the others what is wrong, by line, fault and replica."""
    wrong: dict[int, dict[str, dict[int, Row]]] = {}
    gone: set[int] = set()
    rows = [*map(_in_any, _strayed(table.to_pylist()))]
    absent = Counter(row["line"] for row in rows if row["fault"] in ("missing", "untold"))
    for row in rows:
        at = asked[row["asked"]]
        if places.expired(row):
            gone.add(row["line"])
            continue
        # One has it, misplaced: that tells no place.
        misplaced = row["fault"] == "missing" and absent[row["line"]] < len(asked)
        for replica in [at, *(shared if at == places.facts.reference else [])]:
            if not places.lacks(row, replica) and not (misplaced and places.begins_behind(row, replica)):
                wrong.setdefault(row["line"], {}).setdefault(row["fault"], {})[replica] = row
    return gone, wrong


def _strayed(rows: list[Row]) -> Iterator[Row]:
    """A message of which logs have nothing but a misplaced record is missing there: that is no copy, but
    shows that no retention took it."""
    lines = {row["line"] for row in rows if row["fault"] == "misplaced"}
    for row in rows:
        if row["line"] in lines:
            row["strayed"] = True
            row["fault"] = "missing" if row["fault"] == "misplaced" else row["fault"]
        yield row


def _is_altered(row: Row) -> bool:
    """Is what stands in the message's topic, or where it waits, another body than the one that was sent? A
    copy elsewhere, as of one that a consumer sent back, says nothing of it."""
    own = row["found_topic"] == row["topic"] or re.match(WAITING_TOPIC, row["found_topic"])
    return bool(own) and row["found_crc"] != row["body_crc"]


def _is_readdressed(row: Row) -> bool:
    """Does the message stand at its place of another queue, or of a queue of another topic? What consumers
    sent back stands in topics of their groups."""
    if row["phys_offset"] >= 0 or row["found_queue_offset"] != row["queue_offset"]:
        return False
    topic = row["found_topic"] != row["topic"]
    queue = row["found_queue_id"] != row["queue_id"]
    return topic != queue and not row["found_topic"].startswith(_SENT_BACK)


def _in_any(row: Row) -> Row:
    """A message of which one log has only a half that ended is missing there, where another one has it."""
    if row["fault"] == "untold" and row["held"] >= 0:
        return row | {"fault": "missing", "offset": -1}
    return row


def _sharing(facts: Facts, views: dict[int, View]) -> list[int]:
    """The replicas that the reference's answers hold for as well."""
    return [
        at
        for at, view in views.items()
        if at != facts.reference and adds_nothing(facts.replicas[at], view) and not facts.replicas[at].holes
    ]


def _of_message(
    places: _Places, every: set[int], faults: dict[str, dict[int, Row]], damaged: Damaged
) -> Iterator[Finding]:
    """One row where no replica that should hold the message has it right, else one a replica. ``faults``: by
    replica each. Where some lack it and the others have it altered, each copy is wrong in its way."""
    facts = places.facts
    bad = {at for fault in KINDS if fault != "order" for at in faults.get(fault, ())}
    for fault in (fault for fault in KINDS if fault in faults):
        rows_of = faults[fault]
        row = next(iter(rows_of.values()))
        where = places.where(row)
        covering = _covering(places, every, row, where)
        right = covering - bad - set(rows_of)
        everywhere = covering <= set(rows_of)
        if everywhere or (fault == "missing" and not right):
            name = "*" if len(facts.replicas) > 1 else facts.replicas[facts.reference].name
            f = _finding(facts, name, facts.reference, row, where, 0)
            f = f if everywhere else replace(f, ambiguous=True)
            yield from _unread(facts, f, rows_of, damaged) if fault == "mismatch" else (f,)
            continue
        copies = facts.votes(right, where)
        for at, row_of in sorted(rows_of.items()):
            yield _finding(facts, facts.replicas[at].name, at, row_of, where, copies)


def _covering(places: _Places, every: set[int], row: Row, where: int) -> set[int]:
    """The replicas whose logs reach a place; all, where none is known, but those that begin behind it."""
    logs = places.facts.replicas
    reach = {at for at in every if where < 0 or logs[at].start <= where < logs[at].end}
    return {at for at in reach if not places.begins_behind(row, at)}


def _unread(facts: Facts, f: Finding, rows_of: dict[int, Row], damaged: Damaged) -> Iterator[Finding]:
    """Of a message that no replica has right: where its copies are damaged there is none to be read, and it
    is lost. Those that can be read, with another body, are told besides."""
    names = {at: facts.replicas[at].name for at in rows_of}
    other = {at: row for at, row in rows_of.items() if row["found_crc"] != row["body_crc"]}
    broken = {at for at, row in other.items() if damaged(names[at], row["offset"], row["until"])}
    if not broken:
        yield f
        return
    whole = sorted(rows_of.keys() - broken)
    yield replace(f, kind=KINDS["missing"], ambiguous=bool(whole))
    for at in whole:
        row = rows_of[at]
        yield _finding(facts, names[at], at, row, int(row["offset"]), 0)


class _Orders:
    """A right body in a wrong place, in a queue whose order is wrong: the order is why."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str, int], tuple[int, Finding]] = {}

    def note(self, line: int, f: Finding) -> None:
        if f.kind == "acked_out_of_order":
            key = (f.replica, f.topic, f.queue_id)
            known = self._first.get(key)
            if known is None or line < known[0]:
                self._first[key] = (line, f)

    def explained(self, f: Finding) -> Finding:
        cause = self._first.get((f.replica, f.topic, f.queue_id))
        same_body = f.expected.rpartition(" crc ")[2] == f.found.rpartition(" crc ")[2]
        moved = f.kind == "acked_mismatch" and same_body
        return f.follows(cause[1]) if cause is not None and moved else f


def mostly_expired(expired: int, lines: int) -> list[Finding]:
    """A warning when most of a ledger is older than any log: what is asked of so little is no answer."""
    if expired * 2 <= lines:
        return []
    text = f"{expired} of {lines} messages are older than any log"
    return [Finding("acked_missing", WARN, "*", expected="most of the ledger", found=text, records=expired)]


def adds_nothing(replica: Replica, view: View) -> bool:
    """Whether all that a replica holds was proved equal to the reference's."""
    return not own_parts(replica, view)


def _finding(facts: Facts, name: str, replica: int, row: Row, where: int, copies: int) -> Finding:
    r = facts.replicas[replica]
    until = row["until"] if row["offset"] >= 0 else (where + 1 if where >= 0 else -1)
    told = f"{row['topic']}/{row['queue_id']}@{row['queue_offset']} crc {row['body_crc']}"
    have = STRAYED if row.get("strayed") and row["held"] < 0 else "nothing"
    if row["offset"] >= 0:
        body = f"crc {row['found_crc']}" if row["found_crc"] >= 0 else "a body that cannot be decompressed"
        have = f"{row['found_topic']}/{row['found_queue_id']}@{row['found_queue_offset']} {body}"
    if row["fault"] == "untold":
        have += ", of a transaction that ended: committed, or rolled back"
    return Finding(
        KINDS[row["fault"]],
        WARN if row["fault"] == "untold" else ERROR,
        name,
        r.segment_name(where) if where >= 0 else "",
        facts.epoch_at(where),
        where,
        until,
        row["topic"],
        row["queue_id"],
        row["queue_offset"],
        row["uniq_key"],
        told,
        have,
        copies=copies,
        records=1,
    )
