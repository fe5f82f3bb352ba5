"""What does a broker of the simulated cluster say of its place in the group, and who is master by that?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.service import Broker


def standing(broker: Broker) -> dict[str, Any]:
    role_state, store = broker.context.role_state, broker.context.store
    return {
        "role": role_state.role,
        "brokerId": role_state.broker_id,
        "epoch": role_state.epoch,
        "syncStateSet": sorted(broker.context.ha.members),
        "maxOffset": store.log.end,
        "confirmOffset": store.confirmed,
        "dispatchedOffset": store.dispatched,
    }


def master_of(statuses: Mapping[str, dict[str, Any]]) -> str | None:
    masters = [(s["epoch"], name) for name, s in statuses.items() if s["role"] == "master"]
    return max(masters)[1] if masters else None


def members_of(statuses: Mapping[str, dict[str, Any]]) -> list[str]:
    master = master_of(statuses)
    if master is None:
        return []
    ids = statuses[master]["syncStateSet"]
    return [name for name, status in statuses.items() if status["brokerId"] in ids]
