"""Which queues of a replica have the entries of their records, and no others? Asked of workers, by digest.

What a worker that read a piece of the log says of its entries (``audit.engines.told``) is held to the queue
files of each replica. A queue that is not plainly right is looked at entry by entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from audit.engines.told import Slice
from audit.reading.derived.queue_files import ENTRY_BYTES, Queue, QueueFile
from audit.reading.derived.queue_slices import SliceTask
from audit.tables import EntryBounds
from model.message import LMQ_PREFIX, SCHEDULE_TOPIC

STRETCH_PLACES: Final = 3_000_000
"""Of a queue, that one task looks at: 60 MB."""
FIRST_PLACE: Final = -1 << 63
END_PLACE: Final = (1 << 63) - 1


def planned(
    files: Sequence[QueueFile], slices: dict[Queue, list[Slice]], bounds: EntryBounds
) -> dict[Queue, list[SliceTask]]:
    """What to ask of each queue that may be right."""
    by_queue: dict[Queue, list[QueueFile]] = {}
    for file in sorted(files, key=lambda file: (file.topic, file.queue_id, file.first)):
        by_queue.setdefault((file.topic, file.queue_id), []).append(file)
    found = {}
    for queue, own in by_queue.items():
        told = slices.get(queue)
        # A delayed message's entry says when it is due; a light queue's names the records of others.
        other = queue[0] == SCHEDULE_TOPIC or queue[0].startswith(LMQ_PREFIX)
        if not other and told != [] and _apart(own):
            found[queue] = list(_tasks(own, told or [], bounds))
    return found


def _apart(files: list[QueueFile]) -> bool:
    """Do files of whole entries follow each other?"""
    whole = all(file.size % ENTRY_BYTES == 0 for file in files)
    return whole and all(a.first + a.size // ENTRY_BYTES <= b.first for a, b in pairwise(files))


def _tasks(files: list[QueueFile], slices: list[Slice], bounds: EntryBounds) -> Iterator[SliceTask]:
    """Each looks at what is before its first slice, too, if it is the queue's; the last at what is behind."""
    groups: list[list[Slice]] = [[]]
    room = STRETCH_PLACES
    for one in slices:
        if groups[-1] and room < one.places:
            groups.append([])
            room = STRETCH_PLACES
        groups[-1].append(one)
        room -= one.places
    for n, group in enumerate(groups):
        low = group[0].place if n else FIRST_PLACE
        high = groups[n + 1][0].place if n + 1 < len(groups) else END_PLACE
        yield SliceTask(
            files[0].location,
            files[0].topic,
            files[0].queue_id,
            tuple((f.file, f.first, f.size) for f in files if _meets(f, low, high)),
            tuple((one.place, one.places, one.entries.hex()) for one in group),
            low,
            high,
            bounds.start,
            bounds.until,
        )


def _meets(file: QueueFile, low: int, high: int) -> bool:
    return file.first < high and file.first + max(1, file.size // ENTRY_BYTES) > low


def last_place(slices: list[Slice]) -> int:
    """The last one with an entry of a queue that is right."""
    return slices[-1].place + slices[-1].places - 1
