"""Which objects of a simulated process hold invariants, and when are they checked?

Every class of our servers that has ``check_invariants``: an instance made inside a simulated process is
checked after each instant in which that process ran. The first broken invariant stops the world, at its
virtual time; a check of the whole history at the end would only know that it came to grief somewhere.

Most instants change little. A class in ``CHANGED_BY`` is checked after an instant in which one of the methods
named there ran: nothing else changes what its check reads (tests/sim/test_invariants.py reads the classes). A
class in ``PART_OF`` is checked by the class it is a part of. ``TELLS_ITSELF``: the server checks itself, and
what it finds there stops the world, too.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from chaos.sim.loop import Life, current_life
from model.installed import PREFIX

PACKAGES: Final = frozenset(
    {"model", "runtime", "remoting", "store", "ha", "controller", "broker", "namesrv", "client", "admin"}
)
METHOD: Final = "check_invariants"
_WATCHED: Final = "_checked_in_simulation"
_LIFE: Final = "_life_in_simulation"

CHANGED_BY: Final[Mapping[str, Sequence[str]]] = {
    "model.acl.directory.Directory": (
        "create_user",
        "update_user",
        "delete_user",
        "add_unless_there",
        "put_acl",
        "delete_acl",
        "load",
        "load_part",
    ),
    "runtime.report.slow_turns.SlowTurns": ("note",),
    "remoting.guard.Guard": ("_enter", "_leave", "_look_at_keys"),
    "remoting.guard.Tally": ("note", "leave", "done"),
    "remoting.guard.Tallies": ("forget", "recount", "recount_in"),
    "controller.raft.node.Node": ("up", "down", "propose", "read", "replace", "transfer_leadership"),
    "controller.groups.table.ReplicaTable": ("apply", "apply_bytes", "restore"),
    "broker.state.clients.Clients": (
        "producer",
        "consumer",
        "promise",
        "keep",
        "renew",
        "unregister",
        "closed",
        "leave_silent",
    ),
    "broker.requests.consumers.held.HeldPulls": ("add", "remove", "take_all"),
    "broker.requests.consumers.pop.held.HeldPops": ("add", "take", "overdue", "take_all"),
    "broker.requests.consumers.pop.positions.Positions": ("popped", "confirmed", "drop", "clear"),
    "broker.requests.consumers.pop.order.OrderTable": (
        "blocks",
        "popped",
        "acked",
        "change",
        "forget_old",
        "clear",
    ),
    "broker.requests.consumers.pop.core.OpenCheckpoints": (
        "on_checkpoint",
        "on_ack",
        "due",
        "settled",
        "later",
        "far",
        "progress",
    ),
    "broker.state.locks.QueueLocks": ("lock", "unlock", "clear"),
    "broker.tables.quota.Quota": ("take",),
    "broker.tables.moved.Moved": ("add", "forget"),
    "broker.tables.filters.FilterTable": ("take", "died", "clean", "load"),
    "broker.tables.resets.Resets": ("add", "end", "replace", "drop"),
    "broker.tables.pairs.PairCount": ("add", "remove", "reserve", "release", "replace"),
    "broker.tables.offsets.OffsetTable": (
        *("reset", "end_reset"),
        "load",
        "commit",
        "hold_for_master",
        "handed_over",
        "take_held",
        "drop",
        "drop_group",
        "drop_topic",
        "clamp",
        "clamp_pops",
        "clone_group",
        "adopt",
    ),
    "broker.tables.topics.Topics": (
        *("boot", "put", "delete", "was_deleted", "note_expired", "clamp_ends", "set_epoch"),
        *("taken_over", "adopt", "apply"),
    ),
    "broker.tables.groups.Groups": ("boot", "put", "delete", "forbid", "set_epoch", "taken_over", "adopt"),
    "store.files.consume_queues.ConsumeQueues": ("load", "open", "destroy", "remove"),
}
PART_OF: Final[Mapping[str, Sequence[str]]] = {
    "store.files.commit_log.CommitLog": ("store.message_store.MessageStore",),
    "store.files.damage.DamageLedger": ("store.message_store.MessageStore",),
    "store.flow.dispatching.dispatch.Dispatcher": ("store.message_store.MessageStore",),
    "broker.timers.core.Wheel": ("broker.timers.delivery.TimerService",),
    "broker.timers.progress.NotesInWaiting": ("broker.timers.delivery.TimerService",),
    "broker.tables.table_text.TableText": (
        "broker.tables.offsets.OffsetTable",
        "broker.tables.topics.Topics",
        "broker.tables.groups.Groups",
        "broker.tables.resets.Resets",
    ),
}
TELLS_ITSELF: Final = frozenset({"controller.raft.node.Node"})
"""Each of its other steps ends with its check."""


_seen: Final = {"modules": 0}
"""How many modules were imported when they were last looked through."""


def watch_servers() -> None:
    """Watch every class with invariants that is imported by now. May be called again."""
    if len(sys.modules) == _seen["modules"]:
        return
    _seen["modules"] = len(sys.modules)
    for name, module in list(sys.modules.items()):
        if name.removeprefix(PREFIX).partition(".")[0] not in PACKAGES:
            continue
        for value in list(vars(module).values()):
            if isinstance(value, type) and value.__module__ == name and hasattr(value, METHOD):
                watch(value)


def watch(kind: type[Any]) -> None:
    """Have instances of exactly this class checked when they are made inside a simulated process."""
    name = f"{kind.__module__.removeprefix(PREFIX)}.{kind.__qualname__}"
    if _WATCHED in vars(kind) or getattr(kind, "_is_protocol", False) or name in PART_OF:
        return
    init: Any = kind.__init__  # of this class or one below: it is called as it would be
    changes = CHANGED_BY.get(name)

    @functools.wraps(init)
    def made(self: Any, *arguments: Any, **keywords: Any) -> None:
        init(self, *arguments, **keywords)
        life = current_life()
        if life is None or type(self) is not kind:
            return
        if changes is None:
            life.watch(self)
        else:
            object.__setattr__(self, _LIFE, life)
            life.changed[id(self)] = self

    setattr(kind, "__init__", made)  # noqa: B010  # mypy forbids the assignment
    setattr(kind, _LIFE, None)  # of those made elsewhere
    for change in changes or ():
        setattr(kind, change, _telling(vars(kind)[change]))
    if name in TELLS_ITSELF:
        setattr(kind, METHOD, _heard(vars(kind)[METHOD]))
    setattr(kind, _WATCHED, True)


def _telling(change: Callable[..., Any]) -> Callable[..., Any]:
    """``change``, after which its object is to be checked."""

    @functools.wraps(change)
    def told(self: Any, *arguments: Any, **keywords: Any) -> Any:
        try:
            return change(self, *arguments, **keywords)
        finally:
            life: Life | None = self._life_in_simulation
            if life is not None:
                life.changed[id(self)] = self

    return told


def _heard(check: Callable[..., None]) -> Callable[..., None]:
    """``check``, of which a failure stops the world even where the server catches it."""

    @functools.wraps(check)
    def heard(self: Any) -> None:
        try:
            check(self)
        except AssertionError as error:
            life: Life | None = getattr(self, _LIFE, None)
            if life is not None:
                life.broken = error
            raise

    return heard
