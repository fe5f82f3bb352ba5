"""What do the servers of a cluster say now? Each is asked by itself; one that is silent costs a second."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from client.admin import AdminClient, ConsumeStats, SyncState, cluster_info_of, consume_stats_of
from model.codes import Request
from model.errors import MqError, PeerError, Unknown
from remoting import bodies
from remoting.codec import Command

ANSWER_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Heard:
    """What one server said, or the ``problem`` that it said nothing."""

    address: str
    said: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the consumer groups are at one master."""

    address: str
    groups: Mapping[str, Sequence[ConsumeStats]] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """One look at all. ``at_ms`` is wall time, ``mono_ms`` what rates are made with. ``routes``: addresses by
    id (0 = master) of each broker group, as NameServers know them; ``states``: as the Controllers do."""

    at_ms: int
    mono_ms: float
    nameservers: Sequence[Heard] = ()
    controllers: Sequence[Heard] = ()
    brokers: Mapping[str, Heard] = field(default_factory=dict)
    routes: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    states: Mapping[str, SyncState] = field(default_factory=dict)
    states_problem: str = ""
    progress: Sequence[Progress] = ()


async def look(admin: AdminClient, nameservers: Sequence[str], controllers: Sequence[str]) -> Look:
    """Ask NameServers and Controllers, then the brokers that they name. Never raises for silent servers."""
    env = admin.session.env
    told, heard = await asyncio.gather(
        asyncio.gather(*(_ask(admin, a, Request.GET_BROKER_CLUSTER_INFO) for a in nameservers)),
        asyncio.gather(*(_ask(admin, a, Request.CONTROLLER_GET_METADATA_INFO) for a in controllers)),
    )
    routes: dict[str, Mapping[int, str]] = {}
    for one in told:
        for name, members in one.said.items():
            routes.setdefault(name, members)
    leader = next((a for one in heard if (a := str(one.said.get("controllerLeaderAddress") or ""))), "")
    states, problem = await _states(admin, leader, sorted(routes)) if controllers else ({}, "")
    masters, addresses = _brokers(routes, states)
    brokers, progress = await asyncio.gather(
        asyncio.gather(*(_ask(admin, a, Request.GET_BROKER_RUNTIME_INFO) for a in sorted(addresses))),
        asyncio.gather(*(_progress(admin, a) for a in sorted(masters))),
    )
    return Look(
        env.now_ms(),
        env.monotonic_ms(),
        told,
        heard,
        {one.address: one for one in brokers},
        routes,
        states,
        problem,
        progress,
    )


def _brokers(
    routes: Mapping[str, Mapping[int, str]], states: Mapping[str, SyncState]
) -> tuple[set[str], set[str]]:
    """The addresses of the masters, and of all brokers."""
    masters = {members[0] for members in routes.values() if 0 in members}
    masters |= {state.master_address for state in states.values() if state.master_address}
    every = {address for members in routes.values() for address in members.values()} | masters
    for state in states.values():
        every |= {*state.in_sync.values(), *state.not_in_sync.values()}
    return masters, every


async def _ask(admin: AdminClient, address: str, code: Request) -> Heard:
    try:
        response = await admin.session.call(address, code, timeout_s=ANSWER_S)
        return Heard(address, _said(code, response))
    except (MqError, OSError) as error:
        return Heard(address, problem=_why(error))


def _said(code: Request, response: Command) -> Mapping[str, Any]:
    if code == Request.GET_BROKER_CLUSTER_INFO:
        return cluster_info_of(response.body).brokers
    if code == Request.GET_BROKER_RUNTIME_INFO:
        table = bodies.believed_object(response.body).get("table")
        return table if isinstance(table, dict) else {}
    return dict(response.ext)


async def _states(admin: AdminClient, leader: str, groups: Sequence[str]) -> tuple[dict[str, SyncState], str]:
    if not leader:
        return {}, "no Controller names a leader"
    try:
        async with asyncio.timeout(ANSWER_S):
            return await admin.sync_state([leader], groups), ""
    except TimeoutError:
        return {}, f"the leader of the Controllers, {leader}, is silent"
    except (MqError, OSError) as error:
        return {}, _why(error)


def _why(error: BaseException) -> str:
    if isinstance(error, Unknown):
        return f"no answer within {ANSWER_S:g} s"
    return str(error) or type(error).__name__


async def _progress(admin: AdminClient, address: str) -> Progress:
    try:
        response = await admin.session.call(
            address, Request.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}, timeout_s=ANSWER_S
        )
        return Progress(address, progress_of(response.body))
    except (MqError, OSError) as error:
        return Progress(address, problem=_why(error))


def progress_of(body: bytes) -> dict[str, list[ConsumeStats]]:
    """The queues that each consumer group has offsets of. Raises PeerError."""
    found: dict[str, list[ConsumeStats]] = {}
    try:
        for groups in bodies.believed_object(body).get("consumeStatsList") or []:
            for name, topics in groups.items():
                rows = found.setdefault(str(name), [])
                for topic in topics:
                    rows += [consume_stats_of(k, v) for k, v in (topic.get("offsetTable") or {}).items()]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PeerError(f"consume stats cannot be read: {error!r}") from None
    return found
