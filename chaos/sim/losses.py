"""Which lost messages had nobody promised to keep?

At every moment after which bytes may be missing (a power failure, a disk that was wiped or put back, an
election) all logs are noted as they lie on the disks. Nothing is read of them unless something is missing in
the end: then a message is promised away when it had been answered or read by such a moment, and no whole log
had it then. What was stored after a moment, it cannot have cost. An answer may be on its way at that moment:
then its broker lost its bytes in it, or another log has them that the elected one lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from chaos.checks.all import Promised
from chaos.faults import FAULTS, Fault, PowerFail, PutBack, Wipe
from chaos.history import Happened, History, Invoke, Ok, Read
from chaos.partitions import NEIGHBOUR
from chaos.sim.cluster import SimCluster
from model.errors import DiskError
from model.message import decode_properties
from store.files.record import is_torn, walk

LOGS: Final = "/store/commitlog/"
Log = tuple[int, bytes]
FLIGHT_MS: Final = 500.0
"""What a consumer read may have been on its way to it for so long."""

COSTS_NO_COPY: Final = frozenset(
    {"look", "snapshot", "hand_over", "reset_links", "resume", "restart", "clock_jump", "reconfigure", "heal"}
)
COSTS_A_COPY: Final = frozenset(FAULTS) - COSTS_NO_COPY
"""After these a broker may be without its bytes, or out of reach: a broker hit by faults."""


ROOMS: Final = frozenset({"halves", "minority", "bridge", "ring"})
"""Shapes of a partition that part others than its target."""


@dataclass(slots=True)
class _Moment:
    """``logs``: of each broker that counts, its segments (first offset, content) in order; ``others``: of
    those that do not."""

    at_ms: float
    left_behind: bool
    logs: Mapping[str, Sequence[Log]]
    others: Mapping[str, Sequence[Log]]
    _keys: set[str] | None = field(default=None)
    _elsewhere: set[str] | None = field(default=None)

    def cost(self, key: str, sent_ms: float, told_ms: float) -> bool:
        """Whether it may have cost a message that was sent and told of by then."""
        if self.at_ms < sent_ms or self.has(key):
            return False
        if self._elsewhere is None:
            self._elsewhere = _keys_of_all(self.others)
        return self.at_ms >= told_ms or key in self._elsewhere

    def has(self, key: str) -> bool:
        if self._keys is None:
            self._keys = _keys_of_all(self.logs)
        return key in self._keys


class Losses:
    """Watches a run. ``tolerates``: so many brokers hit by faults that cost a copy may cost what was
    acknowledged (None: no number does, only disks that lose bytes). ``unclean``: whether Controllers may
    elect one that the rules would not; the first one promoted after such an election leaves behind what it
    lacks, read or not. ``synced``: what is answered or read is on the master's disk, and no loss of power
    takes it."""

    def __init__(
        self, cluster: SimCluster, *, tolerates: int | None, synced: bool, unclean: Callable[[], bool]
    ) -> None:
        self._cluster = cluster
        self._synced = synced
        self._powerless = self._wiped = False
        self._dropped: dict[str, int] = {}  # as ``DiskCounts`` has it, of each broker
        self._tolerates = tolerates
        self._unclean = unclean
        self._unclean_seen = 0
        self._unclean_due = False
        self._hit: set[str] = set()
        self._bytes_gone: list[tuple[float, str]] = []
        """When a broker's disk lost bytes, and its host."""
        self._moments: list[_Moment] = []

    def struck(self, fault: Fault, name: str) -> None:
        """A fault was carried out. What befalls a neighbour alone costs this group nothing."""
        cluster = self._cluster
        node = cluster.nodes.get(name)
        if node is not None and node.kind == NEIGHBOUR and getattr(fault, "shape", "") not in ROOMS:
            return
        if fault.name in _HITS_ALL:
            self._hit |= {node.name for node in cluster.of("broker")}
        elif fault.name in COSTS_A_COPY and name in cluster.nodes and cluster.nodes[name].kind == "broker":
            self._hit.add(name)
        other_disk = isinstance(fault, Wipe | PutBack)
        self._wiped |= other_disk
        powerless = self._dropping()
        if isinstance(fault, PowerFail):
            powerless.add(name)
        self._lost(powerless, {name} if other_disk else set())

    def _dropping(self) -> set[str]:
        """Brokers whose machines dropped since the last look what a failed sync left in memory alone."""
        now = {one.name: one.machine.counts.dropped for one in self._cluster.of("broker")}
        before, self._dropped = self._dropped, now
        return {name for name, count in now.items() if count > before.get(name, 0)}

    def _lost(self, powerless: set[str], other_disks: set[str]) -> None:
        """Something is gone that was in the memory of ``powerless`` alone, or on ``other_disks``."""
        cluster = self._cluster
        self._powerless |= bool(powerless)
        for name in sorted(powerless | other_disks):
            self._bytes_gone.append((cluster.clock(), cluster.nodes[name].host))
        if other_disks or (powerless and not self._synced):
            self._note(cluster.of_group(), left_behind=False)

    def happened(self, event: Happened) -> None:
        """A broker became master: what its log lacks stays behind, where the mode allows it. Or a process
        ended that no fault struck: the operator restarts one whose disk refused."""
        self._lost(self._dropping(), set())
        if event.name not in ("promoted", "master_elected"):
            return
        if self._unclean():
            count = self._cluster.unclean_elections()
            self._unclean_due |= count > self._unclean_seen
            self._unclean_seen = max(count, self._unclean_seen)
        if event.name != "promoted":
            return
        if self._unclean_due:
            self._unclean_due = False
            self._note([event.node], left_behind=False)
        elif self._tolerates is not None and len(self._hit) >= self._tolerates:
            self._note([event.node], left_behind=True)

    def _note(self, names: Iterable[str], *, left_behind: bool) -> None:
        logs = {name: self._log(name) for name in names}
        others = {name: self._log(name) for name in self._cluster.of_group() if name not in logs}
        self._moments.append(_Moment(self._cluster.clock(), left_behind, logs, others))

    def _log(self, name: str) -> list[Log]:
        machine = self._cluster.nodes[name].machine
        return [(_start(path), machine.content(path)) for path in machine.paths(LOGS)]

    @property
    def gave_up(self) -> bool:
        """Whether there was an unclean election, or a disk lost what it had promised: logs may hold more than
        their master's."""
        return self._unclean_seen > 0 or self.lied

    @property
    def lied(self) -> bool:
        """Whether a broker's disk lost what it had promised."""
        return any(node.machine.counts.lied for node in self._cluster.of("broker"))

    @property
    def any_allowed(self) -> bool:
        """Whether something may have been lost that was answered."""
        beyond = self._tolerates is not None and len(self._hit) >= self._tolerates
        return bool(self._moments) or beyond or self.gave_up

    @property
    def of_tables_allowed(self) -> bool:
        """Whether a topic or a group may have been lost that was answered: on a disk that was wiped or put
        back, or by an unclean election. Each member has them, however many messages a mode may cost."""
        return self.gave_up or self._wiped

    @property
    def bytes_may_be_missing(self) -> bool:
        return self._powerless or bool(self._moments)

    def promised_away(self, history: History, sources: Sequence[str] = ()) -> Promised:
        """What may be missing at the end of ``history``, which ends with readings of ``sources``."""
        lied = self.lied
        if not self._moments:
            return Promised(lied=lied)
        sent = {event.key: event.at_ms for event in history.events if isinstance(event, Invoke)}
        gone: set[str] = set()
        left: set[str] = set()
        told = self._told(history, sent)
        for key in _missing(history, sources) & sent.keys():
            for moment in self._moments:
                if moment.cost(key, sent[key], told[key]):
                    (left if moment.left_behind else gone).add(key)
        return Promised(frozenset(gone), frozenset(left - gone), lied)

    def _told(self, history: History, sent: Mapping[str, float]) -> dict[str, float]:
        """By when each message was stored that was answered or read: before its broker's disk lost bytes, if
        the answer came after that, for it was on its way then."""
        told: dict[str, float] = {}
        for event in history.events:
            if not isinstance(event, Ok | Read) or event.key not in sent:
                continue
            after_ms = sent[event.key]
            host = event.address.rpartition(":")[0] if isinstance(event, Ok) else None
            if host is None:
                after_ms = max(after_ms, event.at_ms - FLIGHT_MS)
            gone = [at for at, where in self._bytes_gone if where == (host or where)]
            by_ms = min((at for at in gone if after_ms <= at <= event.at_ms), default=event.at_ms)
            told[event.key] = min(told.get(event.key, by_ms), by_ms)
        return told


def _start(path: str) -> int:
    return int(path.rpartition("/")[2])


_HITS_ALL: Final = frozenset({"partition", "rolling_change", "upgrade"})


def _missing(history: History, sources: Sequence[str]) -> set[str]:
    """Acknowledged or read, and not in each final reading."""
    told: set[str] = set()
    final: dict[str, set[str]] = {source: set() for source in sources}
    for event in history.events:
        if isinstance(event, Ok):
            told.add(event.key)
        elif isinstance(event, Read):
            if event.final:
                final.setdefault(event.source, set()).add(event.key)
            else:
                told.add(event.key)
    if not final:
        return told
    return told - set[str].intersection(*final.values())


def _keys_of_all(logs: Mapping[str, Sequence[Log]]) -> set[str]:
    return {key for log in logs.values() for key in _keys_of(log)}


def _keys_of(log: Sequence[Log]) -> Iterable[str]:
    """Keys of the records up to the first that is not whole: what lies behind it, recovery cuts off."""
    for start, content in log:
        at = 0
        try:
            for record in walk(content, start):
                if is_torn(content[at : at + record.size], record.physical_offset):
                    return
                at += record.size
                yield decode_properties(record.properties).get("UNIQ_KEY", "")
        except DiskError:
            return
