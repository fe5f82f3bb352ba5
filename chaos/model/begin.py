"""Where does an exploration begin? A few states every group passes through."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from chaos.model.controllers import new_table
from chaos.model.masters import NOTHING
from chaos.model.world import Broker, Lead, Phase, Setting, World

STARTS: Final[Mapping[str, str]] = {
    "full": "every replica is in the SyncStateSet",
    "two": "the last replica is level, and not in the SyncStateSet yet",
    "alone": "the SyncStateSet is the master alone, the others follow it",
    "suspect": "the last replica lost power once: it is suspect and level again; one record is acknowledged",
}
_MEMBERS: Final[Mapping[str, Callable[[Setting], tuple[int, ...]]]] = {
    "full": lambda setting: setting.ids,
    "two": lambda setting: setting.ids[:-1],
    "alone": lambda setting: setting.ids[:1],
    "suspect": lambda setting: setting.ids[:-1],
}


def begin(setting: Setting) -> World:
    members = _MEMBERS[setting.start](setting)
    last = setting.ids[-1]
    suspects = (last,) if setting.start == "suspect" else ()
    log = ((1, 99),) if suspects else ()
    acked = tuple(NOTHING if i == 1 else len(log) for i in setting.ids)
    nobody = (NOTHING,) * setting.brokers
    lead = Lead(members, 1, (), acked, nobody, (True,) * setting.brokers)
    brokers = [
        Broker(
            phase=Phase.MASTER if i == 1 else Phase.SLAVE,
            log=log,
            confirmed=len(log),
            suspect=i in suspects,
            follows=0 if i == 1 else 1,
            lead=lead if i == 1 else None,
        )
        for i in setting.ids
    ]
    places = frozenset(enumerate(log))
    return World(
        table=new_table(setting, members, suspects),
        granted=(False,) * setting.brokers,
        requests=(),
        brokers=tuple(brokers),
        acked=places,
        read=places,
        answered=frozenset(),
        left=setting.budget,
    )
