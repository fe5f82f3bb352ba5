"""What is shown of a run that is repeated: how it began, who is who, what happened, what was answered OK."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from chaos.checks import Violation
from chaos.history import Happened, HistoryEvent, Ok
from chaos.scenarios import Plan
from chaos.sim.cluster import (
    BROKER_PORT,
    BROKER_SETTINGS,
    CONTROLLER_PORT,
    GROUP,
    NAMESRV_PORT,
    NEIGHBOUR_GROUP,
    NEIGHBOUR_SETTINGS,
    NEIGHBOURS,
)
from chaos.sim.story import Story
from ha.master.ack_policy import AckPolicy, Wait
from model.config import BrokerConfig
from model.errors import ConfigError

PROMISES_MAX: Final = 20
"""So many of the answers that violations name are shown."""
_KEY: Final = re.compile(r"\bp\d+-\d{6}\b")
_TOLD: Final = frozenset(
    {"allAckInSyncStateSet", "majorityAck", "inSyncReplicas", "brokerRole", "flushDiskType", "totalReplicas"}
)
"""Keys of a broker that its mode and flush tell."""
ANYWHERE: Final = {"controllerAddr": f"127.0.1.1:{CONTROLLER_PORT}"}


def begins(plan: Plan) -> Iterator[str]:
    """The initial state, and what the plan has beside its steps."""
    load = plan.load
    yield (
        f"initial state: {plan.brokers} brokers of {GROUP}, {_mode(plan.broker, plan.brokers)}"
        f"{_others(plan.broker, _TOLD)}"
    )
    if plan.learners:
        yield f"    {plan.learners} learners of {GROUP}"
    if plan.neighbour:
        settings = {**NEIGHBOUR_SETTINGS, **plan.neighbour_broker}
        yield f"    {NEIGHBOURS} brokers of {NEIGHBOUR_GROUP}, {_mode(settings, NEIGHBOURS)}"
    yield f"    3 NameServers, each with a Controller{_others(plan.controller, ())}"
    yield "    every disk is empty, every link and disk is well, every server is started"
    yield (
        f"load: {load.producers} producers, {load.queues} queues, {load.per_second:g} sends a second each, "
        f"for {plan.load_ms} ms; then all is healed, and read back"
    )


def who_is_who(run: Story) -> Iterator[str]:
    """Every server by each name that lines and violations call it."""
    for node in run.cluster.nodes.values():
        if node.kind == "namesrv":
            ports = f"{NAMESRV_PORT}, its Controller at {CONTROLLER_PORT}"
            yield f"    {node.name:4} {node.host}:{ports}"
        elif node.kind != "client":
            ids = ", then ".join(map(str, run.cluster.changes.ids.get(node.name, []))) or "none"
            yield f"    {node.name:4} {node.host}:{BROKER_PORT}, broker_id {ids}"


def happened(run: Story) -> list[HistoryEvent]:
    """All that is known of the run by time; also what no step of the plan did."""
    return list(run.cluster.changes.among(run.history, run.cluster.beside))


def lines(
    events: Iterable[HistoryEvent], violations: Iterable[Violation], names: Mapping[str, str]
) -> Iterator[str]:
    """What happened, and where what a violation names had been answered OK. ``names``: of addresses."""
    broken = set(_KEY.findall("\n".join(violation.text for violation in violations)))
    left = PROMISES_MAX
    for event in events:
        if isinstance(event, Happened):
            yield event.line()
        elif isinstance(event, Ok) and event.key in broken and left:
            left -= 1
            at = f"{event.queue} {event.queue_offset}"
            who = names.get(event.address, event.address)
            yield f"{event.at_ms:10.1f} ms  {who:4} answered OK: {event.key} at {at} (a violation names it)"


def addresses(run: Story) -> dict[str, str]:
    """Names of the brokers by their addresses."""
    return {f"{node.host}:{BROKER_PORT}": node.name for node in run.cluster.nodes.values()}


def _mode(settings: Mapping[str, str], replicas: int) -> str:
    values = {**BROKER_SETTINGS, **ANYWHERE, "totalReplicas": str(replicas), **settings}
    try:
        config = BrokerConfig.from_mapping(values)
    except ConfigError as error:
        return f"which do not start: {error}"
    policy = AckPolicy.of(config, controllers=True)
    text = {
        Wait.ALL: "all",
        Wait.COUNT: f"counted ({policy.acks_min} copies)",
        Wait.MAJORITY: f"majority (of {policy.replicas})",
        Wait.NOBODY: "asynchronous",
    }[policy.wait]
    return f"mode {text}, {config.flush_disk_type}"


def _others(settings: Mapping[str, str], told: Iterable[str]) -> str:
    return "".join(f", {key}={value}" for key, value in settings.items() if key not in told)
