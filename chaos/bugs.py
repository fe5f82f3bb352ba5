"""Would the checks notice? Bugs to plant into the real code for one run, each to be found within some seeds.

A bug replaces one method or property of a class while a run lasts. They are the mistakes an implementation of
this kind makes, some of them in systems people use: answering before replication, skipping a truncation,
giving an offset twice, electing whoever is there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from broker.membership.reboot import Found, UncleanRebootDetector
from broker.role.lease import Lease
from broker.state.pending_acks import PendingAcks
from broker.upkeep.table_sync import MetadataSync
from chaos.scenarios.disks import FULL_DISK, POWER_OF_ALL, POWER_OF_ONE, SYNC_ERROR
from chaos.scenarios.kills import KILL_A_SLAVE, KILL_THE_MASTER
from chaos.scenarios.majorities import ONE_OF_THREE, TWO_LOSE_POWER
from chaos.scenarios.old_disks import PUT_BACK
from chaos.scenarios.operations import ISOLATED_LEADER
from chaos.scenarios.outsiders import ONLY_OUTSIDERS
from chaos.scenarios.partitions import TWO_ROOMS
from chaos.scenarios.pauses import STOOD_STILL
from chaos.scenarios.plan import Scenario
from chaos.scenarios.swarm import SWARM
from controller.elections.preview import ElectionPreview, ElectionRequest
from controller.groups import elect
from controller.groups import group as replica_group
from controller.groups.commands import ElectMaster, RegisterBroker
from controller.groups.elect import Ballot
from controller.groups.group import Group, Replica
from controller.groups.table import ReplicaTable
from controller.raft.raft import Raft
from ha.master import links as slave_links
from ha.master.membership import Membership
from ha.master.sync_set import SyncSet
from ha.service import HaService
from ha.slave import follow
from model.errors import DiskError
from model.ids import PhysicalOffset
from runtime.turns import Slice
from store.files.commit_log import CommitLog
from store.files.epoch_file import EpochFile
from store.files.health import Health
from store.flow.dispatching.dispatch import Dispatcher
from store.flow.upkeep.flush import Flusher
from store.message_store import MessageStore
from store.recover.recovery import _Recovery as Recovery


@dataclass(frozen=True, slots=True)
class Bug:
    """``owner.name`` becomes ``replacement(original)`` while planted, and so on with ``more``; ``scenario``
    brings it out."""

    text: str
    scenario: Scenario
    owner: Any
    name: str
    replacement: Callable[[Any], Any]
    more: tuple[tuple[Any, str, Callable[[Any], Any]], ...] = ()

    @property
    def changes(self) -> tuple[tuple[Any, str, Callable[[Any], Any]], ...]:
        return ((self.owner, self.name, self.replacement), *self.more)


def _as_registered(original: Any) -> Any:
    def is_newer_than(self: Replica, command: RegisterBroker) -> bool:
        return command.process == self.process and bool(original(self, command))

    return is_newer_than


def _answers_at_once(original: Any) -> Any:
    def add(self: PendingAcks, connection: Any, answers: bytes, end: int) -> None:
        connection.write(answers)

    return add


def _never_truncates(original: Any) -> Any:
    def truncate(self: MessageStore, offset: int) -> None:
        """The end stays."""

    return truncate


def _forgets_the_tail(original: Any) -> Any:
    async def rebuild(self: MessageStore, slice_: Slice) -> None:
        """A slave's table knows nothing of the records it only copied."""

    return rebuild


def _fastest_slave(original: Any) -> Any:
    def advance(self: SyncSet) -> None:
        original(self)
        self.replicated = max([self.replicated, *self.slave_ends().values()])

    return advance


def _same_mistake(original: Any) -> Any:
    def check_invariants(self: SyncSet) -> None:
        """The master's own check goes by what it believes: what was lost has to tell."""

    return check_invariants


def _confirms_at_once(original: Any) -> Any:
    def appended(self: HaService, end: PhysicalOffset) -> None:
        original(self, end)
        self._store.confirm(end)

    return appended


def _no_epochs(original: Any) -> Any:
    def append(self: EpochFile, epoch: int, start: int) -> None:
        if self.last is None:
            original(self, epoch, start)

    return append


def _lost_entries(original: Any) -> Any:
    def put(self: Dispatcher, batch: list[Any]) -> Any:
        return original(self, [item for item in batch if item.offset % 101])

    return put


def _no_sync(original: Any) -> Any:
    def call(self: Flusher, segments: Any, names: bool, generation: int) -> None:
        """Nothing reaches the disk, and the log says it did."""

    return call


def _sync_again(original: Any) -> Any:
    def failed(self: Health, error: OSError, doing: str, *, sync: bool = False) -> DiskError:
        return DiskError(str(error)) if sync else original(self, error, doing)

    return failed


def _full_is_fine(original: Any) -> Any:
    def append(self: CommitLog, chunks: Any, size: int) -> None:
        try:
            original(self, chunks, size)
        except DiskError:
            self.end = PhysicalOffset(self.end + size)

    return append


def _full_rolls_on(original: Any) -> Any:
    """A master meets the lack of space here, before the record that needs the next segment."""

    def roll(self: CommitLog) -> None:
        try:
            original(self)
        except DiskError:
            self.end = PhysicalOffset(self.end + self.segment_bytes - self.end % self.segment_bytes)

    return roll


def _elects_anyone(original: Any) -> Any:
    def choose(ballot: Ballot) -> Any:
        return original(msgspec.structs.replace(ballot, unclean=True))

    return choose


def _power_loss_forgiven(original: Any) -> Any:
    def begin(self: UncleanRebootDetector, found: Found) -> None:
        original(self, msgspec.structs.replace(found, clean=True, synced=True, was_longer=None))

    return begin


def _any_answer_is_enough(original: Any) -> Any:
    def has_every_record(ballot: Any, answered: Any) -> bool:
        return bool(answered)

    return has_every_record


def _epoch_stays(original: Any) -> Any:
    def elect(self: ReplicaTable, command: ElectMaster) -> Any:
        answer = original(self, command)
        group = self.groups.get(command.group)
        if group is not None and group.epoch > 1 and answer.code == 0:
            group.epoch -= 1
            answer.ext["masterEpoch"] = str(group.epoch)
        return answer

    return elect


def _restarted_leads_on(original: Any) -> Any:
    def successor(self: Group, command: ElectMaster) -> int:
        return command.broker_id

    return successor


def _reads_from_memory(original: Any) -> Any:
    async def barrier(self: Raft, timeout_s: float = 3.0) -> None:
        """Whoever believes to lead answers at once."""

    return barrier


def _never_shrinks(original: Any) -> Any:
    def desired_members(self: SyncSet, now_ms: float) -> frozenset[int]:
        return frozenset(original(self, now_ms)) | self.members

    return desired_members


def _excuses_nobody(original: Any) -> Any:
    def excused_ms(heard_ms: float, late_ms: float, silence_ms: float, now_ms: float) -> float:
        return heard_ms

    return excused_ms


def _no_standing_still(original: Any) -> Any:
    def on_tick(self: SyncSet, now_ms: float) -> None:
        self._time.tick_ms = now_ms
        original(self, now_ms)

    return on_tick


def _never_ends(original: Any) -> Any:
    def holds(self: Lease) -> bool:
        return self.supported is False or self._until_ms > float("-inf")

    return holds


def _shrinks_at_once(original: Any) -> Any:
    def recount(self: Membership) -> None:
        original(self)
        if self.open is not None and self.open.members < self.members:
            self.may_be_members = self.surely_members = tuple(sorted(self.open.members - {self._self_id}))

    return recount


def _any_epoch_agrees(original: Any) -> Any:
    def point(master: Any, slave: Any, master_end: int, slave_end: int) -> int:
        return min(master_end, slave_end)

    return point


def _tables_dropped(original: Any) -> Any:
    async def copy(self: MetadataSync, master: str) -> None:
        tables = self._tables
        self._tables = [(name, code, lambda table: False) for name, code, _ in tables]
        try:
            await original(self, master)
        finally:
            self._tables = tables

    return copy


def _one_record_off(original: Any) -> Any:
    def scan(self: Any) -> Any:
        found = original(self)
        if not self.clean and found.records > 0:
            found.drop_last()
        return found

    return scan


def _members_alone(original: Any) -> Any:
    def among_survivors(ballot: Ballot) -> int | None:
        heard = [b for b in ballot.members if b in ballot.alive]
        return ballot.best(heard) if len(heard) == len(ballot.members) else None

    return among_survivors


def _killed_is_suspect(original: Any) -> Any:
    def register(self: ReplicaTable, command: Any) -> Any:
        return original(self, msgspec.structs.replace(command, suspect=command.suspect or command.unclean))

    return register


def _own_word_is_enough(original: Any) -> Any:
    def to_ask(
        self: ElectionPreview, name: str, group: Group, request: ElectionRequest, now_ms: float
    ) -> Any:
        return original(self, name, group, dataclasses.replace(request, suspect=False), now_ms)

    return to_ask


BUGS: Final[dict[str, Bug]] = {
    "ack_before_replication": Bug(
        "a send is answered when the master alone has it",
        KILL_THE_MASTER,
        PendingAcks,
        "add",
        _answers_at_once,
    ),
    "skip_truncation": Bug(
        "a deposed master keeps the end of its log that its successor lacks",
        KILL_THE_MASTER,
        MessageStore,
        "truncate",
        _never_truncates,
    ),
    "reuse_offset": Bug(
        "a new master counts queue offsets from what it knew, not from the end of its log",
        KILL_THE_MASTER,
        MessageStore,
        "rebuild_queue_offsets_in_slices",
        _forgets_the_tail,
    ),
    "fastest_slave_is_enough": Bug(
        "an answer waits for one member of the SyncStateSet instead of all",
        TWO_ROOMS,
        SyncSet,
        "_advance",
        _fastest_slave,
        more=((SyncSet, "check_invariants", _same_mistake),),
    ),
    "confirm_at_once": Bug(
        "consumers may read what no slave has",
        KILL_THE_MASTER,
        HaService,
        "_appended",
        _confirms_at_once,
    ),
    "record_no_epoch": Bug(
        "a new master does not note where its epoch begins",
        KILL_THE_MASTER,
        EpochFile,
        "append",
        _no_epochs,
    ),
    "lose_queue_entries": Bug(
        "one message in a hundred is in the log, but not in its queue",
        KILL_A_SLAVE,
        Dispatcher,
        "_put",
        _lost_entries,
    ),
    "skip_sync": Bug("SYNC_FLUSH answers without a sync", POWER_OF_ALL, Flusher, "_call", _no_sync),
    "retry_failed_sync": Bug(
        "after a failed sync the next one counts for its bytes, too",
        SYNC_ERROR,
        Health,
        "failed",
        _sync_again,
    ),
    "full_disk_is_ok": Bug(
        "a write that found no space is answered OK",
        FULL_DISK,
        CommitLog,
        "append",
        _full_is_fine,
        more=((CommitLog, "roll", _full_rolls_on),),
    ),
    "elect_outsiders": Bug(
        "any living broker may become master, in the SyncStateSet or not",
        ONLY_OUTSIDERS,
        replica_group,
        "choose",
        _elects_anyone,
    ),
    "power_loss_forgiven": Bug(
        "a broker whose machine lost its memory may lead as if it had all it acknowledged",
        TWO_LOSE_POWER,
        UncleanRebootDetector,
        "begin",
        _power_loss_forgiven,
    ),
    "old_disk_unsaid": Bug(
        "a broker whose disk was put back to an older state of itself is taken for one that has all it wrote",
        PUT_BACK,
        Replica,
        "is_newer_than",
        _as_registered,
    ),
    "elect_without_a_majority": Bug(
        "in majority mode whoever answers is enough for an election",
        ONE_OF_THREE,
        elect,
        "has_every_record",
        _any_answer_is_enough,
    ),
    "epoch_not_raised": Bug(
        "a second election gives the epoch of the first",
        KILL_THE_MASTER,
        ReplicaTable,
        "_elect",
        _epoch_stays,
    ),
    "restarted_master_leads_on": Bug(
        "a master that lost the end of its log in a power failure stays master",
        POWER_OF_ONE,
        Group,
        "_successor_of_restarted",
        _restarted_leads_on,
    ),
    "controller_reads_from_memory": Bug(
        "a Controller answers reads without asking whether it still leads",
        ISOLATED_LEADER,
        Raft,
        "barrier",
        _reads_from_memory,
    ),
    "never_shrink_the_set": Bug(
        "a dead slave stays in the SyncStateSet", KILL_A_SLAVE, SyncSet, "desired_members", _never_shrinks
    ),
    "pause_held_against_slaves": Bug(
        "a master that stood still ends the links of slaves it could not hear meanwhile",
        STOOD_STILL,
        slave_links,
        "excused_ms",
        _excuses_nobody,
    ),
    "pause_held_against_members": Bug(
        "a master that stood still drops members of the SyncStateSet it could not hear meanwhile",
        STOOD_STILL,
        SyncSet,
        "on_tick",
        _no_standing_still,
    ),
    "lease_never_ends": Bug(
        "a master that held a lease once believes to hold it for ever", SWARM, Lease, "holds", _never_ends
    ),
    "shrunk_before_it_is_decided": Bug(
        "a member that shall leave the SyncStateSet is waited for no more before the Controllers noted it",
        SWARM,
        Membership,
        "recount",
        _shrinks_at_once,
    ),
    "older_epoch_acknowledged": Bug(
        "what a slave holds of an older epoch counts as acknowledged in the newer one",
        SWARM,
        follow,
        "consistent_point",
        _any_epoch_agrees,
    ),
    "tables_not_copied": Bug(
        "a slave says it has the tables and has not", SWARM, MetadataSync, "_copy_changes", _tables_dropped
    ),
    "one_record_cut_off": Bug(
        "after an unclean stop the last whole record is cut off", SWARM, Recovery, "_scan", _one_record_off
    ),
    "suspect_leads_alone": Bug(
        "a suspect that is the only member leads, whatever others hold, and a killed slave is suspect, too",
        SWARM,
        elect,
        "_among_survivors",
        _members_alone,
        more=((ReplicaTable, "_register", _killed_is_suspect),),
    ),
    "suspect_among_members": Bug(
        "a suspect leads when all members are there, though a replica outside of the set has more",
        SWARM,
        elect,
        "_among_survivors",
        _members_alone,
    ),
    "suspect_asks_nobody": Bug(
        "an elected suspect that asks anew is refused for want of answers nobody was asked for",
        SWARM,
        ElectionPreview,
        "to_ask",
        _own_word_is_enough,
    ),
}


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Have the bug while the block runs. None plants nothing. Raises KeyError for a name there is not."""
    if name is None:
        yield
        return
    if name not in BUGS:
        raise KeyError(f"no bug {name}; there are {', '.join(BUGS)}")
    with ExitStack() as undo:
        for owner, attribute, replacement in BUGS[name].changes:
            original = vars(owner)[attribute]
            undo.callback(setattr, owner, attribute, original)
            setattr(owner, attribute, replacement(original))
        yield
