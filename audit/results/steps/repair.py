"""Which command, or else which step, mends what was found? One row for a replica and what is to be done.

No command that is advised reads from a copy where a finding names it, nor takes what no other right copy has
(``audit.results.blame.right``). A command that would fail is not advised.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from audit.findings import ERROR, INFO, Finding
from audit.kinds.files import is_behind
from audit.kinds.logs.borders import around_of
from audit.kinds.made.entries import is_misnamed_file
from audit.reading.layout import CHECKPOINT, Replica
from audit.reading.small.beside import EPOCHS
from audit.results.blame.right import Right, is_repairable
from audit.results.steps import advice, commands, folders, kept
from audit.results.steps.advice import Advice, Phase
from audit.results.steps.parts import by_segment, parts
from audit.results.steps.stretches import is_blank_behind
from audit.results.steps.tables import FROM_ITS_COPY, epochs_from_copy, from_its_copy
from audit.rows.intervals import Interval

_BY_REPAIR: Final = frozenset({"crc_mismatch", "bytes_differ", "unreadable_region", "phys_offset_mismatch"})
_BY_LOG: Final = frozenset({"cq_wrong", "cq_missing", "cq_dangling", "index_wrong", "index_missing"})
_REJOINS: Final = frozenset({"short_tail", "extra_tail", "epoch_file_corrupt"})
"""Kinds that a broker mends which joins its group again."""
_IN_PARTS: Final = frozenset({"unreadable_region", "missing_segment", "missing_start"})
"""Kinds of which a row may stand for much that some copy has, and for what none has."""
_COPIED: Final = frozenset({"missing_segment", "missing_start"})
_ANEW: Final = {"file_unreadable": "Replace the disk, and start", "epoch_mismatch": "Start"}
"""Kinds that a broker mends which begins anew, and how its step begins."""
_PUT_BACK: Final = frozenset({"file_corrupt", "file_missing"})
_MADE_BY_ANEW: Final = _BY_REPAIR | _BY_LOG | _COPIED | _ANEW.keys() | {"short_tail", "epoch_file_corrupt"}
_MADE_BY_REPAIR: Final = ("consumequeue/", "index/")
_OVERWRITES_MAX: Final = 20
"""Commands for single stretches that are told of one replica at once."""


@dataclass(frozen=True, slots=True)
class Step:
    """``command``: for a shell, where the stores are as here; empty if no command mends it."""

    replica: str
    command: str
    why: str
    findings: int


class _Told(NamedTuple):
    """One of the steps of a finding. A command is run while brokers are stopped, whatever is said of it."""

    replica: str
    command: str
    advice: Advice

    @property
    def phase(self) -> Phase:
        return Phase.STOPPED if self.command else self.advice.phase

    @property
    def key(self) -> tuple[str, str, str]:
        """Of which there is one step, for however many findings."""
        return self.replica, self.command, "" if self.command else self.advice.text


def steps(findings: Sequence[Finding], replicas: Sequence[Replica]) -> list[Step]:
    """What to do, errors first, and files that are missing before what a repair reads; what starts a broker
    comes behind what is done while it is stopped, and what waits for others last. A consequence is mended
    with its cause."""
    counted: Counter[tuple[str, str, str]] = Counter()
    whys: dict[tuple[str, str, str], str] = {}
    adviser = _Adviser(findings, replicas)
    rows = [f for f in findings if f.severity != INFO or kept.is_lost(f)]
    ranks: dict[tuple[str, str, str], tuple[Phase, int, bool]] = {}
    for f in sorted(rows, key=_rank):
        for told in adviser.of(f):
            counted[told.key] += 1
            whys.setdefault(told.key, told.advice.text)
            rank = told.phase, adviser.rank(f), told.command.startswith(commands.REPAIR)
            ranks[told.key] = min(ranks.get(told.key, rank), rank)
    return [Step(*one[:2], whys[one], counted[one]) for one in sorted(counted, key=lambda one: ranks[one])]


def _rank(f: Finding) -> int:
    """What tells of the log's promises is put back before anything is decided by it."""
    if kept.is_lost(f):
        return 1
    if f.kind in _PUT_BACK and f.segment in (CHECKPOINT, EPOCHS):
        return 2
    return 3 if f.severity == ERROR else 4


def _no_log_goes_on(f: Finding) -> bool:
    return f.kind == "short_tail" and f.severity == ERROR and not f.copies


def _know_of_more(findings: Sequence[Finding], replicas: Mapping[str, Replica]) -> set[str]:
    """The replicas of which a file knows of records behind the log's end, which no repair makes."""
    told = ((f, replicas[f.replica]) for f in findings if f.replica in replicas)
    return {
        r.name
        for f, r in told
        if (f.kind == "cq_dangling" and f.until > r.end) or (f.kind == "short_tail" and f.severity != INFO)
    }


class _Adviser:
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
        self._put_right: dict[tuple[str, str], _Told] = {}  # files of misplaced records
        self._reaching = kept.reaching(replicas)
        self._kept = kept.kept(findings, replicas) | self._reaching.keys()
        self._cut_first = {r.name for r in replicas if kept.is_too_long(r)}
        self._bearers = kept.bearers(findings, replicas) | self._reaching.keys()
        self._leaves = _know_of_more(findings, self._replicas)
        self._moved_folders = folders.moved(findings, replicas)
        self._lacks_all = any(_no_log_goes_on(f) and f.replica in self._replicas for f in findings)

    def _first_anew(self, findings: Sequence[Finding]) -> tuple[Replica | None, Replica | None]:
        for f in sorted(findings, key=_rank):
            own = self._replicas.get(f.replica)
            if own is not None and (self._wants_anew(f) or self._has_no_source(f, own)):
                leader = self._right.leader(own)
                if leader is not None:
                    return own, leader
        return None, None

    def rank(self, f: Finding) -> int:
        """What holds lost messages, or may, comes before the step that they are given; first what nobody
        looked at."""
        if f.kind == "files_unseen":
            return -1
        strays = kept.is_misnamed(f) or f.kind == kept.MISPLACED
        holds = (strays and f.replica in self._bearers) or kept.is_misnamed(f)
        return 0 if holds or is_misnamed_file(f) or self._is_of_moved_folder(f) else _rank(f)

    def _is_of_moved_folder(self, f: Finding) -> bool:
        return f.kind == "cq_dangling" and (f.replica, f.topic, f.queue_id) in self._moved_folders

    def of(self, f: Finding) -> list[_Told]:
        """Nothing starts, or is given up, while a file holds more than any log."""
        waits = [_Told(f.replica, "", advice.PUT_BACK_FIRST)] if self._reaching else []
        gives_up = f.kind in advice.NOWHERE and self._is_nowhere(f)
        told = waits if waits and gives_up else self._of(f)
        return [waits[0] if waits and one.phase is Phase.STARTS else one for one in told]

    def _of(self, f: Finding) -> list[_Told]:
        if kept.is_lost(f):
            return [_Told(f.replica, "", advice.IN_A_STRAY if self._is_in_a_stray(f) else advice.LOST)]
        if f.ambiguous:
            return [_Told(f.replica, "", advice.UNDECIDED)]
        own = self._replicas.get(f.replica)
        found = self._by_command(f, own) if own is not None else []
        if found and found[0].command and f.kind == kept.MISPLACED:
            self._put_right[f.replica, f.segment] = found[0]
        return found or [_Told(f.replica, "", self._by_hand(f, own))]

    def _is_in_a_stray(self, f: Finding) -> bool:
        return (
            bool(self._reaching)
            or kept.is_strayed(f)
            or any(kept.is_held(r, f) for r in self._replicas.values())
        )

    def _by_command(self, f: Finding, own: Replica) -> list[_Told]:
        if own is self._anew and f.kind in _MADE_BY_ANEW:
            return []
        if found := self._of_file(f, own):
            return found
        if why_not := self._why_no_repair(f, own):
            return [_Told(own.name, "", why_not)]
        if f.kind in _BY_REPAIR and f.copies:
            return self._repaired(f, own)
        if f.kind in _IN_PARTS:
            return self._in_parts(f, own)
        if f.kind in _BY_LOG:
            return [self._of_log(own)]
        if f.kind == "divergent_suffix" and f.severity == ERROR:
            command = commands.export(f, own) if self._right.is_plain(own) else ""
            return [_Told(own.name, command, advice.SUFFIX)]
        return []

    def _of_file(self, f: Finding, own: Replica) -> list[_Told]:
        """Of what goes by whole files."""
        if f.kind in _PUT_BACK and (back := from_its_copy(f.segment, own, self._wrong_files[own.name])):
            return [self._if_plain(own, back, FROM_ITS_COPY)]
        if f.kind == "epoch_file_corrupt":
            back = epochs_from_copy(own, list(self._replicas.values()), self._wrong_files[own.name])
            return [self._if_plain(own, back, advice.EPOCHS_BACK)] if back else []
        if kept.is_misnamed(f):
            put = self._put_right.get((f.replica, f.segment.removeprefix("commitlog/")))  # then it is right
            return [put] if put is not None else []
        if is_behind(f):
            return [self._shortened(f, own)]
        if f.kind in _COPIED or commands.is_of_empty_file(f, own):
            return self._copied(f, own) or self._in_parts(f, own)
        return []

    def _why_no_repair(self, f: Finding, own: Replica) -> Advice | None:
        """Of what a repair would mend else; None: it may."""
        if is_misnamed_file(f):
            return advice.file_away(f.segment)
        if f.replica in self._kept and f.kind in _BY_REPAIR | _BY_LOG:
            return kept.kept_words(f, own, of_bytes=f.kind in _BY_REPAIR)
        if f.kind in _BY_LOG and f.replica in self._cut_first:
            return advice.TOO_LONG
        if self._is_of_moved_folder(f):
            return advice.folder_away(f"consumequeue/{f.topic}/{f.queue_id}")
        if self._right.is_contradicted(f) or self._right.is_outvoted(f):
            return advice.RECORD_OR_ENTRY
        if f.kind.startswith("cq_") and f.phys_offset >= own.end:  # an index is made anew, queues go on
            return advice.BEHIND
        mended = f.kind in _BY_LOG or (f.kind in _BY_REPAIR and f.copies)
        return advice.TRACES if mended and self._lacks_all else None

    def _of_log(self, own: Replica) -> _Told:
        if self._right.contradicts_entry(own):
            return _Told(own.name, "", advice.RECORD_OR_ENTRY)
        compared = self._right.compared(own)
        whole = not self._right.is_named(own, own.start, own.end) or self._right.is_alone(own)
        if not is_repairable(own) or not (whole or compared or len(self._replicas) == 1):
            return _Told(own.name, "", advice.NO_SOURCE)
        return self._by_repair(own, compared, advice.OF_LOG)

    def _copied(self, f: Finding, own: Replica) -> list[_Told]:
        """As whole files of one that is right in all of it."""
        able = self._right.holders(own, f.phys_offset, f.until)
        if not able:
            return []
        over_empty = commands.is_of_empty_file(f, own)
        command = commands.copy((f.phys_offset, f.until), own, able[0], over_empty=over_empty)
        return [self._if_plain(own, command, advice.FILE_BACK, able[0])]

    def _repaired(self, f: Finding, own: Replica) -> list[_Told]:
        span = f.phys_offset, f.until
        if f.kind == "bytes_differ":
            # Of records in a row, a repair has to see one behind them that is the same.
            able = f.records <= 1 and self._right.outvotes(own, *span)
        else:
            # A repair looks at each record alone: those of another file have other borders.
            alone = f.kind != kept.MISPLACED or f.records <= 1
            able = alone and self._right.mends(own, *span, sized=f.kind != "unreadable_region")
        able = able and is_repairable(own) and not self._right.contradicts_entry(own)
        if able and own.name not in self._cut_first:
            return [self._by_repair(own, self._right.sources(own), advice.FROM_OTHERS)]
        if self._overwritten[own.name] >= _OVERWRITES_MAX:
            return [_Told(own.name, "", advice.MORE)]
        found = self._right.span_source(own, *span)
        if found is not None:
            return [self._overwrite((span[0], found[1]), own, found[0])]
        return self._in_parts(f, own) if f.kind in _IN_PARTS else [self._of_rest(own, [span], none=True)]

    def _in_parts(self, f: Finding, own: Replica) -> list[_Told]:
        """What copies are right of a part of it each, and what is said of the rest."""
        if not f.copies and _lacks_filler(f, own):
            return [self._if_plain(own, commands.sized(own, f.phys_offset), advice.FILLER)]
        told: list[_Told] = []
        rest: list[Interval] = []
        for span in by_segment(f.phys_offset, f.until, own.segment_bytes):
            room = _OVERWRITES_MAX - self._overwritten[own.name]
            taken, left = parts(self._right, own, *span, sure=f.copies > 0) if room > 0 else ([], [])
            if taken and _is_short(own, span[0]):
                told.append(self._if_plain(own, commands.sized(own, span[0]), advice.ROOM))
            told += [self._overwrite((part.begin, part.until), own, part.source) for part in taken[:room]]
            looked = max([*(part.until for part in taken), *(until for _, until in left)], default=-1)
            if room < len(taken) or looked < span[1]:
                return [*told, _Told(own.name, "", advice.MORE)]
            rest += left
        return [*told, self._of_rest(own, rest, none=not told)] if rest else told

    def _of_rest(self, own: Replica, left: Sequence[Interval], *, none: bool) -> _Told:
        """Of what no copy can be taken from; ``none``: of no part of it."""
        if any(self._right.is_held(own, *span) for span in left):
            return _Told(own.name, "", advice.EPOCHS_FIRST if own.epoch_problem else advice.NO_SOURCE)
        undecided = [span for span in left if self._right.is_open(*span)]
        said = advice.UNDECIDED if undecided else advice.NO_GOOD_COPY
        return _Told(own.name, "", said if none else said.of(undecided or left))

    def _overwrite(self, span: Interval, own: Replica, source: Replica) -> _Told:
        self._overwritten[own.name] += 1
        said = advice.BYTES_ALONE if self._right.contradicts_entry(own) else advice.FROM_ONE
        return self._if_plain(own, commands.overwrite(span, own, source), said, source)

    def _shortened(self, f: Finding, own: Replica) -> _Told:
        file = next(s for s in own.segments if own.segment_end(s) == f.phys_offset)
        if not is_blank_behind(own, file):
            return _Told(own.name, "", advice.TOO_LONG)
        return self._if_plain(own, commands.sized(own, file.base), advice.ZEROS_BEHIND)

    def _by_repair(self, own: Replica, sources: Sequence[Replica], said: Advice) -> _Told:
        said = said.and_also(advice.LEAVES) if own.name in self._leaves else said
        if not any(self._right.has_queue_files(r) for r in (own, *sources)):
            said = said.and_also(advice.QUEUE_SIZE)
        return self._if_plain(own, commands.repair(own, sources), said)

    def _if_plain(self, own: Replica, command: str, said: Advice, *sources: Replica) -> _Told:
        plain = self._right.is_plain(own, *sources)
        return _Told(own.name, command if plain else "", said if plain else advice.NOT_HERE)

    def _by_hand(self, f: Finding, own: Replica | None) -> Advice:
        told = self._of_store(f, own) if own is not None else None
        if told is not None:
            return told
        if self._is_nowhere(f):
            return advice.NOWHERE[f.kind]
        if f.kind in ("divergent_suffix", "extra_tail"):
            return advice.FOLLOW.and_also(advice.CUT)
        if f.kind == "acked_missing" and any(c.overlaps(f.phys_offset, f.until) for c in self._cut):
            return advice.IN_ANOTHER_SUFFIX
        said = advice.BY_HAND.get(f.kind, advice.OTHERWISE)
        is_open = said is advice.NO_GOOD_COPY and self._right.is_open(f.phys_offset, f.until)
        return advice.UNDECIDED if is_open else said

    def _of_store(self, f: Finding, own: Replica) -> Advice | None:
        """What goes by all that the store holds, and the others; None if nothing does."""
        if kept.is_misnamed(f):
            if f.segment in self._reaching.get(own.name, ()):
                return advice.PUT_BACK
            return advice.TOO_LONG if f.segment in {s.file for s in kept.too_long(own)} else advice.ASIDE
        if f.kind in _REJOINS and any(cut.replica == own.name for cut in self._cut):
            return advice.SUFFIX
        if own is self._anew and self._leader is not None and f.kind in _MADE_BY_ANEW:
            return advice.anew(_ANEW.get(f.kind, "Start"), self._leader.name)
        if self._wants_anew(f):
            return self._not_anew(f, own)
        return self._longer(f, own) if f.kind == "short_tail" and not self._is_nowhere(f) else None

    def _not_anew(self, f: Finding, own: Replica) -> Advice:
        """Of a store that would be made anew, if one led that can start."""
        if len(self._replicas) == 1:
            return advice.ALONE
        able = self._right.able_to_lead(own) if self._anew is None else []
        apart = self._anew is not None or self._right.misleads(own) or own.unread or own.gaps
        if not apart and _is_beside(f) and (able or f.segment.startswith(_MADE_BY_REPAIR)):
            return advice.UNREADABLE_BESIDE
        if able:
            return advice.leader_first(able[0].name)
        has = self._right.holders(own, f.phys_offset, f.until) if not _is_beside(f) else []
        return advice.segment_first(has[0].name) if has and self._may_move(f, own) else advice.KEEP

    def _may_move(self, f: Finding, own: Replica) -> bool:
        """May a file of the log that cannot be read be taken out, and put back from another?"""
        alone = self._anew is None and not self._right.misleads(own) and own.name not in self._kept
        return alone and f.kind == "file_unreadable"

    def _longer(self, f: Finding, own: Replica) -> Advice:
        """Who follows a shorter log is cut to it: the one that has the rest has to lead."""
        able = self._right.leaders(own, f.phys_offset, f.until)
        if able:
            return advice.FOLLOW.and_also(f"{able[0].name} has to lead, which has what this log lacks.")
        return advice.NO_SOURCE if f.copies or self._goes_on(f) else advice.FOLLOW

    def _goes_on(self, f: Finding) -> bool:
        """Does another log reach to where one ends too early? What it has before need not be right."""
        return any(f.until <= r.end for r in self._replicas.values() if r.name != f.replica and not r.empty)

    def _is_nowhere(self, f: Finding) -> bool:
        nowhere = f.severity == ERROR and not f.copies and f.kind in advice.NOWHERE
        return nowhere and not (f.kind == "short_tail" and self._goes_on(f))

    def _wants_anew(self, f: Finding) -> bool:
        return f.kind in _ANEW and f.severity != INFO and not f.ambiguous and not self._is_nowhere(f)

    def _has_no_source(self, f: Finding, own: Replica) -> bool:
        """Lacks it a file, so that its broker does not start, and does no epoch file tell whose is right?"""
        lacks = f.kind == "missing_segment" and f.severity != INFO and not f.ambiguous
        return lacks and bool(own.epoch_problem) and not self._right.holders(own, f.phys_offset, f.until)


def _is_beside(f: Finding) -> bool:
    """Is it of a file beside the log?"""
    return f.kind == "file_unreadable" and f.phys_offset < 0


def _is_short(own: Replica, offset: int) -> bool:
    """Is there no file for a place, or one that is shorter than a segment?"""
    segment = own.segment_at(offset)
    return segment is None or segment.size_bytes < own.segment_bytes


def _lacks_filler(f: Finding, own: Replica) -> bool:
    """Does a file end in the blank record behind its segment's last one?"""
    segment = own.segment_at(f.phys_offset)
    if segment is None or f.phys_offset != segment.base + segment.size_bytes:
        return False
    try:
        around = around_of(own, f.phys_offset)
    except OSError:
        return False
    return around is not None and around.filler
