"""What is asked of the logs, in the order in which one answer needs another?"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import pyarrow as pa

from audit.compare import drill_down, same_bytes
from audit.earlier.carried import Carried
from audit.earlier.trusted_files import NOWHERE, TrustedFiles
from audit.findings import INFO, Finding
from audit.kinds import acked, beside, causes, moved
from audit.kinds.facts import Facts
from audit.kinds.files import files
from audit.kinds.logs import borders, copies
from audit.kinds.logs import tails as tail_kinds
from audit.kinds.logs.damage import Damages
from audit.kinds.logs.differences import Asked, differences
from audit.kinds.logs.epochs import epochs
from audit.kinds.logs.witnesses import Witness
from audit.kinds.made import derived, entries, gaps, index, queues
from audit.ledgers.ledger import Ledger
from audit.queues import RUNS_MAX, begins_again
from audit.reading.derived.index_files import IndexTask
from audit.reading.derived.queue_files import Queue, QueueFolder, last_named, look
from audit.reading.layout import ALL, Replica
from audit.reading.small.beside import Beside
from audit.rows.bounded import Rest, Unlisted
from audit.rows.numbers import LAST
from audit.rows.once import Once
from audit.rows.parts import Folder
from audit.rows.places import Places
from audit.tables import Engine, EngineError, EntryBounds, ScannedLog, Tail, View

log = logging.getLogger(__name__)

DERIVED = ("consumequeue", "batchconsumequeue", "consumequeue_ext", "timerlog", "timerwheel")
NO_TAIL = Tail(0, -1, -1, "")
OfRead = tuple[Finding, list[str]]
"""Of the log as far back as any replica holds it, with the replicas whose logs were read."""


@dataclass(frozen=True, slots=True)
class Before:
    """What was known before the log was read, which begins at ``border``; what is trusted before it left
    ``carried``. ``files``: what is known of index files."""

    looked: dict[int, Beside]
    border: int
    carried: Carried
    files: TrustedFiles


class Questions:
    """What is asked of the logs, in the order in which one answer needs another."""

    def __init__(
        self,
        facts: Facts,
        engine: Engine,
        scanned: ScannedLog,
        views: dict[int, View],
        unions: list[View],
        ledger: Ledger | None,
        before: Before,
        unlisted: Unlisted,
    ) -> None:
        self.facts, self.engine, self.scanned = facts, engine, scanned
        self.views, self.ledger = views, ledger
        self.unions = unions  # the log, as far back as any replica holds it
        self.looked, self.border, self.carried = before.looked, before.border, before.carried
        self.files = before.files
        self.unlisted = unlisted
        self.folder = Folder()
        self.hidden = Places(self.folder)  # rows that are only counted
        self.expired = 0
        self.waits = NOWHERE  # the first record that need not be in its queue yet, and is not

    def _wait(self, offset: int) -> None:
        self.waits = min(self.waits, offset)

    def ask(self) -> list[Finding]:
        try:
            return self._ask()
        finally:
            self.folder.close()

    def _count(self, f: Finding) -> None:
        """A row that is not listed."""
        self.unlisted.add(f)
        self.hidden.add(f.kind, f.replica, f.phys_offset, f.until)

    def _ask(self) -> list[Finding]:
        facts = self.facts
        damages = Damages(facts, self.views, self.scanned.damage(), self.folder, Rest(self._count))
        moved.note_elsewhere(facts, damages)
        found = files(facts, damages.sound) + epochs(facts) + damages.findings
        looked = self.looked
        found += beside.beside(facts, looked, damages.sound)
        found += self._differences(found, damages)
        found += self._tails(found, looked)
        found += borders.borders(facts, looked, found)
        names = [r.name for r in facts.replicas]
        links = causes.Links(found, names, self.hidden.overlap)
        rest = Rest(self._count, links.linked)
        folders = self._folders()
        broken, rows, apart = self._of_unions(folders, rest, links, partial(self._apart, found, damages))
        found += rows
        found += self._entries(folders, broken, found)
        found += beside.offsets_beyond(facts, looked, self._queue_ends(looked))
        found += self._index(looked)
        found += self._derived(looked)
        found += self._acked(broken, rest, damages, links)
        found = copies.recounted(facts, found)
        linked = causes.link(causes.gaps_of_missing(found), names, self.hidden.overlap, apart)
        found = index.joined(entries.joined(causes.fold(linked)))
        if all(f.severity == INFO for f in found) and not self.border:
            found += tail_kinds.nothing(self.scanned.record_count())
        return found

    def _of_unions(
        self,
        folders: dict[int, QueueFolder],
        rest: Rest,
        links: causes.Links,
        apart_of: Callable[[list[OfRead]], frozenset[causes.Gap]],
    ) -> tuple[queues.Queues, list[Finding], frozenset[causes.Gap]]:
        """Broken queues, and what is wrong with queues, copies and sends, in the log as far back as any
        replica holds it; and the gaps that no damage explains. Its views share records: what several tell is
        told once."""
        broken: queues.Queues = {}
        asked: dict[tuple[object, ...], Finding] = {}
        told: list[OfRead] = []
        before = {
            ((row["topic"], row["queue_id"]), row["queue_offset"]): row["offset"]
            for row in self.carried.queues.to_pylist()
        }
        twice = rest.bounded("further copies", by=("topic",))
        strange = rest.bounded("messages that nobody sent", by=("topic",))
        once = Once(self.folder)
        for view in self.unions:
            begin = min(self.facts.replicas[at].start for at in (view.base, view.replica))
            table = self.scanned.broken_queues(view, self.carried.queues, RUNS_MAX, whole=begin == 0)
            wrong, holder = partial(self._wrong, view, links.altered), partial(self._holder, view)
            misplaced = partial(self._wrong, view, links.misplaced)
            broken_here = queues.runs(table, list(folders.values()), wrong, holder)
            read = [self.facts.replicas[at].name for at in (view.base, view.replica)]
            told += [
                (row, read) for row in queues.queues(self.facts, self.scanned, broken_here, view, before)
            ]
            for tables in (self._carried_copies(view), self.scanned.copies(view)):
                twice.take(filter(once.first, queues.duplicates(self.facts, tables, view, misplaced)))
                once.next_round()
            if self.ledger is not None and self.ledger.topics:
                strangers = self.scanned.strangers(self.ledger, view)
                strange.take(filter(once.first, queues.phantoms(self.facts, strangers, view)))
                once.next_round()
            broken = broken_here | broken
        apart = apart_of(told)
        for row, read in told:
            row = links.of_read(row, read, apart)
            asked.setdefault((row.kind, row.phys_offset, row.topic, row.queue_id, row.queue_offset), row)
        return broken, [*asked.values(), *twice.findings(), *strange.findings()], apart

    def _apart(self, roots: list[Finding], damages: Damages, told: list[OfRead]) -> frozenset[causes.Gap]:
        found = [(f, read) for f, read in told if f.kind == "queue_gap"]
        return gaps.apart(self.facts, found, roots, damages.sound, self._taken)

    def _wrong(self, view: View, altered: Callable[[str, int], bool], offset: int) -> bool:
        return altered(self._holder(view, offset).name, offset)

    def _holder(self, view: View, offset: int) -> Replica:
        return self.facts.replicas[queues.held_by(self.facts, view, offset)]

    def _queue_ends(self, looked: dict[int, Beside]) -> dict[Queue, int]:
        """Where each queue ends in the log in which it ends last; of no use without offsets of consumers."""
        ends: dict[Queue, int] = {}
        for view in self.views.values() if any(own.offsets for own in looked.values()) else ():
            for row in self.scanned.queue_ends(view).to_pylist():
                queue = (row["topic"], row["queue_id"])
                ends[queue] = max(ends.get(queue, 0), row["queue_offset"])
        for row in self.carried.queues.to_pylist():
            ends.setdefault((row["topic"], row["queue_id"]), min(row["queue_offset"] + row["advance"], LAST))
        return ends

    def _carried_copies(self, view: View) -> Iterator[pa.Table]:
        """What stands once in what was read, and once in what is trusted."""
        if not self.carried.of_keys:
            return
        size = self.facts.replicas[view.base].segment_bytes
        end = max(r.end for r in self.facts.replicas)
        for begin in range(self.border, end, size):
            yield self.carried.copies(self.scanned.keyed(view, begin, begin + size))

    def _index(self, looked: dict[int, Beside]) -> list[Finding]:
        """Does each replica's index name what its log has? Files of trusted records only, which an earlier
        audit read, are not read again."""
        try:
            return self._index_findings(self._index_tasks(looked), looked)
        except FileNotFoundError:
            log.info("a file of an index was removed meanwhile: planning again")
        return self._index_findings(self._index_tasks(looked), looked)

    def _index_findings(self, planned: list[IndexTask], looked: dict[int, Beside]) -> list[Finding]:
        """Raises FileNotFoundError when one of the files was removed since they were planned."""
        try:
            if not planned:
                return []
            table = self.engine.index(planned)
            self.files.learn(
                planned, {*zip(table["replica"].to_pylist(), table["file"].to_pylist(), strict=True)}
            )
            return index.findings(self.facts, table, looked)
        except EngineError as error:  # of Spark: a worker's error, in words
            if index.removed(planned):
                raise FileNotFoundError(str(error)) from error
            raise

    def _index_tasks(self, looked: dict[int, Beside]) -> list[IndexTask]:
        found = index.tasks(self.facts.replicas, self._open(looked, "index"))
        return [task for task in found if not (self.files.indexed(task) and self._before_border(task))]

    def _before_border(self, task: IndexTask) -> bool:
        # One that brings no record behind the file before may have lost its entries: it is always read.
        return task.begin < task.until <= self.border and task.slots > 0

    def _derived(self, looked: dict[int, Beside]) -> list[Finding]:
        """Do the other files that RocketMQ makes of its log name what the log has?"""

        def ends(at: int) -> dict[Queue, int]:
            rows = self.scanned.queue_ends(self.views[at]).to_pylist() if at in self.views else []
            return {(row["topic"], row["queue_id"]): row["queue_offset"] for row in rows}

        planned = derived.tasks(self.facts.replicas, self._open(looked, *DERIVED), lru_cache(ends))
        return derived.findings(self.facts, self.engine.derived(planned)) if planned else []

    def _open(self, looked: dict[int, Beside], *folders: str) -> dict[int, Beside]:
        """Without the replicas of which a file there cannot be read: that is said, and the rest of them would
        look as if it lacked what that file has."""
        closed = {
            at
            for at, r in enumerate(self.facts.replicas)
            if {f.partition("/")[0] for f in r.closed} & {*folders}
        }
        return {at: own for at, own in looked.items() if at not in closed}

    def _folders(self) -> dict[int, QueueFolder]:
        """The queues of each replica that keeps them in files."""
        replicas = self.facts.replicas
        there = [at for at in self._open(self.looked, "consumequeue") if at in self.views]
        looked = {at: look(replicas[at].location) for at in there if replicas[at].queues}
        folders = {at: folder for at, folder in looked.items() if folder is not None}
        for at, folder in folders.items():
            if replicas[at].promised >= ALL:
                replicas[at].entered = last_named(folder.files, replicas[at].end)
        return folders

    def _entries(
        self, folders: dict[int, QueueFolder], broken: queues.Queues, roots: list[Finding]
    ) -> list[Finding]:
        """Does each replica's log stand in its own queues?"""
        again = {queue: max(begins_again(runs), default=0) for queue, runs in broken.items()}
        found = []
        for at, folder in sorted(folders.items()):
            r, view = self.facts.replicas[at], self.views[at]
            found += entries.sizes(self.facts, at, folders)
            if folder.files:
                cuts = entries.cuts(r, roots, causes.CAUSES["cq_missing"], again)
                bounds = EntryBounds(max(r.start, self.border), 1 << 62 if r.clean else r.end, cuts)
                found += entries.entries(
                    self.facts, at, self.scanned.entered(view, folder.files, bounds), again, self._wait
                )
            others = {queue for b, other in folders.items() if b != at for queue in other.queues}
            if folder.queues_of or others - folder.queues:
                extents = self.scanned.queue_extents(view).to_pylist()
                extents += self.carried.extents({(row["topic"], row["queue_id"]) for row in extents})
                found += entries.absent(self.facts, at, folder, others, extents, self._wait)
        return found

    def _differences(self, roots: list[Finding], damages: Damages) -> list[Finding]:
        replicas, parted = self.facts.replicas, self.facts.histories.parted
        pairs = [
            (base, other, drill_down(replicas, base, other, intervals, parted(base, other)))
            for (base, other), intervals in sorted(self.facts.ranges.differ.items())
        ]
        lines = self.ledger.lines_of if self.ledger is not None else None
        extents_of = lru_cache(self._extents_of)  # asked when need be, of each log once
        asked = Asked(
            damages.overlap,
            lambda at, begin, lacking: self._acked_behind(at, begin, lacking).records,
            same_bytes(replicas),
            Witness(replicas, lines, self._taken, lambda at, queue: extents_of(at).get(queue)).left,
        )
        return differences(self.facts, pairs, roots, asked, Rest(self._count))

    def _taken(self, at: int, places: pa.Table) -> list[dict[str, Any]]:
        found = self.scanned.first_taken(self.views[at], places).to_pylist() if at in self.views else []
        return list(found)

    def _extents_of(self, at: int) -> dict[Queue, tuple[int, int]]:
        """Where queues begin in a replica's log: offset and place."""
        rows = self.scanned.queue_extents(self.views[at]).to_pylist() if at in self.views else []
        return {(row["topic"], row["queue_id"]): (row["offset"], row["queue_offset"]) for row in rows}

    def _tails(self, roots: list[Finding], looked: dict[int, Beside]) -> list[Finding]:
        replicas = self.facts.replicas
        group = tail_kinds.of_group(self.facts)  # what others have behind an end is to be cut
        ends = [r.end for r in replicas if not r.empty]
        acked_end = -1
        apart: list[int] = []
        if self.ledger is not None:
            # A replica proved equal to the reference as far as both reach holds nothing it does not.
            apart = [
                at
                for at, view in self.views.items()
                if at == self.facts.reference or not acked.adds_nothing(replicas[at], view)
            ]
            apart = [at for at in apart if at in group]
            if ends and (min(ends) < max(ends) or len(apart) > 1):
                acked_end = max(self._acked_behind(at, min(ends)).until for at in apart)

        def missing_behind(at: int) -> Tail:
            """Acknowledged messages any other log holds behind this one's end."""
            held = [self._acked_behind(other, replicas[at].end) for other in apart if other != at]
            return max(held, key=lambda tail: tail.records, default=NO_TAIL)

        def rotten(at: int) -> bool:
            return tail_kinds.rotten(replicas[at], [replicas[b] for b in group if b != at])

        def noted(at: int) -> int:
            return looked[at].was_longer

        return tail_kinds.tails(self.facts, missing_behind, acked_end, roots, rotten, noted)

    def _acked_behind(self, at: int, offset: int, lacking: int | None = None) -> Tail:
        """``lacking``: those only that this replica's log has nowhere."""
        if self.ledger is None or at not in self.views:
            return NO_TAIL
        other = self.views.get(lacking) if lacking is not None else None
        return self.scanned.acked_behind(self.ledger, self.views[at], offset, other)

    def _acked(
        self, broken: queues.Queues, rest: Rest, damages: Damages, links: causes.Links
    ) -> list[Finding]:
        if self.ledger is None:
            return []
        again = tuple((*queue, at) for queue, runs in sorted(broken.items()) for at in begins_again(runs))
        taken = beside.not_by_retention(self.facts, self.looked)
        harm = acked.Harm(taken, damages.overlap, lambda at: links.wrong(self.facts.replicas[at].name))
        views = self.views, damages
        result = acked.check(self.facts, self.scanned, self.ledger, *views, again, rest, harm)
        self.expired = result.expired
        return result.findings + acked.mostly_expired(result.expired, len(self.ledger))
