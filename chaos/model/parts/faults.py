"""What breaks, and how does a broker come back? Kills, power losses, wiped logs; a start registers it."""

from __future__ import annotations

from collections.abc import Iterator

from chaos.model.parts import controllers, slaves
from chaos.model.parts.move import Move
from chaos.model.rules import Rules
from chaos.model.words import gone, named
from chaos.model.world import Broker, Phase, Setting, World
from controller.groups.commands import SUCCESS


def faults(rules: Rules, world: World, broker_id: int, broker: Broker) -> Iterator[Move]:
    left = world.left
    if broker.up and left.kills:
        yield Move(
            f"broker {broker_id} is killed", world.spending(kills=1).with_broker(broker_id, broker.stopped())
        )
    if broker.up and left.powers:
        for kept in range(len(broker.log) + 1):
            lost = broker.stopped()._replace(
                log=broker.log[:kept],
                epochs=slaves.epochs_below(broker.epochs, kept, keep_equal=True),
                confirmed=min(broker.confirmed, kept),
                suspect=rules.suspects_register or broker.suspect,
            )
            yield Move(
                f"broker {broker_id} loses power, and {gone(len(broker.log) - kept)}",
                world.spending(powers=1).with_broker(broker_id, lost),
            )
    if broker.log and left.wipes:
        # The epoch file, the checkpoint and the tables are on another disk than the log.
        empty = broker.stopped()._replace(
            log=(), confirmed=0, epochs=(), suspect=rules.empty_log_is_suspect or broker.suspect
        )
        yield Move(
            f"the log of broker {broker_id} is wiped", world.spending(wipes=1).with_broker(broker_id, empty)
        )


def starts(setting: Setting, world: World, broker_id: int, broker: Broker) -> Iterator[Move]:
    """It registers as its configuration says now; that may be another one than at its last start."""
    if not world.left.starts:
        return
    if broker_id not in controllers.group_of(world.table).replicas:
        code, table = controllers.apply(world.table, controllers.joining(broker_id))
        if code == SUCCESS:
            yield Move(f"broker {broker_id} is given its id", world._replace(table=table))
        return
    others = [i for i in setting.ids if i != broker_id]
    thought_alive = {tuple(others), tuple(i for i in others if world.broker(i).up), ()}
    changes_too = world.left.modes and setting.then is not None
    for number in (broker.mode, 1 - broker.mode) if changes_too else (broker.mode,):
        mode = setting.modes[number]
        spent = world.spending(starts=1, modes=int(number != broker.mode))
        for alive in sorted(thought_alive):
            command = controllers.registration(setting, mode, broker_id, suspect=broker.suspect, alive=alive)
            _, table = controllers.apply(world.table, command)
            up = broker._replace(phase=Phase.REGISTERED, mode=number)
            yield Move(
                f"broker {broker_id} starts and registers in mode {mode.wait}, {named(alive)} alive",
                spent._replace(table=table).with_broker(broker_id, up),
            )


def removals(world: World) -> Iterator[Move]:
    """An operator gives a broker up for good, living or dead; what is on its disk counts no more."""
    group = controllers.group_of(world.table)
    if not world.left.forgets or len(group.replicas) < 2:
        return
    for broker_id in sorted(group.replicas):
        _, table = controllers.apply(world.table, controllers.removal(broker_id))
        yield Move(
            f"broker {broker_id} is removed by an operator", world.spending(forgets=1)._replace(table=table)
        )
