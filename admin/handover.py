"""How is a group handed over to another master, on purpose and without a failed send?

The Controllers' leader asks the master to refuse writes until the heir has the whole log, then elects the
heir. Producers ask again meanwhile; what they were answered is at the heir.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from client.admin import AdminClient
from model.errors import MqError, Refused, Unknown
from remoting.auth import Credentials
from remoting.codes import Response
from runtime.env import Env


class CannotHandOver(MqError):
    """The group was not handed over; the text says why. Nothing changed."""


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
    heir: int | None = None,
    *,
    credentials: Credentials | None = None,
) -> HandedOver:
    """Make ``heir`` master of ``group``, or the member of its SyncStateSet with the smallest id.

    Raises CannotHandOver, or Unknown when the Controller did not answer, or does not know itself.
    """
    async with AdminClient(env, list(namesrv), credentials=credentials) as admin:
        begun_ms = env.monotonic_ms()
        try:
            state = (await admin.sync_state(controllers, [group])).get(group)
            if state is None or state.master is None:
                raise CannotHandOver(f"the Controller knows no master of {group}")
            able = sorted(i for i in state.in_sync if i != state.master)
            if heir == state.master:
                raise CannotHandOver(f"broker {heir} is master of {group} already")
            if heir is not None and heir not in able:
                raise CannotHandOver(f"broker {heir} is not in the SyncStateSet of {group}, which has {able}")
            if not able:
                raise CannotHandOver(f"no slave of {group} is in the SyncStateSet")
            chosen = able[0] if heir is None else heir
            master, epoch = await admin.elect(controllers, cluster, group, chosen)
        except Refused as error:
            if error.code == Response.SYSTEM_ERROR:
                # Its proposal may still be carried out, by whoever leads the Controllers next.
                raise Unknown(f"whether {group} is handed over is not known: {error}; look again") from None
            raise CannotHandOver(f"the Controller refuses to hand {group} over: {error}") from None
        if master != chosen:
            raise CannotHandOver(f"the Controller made broker {master} master of {group}, not {chosen}")
        return HandedOver(group, state.master, master, epoch, round(env.monotonic_ms() - begun_ms, 1))
