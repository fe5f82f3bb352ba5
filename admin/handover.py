"""How is a group handed over to another master, on purpose and without a failed send?

The Controllers' leader asks the master to refuse writes until the transfer target has the whole log, then
elects the target. Producers ask again meanwhile; what they were answered is at the transfer target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from client.admin import AdminClient, SyncState
from model.codes import Response
from model.errors import MqError, Refused, Unknown
from remoting.keys import Signer
from runtime.env import Env

PRIORITY_LAST: Final = 2**31 - 1  # of a broker that has none
LEVEL_BYTES: Final = 4 << 20
"""A member that lacks no more has it within a moment of the drain: it is as good as one that has it now."""


class CannotHandOver(MqError):
    """The group was not handed over, or not to the one that was named; the text says why."""


@dataclass(frozen=True, slots=True)
class HandedOver:
    """``former`` and ``master`` are broker ids; ``took_ms`` includes the drain."""

    group: str
    former: int
    master: int
    epoch: int
    took_ms: float


async def hand_over(
    env: Env,
    namesrv: Sequence[str],
    controllers: Sequence[str],
    cluster: str,
    group: str,
    transfer_target: int | None = None,
    *,
    seen: tuple[int, int] | None = None,
    credentials: Signer | None = None,
) -> HandedOver:
    """Make ``transfer_target`` master of ``group``, or the living member of its SyncStateSet an election
    would prefer. That it was elected meanwhile for another reason is as good. ``seen``: the master and the
    epoch it is to happen after; when they are others by now nothing is done.

    Raises CannotHandOver, or Unknown when the Controller did not answer, or does not know itself.
    """
    async with AdminClient(env, list(namesrv), credentials=credentials) as admin:
        begun_ms = env.monotonic_ms()
        try:
            state = (await admin.sync_state(controllers, [group])).get(group)
            former, chosen = _choose(state, group, transfer_target, seen)
            try:
                master, epoch = await admin.elect(controllers, cluster, group, chosen)
            except (Refused, Unknown):
                now = await _state_if_told(admin, controllers, group)
                if now is None or now.master != chosen:
                    raise
                master, epoch = chosen, now.epoch
        except Refused as error:
            if error.code == Response.SYSTEM_ERROR:
                # Its proposal may still be carried out, by whoever leads the Controllers next.
                raise Unknown(f"whether {group} is handed over is not known: {error}; look again") from None
            raise CannotHandOver(f"the Controller refuses to hand {group} over: {error}") from None
        if master != chosen:
            raise CannotHandOver(f"the Controller made broker {master} master of {group}, not {chosen}")
        return HandedOver(group, former, master, epoch, round(env.monotonic_ms() - begun_ms, 1))


async def need_right(
    env: Env, namesrv: Sequence[str], controllers: Sequence[str], credentials: Signer | None
) -> None:
    """Raises CannotHandOver where ``credentials`` may not hand any group over."""
    async with AdminClient(env, list(namesrv), credentials=credentials) as admin:
        try:
            await admin.need_election_right(controllers)
        except Refused as error:
            raise CannotHandOver(f"no group could be handed over: {error}") from None


def _choose(
    state: SyncState | None,
    group: str,
    transfer_target: int | None,
    seen: tuple[int, int] | None = None,
) -> tuple[int, int]:
    """(the master, the broker to be master). Raises CannotHandOver."""
    if state is None or state.master is None:
        raise CannotHandOver(f"the Controller knows no master of {group}")
    if seen not in (None, (state.master, state.epoch)):
        raise CannotHandOver(
            f"broker {state.master} leads {group} in epoch {state.epoch} by now, no more broker {seen[0]} in"
            f" epoch {seen[1]}: nothing is changed"
        )
    able = sorted(i for i in state.in_sync if i != state.master)
    if transfer_target == state.master:
        raise CannotHandOver(f"broker {transfer_target} is master of {group} already")
    if transfer_target in state.maintenance:
        raise CannotHandOver(f"broker {transfer_target} of {group} is in maintenance")
    if transfer_target is not None and transfer_target not in able:
        raise CannotHandOver(
            f"broker {transfer_target} is not in the SyncStateSet of {group}: its slaves there are {able}"
        )
    if not able:
        raise CannotHandOver(f"no slave of {group} is in the SyncStateSet")
    return state.master, _best(state, able) if transfer_target is None else transfer_target


def best_target(state: SyncState) -> int:
    """The broker that would take over. Raises CannotHandOver."""
    return _choose(state, state.group, None)[1]


async def _state_if_told(admin: AdminClient, controllers: Sequence[str], group: str) -> SyncState | None:
    try:
        return (await admin.sync_state(controllers, [group])).get(group)
    except (MqError, OSError):
        return None


def _best(state: SyncState, able: Sequence[int]) -> int:
    """Raises CannotHandOver."""
    living = [i for i in able if state.alive.get(i) and i not in state.maintenance]
    if not living and state.maintenance:
        raise CannotHandOver(f"no slave of {state.group} that is in sync and alive is out of maintenance")
    if not living:
        raise CannotHandOver(f"no slave of {state.group} in the SyncStateSet is alive: {list(able)}")
    ends = {i: state.ends.get(i, (-1, -1)) for i in living}
    newest, furthest = max(ends.values())

    def rank(broker_id: int) -> tuple[int, int, int, int]:
        epoch, offset = ends[broker_id]
        lacks = furthest - offset if epoch == newest else 0
        level = lacks <= LEVEL_BYTES
        return -epoch, 0 if level else lacks, state.priorities.get(broker_id, PRIORITY_LAST), broker_id

    return min(living, key=rank)
