"""Where does an exploration begin? A few states every group passes through."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from chaos.model.parts.controllers import group_of, new_table
from chaos.model.parts.masters import NOTHING
from chaos.model.words import records, told
from chaos.model.world import Broker, Lead, Phase, Setting, World

STARTS: Final[Mapping[str, str]] = {
    "full": "every replica is in the SyncStateSet",
    "two": "the last replica is level, and not in the SyncStateSet yet",
    "alone": "the SyncStateSet is the master alone, the others follow it",
    "some": "every replica is in the SyncStateSet and has one acknowledged record",
    "suspect": "all have one acknowledged record; the last replica lost power once: suspect, level, outside",
    "joins": "the last replica has no id yet, the others are in the SyncStateSet",
    "elected": "all have one acknowledged record; the last replica led epoch 1; 1 has begun to lead epoch 2",
}
_MEMBERS: Final[Mapping[str, Callable[[Setting], tuple[int, ...]]]] = {
    "full": lambda setting: setting.ids,
    "two": lambda setting: setting.ids[:-1],
    "alone": lambda setting: setting.ids[:1],
    "some": lambda setting: setting.ids,
    "suspect": lambda setting: setting.ids[:-1],
    "joins": lambda setting: setting.ids[:-1],
    "elected": lambda setting: setting.ids[:-1],
}
_WITH_A_RECORD: Final = ("some", "suspect", "elected")


def begin(setting: Setting) -> World:
    members = _MEMBERS[setting.start](setting)
    last = setting.ids[-1]
    suspects = (last,) if setting.start == "suspect" else ()
    log = ((1, 99),) if setting.start in _WITH_A_RECORD else ()
    elected = setting.start == "elected"
    epoch, epochs = (2, ((1, 0), (2, 1))) if elected else (1, ((1, 0),))
    new = last if setting.start == "joins" else 0
    away = last if elected else new
    acked = tuple(NOTHING if i in (1, away) else len(log) for i in setting.ids)
    nobody = (NOTHING,) * setting.brokers
    lead = Lead(
        members,
        1,
        (),
        acked,
        nobody,
        (True,) * setting.brokers,
        (0,) * setting.brokers,
        (0,) * setting.brokers,
    )

    needs_lease = setting.unclean and not setting.budget.keys

    def broker(number: int) -> Broker:
        known = epochs[:1] if number == away else epochs
        return Broker(
            phase=_phase(number, new),
            epoch=0 if number == new else 1 if number == away else epoch,
            log=log,
            epochs=() if number == new else known,
            confirmed=len(log),
            suspect=number in suspects,
            follows=0 if number in (1, away) else 1,
            lead=lead if number == 1 else None,
            leased=needs_lease and number == 1,
        )

    places = frozenset(enumerate(log))
    return World(
        table=new_table(
            setting,
            members,
            suspects,
            registered=tuple(i for i in setting.ids if i != new),
            epoch=epoch,
            before=(away,) if elected else (),
            needs_lease=needs_lease,
        ),
        granted=(False,) * setting.brokers,
        requests=(),
        brokers=tuple(map(broker, setting.ids)),
        acked=places,
        read=places,
        answered=frozenset(),
        left=setting.budget,
        outsiders=needs_lease,
    )


def beginning(setting: Setting) -> Iterator[str]:
    """The initial state, for whoever reads a trace of it alone."""
    world = begin(setting)
    group = group_of(world.table)
    yield f"in the beginning {STARTS[setting.start]}; nobody holds a lease"
    for broker_id, broker in enumerate(world.brokers, 1):
        role = {Phase.DOWN: "not started", Phase.MASTER: f"master of epoch {broker.epoch}"}.get(
            broker.phase, f"follows broker {broker.follows}" if broker.follows else "follows nobody"
        )
        member = "in the SyncStateSet" if broker_id in group.members else "not in the SyncStateSet"
        suspect = ", suspect" if broker.suspect else ""
        yield f"broker {broker_id}: {role}, {member}{suspect}, its log has {records(len(broker.log))}"
    for at, record in sorted(world.acked):
        yield f"{told(record, at)} is answered OK already"


def _phase(broker_id: int, new: int) -> Phase:
    if broker_id == new:
        return Phase.DOWN
    return Phase.MASTER if broker_id == 1 else Phase.SLAVE
