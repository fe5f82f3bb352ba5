"""Files beside the log that are not as they were written, or are gone, and offsets of consumers beyond it.

``file_corrupt``, ``file_missing``, ``missing_start``, ``consumer_offset_beyond``. Warnings: what is gone is
made again, or others may have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from audit.findings import ERROR, WARN, Finding
from audit.kinds.facts import Facts
from audit.kinds.logs.damage import Sound
from audit.reading.derived.queue_files import Queue
from audit.reading.layout import (
    ALL,
    BLANK_CHECKPOINT,
    CHECKPOINT,
    GONE_CHECKPOINT,
    UNMARKED_CHECKPOINT,
    Replica,
)
from audit.reading.small.beside import EPOCHS, IDENTITY, TIMERCHECK, WHEEL, Beside
from audit.reading.small.config_tables import SUFFIX
from audit.reading.small.last_writer import BOOT
from audit.rows.intervals import Interval
from model.message import LMQ_PREFIX

_ALWAYS: Final = frozenset({CHECKPOINT, IDENTITY})
"""A store with records has these as soon as another one of its group has."""
_OWN: Final = frozenset({"config/consumerFilter.json"})
"""Each broker writes what it was told itself: one that no consumer came to has none."""


def beside(facts: Facts, looked: Mapping[int, Beside], sound: Sound) -> list[Finding]:
    """``looked``: by replica."""
    found = []
    for at, own in sorted(looked.items()):
        for file, why in sorted((_unmarked(facts, at, own) | own.problems).items()):
            found.append(_row(facts, "file_corrupt", at, file, "as it was written", why))
        for file, why in sorted(own.unread.items()):
            found.append(Finding("file_unreadable", ERROR, facts.replicas[at].name, file, found=why))
        for file, why in sorted(_missing(facts, at, looked).items()):
            found.append(_row(facts, "file_missing", at, file, why, "no such file"))
    return found + list(_timers(facts, looked)) + list(_starts(facts, looked, sound))


def _unmarked(facts: Facts, at: int, own: Beside) -> dict[str, str]:
    """A checkpoint that lost keelmq's mark, and all that was sealed with it."""
    why = facts.replicas[at].checkpoint_problem
    lost = why in (BLANK_CHECKPOINT, UNMARKED_CHECKPOINT) and CHECKPOINT in own.present - own.sealed
    return {CHECKPOINT: why} if lost else {}


def _row(facts: Facts, kind: str, at: int, file: str, expected: str, found: str) -> Finding:
    return Finding(kind, WARN, facts.replicas[at].name, file, expected=expected, found=found)


def _missing(facts: Facts, at: int, looked: Mapping[int, Beside]) -> dict[str, str]:
    """What a store that was stopped in order lacks: one of two copies, or what all others like it have. What
    any lacks: tables of which only the changes are left, and a checkpoint, which a keelmq makes first."""
    own = looked[at]
    if not _settled(facts, at):
        r = facts.replicas[at]
        gone = r.checkpoint_problem == GONE_CHECKPOINT and (r.had_records or not r.empty)
        return _tables(own) | ({CHECKPOINT: "a keelmq's, as the others have"} if gone else {})
    others = [o for b, o in looked.items() if b != at and _settled(facts, b) and o.ours == own.ours]
    found = _as_all(others) | _copies(own) | _tables(own)
    return {file: why for file, why in found.items() if file not in own.present}


def _as_all(others: Sequence[Beside]) -> dict[str, str]:
    """The files that each of the others has, or any of them, of which a store like theirs has one, too."""
    if not others:
        return {}
    had = [frozenset(o.present - o.empty) for o in others]
    told = {file for file in frozenset.intersection(*had) if len(others) > 1 and _compared(file)}
    found = dict.fromkeys(told, f"a file as {len(others)} others have")
    for file in frozenset.union(*had) & _ALWAYS:
        found[file] = f"a file as {sum(file in files for files in had)} others have"
    return found


def _copies(own: Beside) -> dict[str, str]:
    """The files of which there must be a second copy."""
    found = {}
    for file in own.present:
        if file.endswith(".bak") and _copied(file.removesuffix(".bak")):
            found[file.removesuffix(".bak")] = f"the same as in {file}"
        if own.ours and _copied(file) and (file in own.sealed or file == EPOCHS):
            found[f"{file}.bak"] = f"the same as in {file}"
    if own.ours and IDENTITY in own.present:
        found[f"{IDENTITY}.crc"] = f"copies of {IDENTITY}"
    return found


def _tables(own: Beside) -> dict[str, str]:
    """Tables of which only the changes are left. One that is replaced has a copy meanwhile."""
    tables = {file.removesuffix(SUFFIX) for file in own.present if file.endswith(SUFFIX)}
    return {
        file: "the table that its changes belong to"
        for file in tables
        if not {file, f"{file}.bak"} & own.present
    }


def _settled(facts: Facts, at: int) -> bool:
    r = facts.replicas[at]
    return r.clean and not r.empty


def _copied(file: str) -> bool:
    """Whether a second copy of it, ``.bak``, lies beside it."""
    return file == EPOCHS or (file.startswith("config/") and file.endswith(".json"))


def _compared(file: str) -> bool:
    return file in (TIMERCHECK, BOOT) or (_copied(file) and file not in _OWN)


def _starts(facts: Facts, looked: Mapping[int, Beside], sound: Sound) -> Iterator[Finding]:
    """Segments that were the log's oldest when its broker stopped in order, and are gone.

    Age and a full disk tell nothing: each replica deletes at its own time, and may have run without a
    message for days. A broker that deleted a segment, or began its log later, notes the log's new start.
    """
    for at, (begin, end) in sorted(taken(facts, looked).items()):
        others = sound((h for h in facts.holders(begin, end) if h != at), begin, end)
        yield facts.at(
            "missing_start",
            WARN,
            at,
            begin,
            end,
            expected=f"begins at {begin} as when its broker stopped",
            found=f"begins at {end}",
            copies=facts.votes(others, begin),
        )


def taken(facts: Facts, looked: Mapping[int, Beside]) -> dict[int, Interval]:
    """By replica: what its log began with when its broker stopped, and has no more. No retention took it."""
    found = {}
    for at, own in looked.items():
        r = facts.replicas[at]
        # What another broker deleted since is not noted.
        if r.clean and not own.written_by_others and r.segments and 0 <= own.log_start < r.start:
            found[at] = own.log_start, r.start
    return found


def not_by_retention(facts: Facts, looked: Mapping[int, Beside]) -> list[Interval]:
    """What logs lack, and no retention took: their starts since they stopped, what lies there and cannot be
    read, or has another segment's name, and the ends that they lost."""
    found = taken_from_all(facts, looked)
    for at, r in enumerate(facts.replicas):
        found += [(unread.base, r.segment_end(unread)) for unread, _ in r.unread]
        found += r.moved
        # Nothing says how far a log reached that is gone, and confirmed nothing.
        lost_all = r.had_records and not (r.segments or r.unread or r.confirmed)
        promised = ALL if lost_all else r.promised
        reached = min(max(promised, looked[at].was_longer), facts.histories.left(at))
        if reached > r.end and _had(r, looked[at]):
            found.append((r.end if r.segments else _began(facts, looked[at], reached), reached))
    return found


def _had(r: Replica, own: Beside) -> bool:
    """Does a log that holds nothing say that it held something? A new one has no checkpoint yet, or one with
    nothing in it, and nothing that is made of records."""
    told = r.checkpoint_problem not in (GONE_CHECKPOINT, BLANK_CHECKPOINT)
    return not r.empty or r.had_records or told or own.was_longer > r.end


def _began(facts: Facts, own: Beside, reached: int) -> int:
    """Where a log without a file began when it reached this place: retention keeps the last file. One that
    may have reached any place may have begun at any."""
    size = max((r.segment_bytes for r in facts.replicas), default=0)
    if own.log_start >= 0 and not own.written_by_others:
        return own.log_start
    return (reached - 1) // size * size if size and reached < ALL else 0


def taken_from_all(facts: Facts, looked: Mapping[int, Beside]) -> list[Interval]:
    """The same, but for what most replicas note as gone before they stopped: retention took that. One alone
    may have joined late, and have begun there."""
    settled = [own for at, own in looked.items() if facts.replicas[at].clean and not own.written_by_others]
    noted = sorted((own.log_start for own in settled if own.log_start >= 0), reverse=True)
    kept_from = noted[len(noted) // 2] if noted else 0
    spans = [(max(begin, kept_from), end) for begin, end in taken(facts, looked).values()]
    return [span for span in spans if span[0] < span[1]]


def _timers(facts: Facts, looked: Mapping[int, Beside]) -> Iterator[Finding]:
    """What ``timercheck`` says for RocketMQ has no CRC: two others of one opinion tell. RocketMQ, which
    writes it too, leaves a wheel."""
    settled = {at: own for at, own in looked.items() if _settled(facts, at)}
    for at, own in sorted(settled.items()):
        others = [o.timer for b, o in settled.items() if b != at]
        if len(others) < 2 or len(set(others)) > 1 or WHEEL in own.present:
            continue
        head, ours = others[0]
        if head and _differs(own, head, ours):
            found = own.timer[0].hex() or "nothing of a broker's"
            yield _row(facts, "file_corrupt", at, TIMERCHECK, f"{head.hex()} as the others", found)


def _differs(own: Beside, head: bytes, ours: bytes) -> bool:
    unsealed = TIMERCHECK in own.present - own.sealed - own.problems.keys()
    return unsealed or (own.timer[1] == ours and own.timer[0] != head)


def offsets_beyond(facts: Facts, looked: Mapping[int, Beside], ends: Mapping[Queue, int]) -> list[Finding]:
    """``ends``: where each queue ends in the longest log that has records of it."""
    found = []
    for at, own in sorted(looked.items()):
        for (topic, group, queue_id), offset in sorted(own.offsets.items()):
            end = ends.get((topic, queue_id))
            if end is None or offset <= end or topic.startswith(LMQ_PREFIX):
                continue
            found.append(
                Finding(
                    "consumer_offset_beyond",
                    WARN,
                    facts.replicas[at].name,
                    "config/consumerOffset.json",
                    topic=topic,
                    queue_id=queue_id,
                    queue_offset=offset,
                    expected=f"at most {end}",
                    found=f"{offset} of group {group}",
                    records=offset - end,
                )
            )
    return found
