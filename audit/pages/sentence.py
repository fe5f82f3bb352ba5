"""What is lost or different, where and since when? One sentence of the worst windows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from audit.findings import ERROR, WARN
from audit.pages.html import number, size
from audit.results.evidence import stamp
from audit.results.losses import Window

_WITHOUT: Final = {
    "clean": "The replicas hold the same log.",
    "warnings": "The replicas hold the same log, with something to look at.",
    "diverged": "The replicas differ.",
    "unfinished": "Not everything could be read, so this is no clean bill.",
}
_NONE_LOST: Final = "No acknowledged message of the ledger is lost."
_WORSE: Final = ("diverged", "unfinished")
_TOPICS_MAX: Final = 3
_OF_ALL: Final = frozenset({"queue_gap", "queue_order", "dup_queue_offset", "dup_message", "phantom"})
_OF_STRETCHES: Final = frozenset({"short_tail", "missing_segment", "missing_start", "divergent_suffix"})
_WHAT: Final = {
    "crc_mismatch": "{n} damaged {records}",
    "bytes_differ": "other bytes in {n} {records} than the others",
    "unreadable_region": "bytes in which no record can be read",
    "phys_offset_mismatch": "{n} {records} that name another place",
    "file_unreadable": "a file that cannot be read",
    "missing_segment": "a log without one of its segments",
    "missing_start": "a log whose oldest segments were taken away",
    "divergent_suffix": "another history than the others",
    "short_tail": "a log that ends too early",
    "extra_tail": "a log that ends behind the others'",
    "epoch_mismatch": "another epoch than the others",
    "same_file": "files that are another replica's, too",
    "acked_missing": "no copy of {n} acknowledged {messages}",
    "acked_unknown": "{n} acknowledged {messages} of transactions that ended, and nothing tells how",
    "acked_mismatch": "{n} acknowledged {messages} with another body or place",
    "acked_out_of_order": "{n} acknowledged {messages} in an order that their acknowledgements exclude",
    "queue_gap": "queues that skip {n} {places}",
    "dup_queue_offset": "{n} {places} of queues taken twice",
    "queue_order": "queues whose places do not ascend",
    "dup_message": "{n} {messages} more than once",
    "phantom": "{n} {messages} that nobody sent",
    "cq_wrong": "wrong queue entries",
    "cq_missing": "records without queue entries",
    "cq_dangling": "queue entries without records",
    "index_wrong": "an index that does not agree with the log",
    "index_missing": "records that no index names",
    "epoch_file_corrupt": "an epoch file that cannot be right",
    "file_corrupt": "a small file that is not as it was written",
    "file_missing": "a small file less than it should have",
    "files_unseen": "more files of other names in commitlog than were looked at",
    "timer_wrong": "timers that do not agree with the log",
    "consumer_offset_beyond": "a consumer group that is further than its queue",
}


def of(
    verdict: str, windows: Sequence[Window], unreadable: Collection[str] = (), *, none_lost: bool = False
) -> str:
    """The headline. Of several faults the worst is told; the others are counted by kind. ``unreadable``: the
    replicas that could not be read; ``none_lost``: a replica has each message of a ledger."""
    told = _all_of(verdict, windows, unreadable)
    return f"{told} {_NONE_LOST}" if none_lost and verdict in _WORSE else told


def _all_of(verdict: str, windows: Sequence[Window], unreadable: Collection[str]) -> str:
    rest = _WITHOUT[verdict]
    if unreadable:
        rest = f"{_joined(sorted(unreadable))} could not be read, so this is no clean bill."
    told = _of_windows(windows)
    if not told:
        return rest
    return f"{told} {rest}" if unreadable or verdict == "unfinished" else told


def _of_windows(windows: Sequence[Window]) -> str:
    lost = [w for w in windows if w.lost]
    if lost:
        return _told(lost, _lost(lost), windows)
    for severity in (ERROR, WARN):
        rows = [w for w in windows if w.severity == severity]
        if rows:
            first, names = _alike(rows)
            alike = [w for w in rows if w.kind == rows[0].kind and w.replica in names]
            return _told(alike, _different(first, names), windows)
    return ""


def _alike(rows: Sequence[Window]) -> tuple[list[Window], list[str]]:
    """What the first replica has of its worst kind, and all that have it in the same places."""
    kind, places = rows[0].kind, dict[str, list[tuple[int, int, str]]]()
    for w in rows:
        if w.kind == kind:
            places.setdefault(w.replica, []).append((w.phys_offset, w.until, w.segment))
    own = rows[0].replica
    first = [w for w in rows if (w.kind, w.replica) == (kind, own)]
    return first, [name for name, held in places.items() if held == places[own]]


def _lost(lost: Sequence[Window]) -> str:
    count = sum(w.records for w in lost)
    verb = "message is" if count == 1 else "messages are"
    where = "on no replica" if lost[0].replica == "*" else f"not in {lost[0].replica}, the only store"
    return f"{number(count)} acknowledged {verb} lost, {where}"


def _messages(count: int) -> str:
    return "message" if count == 1 else "messages"


def _different(rows: Sequence[Window], names: Sequence[str]) -> str:
    holder = f"{_joined(names)} {'has' if len(names) == 1 else 'have'}"
    if rows[0].kind in _OF_ALL:  # the row names the replica whose records were read
        holder = "The log has"
    holder = "Every replica has" if rows[0].replica == "*" else holder
    count = sum(w.records for w in rows)
    if rows[0].kind == "short_tail" and count:
        lacks = "lacks" if len(names) == 1 else "lack"
        return f"{holder} {_WHAT['short_tail']} and {lacks} {number(count)} acknowledged {_messages(count)}"
    words = {name: name[:-1] if count == 1 else name for name in ("records", "messages", "places")}
    what = _WHAT.get(rows[0].kind, rows[0].kind).format(n=number(count), **words)
    return f"{holder} {what}"


def _told(rows: Sequence[Window], what: str, windows: Sequence[Window]) -> str:
    parts = [what, *_where(rows), *_since(rows)]
    return ", ".join(parts) + _others(windows, {_about(w) for w in rows}) + "."


def _about(w: Window) -> tuple[bool, str, str]:
    return w.lost, w.kind, w.replica


def _others(windows: Sequence[Window], told: Collection[tuple[bool, str, str]]) -> str:
    """How many other things there are, and of which of them most of the log is: a whole replica that is far
    behind should not be one of several."""
    groups: dict[tuple[bool, str, str], list[Window]] = {}
    for w in windows:
        if _about(w) not in told:
            groups.setdefault(_about(w), []).append(w)
    if not groups:
        return ""
    rows = max(groups.values(), key=_reach)  # of as much the worst, which comes first
    what = _lost(rows) if rows[0].lost else _different(rows, [rows[0].replica])
    much = f", {size(_reach(rows))} of it" if _reach(rows) else ""
    one = ":" if len(groups) == 1 else f", {'the largest' if much else 'such as'}:"
    return f"; {len(groups)} other {'thing' if len(groups) == 1 else 'things'} to look at{one} {what}{much}"


def _reach(rows: Sequence[Window]) -> int:
    """How many bytes of the log all that is about, where it is about the log as such."""
    return sum(w.until - w.phys_offset for w in rows if w.kind in _OF_STRETCHES and w.phys_offset >= 0)


def _where(rows: Sequence[Window]) -> list[str]:
    queues = sorted({(w.topic, w.queue_id) for w in rows if w.topic})
    topics = sorted({topic for topic, _ in queues})
    told = []
    if len(queues) == 1 and queues[0][1] >= 0:
        told.append(f"in queue {queues[0][1]} of {topics[0]}")
    elif topics:
        more = f" and {len(topics) - _TOPICS_MAX} more topics" if len(topics) > _TOPICS_MAX else ""
        told.append(f"in {_joined(topics[:_TOPICS_MAX])}{more}")
    epochs = sorted({w.epoch for w in rows if w.epoch >= 0})
    if epochs:
        told.append(f"epoch {epochs[0]}" if len(epochs) == 1 else f"epochs {epochs[0]} to {epochs[-1]}")
    at = min((w.phys_offset for w in rows if w.phys_offset >= 0), default=-1)
    return told + ([f"from offset {number(at)} on"] if at >= 0 else [])


def _joined(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else names[0]


def _since(rows: Sequence[Window]) -> list[str]:
    """None where nothing tells when the first of them was stored."""
    known = [w for w in rows if w.since_ms >= 0]
    first = min((w.phys_offset for w in known), default=-1)
    if not known or any(w.phys_offset < first for w in rows if w.since_ms < 0):
        return []
    return [f"since {stamp(min(w.since_ms for w in known))}"]
