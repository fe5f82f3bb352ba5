"""Places of queues, messages that stand twice, and messages that nobody sent.

``queue_gap``, ``queue_order``, ``dup_queue_offset``, ``dup_message``, ``phantom``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from audit.findings import ERROR, WARN, Finding
from audit.kinds.facts import Facts
from audit.kinds.made.convicted import Holder, Wrong, apart
from audit.ledgers.history import REFUSED, UNKNOWN
from audit.queues import Fault, Run, Runs, begins_again, explain
from audit.reading.derived.queue_files import Queue, QueueFolder, first_named
from audit.rows.numbers import LAST
from audit.tables import TAKEN, ScannedLog, View

Queues = dict[Queue, Runs]
_EVERYWHERE = 1 << 62


def runs(table: pa.Table, folders: Sequence[QueueFolder], wrong: Wrong, holder: Holder) -> Queues:
    """The RUNS of every broken queue, and where its topic was made again. Raises OSError.

    ``wrong``: whether the record at an offset is one of which the other replicas have another: it does not
    tell where its queue is; a place far ahead would make all behind look out of order.
    """
    by_queue: dict[Queue, list[dict[str, Any]]] = {}
    for row in table.to_pylist():
        by_queue.setdefault((row["topic"], row["queue_id"]), []).append(row)
    found: Queues = {}
    for queue, rows in by_queue.items():
        listed = [Run(r["offset"], r["queue_offset"], r["end"], r["uniq_key"], r["last"]) for r in rows]
        cut = rows[-1]["number"] > len(rows)  # the last one stands apart
        of = Runs(listed[:-1], rows[-1]["runs"] - len(listed) + 1, listed[-1].last) if cut else Runs(listed)
        of = replace(of, listed=[part for run in of.listed for part in apart(queue, run, wrong, holder)])
        found[queue] = replace(of, remade=_remade(queue, folders)) if begins_again(of) else of
    return found


def _remade(queue: Queue, folders: Sequence[QueueFolder]) -> int:
    """The offset of the first record of a queue as its files know it: a broker that deletes a topic removes
    them, too. Everywhere, if a broker does not have the topic any more."""
    topic, _ = queue
    if any(folder.queues_of and topic not in folder.queues_of for folder in folders):
        return _EVERYWHERE
    files = [[file for file in f.files if (file.topic, file.queue_id) == queue] for f in folders]
    return max((first_named(own) for own in files), default=-1)


def queues(
    facts: Facts, log: ScannedLog, by_queue: Queues, view: View, before: Mapping[tuple[Queue, int], int]
) -> list[Finding]:
    """Places of queues that are skipped, taken twice or out of order along a log.

    ``before``: where the last place of each queue stands in what was not read; such a queue need not begin
    at 0, nor need one whose log does not."""
    begin = min(facts.replicas[at].start for at in (view.base, view.replica))
    faults: list[tuple[Queue, Fault]] = []
    for queue, of in sorted(by_queue.items()):
        first = of.listed[0]
        whole = begin == 0 and before.get((queue, first.queue_offset)) != first.offset
        faults += [(queue, fault) for fault in explain(of, whole=whole)]
    taken = _first_taken(log, view, faults)
    found = []
    for (topic, queue_id), fault in faults:
        place = ((topic, queue_id), fault.queue_offset)
        first_at = before.get(place, -1)
        if first_at < fault.taken_since or fault.taken_since < 0:
            first_at = taken.get((*place, fault.taken_since), -1)
        stands = f"{fault.queue_offset} stands at {first_at} already"
        at = held_by(facts, view, fault.offset)
        f = facts.at(
            fault.kind,
            WARN if fault.doubtful else ERROR,
            at,
            fault.offset,
            fault.until,
            topic=topic,
            queue_id=queue_id,
            queue_offset=fault.queue_offset,
            uniq_key=fault.uniq_key,
            expected=stands if first_at >= 0 else fault.expected,
            found=fault.found,
            records=min(fault.records, LAST),
        )
        if fault.kind == "dup_queue_offset" and first_at >= 0:
            name, _ = facts.whose(at, (first_at, first_at + 1), (fault.offset, fault.until))
            f = replace(f, replica=name)
        elif fault.misfit:
            f = replace(f, replica=facts.whose(at, (fault.offset, fault.until))[0])
        found.append(f)
    return found


def _first_taken(
    log: ScannedLog, view: View, faults: Sequence[tuple[Queue, Fault]]
) -> dict[tuple[Queue, int, int], int]:
    """Where the places that are taken twice were taken first, since when."""
    rows = {(*queue, f.queue_offset, f.taken_since) for queue, f in faults if f.taken_since >= 0}
    if not rows:
        return {}
    places = pa.Table.from_pylist(
        [dict(zip(TAKEN.names, row, strict=True)) for row in sorted(rows)], schema=TAKEN
    )
    return {
        ((row["topic"], row["queue_id"]), row["queue_offset"], row["since"]): row["offset"]
        for row in log.first_taken(view, places).to_pylist()
    }


def held_by(facts: Facts, view: View, offset: int) -> int:
    """The replica whose record at ``offset`` was looked at."""
    return view.base if facts.replicas[view.base].covers(offset, offset + 1) else view.replica


def duplicates(
    facts: Facts, found: Iterable[pa.Table], view: View, misplaced: Wrong = lambda offset: False
) -> Iterator[Finding]:
    """One row for each further copy of a message, of COPIES: at-least-once senders make them: a warning. A
    record that is ``misplaced`` is no copy."""
    for row in _placed((row for table in found for row in table.to_pylist()), misplaced):
        at = held_by(facts, view, row["offset"])
        stretches = (row["first"], row["first"] + 1), (row["offset"], row["until"])
        name, copies = facts.whose(at, *stretches)
        f = facts.at(
            "dup_message",
            WARN,
            at,
            row["offset"],
            row["until"],
            topic=row["topic"],
            queue_id=row["queue_id"],
            queue_offset=row["queue_offset"],
            uniq_key=row["uniq_key"],
            expected=f"once, at {row['first']}",
            found=f"again at {row['offset']}",
            copies=copies,
            records=1,
        )
        yield replace(f, replica=name)


def _placed(rows: Iterable[dict[str, Any]], misplaced: Wrong) -> Iterator[dict[str, Any]]:
    """The rows of a message come in log order: where its first copy is none, the next one is the first."""
    first: dict[tuple[str, str], int] = {}
    for row in rows:
        if misplaced(row["offset"]):
            continue
        message = (row["topic"], row["uniq_key"])
        if not misplaced(row["first"]):
            yield row
        elif message in first:
            yield row | {"first": first[message]}
        else:
            first[message] = row["offset"]


_STRANGE = {-1: "never sent", UNKNOWN: "another body than was sent", REFUSED: "its send was refused"}


def phantoms(facts: Facts, found: Iterable[pa.Table], view: View) -> Iterator[Finding]:
    """One row for each message that cannot be there, of STRANGERS."""
    for table in found:
        for row in table.to_pylist():
            yield facts.at(
                "phantom",
                ERROR,
                held_by(facts, view, row["offset"]),
                row["offset"],
                row["until"],
                topic=row["topic"],
                queue_id=row["queue_id"],
                queue_offset=row["queue_offset"],
                uniq_key=row["uniq_key"],
                expected="a message that was sent",
                found=_STRANGE[row["outcome"]],
                records=1,
            )
