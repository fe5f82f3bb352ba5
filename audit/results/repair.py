"""Which command, or else which step, mends what was found? One row for a replica and what is to be done.

No command that is advised reads from a copy where a finding names it, nor takes what no other right copy has
(``audit.results.right``). A command that would fail is not advised.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from audit.findings import ERROR, INFO, Finding
from audit.intervals import Interval
from audit.kinds.acked import STRAYED
from audit.kinds.files import BEHIND
from audit.reading.beside import EPOCHS
from audit.reading.layout import CHECKPOINT, Replica, Segment
from audit.results.right import Right, is_repairable
from audit.results.stretches import is_blank_behind
from audit.results.tables import FROM_ITS_COPY, from_its_copy

_BY_REPAIR: Final = frozenset({"crc_mismatch", "bytes_differ", "unreadable_region", "phys_offset_mismatch"})
_BY_LOG: Final = frozenset({"cq_wrong", "cq_missing", "cq_dangling", "index_wrong", "index_missing"})
_REJOINS: Final = frozenset({"short_tail", "extra_tail", "epoch_file_corrupt"})
"""Kinds that a broker mends which joins its group again."""
_MISPLACED_KIND: Final = "phys_offset_mismatch"
_COPIED: Final = frozenset({"missing_segment", "missing_start"})
_ANEW: Final = {"file_unreadable": "Replace the disk, and start", "epoch_mismatch": "Start"}
"""Kinds that a broker mends which begins anew, and how its step begins."""
_PUT_BACK: Final = frozenset({"file_corrupt", "file_missing"})
_MADE_BY_ANEW: Final = _BY_REPAIR | _BY_LOG | _COPIED | _ANEW.keys() | {"short_tail"}
_REPAIR: Final = "keelmq store repair"
_LOST: Final = (
    "No store that was audited holds these messages. Audit again with the stores of dead replicas and of "
    "backups (keelmq backup restore); else their senders have to send them again."
)
_IN_A_STRAY: Final = (
    "A file in commitlog holds records of their places under another name, or at other places: that one's "
    "step comes first."
)
_NOWHERE: Final = {
    "short_tail": "No replica goes on where this log has to: look in a backup (keelmq backup restore).",
    "epoch_mismatch": "Its log contradicts this file, and no other has to be right: look in a backup.",
}
"""What is wrong by the store itself; that others are right nobody says."""
_NO_SOURCE: Final = (
    "No other copy is right wherever this needs it: mend the others first, and audit again. Until then keep "
    "this one, which may be right where they are not."
)
_NOT_HERE: Final = (
    "No command reads or mends a store of another machine, or one that is compressed: put plain copies of "
    "all stores here, and audit those."
)
_FROM_OTHERS: Final = (
    "With its broker stopped, this takes the right bytes of the others, and makes queues and index."
)
_FROM_ONE: Final = (
    "With its broker stopped, this takes the bytes of a copy that is right there: a repair cannot tell which "
    "one is. Then keelmq store repair, with this store alone, makes queues and index."
)
_FILE_BACK: Final = "With its broker stopped, this brings the file back; keelmq store verify checks it."
_OVERWRITES_MAX: Final = 20
_MORE: Final = "There are more of these: do what stands above, and audit again."
_OF_LOG: Final = "With its broker stopped, this makes queues and index of the log."
_LEAVES: Final = " What its files know of behind its log's end stays, with exit code 2: a start cuts it."
_KEEP: Final = (
    "Keep this store: no other copy is right in all that it holds, or another one is to be made anew before. "
    "Mend the others, audit again, and make it anew then."
)
_ALONE: Final = (
    "Copy what can be read of this store to another disk first: no other copy was audited. What is gone then "
    "may be in a backup (keelmq backup restore)."
)
_UNDECIDED: Final = (
    "Which copy is right is open: give all replicas, or a ledger; then decide, as no command can."
)
_FOLLOW: Final = (
    "Start its broker in the group: it follows the master from where both agree, or says why not."
)
_CUT: Final = "What it alone has is cut then; keelmq store export, with --from, writes it before."
_SUFFIX: Final = (
    "Do not start its broker in the group: that cuts what it has from here on. Copy the store to another "
    "disk first; then keelmq store export, with --from and --bodies, writes these messages, to be sent again "
    "(exit code 1: some of it cannot be read). Once they are, start its broker."
)
_MISPLACED: Final = (
    "Copy the store to another disk first, and keep the copy: a record of it stands elsewhere than it says, "
    "and may be the only copy of a message. Send again from there what is lost, if its senders cannot: once "
    "this is done an audit may take it for too old. Then put this file back from a replica that is right in "
    "it (cp), and keelmq store repair, with --from each of the others, makes queues and index."
)
_MADE_BEHIND: Final = (
    "Do what stands above, and audit again: the rest is mended once each file of commitlog has its own name."
)
_IN_ANOTHER_SUFFIX: Final = (
    "Another replica has it, where a rejoin cuts its log: that one's step comes first; then send the "
    "message again."
)


_TRACES: Final = (
    "No repair yet: no log goes on where one has to, and queues and index may be the only trace of what is "
    "lost there. Look in a backup first (keelmq backup restore), or copy this store to another disk."
)
_BEHIND: Final = (
    "It names what its log lacks: no repair makes that, and it may be the only trace of what is lost. Look "
    "in a backup first (keelmq backup restore), or copy this store to another disk. Then start its broker: "
    "keelmq cuts such entries off consumequeue, RocketMQ writes its queue's next message over them."
)
_ASIDE: Final = (
    "With its broker stopped, move this file out of commitlog, and keep it (file_corrupt names it). If no "
    "replica has the segment that its records name, it is that segment: put it back under that name "
    "(unpacked, if it is compressed; keep also what stands there). Audit again: that tells what fills the "
    "place where it stood."
)
_TOO_LONG: Final = (
    "With its broker stopped, copy this file to another disk, and keep it: what stands in it behind the "
    "segment's end is in no log. Then cut it to a segment's size (truncate), and audit again."
)
_ZEROS_BEHIND: Final = "With its broker stopped, this cuts off zeros that stand behind the segment's end."
_WITH_NOTHING: Final = "the broker with an empty store while"
_WAITING: Final = frozenset({_NO_SOURCE, _KEEP, _MORE, _IN_ANOTHER_SUFFIX, _MADE_BEHIND})
"""Steps that wait for others."""


@dataclass(frozen=True, slots=True)
class Step:
    """``command``: for a shell, where the stores are as here; empty if no command mends it."""

    replica: str
    command: str
    why: str
    findings: int


def steps(findings: Sequence[Finding], replicas: Sequence[Replica]) -> list[Step]:
    """What to do, errors first, and files that are missing before what a repair reads; what starts a broker
    comes behind what is done while it is stopped, and what waits for others last. A consequence is mended
    with its cause."""
    counted: Counter[tuple[str, str, str]] = Counter()
    whys: dict[tuple[str, str, str], str] = {}
    advice = _Advice(findings, replicas)
    rows = [f for f in findings if f.severity != INFO or _lost(f)]
    ranks: dict[tuple[str, str, str], tuple[int, int, bool]] = {}
    for f in sorted(rows, key=_rank):
        replica, command, why = advice.of(f)
        one = replica, command, "" if command else why
        counted[one] += 1
        whys.setdefault(one, why)
        rank = _phase(command, why), advice.rank(f), command.startswith(_REPAIR)
        ranks[one] = min(ranks.get(one, rank), rank)
    return [Step(*one[:2], whys[one], counted[one]) for one in sorted(counted, key=lambda one: ranks[one])]


def _phase(command: str, why: str) -> int:
    """What is done while brokers are stopped, what starts one, and what waits for other steps."""
    if command:
        return 0
    started = why in (_BEHIND, _BY_HAND["epoch_file_corrupt"]) or why.startswith(_FOLLOW)
    return 2 if why in _WAITING else int(started or _WITH_NOTHING in why)


def _rank(f: Finding) -> int:
    """What tells of the log's promises is put back before anything is decided by it."""
    if _lost(f):
        return 1
    if f.kind in _PUT_BACK and f.segment in (CHECKPOINT, EPOCHS):
        return 2
    return 3 if f.severity == ERROR else 4


def _lost(f: Finding) -> bool:
    return f.kind == "acked_missing" and f.copies == 0 and bool(f.topic)


def _no_log_goes_on(f: Finding) -> bool:
    return f.kind == "short_tail" and f.severity == ERROR and not f.copies


def _holds_alone(r: Replica, replicas: Sequence[Replica]) -> bool:
    """Has it a segment under another one's name that no other log begins?"""
    return any(not any(o is not r and o.start <= begin < o.end for o in replicas) for begin, _ in r.moved)


def _kept(findings: Sequence[Finding], replicas: Sequence[Replica]) -> set[str]:
    """The replicas that may hold the only copy of a message elsewhere than it says to be."""
    lost = any(map(_lost, findings))
    kept = {f.replica for f in findings if lost and f.kind == _MISPLACED_KIND}
    alone = (r for r in replicas if (lost and r.misnamed) or r.elsewhere or _holds_alone(r, replicas))
    return kept | {r.name for r in alone}


def _bearers(findings: Sequence[Finding], replicas: Sequence[Replica]) -> set[str]:
    """The replicas of which files of wrong names, or misplaced records, hold what is lost."""
    gone = [f for f in findings if _lost(f)]
    strayed = any(f.found == STRAYED for f in gone)
    return {r.name for r in replicas if (strayed and r.elsewhere) or any(map(partial(_is_held, r), gone))}


def _is_held(r: Replica, f: Finding) -> bool:
    """Do files of wrong names, or misplaced records, hold what is lost?"""
    return any(f.overlaps(*span) for span in (*r.misnamed, *r.elsewhere))


def _know_of_more(findings: Sequence[Finding], replicas: Mapping[str, Replica]) -> set[str]:
    """The replicas of which a file knows of records behind the log's end, which no repair makes."""
    told = ((f, replicas[f.replica]) for f in findings if f.replica in replicas)
    return {
        r.name
        for f, r in told
        if (f.kind == "cq_dangling" and f.until > r.end) or (f.kind == "short_tail" and f.severity != INFO)
    }


class _Advice:
    """``_anew``: the replica that may begin with an empty store. There is one at once, and no other command
    reads from it. ``_overwritten``: how many commands there are for single stretches, by replica; ``_kept``:
    those that no command writes over."""

    def __init__(self, findings: Sequence[Finding], replicas: Sequence[Replica]) -> None:
        self._replicas = {r.name: r for r in replicas}
        self._right = Right(findings, replicas)
        self._cut = [f for f in findings if f.kind == "divergent_suffix" and f.severity == ERROR]
        self._wrong_files = {r.name: {f.segment for f in findings if f.replica == r.name} for r in replicas}
        self._anew, self._leader = self._first_anew(findings)
        if self._anew is not None:
            self._right.leave_out(self._anew)
        self._overwritten: Counter[str] = Counter()
        self._put_right: dict[tuple[str, str], tuple[str, str, str]] = {}  # files of misplaced records
        self._kept = _kept(findings, replicas)
        self._cut_first = {r.name for r in replicas if _is_too_long(r)}
        self._bearers = _bearers(findings, replicas)
        self._leaves = _know_of_more(findings, self._replicas)
        self._lacks_all = any(_no_log_goes_on(f) and f.replica in self._replicas for f in findings)

    def _first_anew(self, findings: Sequence[Finding]) -> tuple[Replica | None, Replica | None]:
        for f in sorted(findings, key=_rank):
            own = self._replicas.get(f.replica)
            if own is not None and self._wants_anew(f):
                leader = self._right.leader(own)
                if leader is not None:
                    return own, leader
        return None, None

    def rank(self, f: Finding) -> int:
        """What holds lost messages, or may, comes before the step that they are given."""
        strays = _is_misnamed(f) or f.kind == _MISPLACED_KIND
        holds = (strays and f.replica in self._bearers) or f.kind == "files_unseen"
        return 0 if holds else _rank(f)

    def of(self, f: Finding) -> tuple[str, str, str]:
        if _lost(f):
            return f.replica, "", _IN_A_STRAY if self._is_in_a_stray(f) else _LOST
        if f.ambiguous:
            return f.replica, "", _UNDECIDED
        own = self._replicas.get(f.replica)
        found = self._by_command(f, own) if own is not None else None
        if found is not None and found[1] and f.kind == _MISPLACED_KIND:
            self._put_right[f.replica, f.segment] = found
        return found or (f.replica, "", self._by_hand(f, own))

    def _is_in_a_stray(self, f: Finding) -> bool:
        return f.found == STRAYED or any(_is_held(r, f) for r in self._replicas.values())

    def _by_command(self, f: Finding, own: Replica) -> tuple[str, str, str] | None:
        if own is self._anew and f.kind in _MADE_BY_ANEW:
            return None
        if found := self._of_file(f, own):
            return found
        if why_not := self._why_no_repair(f, own):
            return own.name, "", why_not
        if f.kind in _BY_REPAIR and f.copies:
            return self._repaired(f, own)
        if f.kind in _BY_LOG:
            return self._of_log(own)
        if f.kind == "divergent_suffix" and f.severity == ERROR:
            return own.name, _export(f, own) if self._right.is_plain(own) else "", _SUFFIX
        return None

    def _of_file(self, f: Finding, own: Replica) -> tuple[str, str, str] | None:
        """Of what goes by whole files."""
        if f.kind in _PUT_BACK and (back := from_its_copy(f.segment, own, self._wrong_files[own.name])):
            return self._if_plain(own, back, FROM_ITS_COPY)
        if _is_misnamed(f):
            return self._put_right.get((f.replica, f.segment.removeprefix("commitlog/")))  # then it is right
        if f.kind == "unreadable_region" and f.found.endswith(BEHIND):
            return self._shortened(f, own)
        return self._copied(f, own) if f.kind in _COPIED or _is_of_empty_file(f, own) else None

    def _why_no_repair(self, f: Finding, own: Replica) -> str:
        """Of what a repair would mend else; empty: it may."""
        if f.replica in self._kept and f.kind in _BY_REPAIR | _BY_LOG:
            return _kept_words(f, own)
        if f.kind in _BY_LOG and f.replica in self._cut_first:
            return _TOO_LONG
        if f.kind.startswith("cq_") and f.phys_offset >= own.end:  # an index is made anew, queues go on
            return _BEHIND
        mended = f.kind in _BY_LOG or (f.kind in _BY_REPAIR and f.copies)
        return _TRACES if mended and self._lacks_all else ""

    def _of_log(self, own: Replica) -> tuple[str, str, str]:
        whole, compared = not self._right.is_named(own, own.start, own.end), self._right.compared(own)
        able = is_repairable(own) and (whole or bool(compared) or len(self._replicas) == 1)
        return self._by_repair(own, compared, _OF_LOG) if able else (own.name, "", _NO_SOURCE)

    def _copied(self, f: Finding, own: Replica) -> tuple[str, str, str]:
        able = self._right.holders(own, f.phys_offset, f.until)
        if not able:
            held = any(r is not own and r.covers(f.phys_offset, f.until) for r in self._replicas.values())
            return own.name, "", _NO_SOURCE if held else _BY_HAND["crc_mismatch"]
        return self._if_plain(own, _copy(f, own, able[0]), _FILE_BACK, able[0])

    def _repaired(self, f: Finding, own: Replica) -> tuple[str, str, str]:
        span = f.phys_offset, f.until
        if f.kind == "bytes_differ":
            # Of records in a row, a repair has to see one behind them that is the same.
            able = f.records <= 1 and self._right.outvotes(own, *span)
        else:
            # A repair looks at each record alone: those of another file have other borders.
            alone = f.kind != _MISPLACED_KIND or f.records <= 1
            able = alone and self._right.mends(own, *span, sized=f.kind != "unreadable_region")
        if able and is_repairable(own) and own.name not in self._cut_first:
            return self._by_repair(own, self._right.sources(own), _FROM_OTHERS)
        if not self._right.span_sources(own, *span):
            return own.name, "", _NO_SOURCE
        self._overwritten[own.name] += 1
        if self._overwritten[own.name] > _OVERWRITES_MAX:
            return own.name, "", _MORE
        found = self._right.span_source(own, *span)
        if found is None:
            return own.name, "", _NO_SOURCE
        source, until = found
        return self._if_plain(own, _overwrite((span[0], until), own, source), _FROM_ONE, source)

    def _shortened(self, f: Finding, own: Replica) -> tuple[str, str, str]:
        file = next(s for s in own.segments if own.segment_end(s) == f.phys_offset)
        if not is_blank_behind(own, file):
            return own.name, "", _TOO_LONG
        path = shlex.quote(f"{own.location}/{file.file}")
        return self._if_plain(own, f"truncate --size={own.segment_bytes} {path}", _ZEROS_BEHIND)

    def _by_repair(self, own: Replica, sources: Sequence[Replica], why: str) -> tuple[str, str, str]:
        why += _LEAVES if own.name in self._leaves else ""
        return self._if_plain(own, _repair(own, sources), why)

    def _if_plain(self, own: Replica, command: str, why: str, *sources: Replica) -> tuple[str, str, str]:
        plain = self._right.is_plain(own, *sources)
        return own.name, command if plain else "", why if plain else _NOT_HERE

    def _by_hand(self, f: Finding, own: Replica | None) -> str:
        told = self._of_store(f, own) if own is not None else ""
        if told:
            return told
        if self._is_nowhere(f):
            return _NOWHERE[f.kind]
        if f.kind in ("divergent_suffix", "extra_tail"):
            return f"{_FOLLOW} {_CUT}"
        if f.kind == "acked_missing" and any(c.overlaps(f.phys_offset, f.until) for c in self._cut):
            return _IN_ANOTHER_SUFFIX
        return _BY_HAND.get(f.kind, _OTHERWISE)

    def _of_store(self, f: Finding, own: Replica) -> str:
        """What goes by all that the store holds, and the others; empty if nothing does."""
        if _is_misnamed(f):
            return _TOO_LONG if f.segment in {s.file for s in _too_long(own)} else _ASIDE
        if f.kind in _REJOINS and any(cut.replica == own.name for cut in self._cut):
            return _SUFFIX
        if own is self._anew and self._leader is not None and f.kind in _MADE_BY_ANEW:
            begin, name = _ANEW.get(f.kind, "Start"), self._leader.name
            return f"{begin} {_WITH_NOTHING} {name} leads: it copies the master's."
        if self._wants_anew(f):
            return _KEEP if len(self._replicas) > 1 else _ALONE
        return self._longer(f, own) if f.kind == "short_tail" and not self._is_nowhere(f) else ""

    def _longer(self, f: Finding, own: Replica) -> str:
        """Who follows a shorter log is cut to it: the one that has the rest has to lead."""
        able = self._right.leaders(own, f.phys_offset, f.until)
        if able:
            return f"{_FOLLOW} {able[0].name} has to lead, which has what this log lacks."
        return _NO_SOURCE if f.copies or self._goes_on(f) else _FOLLOW

    def _goes_on(self, f: Finding) -> bool:
        """Does another log reach to where one ends too early? What it has before need not be right."""
        return any(f.until <= r.end for r in self._replicas.values() if r.name != f.replica and not r.empty)

    def _is_nowhere(self, f: Finding) -> bool:
        nowhere = f.severity == ERROR and not f.copies and f.kind in _NOWHERE
        return nowhere and not (f.kind == "short_tail" and self._goes_on(f))

    def _wants_anew(self, f: Finding) -> bool:
        return f.kind in _ANEW and f.severity != INFO and not f.ambiguous and not self._is_nowhere(f)


def _is_misnamed(f: Finding) -> bool:
    return f.kind == "file_corrupt" and f.segment.startswith("commitlog/")


def _kept_words(f: Finding, own: Replica) -> str:
    """Of a file that is another segment as a whole there is one step, as its place is not its own; and of one
    that lacks what another file has. What stands behind a segment goes by that file's own step."""
    if f.kind in _BY_REPAIR:
        long = {s.file for s in _too_long(own)}
        bearers = {s.file for s, span in own.stray if span is not None and f.overlaps(*span)}
        if bearers & long or f"commitlog/{f.segment}" in long:
            return _TOO_LONG
        whole = {file.name for file, _ in own.moved_files if file.base == int(file.name)}
        if bearers or f.segment in whole:
            return _ASIDE
    return _MISPLACED if own.elsewhere or f.kind == _MISPLACED_KIND else _MADE_BEHIND


def _too_long(r: Replica) -> list[Segment]:
    return [s for s in r.segments if s.size_bytes > r.segment_bytes]


def _is_too_long(r: Replica) -> bool:
    """Has it a file that no command cuts? A repair takes it for damage."""
    return not all(is_blank_behind(r, segment) for segment in _too_long(r))


def _is_of_empty_file(f: Finding, own: Replica) -> bool:
    """A repair takes a segment of 0 bytes for one that is gone."""
    empty = {s.base for s in own.segments if not s.size_bytes}
    return f.kind == "unreadable_region" and f.phys_offset in empty


_OTHERWISE: Final = (
    "No command mends this: find out what wrote it (docs/operations.md, When something is wrong)."
)
_BY_HAND: Final = {
    "file_corrupt": "Put the file back from its .bak or a backup while its broker is stopped.",
    "file_missing": "Put the file back from its .bak or a backup while its broker is stopped.",
    "files_unseen": "Move what is no segment out of commitlog, keep it, and audit again.",
    "same_file": "Give stores that are copies of their own: one file counts as one copy.",
    "epoch_file_corrupt": "Start its broker while a master is there: it copies the master's epoch file.",
    "dup_message": "Nothing to mend: a sender tried again. Consumers have to bear it.",
    "consumer_offset_beyond": "keelmq consumer reset GROUP TOPIC sets the group back to what is there.",
    "crc_mismatch": "No replica holds a good copy: look in a backup (keelmq backup restore).",
    "unreadable_region": "No replica holds a good copy: look in a backup (keelmq backup restore).",
    "phys_offset_mismatch": "No replica holds a good copy: look in a backup (keelmq backup restore).",
}


def _repair(own: Replica, sources: Sequence[Replica]) -> str:
    return " ".join([_REPAIR, _path(own), *(f"--from {_path(r)}" for r in sources)])


def _copy(f: Finding, own: Replica, source: Replica) -> str:
    files = [shlex.quote(f"{source.location}/commitlog/{base:020d}") for base in _bases(f, source)]
    if not files:
        return ""
    into = own.location + "/commitlog/"
    copy = f"cp --no-clobber {' '.join(files)} {shlex.quote(into)}"
    if not _is_of_empty_file(f, own):
        return copy
    return f"find {shlex.quote(f'{into}{f.phys_offset:020d}')} -empty -delete && {copy}"


def _overwrite(span: Interval, own: Replica, source: Replica) -> str:
    base = span[0] // own.segment_bytes * own.segment_bytes
    file, at = f"commitlog/{base:020d}", span[0] - base
    files = [shlex.quote(f"{name}={r.location}/{file}") for name, r in (("if", source), ("of", own))]
    stretch = f"skip={at} seek={at} count={span[1] - span[0]}"
    in_bytes = "bs=1M iflag=skip_bytes,count_bytes oflag=seek_bytes"
    return f"dd {' '.join(files)} {stretch} {in_bytes} conv=notrunc,fsync"


def _export(f: Finding, own: Replica) -> str:
    out = shlex.quote(f"{own.name}-suffix-{f.phys_offset}.jsonl")
    told = f"--from {f.phys_offset} --bodies --out {out}"
    return f"keelmq store export {_path(own)} {told}"


def _bases(f: Finding, source: Replica) -> list[int]:
    return [s.base for s in source.segments if f.phys_offset <= s.base < f.until]


def _path(r: Replica) -> str:
    return shlex.quote(r.location)
