"""What may happen next? Every step of every part, and every fault the budget has left."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

from chaos.model import controllers, masters, slaves
from chaos.model.rules import Rules
from chaos.model.world import Broker, Phase, Setting, World, put
from controller.groups.commands import (
    SUCCESS,
    ElectMaster,
)


class Move(NamedTuple):
    """``text`` for a trace; ``leads``: the master whose knowledge changed, which may answer now; 0 = none."""

    text: str
    world: World
    leads: int = 0


def moves(setting: Setting, rules: Rules, world: World) -> Iterator[Move]:
    for broker_id in setting.ids:
        broker = world.broker(broker_id)
        yield from _faults(rules, world, broker_id, broker)
        if broker.phase is Phase.DOWN:
            yield from _starts(setting, rules, world, broker_id, broker)
            continue
        yield from _looks(setting, rules, world, broker_id, broker)
        if broker.phase is Phase.SLAVE:
            yield from _follows(rules, world, broker_id)
        if broker.phase is Phase.MASTER:
            yield from _leads(setting, rules, world, broker_id, broker)
    yield from _leases_end(setting, world)
    yield from _requests_arrive(setting, world)
    if world.left.elections:
        yield from _elections(setting, rules, world)


def _faults(rules: Rules, world: World, broker_id: int, broker: Broker) -> Iterator[Move]:
    left = world.left
    if broker.up and left.kills:
        yield Move(f"kill {broker_id}", world.spending(kills=1).with_broker(broker_id, broker.stopped()))
    if broker.up and left.powers:
        for kept in range(len(broker.log) + 1):
            lost = broker.stopped()._replace(
                log=broker.log[:kept],
                epochs=slaves.epochs_below(broker.epochs, kept, keep_equal=True),
                confirmed=min(broker.confirmed, kept),
                suspect=rules.suspects_register or broker.suspect,
            )
            yield Move(
                f"power of {broker_id} fails, {kept} of {len(broker.log)} records are kept",
                world.spending(powers=1).with_broker(broker_id, lost),
            )
    if broker.log and left.wipes:
        # The epoch file, the checkpoint and the tables are on another disk than the log.
        empty = broker.stopped()._replace(
            log=(), confirmed=0, epochs=(), suspect=rules.empty_log_is_suspect or broker.suspect
        )
        yield Move(f"the log of {broker_id} is wiped", world.spending(wipes=1).with_broker(broker_id, empty))


def _starts(setting: Setting, rules: Rules, world: World, broker_id: int, broker: Broker) -> Iterator[Move]:
    if not world.left.starts:
        return
    others = [i for i in setting.ids if i != broker_id]
    thought_alive = {tuple(others), tuple(i for i in others if world.broker(i).up), ()}
    for alive in sorted(thought_alive):
        command = controllers.registration(setting, broker_id, suspect=broker.suspect, alive=alive)
        _, table = controllers.apply(world.table, command)
        started = world.spending(starts=1)._replace(table=table)
        yield Move(
            f"{broker_id} starts and registers; alive: {alive}",
            started.with_broker(broker_id, broker._replace(phase=Phase.REGISTERED)),
        )


def _looks(setting: Setting, rules: Rules, world: World, broker_id: int, broker: Broker) -> Iterator[Move]:
    """The broker looks at the Controllers' view, and becomes what it says."""
    group = controllers.group_of(world.table)
    if group.master == broker_id:
        yield from _told_to_lead(setting, rules, world, broker_id, broker)
    elif group.master is not None and (broker.phase, broker.epoch) != (Phase.SLAVE, group.epoch):
        follows = broker.stopped()._replace(phase=Phase.SLAVE, epoch=group.epoch, asked=True)
        text = f"{broker_id} follows {group.master} of epoch {group.epoch}"
        yield Move(text, world.with_broker(broker_id, follows))
    elif group.master is None and broker.phase is Phase.MASTER and group.epoch > broker.epoch:
        fenced = broker._replace(phase=Phase.REGISTERED, follows=0, lease=0, lead=None)
        yield Move(f"{broker_id} is fenced", world.with_broker(broker_id, fenced))
    taken_in = broker_id in group.members and broker_id not in group.suspect
    if broker.phase is Phase.SLAVE and broker.suspect and taken_in:
        whole = broker._replace(suspect=False)
        yield Move(f"{broker_id} is suspect no more", world.with_broker(broker_id, whole))


def _told_to_lead(
    setting: Setting, rules: Rules, world: World, broker_id: int, broker: Broker
) -> Iterator[Move]:
    group, lead = controllers.group_of(world.table), broker.lead
    if broker.phase is Phase.MASTER and broker.epoch == group.epoch:
        if lead is not None and group.members_epoch > lead.set_epoch:
            after = masters.heard_set(world, broker_id)
            yield Move(f"{broker_id} hears of the set {group.members}", after, broker_id)
    elif broker.phase is not Phase.MASTER and not broker.asked and rules.restarted_asks_anew:
        yield from _asks_anew(setting, world, broker_id, broker)
    else:
        after = masters.took_over(setting, world, broker_id)
        yield Move(f"{broker_id} leads epoch {group.epoch}", after, broker_id)


def _asks_anew(setting: Setting, world: World, broker_id: int, broker: Broker) -> Iterator[Move]:
    if not world.left.elections:
        return
    group = controllers.group_of(world.table)
    living = [i for i in setting.ids if i != broker_id and world.broker(i).up]
    recorded = broker.epochs[-1][0] if broker.epochs else 0
    for count in range(len(living) + 1):
        for others in combinations(living, count):
            command = ElectMaster(
                group=controllers.GROUP,
                broker_id=broker_id,
                restarted=True,
                log_epoch=recorded,
                suspect=broker.suspect,
                all_ack=setting.all_ack,
                master_epoch=group.epoch,
                alive=tuple(sorted((*others, broker_id))),
                answered=tuple(sorted((*others, broker_id))),
                ends=controllers.ends_of(world),
            )
            code, table = controllers.apply(world.table, command)
            asked = broker._replace(asked=code == SUCCESS)
            after = world.spending(elections=1)._replace(
                table=table, granted=put(world.granted, broker_id, False)
            )
            now = controllers.group_of(table)
            yield Move(
                f"{broker_id} asks anew, {others} live: master {now.master}, epoch {now.epoch}",
                after.with_broker(broker_id, asked),
            )


def _follows(rules: Rules, world: World, broker_id: int) -> Iterator[Move]:
    linked = slaves.connected(rules, world, broker_id)
    if linked is not None:
        at, after = linked
        yield Move(f"{broker_id} connects to {after.broker(broker_id).follows}, both agree up to {at}", after)
    copied = slaves.copied(world, broker_id)
    if copied is not None:
        yield Move(*copied)
    tables = slaves.took_tables(world, broker_id)
    if tables is not None:
        yield Move(f"{broker_id} copies the tables", tables, world.broker(broker_id).follows)


def _leads(setting: Setting, rules: Rules, world: World, broker_id: int, broker: Broker) -> Iterator[Move]:
    lead, left = broker.lead, world.left
    assert lead is not None
    if left.writes:
        written = broker._replace(log=(*broker.log, (broker.epoch, left.writes)))
        yield Move(
            f"{broker_id} appends", world.spending(writes=1).with_broker(broker_id, written), broker_id
        )
    if left.changes:
        changed = broker._replace(tables=broker.tables | {left.changes})
        yield Move(
            f"{broker_id} changes a table",
            world.spending(changes=1).with_broker(broker_id, changed),
            broker_id,
        )
    for slave in setting.ids:
        if lead.flying[slave - 1] > lead.acked[slave - 1]:
            text = f"{broker_id} hears {slave} acknowledge {lead.flying[slave - 1]}"
            yield Move(text, masters.heard_ack(world, broker_id, slave), broker_id)
    if left.proposals:
        for proposal in masters.proposals(rules, world, broker_id):
            after = masters.proposed(world.spending(proposals=1), broker_id, proposal)
            yield Move(
                f"{broker_id} proposes {proposal.members} on set epoch {proposal.base}", after, broker_id
            )
    for proposal in lead.open:
        over = masters.forgotten(rules, world, broker_id, proposal)
        if over is not None:
            yield Move(f"{broker_id} forgets its proposal {proposal.members}", over, broker_id)
    group = controllers.group_of(world.table)
    current = group.master == broker_id and group.epoch == broker.epoch
    if left.leases and current and broker.lease != broker.epoch:
        leased = world.spending(leases=1)._replace(granted=put(world.granted, broker_id, True))
        yield Move(
            f"{broker_id} gets a lease",
            leased.with_broker(broker_id, broker._replace(lease=broker.epoch)),
            broker_id,
        )
    if broker.lease:
        yield Move(
            f"the lease of {broker_id} ends there", world.with_broker(broker_id, broker._replace(lease=0))
        )


def _leases_end(setting: Setting, world: World) -> Iterator[Move]:
    for broker_id in setting.ids:
        if world.granted[broker_id - 1] and not world.broker(broker_id).lease:
            over = world._replace(granted=put(world.granted, broker_id, False))
            yield Move(f"the lease of {broker_id} ends at the Controllers", over)


def _requests_arrive(setting: Setting, world: World) -> Iterator[Move]:
    for request in world.requests:
        rest = tuple(r for r in world.requests if r != request)
        members = request.proposal.members
        command = controllers.alteration(setting, request)
        _, table = controllers.apply(world.table, command)
        found = controllers.group_of(table).members
        yield Move(
            f"the proposal {members} of {request.master} arrives: the set is {found}",
            world._replace(table=table, requests=rest),
        )


def _elections(setting: Setting, rules: Rules, world: World) -> Iterator[Move]:
    """The Controllers elect; a dead broker may still be thought alive, a living one dead."""
    group = controllers.group_of(world.table)
    able = [i for i in setting.ids if i != group.master]
    seen = {world.table}
    for count in range(len(able) + 1):
        for alive in combinations(able, count):
            command = controllers.election(setting, world, alive)
            chosen = controllers.elected(world, command)
            if chosen is None and group.master is None:
                continue
            if (
                chosen is not None
                and rules.lease_is_waited_for
                and controllers.must_wait(setting, world, chosen)
            ):
                continue
            _, table = controllers.apply(world.table, command)
            if table in seen:
                continue
            seen.add(table)
            now = controllers.group_of(table)
            yield Move(
                f"election, alive {alive}: master {now.master}, epoch {now.epoch}",
                world.spending(elections=1)._replace(table=table),
            )
