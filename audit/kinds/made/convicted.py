"""Records of which the other replicas have another, by evidence or vote, tell no place of a queue.

Runs are made of all records: so a convicted one may begin or end a run, also that of a queue it is not of.
There it is set apart. Between two sound ones that follow each other its place is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from audit.kinds.logs.witnesses import backwards, records
from audit.queues import Run
from audit.reading.derived.queue_files import Queue
from audit.reading.layout import Replica
from audit.reading.records.record import Record
from audit.rows.numbers import LAST
from model.message import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK

_LOOKED_BYTES: Final = 16 * 1024 * 1024
"""Of the log, at either end of a run; what is convicted behind stays in its run."""

Wrong = Callable[[int], bool]
"""Is the record at an offset convicted?"""
Holder = Callable[[int], Replica]
"""Whose record at an offset was looked at?"""


def apart(queue: Queue, run: Run, wrong: Wrong, holder: Holder) -> list[Run]:
    """The run, without the convicted records at its ends, which are runs before and behind it. Raises
    OSError."""
    if run.alone:
        return [run._replace(wrong=wrong(run.offset))]
    found = [run]
    if wrong(run.offset):
        until = min(run.last + 1, run.offset + _LOOKED_BYTES)
        forwards = records(holder(run.offset), run.offset, until, every=True)
        found = _without_first(run, _of_queue(forwards, queue), wrong)
    own = found[-1]
    if not own.wrong and wrong(own.last):
        begin = max(own.offset, own.last - _LOOKED_BYTES)
        back = backwards(holder(own.last), own.last + 1, begin, every=True)
        found[-1:] = _without_last(own, _of_queue(back, queue), wrong)
    return found


def _of_queue(found: Iterator[Record], queue: Queue) -> Iterator[Record]:
    for record in found:
        undone = record.sys_flag & TRANSACTION_MASK in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
        if (record.topic, record.queue_id) == queue and not undone:
            yield record


def _without_first(run: Run, found: Iterator[Record], wrong: Wrong) -> list[Run]:
    place, last = run.queue_offset, run.offset
    for record in found:
        if record.queue_offset != place:
            break  # other records were read than before
        if not wrong(record.offset):
            own = run._replace(offset=record.offset, queue_offset=place, uniq_key=record.uniq_key)
            return [run._replace(end=place, last=last, wrong=True), own]
        place, last = _behind(record), record.offset
        if last == run.last:
            return [run._replace(wrong=True)]
    return [run]


def _without_last(run: Run, found: Iterator[Record], wrong: Wrong) -> list[Run]:
    place, first = run.end, None
    for record in found:
        if _behind(record) != place:
            break
        if not wrong(record.offset):
            if first is None:
                break
            own = run._replace(end=place, last=record.offset)
            return [own, Run(first.offset, place, run.end, first.uniq_key, run.last, wrong=True)]
        place, first = record.queue_offset, record
    return [run]


def _behind(record: Record) -> int:
    return min(record.queue_offset + record.advance, LAST)
