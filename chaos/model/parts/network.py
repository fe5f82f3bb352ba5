"""What is late, lost, said twice or out of order? Views, proposals, HA links, leases, another leader.

Lost is whatever never arrives: every step here may be left out for ever. One way only is a link whose slave
goes on copying while its acknowledgements stay away, or the other way round.
"""

from __future__ import annotations

from collections.abc import Iterator

from chaos.model.parts import controllers
from chaos.model.parts.move import Move
from chaos.model.rules import Rules
from chaos.model.words import named
from chaos.model.world import Broker, Phase, Sent, Setting, World, put
from controller.groups.commands import SUCCESS


def views_are_sent(world: World, broker_id: int, broker: Broker) -> Iterator[Move]:
    """The Controllers answer a question now; the answer is read later, when they may have decided anew."""
    sent = Sent(broker_id, world.table)
    if world.left.views and broker.up and sent not in world.sent:
        on_its_way = tuple(sorted((*world.sent, sent)))
        yield Move(
            f"an answer of the Controllers to broker {broker_id} is on its way",
            world.spending(views=1)._replace(sent=on_its_way),
        )


def links_break(world: World, broker_id: int, broker: Broker) -> Iterator[Move]:
    """The slave sees its link end, the master does not: what it acknowledged may still be on its way."""
    if world.left.cuts and broker.phase is Phase.SLAVE and broker.follows:
        yield Move(
            f"the link of broker {broker_id} to its master breaks",
            world.spending(cuts=1).with_broker(broker_id, broker._replace(follows=0)),
        )


def leases_end(setting: Setting, rules: Rules, world: World) -> Iterator[Move]:
    for broker_id in setting.ids:
        if not world.granted[broker_id - 1]:
            continue
        over = world._replace(granted=put(world.granted, broker_id, False))
        if not world.broker(broker_id).lease:
            yield Move(f"the lease of broker {broker_id} ends, as the Controllers know", over)
            continue
        if world.left.clocks and not rules.clocks_never_step:
            yield Move(f"the clock of broker {broker_id} is set back", over.spending(clocks=1))
        if world.left.stops:
            # A hypervisor stops the clock of a guest, and nothing inside can tell.
            text = (
                f"the machine of broker {broker_id} stands still with its clock, its lease is over elsewhere"
            )
            yield Move(text, over.spending(stops=1))


def requests_arrive(setting: Setting, world: World) -> Iterator[Move]:
    for request in world.requests:
        rest = tuple(r for r in world.requests if r != request)
        _, table = controllers.apply(world.table, controllers.alteration(setting, request))
        found = controllers.group_of(table).members
        asked = f"the Controllers get the set {named(request.proposal.members)} of broker {request.master}"
        text = f"{asked}: it is {named(found)} now"
        yield Move(text, world._replace(table=table, requests=rest))
        if world.left.twice:
            again = world.spending(twice=1)._replace(table=table)
            yield Move(f"{text}, and comes again", again)


def leaders_change(setting: Setting, rules: Rules, world: World) -> Iterator[Move]:
    """Another Controller leads. It knows the table, as far as a majority has it, and of no lease."""
    if not world.left.leaders:
        return
    granted = (rules.new_leader_waits,) * setting.brokers
    table = world.table if rules.answers_are_committed or not world.previous else world.previous
    yield Move(
        "another Controller leads",
        world.spending(leaders=1)._replace(granted=granted, table=table, previous=b""),
    )


def key_is_set(world: World) -> Iterator[Move]:
    """An operator lets the Controllers elect a broker from outside of the set, or takes that back."""
    if world.left.keys:
        now = not world.outsiders
        yield Move(
            f"outsiders {'may' if now else 'may not'} be elected",
            world.spending(keys=1)._replace(outsiders=now),
        )


def outsiders_are_heard_of(world: World, broker_id: int, broker: Broker, *, current: bool) -> Iterator[Move]:
    """The answer to a heartbeat says that outsiders may be elected; the next heartbeat says that it did."""
    if world.outsiders and current and not broker.leased:
        heard = broker._replace(leased=True)
        yield Move(f"broker {broker_id} hears that it needs a lease", world.with_broker(broker_id, heard))
    if broker.leased and not controllers.group_of(world.table).needs_lease:
        code, table = controllers.apply(world.table, controllers.keeping(broker_id, broker.epoch))
        if code == SUCCESS:
            yield Move(
                f"the Controllers note that broker {broker_id} needs a lease", world._replace(table=table)
            )
