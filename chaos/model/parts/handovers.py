"""How does a master that lives step down? It asks for a successor, or is drained for one (decision 14).

``ElectionRequest``, ``ElectionPreview.command`` and ``why_not_for`` are real. Why it asks (cut off, full, an
operator) is not
modelled: it may at any moment. Nor are pauses: they only keep masters from asking.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import chain, combinations

from chaos.model.parts import controllers
from chaos.model.parts.masters import policy_of
from chaos.model.parts.move import Move
from chaos.model.rules import Rules
from chaos.model.world import Broker, Handover, Setting, World, put
from controller.elections.lease import Leases
from controller.elections.liveness import Heartbeat, Liveness
from controller.elections.preview import ElectionPreview, ElectionRequest
from controller.elections.step_downs import why_not_for
from controller.groups.commands import SUCCESS
from controller.groups.elect import End
from controller.groups.table import ReplicaTable
from model.config.controller import ControllerConfig

_CONFIGS = {unclean: ControllerConfig(elect_unclean_master=unclean) for unclean in (False, True)}
_UNHEARD = End()
Ends = tuple[End, ...]


def towards_step_down(
    setting: Setting, rules: Rules, world: World, broker_id: int, broker: Broker
) -> Iterator[Move]:
    """Of a master: the steps towards its own end."""
    if broker.hands:
        # The time for it is over. The Controllers may still elect its target, if that heard all is there.
        yield Move(
            f"broker {broker_id} takes writes again",
            world.with_broker(broker_id, broker._replace(hands=False)),
        )
    group = controllers.group_of(world.table)
    if (group.master, group.epoch) != (broker_id, broker.epoch):
        return
    if world.left.strands and world.handover is None:
        yield from _steps_down(setting, rules, world, broker_id, broker)
    if world.left.handovers and world.handover is None:
        for target in group.members:
            if target != broker_id:
                yield Move(
                    f"broker {broker_id} takes no more writes, broker {target} is to lead",
                    world.spending(handovers=1)
                    ._replace(handover=Handover(broker_id, broker.epoch, target))
                    .with_broker(broker_id, broker._replace(hands=True)),
                )
    under_way = world.handover
    if broker.hands and under_way is not None and not under_way.drained:
        has_all = _has_all(world, broker_id, under_way.target)
        if has_all or not rules.target_has_all:
            lease = 0 if rules.lease_is_given_up else broker.lease
            yield Move(
                f"broker {broker_id} has handed all to broker {under_way.target}, and gives up its lease",
                world._replace(handover=under_way._replace(drained=True)).with_broker(
                    broker_id, broker._replace(lease=lease)
                ),
            )


def _has_all(world: World, broker_id: int, target: int) -> bool:
    broker = world.broker(broker_id)
    assert broker.lead is not None, "asked of masters"
    level = broker.lead.acked[target - 1] == len(broker.log)
    return level and world.broker(target).tables >= broker.tables


def ended(before: World, after: World) -> World:
    """A handover is of one epoch and of one leader of the Controllers: with these it is over."""
    under_way = after.handover
    if under_way is None:
        return after
    group = controllers.group_of(after.table)
    same = (group.master, group.epoch) == (under_way.master, under_way.epoch)
    return after if same and after.left.leaders == before.left.leaders else after._replace(handover=None)


def handovers_end(setting: Setting, rules: Rules, world: World) -> Iterator[Move]:
    """The Controllers elect the target, or give it up. Until then they grant no lease."""
    under_way = world.handover
    if under_way is None:
        return
    master, _, target, drained = under_way
    yield Move(f"the handover of broker {master} comes to nothing", world._replace(handover=None))
    if not drained:
        return
    # It said that it leads no more: its lease holds nothing up.
    released = world._replace(granted=put(world.granted, master, False))
    if controllers.must_wait(setting, rules, released, target):
        return
    table = _handed_over(
        world.table,
        target,
        tuple(i for i in setting.ids if world.broker(i).up),
        tuple(controllers.ends_of(world).values()),
        world.outsiders,
    )
    if table is not None:
        epoch = controllers.group_of(table).epoch
        yield Move(
            f"the Controllers elect broker {target} in the place of broker {master}, epoch {epoch}",
            released._replace(table=table, handover=None),
        )


@lru_cache(100_000)
def _handed_over(table: bytes, target: int, up: tuple[int, ...], ends: Ends, outsiders: bool) -> bytes | None:
    """``target`` leads, if some of those that are up answer and that is enough. None: it cannot."""
    for answered in _subsets(up):
        command = _preview(table, ends, range(1, len(ends) + 1), unclean=outsiders).command(
            controllers.GROUP, ElectionRequest(broker_id=target, designate=True), answered, 0.0
        )
        for code, after in controllers.outcomes(table, command):
            if code == SUCCESS:
                return after
    return None


def _steps_down(
    setting: Setting, rules: Rules, world: World, broker_id: int, broker: Broker
) -> Iterator[Move]:
    """It hears too few slaves for an OK, so it asks for an election as if it were dead."""
    needed = policy_of(setting, setting.mode_of(broker)).copies(setting.brokers).to_ack
    if needed < 2:
        return  # it needs nobody, so it never asks
    others = tuple(i for i in setting.ids if i != broker_id)
    up = tuple(i for i in others if world.broker(i).up)
    ends = tuple(controllers.ends_of(world).values())
    request = ElectionRequest(broker_id=broker_id, steps_down=True, needed=needed, master_epoch=broker.epoch)
    for master, table in _successors(world.table, request, others, up, ends, world.outsiders):
        if controllers.must_wait(setting, rules, world, master):
            continue  # no lease is granted meanwhile; when it is over they decide anew
        epoch = controllers.group_of(table).epoch
        yield Move(
            f"broker {broker_id} cannot serve and steps down: master {master}, epoch {epoch}",
            world.spending(strands=1)._replace(table=table),
        )


@lru_cache(100_000)
def _successors(
    table: bytes,
    request: ElectionRequest,
    others: tuple[int, ...],
    up: tuple[int, ...],
    ends: Ends,
    outsiders: bool,
) -> tuple[tuple[int, bytes], ...]:
    """Who may lead instead, whoever counts as alive and whoever answers. Of one that does not, an older
    heartbeat tells, or none."""
    found: dict[bytes, int] = {}
    group = controllers.group_of(table)
    for alive in _subsets(others):
        for answered in _subsets(tuple(i for i in alive if i in up)):
            silent_unheard = tuple(end if i in answered else _UNHEARD for i, end in enumerate(ends, 1))
            for known in (ends, silent_unheard):
                preview = _preview(table, known, (*alive, request.broker_id), unclean=outsiders)
                command = preview.command(controllers.GROUP, request, answered, 0.0)
                for code, after in controllers.outcomes(table, command):
                    master = controllers.group_of(after).master
                    if code != SUCCESS or master is None:
                        continue
                    if why_not_for(group, request, master, answered, ()) is None:
                        found[after] = master
    return tuple((master, after) for after, master in sorted(found.items()))


def _preview(table: bytes, ends: Ends, alive: tuple[int, ...] | range, *, unclean: bool) -> ElectionPreview:
    """What a Controllers' leader knows that heard of these brokers lately, and of the others once."""
    live = Liveness()
    for broker_id, end in enumerate(ends, 1):
        beat = Heartbeat(
            session=broker_id, at_ms=0.0, epoch=end.epoch, max_offset=end.max_offset, leases=True
        )
        live.heartbeat(controllers.GROUP, broker_id, beat)
        if broker_id not in alive:
            live.closed(broker_id)
    tables = ReplicaTable(groups={controllers.GROUP: controllers.group_of(table)})
    return ElectionPreview(_CONFIGS[unclean], tables, live, Leases())


def _subsets(ids: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    return chain.from_iterable(combinations(ids, count) for count in range(len(ids) + 1))
