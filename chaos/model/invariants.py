"""Which promises hold in every state, whatever happened before?"""

from __future__ import annotations

from chaos.model.controllers import group_of
from chaos.model.world import Phase, Setting, World


def broken(setting: Setting, before: World, after: World, leads: int) -> str | None:
    """The promise this step broke, or None. ``leads``: the master that answered in it; 0 = none."""
    return (
        _offset_twice(before, after)
        or _one_acknowledger(setting, before, after, leads)
        or _copies(setting, before, after, leads)
        or _nothing_lost(setting, after)
        or _tables(after)
    )


def _serving(world: World) -> int:
    """The master of the Controllers' epoch once it has begun it; 0 = none."""
    group = group_of(world.table)
    if group.master is None:
        return 0
    broker = world.broker(group.master)
    return group.master if broker.phase is Phase.MASTER and broker.epoch == group.epoch else 0


def _nothing_lost(setting: Setting, world: World) -> str | None:
    """The serving master has what was acknowledged or read, unless no disk has it any more: that no protocol
    can help. Where fewer than all acknowledge, docs/replication-modes.md says what may go."""
    serving = _serving(world)
    if not serving or setting.wait == "count" or setting.unclean:
        return None
    log = world.broker(serving).log
    for what, places in (("acknowledged", world.acked), ("read", world.read)):
        for at, record in sorted(places):
            if at < len(log) and log[at] == record:
                continue
            if any(at < len(b.log) and b.log[at] == record for b in world.brokers):
                return f"lost: {what} record {record} at {at} is not in the log of master {serving}"
    return None


def _one_acknowledger(setting: Setting, before: World, after: World, leads: int) -> str | None:
    """No master answers OK for what a successor that serves already lacks."""
    serving = _serving(after)
    if not leads or serving in (0, leads):
        return None
    epoch = after.broker(leads).epoch
    if epoch >= group_of(after.table).epoch:
        return None
    log = after.broker(serving).log
    for at, record in sorted(after.acked - before.acked):
        if not (at < len(log) and log[at] == record):
            return f"two masters: {leads} of epoch {epoch} acknowledges {record}, master {serving} lacks it"
    return None


def _copies(setting: Setting, before: World, after: World, leads: int) -> str | None:
    """OK means so many copies, at the moment it is said."""
    if not leads:
        return None
    by_mode = {"all": 1, "count": setting.acks, "majority": setting.brokers // 2 + 1}
    needed = max(setting.copies_min, by_mode[setting.wait])
    for at, record in sorted(after.acked - before.acked):
        copies = sum(at < len(b.log) and b.log[at] == record for b in after.brokers)
        if copies < needed:
            return f"copies: record {record} at {at} is acknowledged with {copies} of {needed}"
    return None


def _offset_twice(before: World, after: World) -> str | None:
    known = dict(before.acked)
    for at, record in sorted(after.acked - before.acked):
        if known.get(at, record) != record:
            return f"offset twice: {at} was acknowledged for {known[at]} and now for {record}"
    return None


def _tables(world: World) -> str | None:
    """The serving master has every change of the tables that was answered."""
    serving = _serving(world)
    if not serving:
        return None
    missing = world.answered - world.broker(serving).tables
    return f"tables: master {serving} lacks the answered changes {sorted(missing)}" if missing else None
