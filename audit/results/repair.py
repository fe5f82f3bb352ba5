"""Which command, or else which step, mends what was found? One row for a replica and what is to be done."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from audit.findings import ERROR, INFO, Finding
from audit.reading.layout import Replica

_BY_REPAIR: Final = frozenset({"crc_mismatch", "bytes_differ", "unreadable_region", "phys_offset_mismatch"})
_BY_LOG: Final = frozenset({"cq_wrong", "cq_missing", "cq_dangling", "index_wrong", "index_missing"})
_BY_MASTER: Final = frozenset({"short_tail", "divergent_suffix", "extra_tail"})
_COPIED: Final = frozenset({"missing_segment", "missing_start"})
_DIFFER: Final = frozenset({"bytes_differ", "divergent_suffix"})
_LOST: Final = (
    "No store that was audited holds these messages. Audit again with the stores of dead replicas and of "
    "backups (keelmq backup restore); else their senders have to send them again."
)
_NOWHERE: Final = {
    "short_tail": "No replica goes on where this log has to: look in a backup (keelmq backup restore).",
    "epoch_mismatch": "Its log contradicts this file, and no other has to be right: look in a backup.",
}
"""What is wrong by the store itself; that others are right nobody says."""
_OUTVOTED: Final = (
    "This copy is right where most of the others are wrong alike: no command may take what they hold. Mend "
    "those first."
)
_NO_SOURCE: Final = (
    "No other copy is right everywhere: mend the others first. Until then keep this one, which may be right "
    "where they are not."
)
_UNDECIDED: Final = (
    "Which copy is right is open: give all replicas, or a ledger; then decide, as no command can."
)


@dataclass(frozen=True, slots=True)
class Step:
    """``command``: for a shell, where the stores are as here; empty if no command mends it."""

    replica: str
    command: str
    why: str
    findings: int


def steps(findings: Sequence[Finding], replicas: Sequence[Replica]) -> list[Step]:
    """What to do, errors first. A consequence is mended with its cause."""
    counted: dict[tuple[str, str], dict[str, int]] = {}
    sound = _Sound(findings, replicas)
    for f in sorted(findings, key=lambda f: (not _lost(f), f.severity != ERROR)):
        if f.severity == INFO and not _lost(f):
            continue
        replica, command, why = _of(f, replicas, sound)
        reasons = counted.setdefault((replica, command), {})
        reasons[why] = reasons.get(why, 0) + 1
    found = []
    for (replica, command), reasons in counted.items():
        if command:
            found.append(Step(replica, command, next(iter(reasons)), sum(reasons.values())))
        else:
            found += [Step(replica, "", why, count) for why, count in reasons.items()]
    return found


def _lost(f: Finding) -> bool:
    return f.kind == "acked_missing" and f.copies == 0 and bool(f.topic)


class _Sound:
    """Which replicas a repair may take bytes of. It asks those it is given for what most of them hold: where
    a finding says that fewer are right, no others may be given, nor any that is right in another place."""

    def __init__(self, findings: Sequence[Finding], replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._differ = [f for f in findings if f.kind in _DIFFER and not f.ambiguous]
        suffixes = Counter(f.phys_offset for f in self._differ if f.kind == "divergent_suffix")
        self._outvoted = [
            f
            for f in self._differ
            if (f.kind == "bytes_differ" and f.found)
            or (f.kind == "divergent_suffix" and suffixes[f.phys_offset] > f.copies)
        ]

    def sources(self, own: Replica) -> list[Replica]:
        others = [r for r in self._replicas if r is not own]
        if not self._outvoted:
            return others
        wrong = {f.replica for f in self._differ}
        return [] if self.is_confirmed(own) else [r for r in others if r.name not in wrong]

    def is_confirmed(self, own: Replica) -> bool:
        """Is it right somewhere where most of the others are wrong alike?"""
        return any(
            own.covers(f.phys_offset, f.until)
            and not any(g.replica == own.name and g.overlaps(f.phys_offset, f.until) for g in self._differ)
            for f in self._outvoted
        )


def _of(f: Finding, replicas: Sequence[Replica], sound: _Sound) -> tuple[str, str, str]:
    if _lost(f):
        return f.replica, "", _LOST
    if f.ambiguous:
        return f.replica, "", _UNDECIDED
    own = next((r for r in replicas if r.name == f.replica), None)
    found = _by_command(f, own, replicas, sound) if own is not None else None
    return found or (f.replica, "", _by_hand(f, own is not None))


def _by_command(
    f: Finding, own: Replica, replicas: Sequence[Replica], sound: _Sound
) -> tuple[str, str, str] | None:
    if f.kind in _BY_REPAIR | _BY_LOG and not sound.sources(own) and len(replicas) > 1:
        return own.name, "", _OUTVOTED if sound.is_confirmed(own) else _NO_SOURCE
    if f.kind in _BY_REPAIR and f.copies:
        why = "With its broker stopped, this takes the right bytes of the others, and makes queues and index."
        return own.name, _repair(own, replicas, sound), why
    if f.kind in _BY_LOG:
        why = "With its broker stopped, this makes queues and index of the log."
        return own.name, _repair(own, replicas, sound), why
    if f.kind in _COPIED and (source := _holder(f, own, replicas)) is not None:
        why = "With its broker stopped, this brings the file back; keelmq store verify checks it."
        return own.name, _copy(f, own, source), why
    return None


def _by_hand(f: Finding, of_one: bool) -> str:
    if f.severity == ERROR and not f.copies and f.kind in _NOWHERE:
        return _NOWHERE[f.kind]
    if of_one and f.kind in _BY_MASTER:
        return "Start its broker in the group: it follows the master from where both agree, or says why not."
    return _BY_HAND.get(f.kind, _OTHERWISE)


_OTHERWISE: Final = (
    "No command mends this: find out what wrote it (docs/operations.md, When something is wrong)."
)
_BY_HAND: Final = {
    "file_unreadable": "Replace the disk, and start the broker with an empty store: it copies the master's.",
    "file_corrupt": "Put the file back from its .bak or a backup while its broker is stopped.",
    "file_missing": "Put the file back from its .bak or a backup while its broker is stopped.",
    "same_file": "Give stores that are copies of their own: one file counts as one copy.",
    "epoch_file_corrupt": "Start its broker while a master is there: it copies the master's epoch file.",
    "epoch_mismatch": "Start its broker with an empty store: it copies the master's log and epochs.",
    "dup_message": "Nothing to mend: a sender tried again. Consumers have to bear it.",
    "consumer_offset_beyond": "keelmq consumer reset GROUP TOPIC sets the group back to what is there.",
    "crc_mismatch": "No replica holds a good copy: look in a backup (keelmq backup restore).",
    "unreadable_region": "No replica holds a good copy: look in a backup (keelmq backup restore).",
}


def _repair(own: Replica, replicas: Sequence[Replica], sound: _Sound) -> str:
    others = [f"--from {_path(r)}" for r in sound.sources(own)]
    return " ".join(["keelmq store repair", _path(own), *others]) if _all_local(replicas) else ""


def _holder(f: Finding, own: Replica, replicas: Sequence[Replica]) -> Replica | None:
    """A replica that has all of it."""
    able = (r for r in replicas if r is not own and not r.empty and r.covers(f.phys_offset, f.until))
    return next(able, None)


def _copy(f: Finding, own: Replica, source: Replica) -> str:
    if not _all_local((own, source)):
        return ""
    bases = [s.base for s in source.segments if f.phys_offset <= s.base < f.until]
    files = [shlex.quote(f"{source.location}/commitlog/{base:020d}") for base in bases]
    return f"cp --no-clobber {' '.join(files)} {shlex.quote(own.location + '/commitlog/')}" if files else ""


def _all_local(replicas: Sequence[Replica]) -> bool:
    return not any("://" in r.location for r in replicas)


def _path(r: Replica) -> str:
    return shlex.quote(r.location)
