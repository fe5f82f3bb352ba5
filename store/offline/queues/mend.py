"""How do the queues of a store become right again, from its log, and the log from its queues?

First the names of files, then what no CRC covers: a record's place, where its queue knows better. Then the
files get the size that a broker opens, and the entries become right that are there; what lacks is made last.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from model.message import SCHEDULE_TOPIC
from model.queue_sizes import Told
from runtime.env import Disk
from store.files.consume_queue import ENTRY, PRE_BLANK
from store.files.record import DispatchParser
from store.offline.directory import StoreDirectory
from store.offline.queues.begins import is_queue_file
from store.offline.queues.dues import dues_of, odd_dues
from store.offline.queues.entries import Entry, EntryCheck
from store.offline.queues.misplaced import Misplaced, misplaced, write_place
from store.offline.queues.odd_entries import OddEntries
from store.offline.queues.places import Says, placed
from store.offline.queues.renamed import name_right
from store.offline.rebuild import (
    complete_queues,
    drop_unbelieved,
    make_gone_files,
    resize_files,
)
from store.offline.written import Written

Row = dict[str, Any]
Wrote = Callable[[Mapping[int, int | None]], None]
"""Hears where the records begin whose places are about to be written, with None, then the CRC-32 of each."""


def is_of_queues(place: Row) -> bool:
    """Is it damage of queues, a row of ``verify``?"""
    return str(place["kind"]).startswith("cq_")


@dataclass(frozen=True, slots=True)
class Mended:
    """``entries``: how many were made right; ``files``: how many got their size or name; ``records``: of the
    log, those that got their places."""

    entries: int
    files: int
    records: list[Misplaced]


def mend_queues(
    disk: Disk,
    store: StoreDirectory,
    told: Told,
    parser: DispatchParser,
    damage: Iterable[Row],
    end: int,
    wrote: Wrote,
) -> Mended:
    """``told``: how large a file is; ``damage``: what ``verify`` found, and ``end``: where the log ends.
    What lies behind that is nobody's. Raises DiskError, OSError."""
    files = Written(disk)
    try:
        named = name_right(disk, store, told.size if told.sure else 0)
        records, unsure = misplaced(store, parser, told.size, end)
        _write_places(
            store, records, files, wrote
        )  # before any entry is made for a place that is not its own
        drop_unbelieved(disk, store, end)
        resized = resize_files(disk, store, told)
        gone = resized.short
        if told.sure:  # before others look: a file behind a gap hides those before it
            lacking = [d["file"] for d in damage if d["kind"] == "cq_missing" and is_queue_file(d["file"])]
            gone += [path for path in lacking if not (named and disk.exists(f"{store.root}/{path}"))]
        made = 0
        if gone:
            made += make_gone_files(disk, store, parser, dict.fromkeys(gone), told.size, end, unsure)
        store.close()  # under the names of files that it has open there are others now
        made += _mend_entries(store, parser, files, end, unsure) + _mend_dues(store, parser, files)
        made += _fill_holes(store, parser, files)
        files.sync()  # before others open the same files
        made += complete_queues(disk, store, told, parser, end, unsure)
        store.close()  # a queue that begins anew has other files of the same names
        _fill_holes(store, parser, files)  # between what was entered: those count
        made += OddEntries(store, parser, end, unsure).mend(disk, files)  # by what is entered now
        return Mended(made, named + resized.done + len(resized.short), records)
    finally:
        files.sync()


def _write_places(store: StoreDirectory, records: list[Misplaced], files: Written, wrote: Wrote) -> None:
    wrote(dict.fromkeys(item.offset for item in records))  # a crash may come between
    for item in records:
        segment = store.segment_at(item.offset)
        if segment is not None:
            write_place(files.open(segment.path), item.offset - segment.start, item)
    files.sync()
    wrote({item.offset: crc32(store.log_bytes(item.offset, item.offset + item.size)) for item in records})


def _mend_entries(
    store: StoreDirectory, parser: DispatchParser, files: Written, end: int, unsure: Container[int]
) -> int:
    """Make entries right that name no record of their own, where there is a file; returns how many."""
    check, made = EntryCheck(store, parser), 0
    for item in placed(store, end, unsure):
        if item.says is not Says.RIGHT:
            check.unbelieved.add(item.record.physical_offset)
            continue
        wrong = check.wrong(item.record, zeros=True)
        if wrong is not None:
            files.put((wrong.path, wrong.at), ENTRY.pack(*wrong.wanted))
            made += 1
    return made


def _mend_dues(store: StoreDirectory, parser: DispatchParser, files: Written) -> int:
    """When delayed messages are due, as those beside them tell, or else the levels."""
    check, made = EntryCheck(store, parser), 0
    for queue_id in [queue_id for topic, queue_id in store.queues() if topic == SCHEDULE_TOPIC]:
        for due, wanted in list(odd_dues(dues_of(store, check, queue_id))):
            record = store.record_at(due.offset)
            if wanted < 0 and record is not None:
                wanted = parser.tags_code(record.topic, record.properties, record.store_timestamp_ms)
            place = check.place_of(SCHEDULE_TOPIC, queue_id, due.place)
            files.put(place, ENTRY.pack(due.offset, due.size, wanted))
            made += 1
    return made


def _fill_holes(store: StoreDirectory, parser: DispatchParser, files: Written) -> int:
    """Places for which the log has no message, before entries that are right, stand for none: a queue does
    not end there."""
    check, made = EntryCheck(store, parser), 0
    nothing: Entry = (0, 0, 0)
    for queue in store.queues():
        for hole in list(check.holes(*queue)):
            for at in range(hole.begin, hole.until):
                if (check.entry(*queue, at) or nothing)[1] <= 0:
                    files.put(check.place_of(*queue, at), PRE_BLANK)
                    made += 1
    return made
