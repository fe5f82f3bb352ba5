"""Which lost messages had nobody promised to keep?

At every moment after which bytes may be missing (a power failure, a disk that was wiped, an election) all
logs are noted as they lie on the disks. Nothing is read of them unless something is missing in the end: then
a message is promised away when it had been sent by such a moment, and no whole log had it then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from chaos.checks.all import Promised
from chaos.faults import Fault, PowerFail, Wipe
from chaos.history import Happened, History, Invoke, Ok, Read
from chaos.sim.cluster import SimCluster
from model.errors import DiskError
from model.message import decode_properties
from store.files.record import is_torn, walk

LOGS: Final = "/store/commitlog/"


@dataclass(slots=True)
class _Moment:
    """``logs``: of each broker that counts, its segments (first offset, content) in order."""

    at_ms: float
    left_behind: bool
    logs: Mapping[str, Sequence[tuple[int, bytes]]]
    _keys: set[str] | None = field(default=None)

    def has(self, key: str) -> bool:
        if self._keys is None:
            self._keys = {found for log in self.logs.values() for found in _keys_of(log)}
        return key in self._keys


class Losses:
    """Watches a run. ``tolerates``: so many brokers hit by faults may cost what was acknowledged (None: no
    number does, only disks that lose bytes). ``unclean``: whether Controllers may elect one that the rules
    would not; the first one promoted after such an election leaves behind what it lacks, read or not.
    ``synced``: what is answered or read is on the master's disk, and no loss of power takes it."""

    def __init__(
        self, cluster: SimCluster, *, tolerates: int | None, synced: bool, unclean: Callable[[], bool]
    ) -> None:
        self._cluster = cluster
        self._synced = synced
        self._powerless = False
        self._tolerates = tolerates
        self._unclean = unclean
        self._unclean_seen = 0
        self._unclean_due = False
        self._hit: set[str] = set()
        self._moments: list[_Moment] = []

    def struck(self, fault: Fault, name: str) -> None:
        """A fault was carried out."""
        cluster = self._cluster
        if fault.name in _HITS_ALL:
            self._hit |= {node.name for node in cluster.of("broker")}
        elif name in cluster.nodes and cluster.nodes[name].kind == "broker":
            self._hit.add(name)
        if isinstance(fault, PowerFail):
            self._powerless = True
        if isinstance(fault, Wipe) or (isinstance(fault, PowerFail) and not self._synced):
            self._note(cluster.of_group(), left_behind=False)

    def happened(self, event: Happened) -> None:
        """A broker became master: what its log lacks stays behind, where the mode allows it."""
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
        self._moments.append(_Moment(self._cluster.clock(), left_behind, logs))

    def _log(self, name: str) -> list[tuple[int, bytes]]:
        machine = self._cluster.nodes[name].machine
        return [(int(path.rpartition("/")[2]), machine.content(path)) for path in machine.paths(LOGS)]

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
        return self.bytes_may_be_missing or self._tolerates is not None or self.gave_up

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
        for key in _missing(history, sources):
            at_ms = sent.get(key)
            for moment in self._moments if at_ms is not None else ():
                if moment.at_ms >= (at_ms or 0.0) and not moment.has(key):
                    (left if moment.left_behind else gone).add(key)
        return Promised(frozenset(gone), frozenset(left - gone), lied)


_HITS_ALL: Final = frozenset({"partition", "rolling_change"})


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


def _keys_of(log: Sequence[tuple[int, bytes]]) -> Iterable[str]:
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
