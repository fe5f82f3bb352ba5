"""Which promises hold in every state, whatever happened before?"""

from __future__ import annotations

from chaos.model.parts.controllers import group_of
from chaos.model.words import named, told
from chaos.model.world import Phase, Record, Setting, World


def broken(setting: Setting, before: World, after: World, leads: int) -> str | None:
    """The promise this step broke, or None. ``leads``: the master that answered in it; 0 = none."""
    new = sorted(after.acked - before.acked) if after.acked is not before.acked else []
    serving = _serving(after)
    return (
        (_offset_twice(setting, before, after, new) if new else None)
        or (_one_acknowledger(after, leads, serving, new) if new and leads else None)
        or (_copies(setting, after, leads, new) if new and leads else None)
        or (_nothing_lost(setting, after, serving) or _tables(after, serving) if serving else None)
        or (_stepped_down(setting, before, after) if after.table is not before.table else None)
    )


def _serving(world: World) -> int:
    """The master of the Controllers' epoch once it has begun it; 0 = none."""
    group = group_of(world.table)
    if group.master is None:
        return 0
    broker = world.broker(group.master)
    return group.master if broker.phase is Phase.MASTER and broker.epoch == group.epoch else 0


def _nothing_lost(setting: Setting, world: World, serving: int) -> str | None:
    """The serving master has what was acknowledged or read, unless no disk has it any more: that no protocol
    can help. Where fewer than all acknowledge, an election may leave behind what was not read yet
    (docs/replication-modes.md); one that had to be unclean, all that its master lacked."""
    if group_of(world.table).unclean_elections:
        return None
    counted = any(mode.wait == "count" for mode in setting.modes)
    acked: frozenset[tuple[int, Record]] = frozenset() if counted else world.acked
    log = world.broker(serving).log
    registered = group_of(world.table).replicas
    disks = [b.log for i, b in enumerate(world.brokers, 1) if i in registered]
    for what, places in (("acknowledged", acked), ("read", world.read)):
        for at, record in sorted(places):
            if at < len(log) and log[at] == record:
                continue
            if any(at < len(disk) and disk[at] == record for disk in disks):
                return f"lost: {told(record, at)} was {what}, and is not in the log of master {serving}"
    return None


def _stepped_down(setting: Setting, before: World, after: World) -> str | None:
    """The broker a living master steps down for has what was answered OK and what was read, in every mode;
    but for what a disk forgot."""
    led, leads = group_of(before.table).master, group_of(after.table).master
    asked = before.left.strands > after.left.strands or before.handover is not None
    if led is None or leads in (None, led) or not asked:
        return None
    if before.left.elections > after.left.elections or _forgot(setting, after):
        return None
    assert leads is not None, "there is another"
    old, new = before.broker(led).log, after.broker(leads).log
    for at, record in sorted(before.acked | before.read):
        if old[at : at + 1] == (record,) and new[at : at + 1] != (record,):
            return f"lost: broker {led} stepped down for broker {leads}, and {told(record, at)} is not there"
    return None


def _forgot(setting: Setting, world: World) -> int:
    """How often a disk forgot something."""
    budget, left = setting.budget, world.left
    return budget.powers - left.powers + budget.wipes - left.wipes


def _one_acknowledger(after: World, leads: int, serving: int, new: list[tuple[int, Record]]) -> str | None:
    """No master answers OK for what a successor that serves already lacks."""
    if serving in (0, leads):
        return None
    epoch = after.broker(leads).epoch
    if epoch >= group_of(after.table).epoch:
        return None
    log = after.broker(serving).log
    for at, record in new:
        if not (at < len(log) and log[at] == record):
            there = f"not in the log of master {serving}, which serves"
            return f"two masters: {told(record, at)} is acknowledged by broker {leads}, and {there}"
    return None


def _copies(setting: Setting, after: World, leads: int, new: list[tuple[int, Record]]) -> str | None:
    """What OK means at the moment it is said, but for what a disk lost since: in mode ``all`` every member of
    the SyncStateSet has the record, in the others so many members, and never fewer than ``copies_min``. There
    a replica that was removed counts until its master hears of it: its disk has the record."""
    master = after.broker(leads)
    mode, members, forgot = setting.mode_of(master), _members(after, leads), _forgot(setting, after)
    if mode.wait != "all" and master.lead is not None:
        removed = set(master.lead.members) - group_of(after.table).replicas.keys()
        members = tuple(sorted({*members, *removed}))
    wanted = {"all": len(members), "count": mode.acks, "majority": setting.brokers // 2 + 1}
    needed = max(mode.copies_min, wanted[mode.wait])
    for at, record in new:
        copies = sum(after.broker(i).log[at : at + 1] == (record,) for i in members)
        if copies + forgot < needed:
            have = f"{copies} of the SyncStateSet {named(members)} have it, where {needed} must"
            return f"copies: {told(record, at)} is acknowledged, and {have}"
    return None


def _members(world: World, leads: int) -> tuple[int, ...]:
    """The SyncStateSet of this master's epoch: the Controllers' own, or, once they elected anew, the last one
    the master knows."""
    group, broker = group_of(world.table), world.broker(leads)
    if group.master == leads and group.epoch == broker.epoch:
        return tuple(sorted(group.members))
    return () if broker.lead is None else broker.lead.members


def _offset_twice(setting: Setting, before: World, after: World, new: list[tuple[int, Record]]) -> str | None:
    """One offset for two records, unless every disk forgot the first."""
    known = dict(before.acked)
    for at, record in new:
        if known.get(at, record) != record:
            kept = any(b.log[at : at + 1] == (known[at],) for b in after.brokers)
            if _forgot(setting, after) and not kept:
                continue
            return f"offset twice: {told(known[at], at)} was acknowledged, now one of epoch {record[0]} is"
    return None


def _tables(world: World, serving: int) -> str | None:
    """The serving master has every change of the tables that was answered, unless no disk has it any more."""
    if not world.answered:
        return None
    mine = world.broker(serving).tables
    registered = group_of(world.table).replicas
    kept = [b.tables for i, b in enumerate(world.brokers, 1) if i in registered]
    missing = (world.answered - mine).intersection(frozenset().union(*kept))
    return f"tables: master {serving} lacks changes that were answered: {named(missing)}" if missing else None
