"""Which bytes of which replica are read by which task, and do the tasks' seams meet?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from audit.compare import Ranges, covering_start
from audit.reading.layout import Replica, segment_reader
from audit.reading.storage import open_storage
from audit.rows.intervals import Interval, in_both, joined, without
from audit.tables import Task, View

CHUNK_BYTES_MIN: Final = 64 * 1024 * 1024
CHUNK_BYTES_MAX: Final = 512 * 1024 * 1024
CUTS_MAX: Final = 64


def reference_of(replicas: list[Replica], digests: pa.Table | None = None) -> int:
    """The most advanced log: the last epoch, be it one that wrote nothing yet, then the end.

    Of several equally advanced, one without holes whose digests agree with most of the others: what is wrong
    with one copy then shows up once, as that copy's fault.
    """
    agreeing = _agreeing(digests) if digests is not None else Counter()

    def rank(at: int) -> tuple[bool, int, int, int, int, int, int]:
        r = replicas[at]
        missing = sum(end - begin for begin, end in r.holes)
        return (not r.empty, r.epoch_at(r.end), r.end, -missing, agreeing[at], -r.start, -at)

    return max(range(len(replicas)), key=rank)


def _agreeing(digests: pa.Table) -> Counter[int]:
    """In how many ranges each replica holds what most hold."""
    ranges: dict[tuple[int, int, int], list[tuple[int, bytes]]] = {}
    columns = (digests[name].to_pylist() for name in ("replica", "start", "end", "ranges", "digest"))
    for replica, start, end, count, digest in zip(*columns, strict=True):
        ranges.setdefault((start, end, count), []).append((replica, digest))
    agreeing: Counter[int] = Counter()
    for (_, _, count), held in ranges.items():
        votes = Counter(digest for _, digest in held)
        most = max(votes.values())
        agreeing.update({replica: count for replica, digest in held if votes[digest] == most})
    return agreeing


def covered(replica: Replica) -> list[Interval]:
    """What the replica's files hold of its log."""
    stretches = []
    for segment in replica.segments:
        begin = max(segment.base, replica.start)
        end = min(segment.base + segment.size_bytes, replica.segment_end(segment), replica.end)
        if begin < end:
            stretches.append((begin, end))
    return joined(stretches)


def chunk_bytes(total_bytes: int, cores: int) -> int:
    """Tasks large enough to be worth their start, small enough to keep every core busy."""
    return min(CHUNK_BYTES_MAX, max(CHUNK_BYTES_MIN, total_bytes // (cores * 3) or 1))


def tasks(
    replicas: list[Replica],
    wanted: dict[int, list[Interval]],
    *,
    chunk: int,
    cuts: tuple[int, ...] = (),
    plain: bool = False,
) -> list[Task]:
    """One task per stretch of at most ``chunk`` bytes, never crossing a segment."""
    out: list[Task] = []
    for at, intervals in sorted(wanted.items()):
        replica = replicas[at]
        for segment in replica.segments:
            file_end = min(segment.base + segment.size_bytes, replica.segment_end(segment))
            for begin, end in intervals:
                start, stop = max(begin, segment.base), min(end, file_end)
                while start < stop:
                    # Aligned, so that the ranges of the digests are the same for every replica.
                    until = min(stop, (start // chunk + 1) * chunk)
                    out.append(
                        Task(
                            at,
                            replica.location,
                            segment.file,
                            segment.base,
                            file_end,
                            min(replica.end, file_end),
                            start,
                            until,
                            tuple(c for c in cuts if start < c < until),
                            start == begin,
                            plain,
                        )
                    )
                    start = until
    return out


def view_cuts(views: Iterable[View]) -> tuple[int, ...]:
    """Where views change from one log to the other; none where these are so many that records are asked."""
    edges = {edge for view in views if view.base != view.replica for part in view.equal for edge in part}
    return tuple(sorted(edges)) if len(edges) <= CUTS_MAX else ()


def digest_cuts(replicas: list[Replica]) -> tuple[int, ...]:
    """Where ranges are cut besides their alignment: each lies inside or outside every replica."""
    edges = {edge for r in replicas if not r.empty for interval in covered(r) for edge in interval}
    return tuple(sorted(edges))


def shared(replicas: list[Replica]) -> dict[int, list[Interval]]:
    """Per replica what at least one other one holds as well."""
    out: dict[int, list[Interval]] = {}
    for at, replica in enumerate(replicas):
        others = joined(i for b, r in enumerate(replicas) if b != at and not r.empty for i in covered(r))
        parts = in_both(covered(replica), others)
        if parts and not replica.empty:
            out[at] = parts
    return out


def views(replicas: list[Replica], reference: int, ranges: Ranges) -> dict[int, View]:
    """Each replica's log as the reference's equal part and its own rest.

    A rest begins at a record's start in both logs: a range that differs may begin in the middle of one, and a
    file that is too short may end there: then the reference has more of that record.
    """
    out: dict[int, View] = {}
    for at, replica in enumerate(replicas):
        if at == reference:  # also when every log is empty: a ledger's messages are missing from it
            out[at] = View(reference, reference, tuple(covered(replica)))
            continue
        if replica.empty:
            continue
        equal: list[Interval] = []
        for begin, end in covered(replica):
            own = without((begin, end), ranges.equal.get(at, []))
            own += [(end, end) for gap, _ in replica.gaps if gap == end]
            own = joined((_record_start([replica, replicas[reference]], a), b) for a, b in own)
            equal += without((begin, end), own)
        out[at] = View(reference, at, tuple(equal))
    return out


def unions(replicas: list[Replica], reference: int) -> list[View]:
    """The reference's log, longer by what only others still hold of it: retention is each replica's own.

    One view for each replica that adds stretches which end where the reference's log, or a stretch added
    before, begins; the reference alone when none does.
    """
    base = replicas[reference]
    mine = covered(base)
    behind = (base.end, 1 << 62)  # what is longer there is another history, or not confirmed yet
    known = mine
    out: list[View] = []
    others = [at for at, r in enumerate(replicas) if at != reference and not r.empty and not base.empty]
    for at in sorted(others, key=lambda at: (-len(_added(replicas[at], known)), replicas[at].start, at)):
        if _added(replicas[at], known):
            out.append(View(reference, at, tuple(joined([*mine, behind]))))
            known = joined([*known, *covered(replicas[at])])
    return out or [View(reference, reference, tuple(mine))]


def _added(replica: Replica, known: list[Interval]) -> list[Interval]:
    """What ``replica`` holds before or between ``known``, right up to where it begins."""
    begins = {begin for begin, _ in known}
    return [part for held in covered(replica) for part in without(held, known) if part[1] in begins]


def own_parts(replica: Replica, view: View) -> list[Interval]:
    """What must be read of the replica itself."""
    if view.base == view.replica:
        return covered(replica)
    return [part for interval in covered(replica) for part in without(interval, view.equal)]


def _record_start(replicas: list[Replica], offset: int) -> int:
    starts = [offset]
    for replica in replicas:
        segment = replica.segment_at(offset)
        if segment is None or not replica.start <= offset < replica.end:
            continue
        storage = open_storage(replica.location)
        try:
            read = segment_reader(storage, segment)
            starts.append(covering_start(read, offset, segment.base, replica.segment_end(segment)))
        finally:
            storage.close()
    return min(starts)


def broken_seams(planned: list[Task], chunks: pa.Table) -> list[Task]:
    """The same tasks with those joined whose seams do not meet; empty when all meet.

    A task begins by searching a record start; a body could hold a forged one, and a record that names another
    place cannot be found. Then the task before ends elsewhere than this one begins, and both are read as one.
    """
    found = {
        (r, a): (first, last)
        for r, a, first, last in zip(
            chunks["replica"].to_pylist(),
            chunks["offset"].to_pylist(),
            chunks["first"].to_pylist(),
            chunks["last_end"].to_pylist(),
            strict=True,
        )
    }
    out: list[Task] = []
    changed = False
    reach = -1  # where the walk so far ended
    for task in planned:
        first, last = found[task.replica, task.start]
        before = out[-1] if out else None
        adjoining = before is not None and (before.replica, before.file, before.end) == (
            task.replica,
            task.file,
            task.start,
        )
        if adjoining and before is not None:
            # The neighbour may end behind this task (one long record), or reach exactly its first record.
            meets = reach >= task.end if first < 0 else reach == first
            if not meets and min(task.end, task.log_end) > reach:
                out[-1] = Task(**{**before.to_json(), "end": task.end, "cuts": before.cuts + task.cuts})
                changed = True
                reach = max(reach, last)
                continue
        out.append(task)
        reach = max(last, reach) if adjoining else (last if last >= 0 else task.start)
    return out if changed else []
