"""What do the servers of a cluster say, each asked by itself? Nothing is changed by the look."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from admin.doctor.cluster_checks import Answer, Clock, Cluster, clock_of_runtime
from admin.numbers import whole
from client.admin import AdminClient, SyncState, cluster_info_of
from model.codes import Request
from model.errors import MqError, Refused
from remoting import bodies
from remoting.codec import Command
from remoting.headers import NOW_MS
from remoting.keys import clock_of

ANSWER_S: Final = 3.0

_Table = Callable[[Command], Mapping[str, Any]]


async def look(admin: AdminClient, nameservers: Sequence[str], controllers: Sequence[str]) -> Cluster:
    """Ask NameServers and Controllers, then every broker that one of them names."""
    first = await asyncio.gather(
        *(_ask(admin, "NameServer", a, Request.GET_BROKER_CLUSTER_INFO, _brokers) for a in nameservers),
        *(_ask(admin, "Controller", a, Request.CONTROLLER_GET_METADATA_INFO, _ext) for a in controllers),
    )
    told, heard = first[: len(nameservers)], first[len(nameservers) :]
    groups: dict[str, Mapping[int, str]] = {}
    for one in told:
        for name, members in (one.said.get("brokers") or {}).items():
            groups.setdefault(name, members)
    states: dict[str, SyncState] = {}
    problem = ""
    if any(one.said.get("controllerLeaderAddress") for one in heard):
        try:
            states = await admin.sync_state(controllers, sorted(groups))
        except (MqError, OSError) as error:
            problem = f"the leader does not say who is in sync: {error or type(error).__name__}"
    addresses = {address for members in groups.values() for address in members.values()}
    addresses |= {a for s in states.values() for a in (*s.in_sync.values(), *s.not_in_sync.values())}
    asked = [_ask(admin, "broker", a, Request.GET_BROKER_RUNTIME_INFO, _runtime) for a in sorted(addresses)]
    return Cluster(told, heard, await asyncio.gather(*asked), groups, states, problem)


async def _ask(admin: AdminClient, role: str, address: str, code: Request, table: _Table) -> Answer:
    """One question, with the time it took: the first one opens the connection and would say too much of the
    clock, so another one is asked."""
    env = admin.session.env
    try:
        await admin.session.call(address, code, {NOW_MS: "true"}, timeout_s=ANSWER_S)
        began_ms, began = env.now_ms(), env.monotonic_ms()
        response = await admin.session.call(address, code, {NOW_MS: "true"}, timeout_s=ANSWER_S)
        took_ms = env.monotonic_ms() - began
        said = table(response)
    except (MqError, OSError) as error:
        refused = isinstance(error, Refused)
        problem = str(error) or type(error).__name__
        ahead_ms = clock_of(problem) if refused else None
        # It is told in whole seconds.
        clock = None if ahead_ms is None else Clock(ahead_ms, 1000)
        return Answer(role, address, problem=problem, refused=refused, clock=clock)
    clock = _clock(response, said, began_ms + took_ms / 2, took_ms)
    return Answer(role, address, took_ms=took_ms, clock=clock, said=said)


def _clock(response: Command, said: Mapping[str, Any], middle_ms: float, took_ms: float) -> Clock | None:
    error_ms = int(took_ms / 2) + 1
    now_ms = whole(response.ext.get(NOW_MS, ""))
    if now_ms is not None:
        return Clock(round(now_ms - middle_ms), error_ms)
    told_ms = clock_of_runtime(said)
    # Of a clock that is told to the second the rest is not known: half a second is the middle of it.
    return None if told_ms is None else Clock(round(told_ms + 500 - middle_ms), error_ms + 1000)


def _brokers(response: Command) -> Mapping[str, Any]:
    return {"brokers": cluster_info_of(response.body).brokers}


def _ext(response: Command) -> Mapping[str, Any]:
    return dict(response.ext)


def _runtime(response: Command) -> Mapping[str, Any]:
    found = bodies.believed_object(response.body).get("table")
    return found if isinstance(found, dict) else {}
