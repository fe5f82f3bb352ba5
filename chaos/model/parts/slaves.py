"""What does a slave do: connect where both logs agree, copy, note epochs? ``consistent_point`` is real."""

from __future__ import annotations

from functools import lru_cache

from chaos.model.parts.controllers import group_of
from chaos.model.parts.masters import NOTHING
from chaos.model.rules import Rules
from chaos.model.world import Broker, Epoch, Phase, World, put
from ha.epochs import EpochStart, consistent_point
from model import ids
from model.ids import PhysicalOffset


@lru_cache(200_000)
def agreed(
    master: tuple[Epoch, ...], slave: tuple[Epoch, ...], master_end: int, slave_end: int
) -> int | None:
    ends = PhysicalOffset(master_end), PhysicalOffset(slave_end)
    return consistent_point(_typed(master), _typed(slave), *ends)


def _typed(epochs: tuple[Epoch, ...]) -> list[EpochStart]:
    return [(ids.Epoch(epoch), PhysicalOffset(start)) for epoch, start in epochs]


def epochs_below(epochs: tuple[Epoch, ...], offset: int, *, keep_equal: bool) -> tuple[Epoch, ...]:
    return tuple(e for e in epochs if e[1] < offset or (keep_equal and e[1] == offset))


def connected(rules: Rules, world: World, broker_id: int) -> tuple[int, World] | None:
    """The slave's link to the master it was told of: (agreed offset, world), or None if there is none now."""
    broker, group = world.broker(broker_id), group_of(world.table)
    if group.master is None or group.master == broker_id or broker.follows == group.master:
        return None
    if group.epoch != broker.epoch:
        return None
    master = world.broker(group.master)
    if master.phase is not Phase.MASTER or master.lead is None or not master.epochs:
        return None
    if broker.epochs and master.epochs[-1][0] < broker.epochs[-1][0]:
        return None
    at = agreed(master.epochs, broker.epochs, len(master.log), len(broker.log))
    if at is None:
        if broker.confirmed:
            return None  # needs a re-seed, by hand
        at = 0
    return at, _linked(rules, world, broker_id, group.master, at)


def _linked(rules: Rules, world: World, broker_id: int, master_id: int, at: int) -> World:
    broker, master = world.broker(broker_id), world.broker(master_id)
    assert master.lead is not None
    cut = at < len(broker.log) or (broker.epochs and broker.epochs[-1][1] >= at)
    if cut and rules.cut_before_append:
        broker = broker._replace(
            log=broker.log[:at],
            epochs=epochs_below(broker.epochs, at, keep_equal=False),
            confirmed=min(broker.confirmed, at),
        )
    lead = master.lead._replace(
        acked=put(master.lead.acked, broker_id, NOTHING),
        flying=put(master.lead.flying, broker_id, at),
        noted=put(master.lead.noted, broker_id, False),
        began=put(master.lead.began, broker_id, master.lead.forgot[broker_id - 1]),
    )
    world = world.with_broker(master_id, master._replace(lead=lead))
    return world.with_broker(broker_id, broker._replace(follows=master_id))


def copied(world: World, broker_id: int) -> tuple[str, World] | None:
    """The next record, or the news of a heartbeat, comes over the slave's link. None: nothing new."""
    broker = world.broker(broker_id)
    if not broker.follows:
        return None
    master = world.broker(broker.follows)
    if master.phase is not Phase.MASTER or master.lead is None:
        return None
    end = len(broker.log)
    epochs = tuple(e for e in master.epochs if e[1] <= end + 1)
    if end < len(master.log):
        confirmed = max(broker.confirmed, min(master.confirmed, end + 1))
        record = broker._replace(log=(*broker.log, master.log[end]), epochs=epochs, confirmed=confirmed)
        noted = master.epochs[-1][1] <= end + 1
        return f"broker {broker_id} copies record {end + 1} of the log of broker {broker.follows}", _acked(
            world, broker_id, record, end + 1, noted
        )
    confirmed = max(broker.confirmed, min(master.confirmed, end))
    if epochs == broker.epochs and confirmed == broker.confirmed:
        return None
    heard = broker._replace(epochs=epochs, confirmed=confirmed)
    return f"broker {broker_id} hears a heartbeat of broker {broker.follows}", _acked(
        world, broker_id, heard, end, True
    )


def _acked(world: World, broker_id: int, broker: Broker, end: int, noted: bool) -> World:
    master = world.broker(broker.follows)
    assert master.lead is not None
    lead = master.lead._replace(
        flying=put(master.lead.flying, broker_id, end),
        noted=put(master.lead.noted, broker_id, noted or master.lead.noted[broker_id - 1]),
    )
    world = world.with_broker(broker.follows, master._replace(lead=lead))
    return world.with_broker(broker_id, broker)


def took_tables(world: World, broker_id: int) -> World | None:
    """The slave copies its master's tables. None: it has them, or follows nobody."""
    broker = world.broker(broker_id)
    if not broker.follows or world.broker(broker.follows).phase is not Phase.MASTER:
        return None
    master = world.broker(broker.follows)
    copied = broker._replace(tables=master.tables, tables_epoch=master.tables_epoch)
    return None if copied == broker else world.with_broker(broker_id, copied)
