"""What may happen next? Every step of every part, and every fault the budget has left."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from chaos.model.parts import controllers, masters, slaves
from chaos.model.parts.faults import faults, removals, starts
from chaos.model.parts.handovers import handovers_end, towards_step_down
from chaos.model.parts.move import Move
from chaos.model.parts.network import (
    key_is_set,
    leaders_change,
    leases_end,
    links_break,
    outsiders_are_heard_of,
    requests_arrive,
    views_are_sent,
)
from chaos.model.rules import Rules
from chaos.model.words import named, records
from chaos.model.world import Broker, Phase, Setting, World, put
from controller.groups.commands import SUCCESS, ElectMaster


def moves(setting: Setting, rules: Rules, world: World) -> Iterator[Move]:
    for broker_id in setting.ids:
        broker = world.broker(broker_id)
        yield from faults(rules, world, broker_id, broker)
        if broker.phase is Phase.DOWN:
            yield from starts(setting, world, broker_id, broker)
            continue
        yield from _looks(setting, rules, world, broker_id, broker)
        yield from views_are_sent(world, broker_id, broker)
        yield from links_break(world, broker_id, broker)
        if broker.phase is Phase.SLAVE:
            yield from _follows(rules, world, broker_id)
        if broker.phase is Phase.MASTER:
            yield from _leads(setting, rules, world, broker_id, broker)
            yield from towards_step_down(setting, rules, world, broker_id, broker)
    yield from removals(world)
    yield from key_is_set(world)
    yield from leases_end(setting, rules, world)
    yield from requests_arrive(setting, world)
    yield from leaders_change(setting, rules, world)
    yield from handovers_end(setting, rules, world)
    if world.left.elections:
        yield from _elections(setting, rules, world)


def _looks(setting: Setting, rules: Rules, world: World, broker_id: int, broker: Broker) -> Iterator[Move]:
    """The broker looks at the Controllers' view, or at one that is late, and becomes what it says."""
    yield from _sees(setting, rules, world, broker_id, broker, world.table)
    for sent in world.sent:
        if sent.to == broker_id:
            rest = world._replace(sent=tuple(s for s in world.sent if s != sent))
            for move in _sees(setting, rules, rest, broker_id, broker, sent.table):
                yield move._replace(text=f"{move.text}, by a late view")


def _sees(
    setting: Setting, rules: Rules, world: World, broker_id: int, broker: Broker, view: bytes
) -> Iterator[Move]:
    group = controllers.group_of(view)
    if group.epoch < broker.epoch and rules.old_views_are_ignored:
        return
    if group.master == broker_id:
        yield from _told_to_lead(setting, rules, world, broker_id, broker, view)
    elif group.master is not None and (broker.phase, broker.epoch) != (Phase.SLAVE, group.epoch):
        follows = broker.stopped()._replace(phase=Phase.SLAVE, epoch=group.epoch, asked=True)
        text = f"broker {broker_id} follows broker {group.master}, master of epoch {group.epoch}"
        yield Move(text, world.with_broker(broker_id, follows))
    elif group.master is None and broker.phase is Phase.MASTER and group.epoch > broker.epoch:
        fenced = broker._replace(phase=Phase.REGISTERED, follows=0, lease=0, hands=False, lead=None)
        yield Move(f"broker {broker_id} is fenced", world.with_broker(broker_id, fenced))
    taken_in = broker_id in group.members and broker_id not in group.suspect
    if broker.phase is Phase.SLAVE and broker.suspect and taken_in:
        whole = broker._replace(suspect=False)
        yield Move(f"broker {broker_id} is suspect no more", world.with_broker(broker_id, whole))


def _told_to_lead(
    setting: Setting, rules: Rules, world: World, broker_id: int, broker: Broker, view: bytes
) -> Iterator[Move]:
    group, lead = controllers.group_of(view), broker.lead
    if broker.phase is Phase.MASTER and broker.epoch == group.epoch:
        if lead is None:
            return
        older = group.members_epoch < lead.set_epoch and not rules.old_views_are_ignored
        if group.members_epoch > lead.set_epoch or older:
            after = masters.heard_set(setting, world, broker_id, view)
            yield Move(
                f"broker {broker_id} hears that the SyncStateSet is {named(group.members)}", after, broker_id
            )
    elif broker.phase is not Phase.MASTER and not broker.asked and rules.restarted_asks_anew:
        yield from _asks_anew(setting, rules, world, broker_id, broker, view)
    else:
        for began in masters.took_over(setting, rules, world, broker_id, view):
            yield Move(f"broker {broker_id} begins to lead epoch {group.epoch}", began, broker_id)


def _asks_anew(
    setting: Setting, rules: Rules, world: World, broker_id: int, broker: Broker, view: bytes
) -> Iterator[Move]:
    if not world.left.elections:
        return
    group = controllers.group_of(view)
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
                all_ack=setting.mode_of(broker).all_ack,
                unclean=controllers.may_be_unclean(world),
                master_epoch=group.epoch,
                alive=tuple(sorted((*others, broker_id))),
                answered=tuple(sorted((*others, broker_id))),
                ends=controllers.ends_of(world),
            )
            for code, table in controllers.outcomes(world.table, command):
                asked = broker._replace(asked=code == SUCCESS)
                after = world.spending(elections=1)._replace(
                    table=table, granted=put(world.granted, broker_id, False)
                )
                now = controllers.group_of(table)
                suspect = broker_id if broker.suspect else None
                if now.master is not None and controllers.must_wait(
                    setting, rules, world, now.master, suspect
                ):
                    continue
                found = f"master {now.master}, epoch {now.epoch}"
                yield Move(
                    f"broker {broker_id} asks who leads, {named(others)} alive beside it: {found}",
                    after.with_broker(broker_id, asked),
                )


def _follows(rules: Rules, world: World, broker_id: int) -> Iterator[Move]:
    linked = slaves.connected(rules, world, broker_id)
    if linked is not None:
        at, after = linked
        master = after.broker(broker_id).follows
        yield Move(
            f"broker {broker_id} connects to broker {master}: {records(at)} in common",
            after,
        )
    copied = slaves.copied(world, broker_id)
    if copied is not None:
        yield Move(*copied)
    tables = slaves.took_tables(world, broker_id)
    if tables is not None:
        yield Move(f"broker {broker_id} copies the tables", tables, world.broker(broker_id).follows)


def _leads(setting: Setting, rules: Rules, world: World, broker_id: int, broker: Broker) -> Iterator[Move]:
    lead, left = broker.lead, world.left
    assert lead is not None
    if left.writes and not broker.hands:
        written = broker._replace(log=(*broker.log, (broker.epoch, left.writes)))
        yield Move(
            f"broker {broker_id} appends a record",
            world.spending(writes=1).with_broker(broker_id, written),
            broker_id,
        )
    if left.changes and not broker.hands:
        changed = broker._replace(tables=broker.tables | {left.changes})
        yield Move(
            f"broker {broker_id} changes a table",
            world.spending(changes=1).with_broker(broker_id, changed),
            broker_id,
        )
    for slave in setting.ids:
        if lead.flying[slave - 1] > lead.acked[slave - 1]:
            text = f"broker {broker_id} hears that broker {slave} has {records(lead.flying[slave - 1])}"
            yield Move(text, masters.heard_ack(world, broker_id, slave), broker_id)
    if left.proposals:
        for proposal in masters.proposals(setting, rules, world, broker_id):
            after = masters.proposed(world.spending(proposals=1), broker_id, proposal)
            yield Move(
                f"broker {broker_id} proposes the set {named(proposal.members)} in set epoch {proposal.base}",
                after,
                broker_id,
            )
    for proposal in lead.open:
        over = masters.forgotten(rules, world, broker_id, proposal)
        if over is not None:
            yield Move(
                f"broker {broker_id} forgets that it proposed the set {named(proposal.members)}",
                over,
                broker_id,
            )
    yield from _is_leased(rules, world, broker_id, broker)


def _is_leased(rules: Rules, world: World, broker_id: int, broker: Broker) -> Iterator[Move]:
    """The master gets a lease, or hears that it needs one; its lease ends."""
    group = controllers.group_of(world.table)
    current = group.master == broker_id and group.epoch == broker.epoch
    current = current or not rules.lease_needs_a_majority
    yield from outsiders_are_heard_of(world, broker_id, broker, current=current)
    granting = world.handover is None or not rules.handover_stops_leases
    if world.left.leases and current and granting and broker.lease != broker.epoch:
        leased = world.spending(leases=1)._replace(granted=put(world.granted, broker_id, True))
        yield Move(
            f"broker {broker_id} gets a lease",
            leased.with_broker(broker_id, broker._replace(lease=broker.epoch)),
            broker_id,
        )
    if broker.lease:
        yield Move(
            f"the lease of broker {broker_id} ends, as it knows",
            world.with_broker(broker_id, broker._replace(lease=0)),
        )


def _elections(setting: Setting, rules: Rules, world: World) -> Iterator[Move]:
    """The Controllers elect; a dead broker may still be thought alive, a living one dead."""
    waits: dict[int, bool] = {}
    for text, master, table in controllers.elections(setting, world):
        if master is not None and master not in waits:
            waits[master] = controllers.must_wait(setting, rules, world, master)
        if master is None or not waits[master]:
            yield Move(text, world.spending(elections=1)._replace(table=table))
