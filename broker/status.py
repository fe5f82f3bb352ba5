"""What does a broker say of itself? JSON for ``/status`` and the commands that read it."""

from __future__ import annotations

from typing import Any

from broker.parts import BrokerParts
from store.heal.scrub import Scrub


def status_of(broker: BrokerParts) -> dict[str, Any]:
    role_state, store, ha = broker.context.role_state, broker.context.store, broker.context.ha
    return {
        "role": role_state.role,
        "brokerId": role_state.broker_id,
        "group": broker.context.config.broker_name,
        "cluster": broker.context.config.cluster_name,
        "address": broker.context.config.address,
        "groupAddress": broker.group_address.status(),
        "haAddress": broker.context.config.ha_address,
        "epoch": role_state.epoch,
        "syncStateSet": sorted(ha.members),
        "syncStateSetEpoch": ha.set_epoch,
        "minOffset": store.log.min_offset,
        "maxOffset": store.log.end,
        "confirmOffset": store.confirmed,
        "flushedOffset": store.log.flushed,
        "dispatchedOffset": store.dispatched,
        "slaves": ha.slaves(),
        "turnedAway": ha.turned_away_total,
        "tableCopies": broker.context.copies.status(),
        "master": role_state.master_address,
        "acting": role_state.acting,
        "putTotal": broker.context.stats.put_total,
        "putFastTotal": broker.context.stats.put_fast_total,
        "putBytesTotal": broker.context.stats.put_bytes_total,
        "sendWait": broker.context.pending_acks.waits.seen.to_json(),
        "ageWhenRead": broker.context.stats.age_when_read.to_json(),
        "sizes": broker.context.stats.sizes.to_json(),
        "flush": store.background.flusher.took.to_json(),
        "permission": broker.context.config.broker_permission,
        "halfMessages": broker.processors.transactions.open_halves if role_state.is_master else 0,
        "finished": broker.processors.transactions.finished.to_json(),
        "timers": broker.processors.timers.status(),
        "figures": broker.upkeep.sampling.status(),
        "sendPath": broker.fast.describe(),
        "getTotal": broker.context.stats.get_total,
        "parked": len(broker.context.pending_acks),
        "heldPulls": broker.processors.pulls.held,
        "heldPops": broker.processors.pops.polling.held,
        "openCheckpoints": broker.processors.pops.log.open_checkpoints,
        "offsetPairs": broker.context.offsets.pairs_used,
        "pops": broker.processors.pops.status(),
        "revivedTotal": broker.processors.pops.revive.revived,
        "connections": len(broker.server.connections),
        "ports": broker.server.guard.status(),
        "writable": store.why_not_writable,
        "damaged": [item.to_json() | {"lost": len(item.lost)} for item in store.damage.ranges],
        "repaired": store.repairer.repaired,
        "compared": {"passes": broker.upkeep.compare.passes, "undecided": broker.upkeep.compare.undecided},
        "scrub": _scrub(store.scrub),
        "life": broker.role.status(),
        "registered": broker.registration.status(),
        "events": broker.context.env.events.to_json(),
        "eventTotals": dict(broker.context.env.events.totals),
    }


def _scrub(scrub: Scrub) -> dict[str, Any]:
    return {
        "at": scrub.at,
        "passes": scrub.passes,
        "found": scrub.damaged_found,
        "unreadable": scrub.unreadable,
    }
