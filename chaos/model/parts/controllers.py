"""What do the Controllers answer? The real ``ReplicaTable`` and election rules, remembered by their input.

The Controllers are one linearizable object here: Raft has a fuzzer of its own. Late or lost may be every
request to them (``World.requests``), every view a broker has of them, and every word on who is alive.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations, permutations

import msgspec

from chaos.model.rules import Rules
from chaos.model.words import named
from chaos.model.world import Mode, Phase, Request, Setting, World
from controller.elections.lease import Leases
from controller.elections.liveness import Heartbeat, Liveness
from controller.elections.preview import ElectionPreview
from controller.groups.commands import (
    AlterSyncStateSet,
    ApplyBrokerId,
    CleanBrokers,
    Command,
    ElectMaster,
    KeepToLeases,
    RegisterBroker,
)
from controller.groups.elect import End
from controller.groups.group import Group, Replica, Rule
from controller.groups.table import ReplicaTable
from model.config import ControllerConfig

GROUP = "g"
CLUSTER = "c"
UNCLEAN = "unclean"
"""The cluster of a group whose Controllers may elect outsiders: only there ``Group.unaware`` decides."""
TIMEOUT_MS = 1500
_ENCODE = msgspec.msgpack.Encoder().encode
_DECODE = msgspec.msgpack.Decoder(Group).decode
_REMEMBERED = 400_000


def new_table(
    setting: Setting,
    members: tuple[int, ...],
    suspects: tuple[int, ...],
    *,
    registered: tuple[int, ...],
    epoch: int,
    before: tuple[int, ...],
    needs_lease: bool,
) -> bytes:
    """A group of which broker 1 is master; ``before``: the others that had all when it was elected."""
    rule = rule_of(setting, setting.modes[0])
    replicas = {
        i: Replica(
            f"h{i}", f"h{i};1", majority_of=rule.majority_of, all_ack=rule.all_ack, timeout_ms=rule.timeout_ms
        )
        for i in registered
    }
    group = Group(
        UNCLEAN if setting.unclean else CLUSTER,
        next_id=registered[-1] + 1,
        replicas=replicas,
        virgin=False,
        master=1,
        epoch=epoch,
        before=list(before),
        rule=rule,
        members=list(members),
        members_epoch=1,
        suspect=list(suspects),
        quorum_members=list(members) if rule.majority_of and len(members) > rule.majority_of // 2 else [],
        holders=list(registered) if rule.majority_of else [],
        led=1,
        needs_lease=needs_lease,
    )
    return encoded(group)


def rule_of(setting: Setting, mode: Mode) -> Rule:
    return Rule(mode.all_ack, setting.brokers if mode.majority else 0, TIMEOUT_MS)


def _ids_of(group: Group) -> tuple[list[int], ...]:
    """Every list of brokers in it."""
    return (
        group.members,
        group.before,
        group.suspect,
        group.removed,
        group.holders,
        group.quorum_members,
        group.unaware,
        group.left_unasked,
        *(source.brokers for source in group.table_sources),
    )


def encoded(group: Group) -> bytes:
    """The group as bytes; what decides nothing would only part equal states. Of unclean elections it counts
    whether there was one: from then on messages may be lost."""
    group.unclean_elections = min(1, group.unclean_elections)
    if group.cluster != UNCLEAN:
        group.unaware = []
    group.replicas = dict(sorted(group.replicas.items()))
    for ids in _ids_of(group):
        ids.sort()
    return _ENCODE(group)


@lru_cache(_REMEMBERED)
def group_of(table: bytes) -> Group:
    """Read only: it is shared."""
    return _DECODE(table)


def incarnations(setting: Setting, group: Group) -> tuple[int, ...]:
    """Of every broker; one that is not registered forgot nothing."""
    found = (group.replicas.get(i) for i in setting.ids)
    return tuple(0 if replica is None else replica.incarnation for replica in found)


def renamed(table: bytes, names: tuple[int, ...]) -> bytes:
    """The same group with other ids: broker ``i`` is ``names[i - 1]`` now."""
    return table if names == tuple(sorted(names)) else _renamed(table, names)


@lru_cache(_REMEMBERED)
def _renamed(table: bytes, names: tuple[int, ...]) -> bytes:
    group = _DECODE(table)
    new = dict(enumerate(names, 1))
    for i, replica in group.replicas.items():
        replica.address, replica.check_code = f"h{new[i]}", f"h{new[i]};1"
    group.replicas = {new[i]: replica for i, replica in group.replicas.items()}
    group.master = None if group.master is None else new[group.master]
    group.led = None if group.led is None else new[group.led]
    for ids in _ids_of(group):
        ids[:] = [new[i] for i in ids]
    return encoded(group)


@lru_cache(_REMEMBERED)
def _applied(table: bytes, command: bytes) -> tuple[int, bytes]:
    tables = ReplicaTable(groups={GROUP: _DECODE(table)})
    code = tables.apply(msgspec.msgpack.decode(command, type=Command))["code"]
    tables.check_invariants()
    return code, encoded(tables.groups[GROUP])


def apply(table: bytes, command: Command) -> tuple[int, bytes]:
    """The code of the answer, and the table afterwards."""
    return _applied(table, _ENCODE(command))


def ends_of(world: World) -> dict[int, End]:
    """What heartbeats say: a master the epoch it leads, a slave that of its log."""
    ends = {}
    for broker_id, broker in enumerate(world.brokers, 1):
        last = broker.epochs[-1][0] if broker.epochs else 0
        epoch = max(broker.epoch, last) if broker.phase is Phase.MASTER else last
        ends[broker_id] = End(epoch, len(broker.log))
    return ends


def may_be_unclean(world: World) -> bool:
    """As ``ElectionPreview`` says it: the Controllers decide by what they waited for."""
    return world.outsiders and group_of(world.table).outsiders_may_lead


@lru_cache(_REMEMBERED)
def _outcomes(table: bytes, command: bytes) -> tuple[tuple[int, bytes], ...]:
    election = msgspec.msgpack.decode(command, type=ElectMaster)
    brokers = _DECODE(table).next_id - 1
    if not _tied(election, brokers):
        return (_applied(table, command),)
    found: dict[bytes, int] = {}
    for names in permutations(range(1, brokers + 1)):
        code, after = _applied(renamed(table, names), _ENCODE(_election_with(election, names)))
        back = tuple(names.index(i) + 1 for i in range(1, brokers + 1))
        found.setdefault(renamed(after, back), code)
    return tuple((code, after) for after, code in sorted(found.items()))


def _tied(election: ElectMaster, brokers: int) -> bool:
    """Whether an id may decide: only between two whose logs are equal, and of which both or none answered."""
    ranks = [
        (election.ends.get(i, End()), i in election.answered or i == election.broker_id)
        for i in range(1, brokers + 1)
    ]
    return len(set(ranks)) < len(ranks)


def _election_with(election: ElectMaster, names: tuple[int, ...]) -> ElectMaster:
    known = range(1, len(names) + 1)
    return msgspec.structs.replace(
        election,
        broker_id=names[election.broker_id - 1] if election.broker_id in known else election.broker_id,
        alive=tuple(sorted(names[i - 1] for i in election.alive if i in known)),
        answered=tuple(sorted(names[i - 1] for i in election.answered if i in known)),
        ends={names[i - 1]: end for i, end in sorted(election.ends.items()) if i in known},
    )


def outcomes(table: bytes, command: ElectMaster) -> tuple[tuple[int, bytes], ...]:
    """What an election may come to, code and table: of brokers whose logs are equal, each may win."""
    return _outcomes(table, _ENCODE(command))


def elections(setting: Setting, world: World) -> tuple[tuple[str, int | None, bytes], ...]:
    """What the Controllers may decide by themselves, whoever they take for alive; the living answer: what it
    is, the master, the table."""
    master = group_of(world.table).master
    command = ElectMaster(
        group=GROUP,
        alive=(),
        answered=tuple(i for i in setting.ids if world.broker(i).up),
        all_ack=master is not None and setting.mode_of(world.broker(master)).all_ack,
        unclean=may_be_unclean(world),
        ends=ends_of(world),
    )
    return _elections(world.table, _ENCODE(command))


@lru_cache(_REMEMBERED)
def _elections(table: bytes, command: bytes) -> tuple[tuple[str, int | None, bytes], ...]:
    """``command``: one in which nobody counts as alive, and everybody answers that can."""
    election = msgspec.msgpack.decode(command, type=ElectMaster)
    group = _DECODE(table)
    able = [i for i in election.ends if i != group.master]
    found, seen = [], {table}
    for count in range(len(able) + 1):
        for alive in combinations(able, count):
            answered = tuple(i for i in alive if i in election.answered)
            asked = msgspec.structs.replace(election, alive=alive, answered=answered)
            for _, after in outcomes(table, asked):
                now = group_of(after)
                if after not in seen and not (now.master is None and group.master is None):
                    seen.add(after)
                    text = f"an election, {named(alive)} alive: master {now.master}, epoch {now.epoch}"
                    found.append((text, now.master, after))
    return tuple(found)


def must_wait(setting: Setting, rules: Rules, world: World, chosen: int, suspect: int | None = None) -> bool:
    """Whether a lease may let another broker acknowledge what ``chosen`` lacks: the election has to wait.
    ``suspect``: the one that asks and may have forgotten."""
    if not rules.lease_is_waited_for:
        return False
    group = group_of(world.table)
    granted = frozenset(i for i in setting.ids if world.granted[i - 1])
    if group.master is not None and not rules.forgetful_waits_for_all:
        granted &= {group.master}
    if group.master is None and not rules.forgotten_is_waited_for:
        granted = frozenset()
    return _waits(world.table, granted, chosen, suspect)


@lru_cache(_REMEMBERED)
def _waits(table: bytes, granted: frozenset[int], chosen: int, suspect: int | None) -> bool:
    """What the real ``ElectionPreview`` says while these leases run and all others are over."""
    group = group_of(table)
    live, leases = Liveness(), Leases()
    for broker_id in sorted({*group.replicas, *group.removed, *granted}):
        # The rule of the epoch says what counts for answers, and how long a lease is.
        beat = Heartbeat(session=1, at_ms=0.0, timeout_ms=TIMEOUT_MS, leases=True)
        live.heartbeat(GROUP, broker_id, beat)
        if broker_id in granted:
            leases.grant((GROUP, broker_id), TIMEOUT_MS, followed_ms=0.0, now_ms=0.0)
        else:
            leases.release((GROUP, broker_id))
    preview = ElectionPreview(ControllerConfig(), ReplicaTable(groups={GROUP: group}), live, leases)
    return preview.lease_left_ms(GROUP, chosen, 0.0, suspect) > 0


def registration(
    setting: Setting, mode: Mode, broker_id: int, *, suspect: bool, alive: tuple[int, ...]
) -> RegisterBroker:
    return RegisterBroker(
        group=GROUP,
        cluster=CLUSTER,
        broker_id=broker_id,
        address=f"h{broker_id}",
        unclean=True,
        suspect=suspect,
        majority_of=rule_of(setting, mode).majority_of,
        alive=alive,
        all_ack=mode.all_ack,
        timeout_ms=TIMEOUT_MS,
    )


def alteration(setting: Setting, request: Request) -> AlterSyncStateSet:
    return AlterSyncStateSet(
        group=GROUP,
        master_id=request.master,
        master_epoch=request.epoch,
        members=request.proposal.members,
        members_epoch=request.proposal.base,
        incarnations=dict(request.proposal.incarnations),
        alive=setting.ids,
    )


def keeping(broker_id: int, epoch: int) -> KeepToLeases:
    """The master says that it acknowledges with a lease only."""
    return KeepToLeases(group=GROUP, master_id=broker_id, master_epoch=epoch)


def joining(broker_id: int) -> ApplyBrokerId:
    """A broker that the Controllers never knew asks for its id."""
    return ApplyBrokerId(group=GROUP, cluster=CLUSTER, broker_id=broker_id, check_code=f"h{broker_id};1")


def removal(broker_id: int) -> CleanBrokers:
    """An operator gives a replica up, whatever it does."""
    return CleanBrokers(group=GROUP, broker_ids=(broker_id,), living=True)
