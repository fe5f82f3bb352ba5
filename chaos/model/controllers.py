"""What do the Controllers answer? The real ``ReplicaTable`` and election rules, remembered by their input.

The Controllers are one linearizable object here: Raft has a fuzzer of its own. Late or lost may be every
request to them (``World.requests``), every view a broker has of them, and every word on who is alive.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from chaos.model.world import Phase, Request, Setting, World
from controller.groups.commands import (
    AlterSyncStateSet,
    Command,
    ElectMaster,
    RegisterBroker,
)
from controller.groups.elect import End
from controller.groups.group import Group, Replica, Rule
from controller.groups.lease import matters
from controller.groups.liveness import Heartbeat
from controller.groups.table import ReplicaTable

GROUP = "g"
CLUSTER = "c"
TIMEOUT_MS = 1500
_ENCODE = msgspec.msgpack.Encoder().encode
_DECODE = msgspec.msgpack.Decoder(Group).decode
_REMEMBERED = 400_000


def new_table(
    setting: Setting,
    members: tuple[int, ...],
    suspects: tuple[int, ...],
    *,
    epoch: int,
    before: tuple[int, ...],
) -> bytes:
    """A group of which broker 1 is master; ``before``: the others that had all when it was elected."""
    rule = Rule(setting.all_ack, setting.brokers if setting.majority else 0, TIMEOUT_MS)
    replicas = {
        i: Replica(
            f"h{i}", f"h{i};1", majority_of=rule.majority_of, all_ack=rule.all_ack, timeout_ms=rule.timeout_ms
        )
        for i in setting.ids
    }
    group = Group(
        CLUSTER,
        next_id=setting.brokers + 1,
        replicas=replicas,
        virgin=False,
        master=1,
        epoch=epoch,
        before=list(before),
        rule=rule,
        members=list(members),
        members_epoch=1,
        suspect=list(suspects),
        holders=list(setting.ids) if setting.majority else [],
    )
    return encoded(group)


def encoded(group: Group) -> bytes:
    """The group as bytes; the count of unclean elections decides nothing and would only part equal states."""
    group.unclean_elections = 0
    group.replicas = dict(sorted(group.replicas.items()))
    group.members = sorted(group.members)
    group.before, group.suspect = sorted(group.before), sorted(group.suspect)
    return _ENCODE(group)


@lru_cache(_REMEMBERED)
def group_of(table: bytes) -> Group:
    """Read only: it is shared."""
    return _DECODE(table)


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


def election(setting: Setting, world: World, alive: tuple[int, ...]) -> ElectMaster:
    """The Controllers elect by themselves. ``alive``: those they take for alive; the living answer."""
    answered = tuple(i for i in alive if world.broker(i).up)
    had_master = group_of(world.table).master is not None
    return ElectMaster(
        group=GROUP,
        alive=alive,
        answered=answered,
        all_ack=setting.all_ack and had_master,
        unclean=setting.unclean,
        ends=ends_of(world),
    )


def elected(world: World, command: ElectMaster) -> int | None:
    return _chosen(world.table, _ENCODE(command))


@lru_cache(_REMEMBERED)
def _chosen(table: bytes, command: bytes) -> int | None:
    return _DECODE(table).choice(msgspec.msgpack.decode(command, type=ElectMaster))


def must_wait(setting: Setting, world: World, chosen: int) -> bool:
    """Whether a lease may let another broker acknowledge what ``chosen`` lacks: the election has to wait."""
    group = group_of(world.table)
    beat = Heartbeat(session=1, at_ms=0, leases=True, all_ack=setting.all_ack)
    granted = {i for i in setting.ids if world.granted[i - 1]}
    holders = {group.master} if group.master is not None else {*group.members, *granted}
    return any(
        h != chosen and h in granted and matters(beat, group.members, chosen, group.rule) for h in holders
    )


def registration(
    setting: Setting, broker_id: int, *, suspect: bool, alive: tuple[int, ...]
) -> RegisterBroker:
    return RegisterBroker(
        group=GROUP,
        cluster=CLUSTER,
        broker_id=broker_id,
        address=f"h{broker_id}",
        unclean=True,
        suspect=suspect,
        majority_of=setting.brokers if setting.majority else 0,
        alive=alive,
        all_ack=setting.all_ack,
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
