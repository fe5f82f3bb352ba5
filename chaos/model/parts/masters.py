"""What does a master count, confirm, answer and propose? On modelled knowledge, by the real ``AckPolicy``."""

from __future__ import annotations

from collections.abc import Iterator

from chaos.model.parts.controllers import group_of, incarnations
from chaos.model.rules import Rules
from chaos.model.world import Broker, Lead, Mode, Open, Phase, Request, Setting, World, put
from controller.groups.group import Group
from ha.master.ack_policy import AckPolicy, Wait
from model.ids import PhysicalOffset

NOTHING = -1


def policy_of(setting: Setting, mode: Mode) -> AckPolicy:
    waits = {"all": Wait.ALL, "count": Wait.COUNT, "majority": Wait.MAJORITY}
    return AckPolicy(
        waits[mode.wait],
        acks_min=mode.acks if mode.wait == "count" else 1,
        replicas=setting.brokers if mode.majority else 0,
        copies_min=mode.copies_min,
    )


def may_be_members(broker_id: int, lead: Lead, rules: Rules) -> set[int]:
    """Every other broker that may be elected from a set the Controllers may hold."""
    found = set(lead.members)
    if rules.open_proposals_count:
        found.update(*(proposal.members for proposal in lead.open))
    return found - {broker_id}


def surely_members(broker_id: int, lead: Lead) -> set[int]:
    """Every other broker that is a member whatever becomes of the open proposals."""
    found = set(lead.members)
    for proposal in lead.open:
        found &= set(proposal.members)
    return found - {broker_id}


def advanced(setting: Setting, rules: Rules, world: World, broker_id: int) -> World:
    """The world after this master has answered and confirmed all it may."""
    broker = world.broker(broker_id)
    lead = broker.lead
    if broker.phase is not Phase.MASTER or lead is None:
        return world
    mode, others = setting.mode_of(broker), may_be_members(broker_id, lead, rules)
    acked_by_all = mode.all_ack and bool(others) and not (broker.leased and rules.unclean_needs_lease)
    holds_lease = broker.lease == broker.epoch or not rules.lease_at_broker
    if not acked_by_all and not holds_lease:
        return world
    end = len(broker.log)
    slowest = min([end, *(lead.acked[i - 1] for i in others)])
    ends = _votes(setting, rules, broker_id, lead, majority=mode.majority)
    policy = policy_of(setting, mode)
    readable, replicated = policy.watermarks(
        PhysicalOffset(end), PhysicalOffset(slowest), ends, policy.copies(setting.brokers)
    )
    confirmed = max(broker.confirmed, min(readable, end) if rules.confirmed_bounds_reads else end)
    places = list(enumerate(broker.log))
    enough = not (mode.majority and rules.changes_need_a_majority) or len(lead.members) > setting.brokers // 2
    changes = _answered_changes(rules, world, broker_id, others) if enough else frozenset()
    return world.with_broker(broker_id, broker._replace(confirmed=confirmed))._replace(
        acked=world.acked.union(places[: max(replicated, 0)]),
        read=world.read.union(places[:confirmed]),
        answered=world.answered | changes,
    )


def _votes(
    setting: Setting, rules: Rules, broker_id: int, lead: Lead, *, majority: bool
) -> list[PhysicalOffset]:
    """The acknowledged ends that count for an answer."""
    votes = surely_members(broker_id, lead) if rules.ends_count_by_member else set(setting.ids) - {broker_id}
    if majority and rules.epoch_is_noted:
        votes = {i for i in votes if lead.noted[i - 1]}
    return [PhysicalOffset(lead.acked[i - 1]) for i in sorted(votes)]


def _answered_changes(rules: Rules, world: World, broker_id: int, others: set[int]) -> frozenset[int]:
    mine = world.broker(broker_id).tables
    holders = [world.broker(i).tables for i in others] if rules.tables_before_answer else []
    return frozenset(change for change in mine if all(change in tables for tables in holders))


def _lacking(setting: Setting, world: World, broker_id: int, members: tuple[int, ...]) -> bool:
    """Whether one of these lacks what was answered under the set there is. Where all answer, none does."""
    broker = world.broker(broker_id)
    mode, lead = setting.mode_of(broker), broker.lead
    assert lead is not None, "asked of masters"
    needed = policy_of(setting, mode).copies(setting.brokers).to_ack
    if mode.all_ack or needed < 2:
        return False
    # It remembers what it answered, also when the one that had it is connected anew.
    answered = sum(place in world.acked for place in enumerate(broker.log))
    return any(lead.acked[m - 1] < answered for m in members if m != broker_id)


def proposals(setting: Setting, rules: Rules, world: World, broker_id: int) -> list[Open]:
    """The sets this master may ask for now: with one member less, or with one that has all it confirmed."""
    broker = world.broker(broker_id)
    lead = broker.lead
    if lead is None:
        return []
    found = []
    for other in range(1, len(world.brokers) + 1):
        members = _with_or_without(setting, rules, world, broker_id, other)
        if members is None:
            continue
        linked = [m for m in members if m != broker_id and world.broker(m).follows == broker_id]
        proposal = Open(members, lead.set_epoch, tuple((m, lead.began[m - 1]) for m in linked))
        if proposal not in lead.open:
            found.append(proposal)
    return found


def _with_or_without(
    setting: Setting, rules: Rules, world: World, broker_id: int, other: int
) -> tuple[int, ...] | None:
    """The set without ``other``, or with it; None where the master may not ask for that."""
    broker = world.broker(broker_id)
    lead = broker.lead
    assert lead is not None, "asked of masters"
    if other == broker_id:
        return None
    if other in lead.members:
        left = tuple(m for m in lead.members if m != other)
        holds = rules.laggards_hold_leavers and _lacking(setting, world, broker_id, left)
        return None if holds else left
    if lead.acked[other - 1] < max(broker.confirmed, broker.epochs[-1][1]):
        return None
    if rules.tables_before_membership and not world.broker(other).tables >= broker.tables:
        return None
    return tuple(sorted((*lead.members, other)))


def proposed(world: World, broker_id: int, proposal: Open) -> World:
    broker = world.broker(broker_id)
    assert broker.lead is not None
    lead = broker.lead._replace(open=tuple(sorted((*broker.lead.open, proposal))))
    request = Request(broker_id, broker.epoch, proposal)
    requests = tuple(sorted({*world.requests, request}))
    return world._replace(requests=requests).with_broker(broker_id, broker._replace(lead=lead))


def forgotten(rules: Rules, world: World, broker_id: int, proposal: Open) -> World | None:
    """The proposal is over: refused or lost, and it arrives no more. None: it cannot be over yet."""
    broker = world.broker(broker_id)
    lead = broker.lead
    if lead is None or proposal.base != lead.set_epoch:
        return None
    if rules.proposals_are_held and group_of(world.table).members_epoch != lead.set_epoch:
        return None
    rest = world.requests
    if rules.proposals_are_held:
        rest = tuple(r for r in rest if r != Request(broker_id, broker.epoch, proposal))
    lead = lead._replace(open=tuple(p for p in lead.open if p != proposal))
    return world._replace(requests=rest).with_broker(broker_id, broker._replace(lead=lead))


def with_tables(world: World, broker_id: int, group: Group) -> list[Broker]:
    """What the broker may be when it has taken tables, before it leads (``broker.upkeep.table_sources``);
    nothing: it waits for one that has them. Whoever lives may be the first to answer."""
    broker = world.broker(broker_id)
    lacking = [source for source in group.table_sources if source.epoch > broker.tables_epoch]
    taken: list[Broker] = []
    while lacking:
        source = lacking.pop()
        if broker_id in source.brokers:
            continue
        living = [world.broker(i) for i in source.brokers if world.broker(i).up]
        served = [b for b in living if not lacking or b.tables_epoch >= lacking[-1].epoch]
        taken += [broker._replace(tables=b.tables) for b in served]
        if len(served) == len(living):
            return taken
    return [*taken, broker]


def took_over(setting: Setting, rules: Rules, world: World, broker_id: int, view: bytes) -> Iterator[World]:
    """The broker elected by ``view`` begins its epoch: what it has is what the group has. With each tables
    it may have taken; none: it lacks some, and nobody lives who has them."""
    group, before = group_of(view), world.broker(broker_id)
    for broker in with_tables(world, broker_id, group) if rules.tables_are_taken else [before]:
        yield _began(setting, rules, world.with_broker(broker_id, broker), broker_id, group)


def _began(setting: Setting, rules: Rules, world: World, broker_id: int, group: Group) -> World:
    broker = world.broker(broker_id)
    epochs = broker.epochs
    if not epochs or epochs[-1][0] < group.epoch:
        if epochs and epochs[-1][1] == len(broker.log):
            epochs = epochs[:-1]
        epochs = (*epochs, (group.epoch, len(broker.log)))
    nobody = (NOTHING,) * setting.brokers
    acked, flying, began = nobody, nobody, (0,) * setting.brokers
    forgot = incarnations(setting, group)
    again = broker.phase is Phase.MASTER and not setting.mode_of(broker).majority
    if again and broker.lead is not None:
        acked, flying, began = (
            broker.lead.acked,
            broker.lead.flying,
            broker.lead.began,
        )  # elected again, its links stay
    lead = Lead(
        tuple(group.members),
        group.members_epoch,
        (),
        acked,
        flying,
        (False,) * setting.brokers,
        began,
        forgot,
    )
    leads = broker._replace(
        phase=Phase.MASTER,
        epoch=group.epoch,
        epochs=epochs,
        suspect=False,
        asked=True,
        follows=0,
        lease=0,
        leased=group.needs_lease and rules.news_tell_of_outsiders,
        tables_epoch=group.epoch if setting.budget.changes else broker.tables_epoch,
        hands=False,
        lead=lead,
    )
    return world.with_broker(broker_id, leads)


def heard_set(setting: Setting, world: World, broker_id: int, view: bytes) -> World:
    """The master learns of the Controllers' newer SyncStateSet, and of who forgot what it had said."""
    group, broker = group_of(view), world.broker(broker_id)
    lead = broker.lead
    assert lead is not None
    still = tuple(p for p in lead.open if p.base >= group.members_epoch)
    forgot = incarnations(setting, group)
    lead = lead._replace(
        members=tuple(group.members), set_epoch=group.members_epoch, open=still, forgot=forgot
    )
    stale = [i for i, times in enumerate(forgot, 1) if i != broker_id and lead.began[i - 1] < times]
    for slave in stale:
        lead = lead._replace(acked=put(lead.acked, slave, NOTHING), flying=put(lead.flying, slave, NOTHING))
        if world.broker(slave).follows == broker_id:
            world = world.with_broker(slave, world.broker(slave)._replace(follows=0))
    return world.with_broker(broker_id, broker._replace(lead=lead))


def heard_ack(world: World, broker_id: int, slave: int) -> World:
    broker = world.broker(broker_id)
    assert broker.lead is not None
    end = broker.lead.flying[slave - 1]
    lead = broker.lead._replace(
        acked=put(broker.lead.acked, slave, end), flying=put(broker.lead.flying, slave, NOTHING)
    )
    return world.with_broker(broker_id, broker._replace(lead=lead))
