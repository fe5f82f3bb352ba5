"""Is what the servers of a cluster said in order, and do they say the same? Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from admin.doctor.findings import Finding, Level, failed, ok, warning

CLOCK_WARN_MS: Final = 1_000
CLOCK_FAIL_MS: Final = 300_000
"""``remoting.keys.SKEW_MS``: signed requests are refused then."""
BEHIND_WARN_BYTES: Final = 256 << 20
SPACE_WARN, SPACE_FAIL = 75, 90
"""Percent: the defaults of diskMaxUsedSpaceRatio, diskSpaceWarningLevelRatio; brokers do not tell theirs."""

_ELAPSED: Final = re.compile(r"(\d+) (day|hour|minute|second)s?")
_UNIT_MS: Final = {"day": 86_400_000, "hour": 3_600_000, "minute": 60_000, "second": 1_000}


class State(Protocol):
    """What the Controllers know of a group (``client.admin.SyncState``)."""

    @property
    def group(self) -> str: ...
    @property
    def master(self) -> int | None: ...
    @property
    def master_address(self) -> str | None: ...
    @property
    def epoch(self) -> int: ...
    @property
    def in_sync(self) -> Mapping[int, str]: ...
    @property
    def not_in_sync(self) -> Mapping[int, str]: ...
    @property
    def alive(self) -> Mapping[int, bool]: ...


@dataclass(frozen=True, slots=True)
class Clock:
    """How far a server's clock is before this machine's, and how exactly that is known."""

    ahead_ms: int
    error_ms: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What one server said. ``problem``: why it did not; ``said``: its table."""

    role: str
    address: str
    problem: str = ""
    took_ms: float = 0.0
    clock: Clock | None = None
    said: Mapping[str, Any] = field(default_factory=dict)
    refused: bool = False
    """It answered, and with a no."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What was heard of all. ``states``: of each broker group, as the Controllers know it; ``groups``: as the
    NameServers do, addresses by id."""

    nameservers: Sequence[Answer] = ()
    controllers: Sequence[Answer] = ()
    brokers: Sequence[Answer] = ()
    groups: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    states: Mapping[str, State] = field(default_factory=dict)
    states_problem: str = ""


def judge(seen: Cluster) -> list[Finding]:
    found = [_reached(one) for one in (*seen.nameservers, *seen.controllers, *seen.brokers)]
    found += _routes_agree(seen.nameservers)
    found += _one_leader(seen)
    found += _no_group(seen)
    found += [_group(name, members, seen.states.get(name)) for name, members in sorted(seen.groups.items())]
    found += [one for name in sorted(seen.states) for one in _replicas(seen.states[name])]
    found += [one for broker in seen.brokers if not broker.problem for one in _broker(broker)]
    found += _clocks([*seen.nameservers, *seen.controllers, *seen.brokers])
    return found


def _reached(one: Answer) -> Finding:
    where = f"{one.role} {one.address}"
    if one.problem:
        return failed("reachable", where, one.problem, _todo_of(one))
    return ok("reachable", where, f"answers in {one.took_ms:.0f} ms")


def _todo_of(one: Answer) -> str:
    """By the code of an answer, or else by how the connection ended."""
    if one.refused and one.clock is not None:
        return "its clock and this machine's differ, see clocks: signed requests are refused"
    if one.refused:
        return "give the cluster's key (--credentials FILE), or a user who may: --access-key and --secret-key"
    if "the TLS connection" in one.problem and one.problem.endswith("ended before the answer"):
        return "its log says why it hung up"
    if "TLS" in one.problem:
        return (
            "give the cluster's authority, --tls-ca FILE, and --tls-cert and --tls-key where it asks for them"
        )
    if "ended before the answer" in one.problem:
        return "does it speak TLS alone? Then --tls-ca FILE. Its log says why it hung up"
    return "is it running? Is the port open between here and there (firewall)? Its log says more"


def _routes_agree(nameservers: Sequence[Answer]) -> list[Finding]:
    said = {one.address: one.said.get("brokers") for one in nameservers if not one.problem}
    if len(said) < 2:
        return []
    every = list(said.values())
    where = ", ".join(said)
    if all(one == every[0] for one in every):
        return [ok("routes", where, "all know the same brokers")]
    todo = "wait a heartbeat (30 s) and look again; then: does each broker's namesrvAddr name all of them?"
    return [warning("routes", where, "they know different brokers", todo)]


def _leader_of(one: Answer) -> str:
    return str(one.said.get("controllerLeaderAddress") or "")


def _one_leader(seen: Cluster) -> list[Finding]:
    told = [one for one in seen.controllers if not one.problem]
    if not seen.controllers:
        return []
    leaders = {_leader_of(one) for one in told}
    where = ", ".join(one.address for one in seen.controllers)
    if len(leaders) == 1 and "" not in leaders:
        found = [ok("Controllers", where, f"all follow {leaders.pop()}")]
    elif leaders - {""}:
        names = ", ".join(f"{one.address} follows {_leader_of(one) or 'nobody'}" for one in told)
        todo = (
            "look again in 5 s; then: do they reach each other at their Raft ports? Has 'controller replace' "
            "given the seat of one that follows nobody to another machine (/status, replaced)? Then end it "
            "for good and name the new address here (docs/raft.md)"
        )
        found = [failed("Controllers", where, f"they do not agree who leads: {names}", todo)]
    elif not told:
        todo = "mend that first: nothing is known of their leader"
        found = [failed("Controllers", where, "none of them was reached", todo)]
    else:
        todo = "a majority of them must reach each other: start those that are down (docs/raft.md)"
        found = [failed("Controllers", where, "no leader: no master can be elected", todo)]
    if seen.states_problem:
        todo = "without the leader's word nothing is said of SyncStateSets: mend the above first"
        found.append(failed("Controllers", where, seen.states_problem, todo))
    return found


def _no_group(seen: Cluster) -> list[Finding]:
    told = [one.address for one in seen.nameservers if not one.problem]
    if seen.groups or not told:
        return []
    todo = "start the brokers; of those that run each one's /healthz says why it is not announced"
    return [failed("groups", ", ".join(told), "no broker is known there: nobody can send or read", todo)]


def _group(name: str, members: Mapping[int, str], state: State | None) -> Finding:
    master = members.get(0)
    if master is None:
        todo = f"keelmq group show --group {name}; docs/operations.md, No master"
        return failed("groups", name, "no master: messages are not taken", todo)
    if state is None:
        return ok("groups", name, f"master {master}, {len(members) - 1} slaves")
    if state.master is None:
        todo = "look again in 5 s; docs/operations.md, No master"
        return failed("groups", name, "the Controllers have no master for it", todo)
    if state.master_address != master:
        todo = "look again in 30 s; a groupAddress stands for the master at NameServers, and is in order"
        text = f"NameServers say {master}, Controllers {state.master_address}"
        return warning("groups", name, text, todo)
    return ok("groups", name, f"master {state.master} at {master}, epoch {state.epoch}")


def _replicas(state: State) -> list[Finding]:
    found = []
    for number, address in sorted({**state.in_sync, **state.not_in_sync}.items()):
        where = f"{state.group}: broker {number} at {address}"
        if not state.alive.get(number):
            todo = f"start it; gone for good: keelmq group forget --group {state.group} --broker {number}"
            if number in state.in_sync and state.master is None:  # nobody drops it from the set
                todo += " --give-up"
            found.append(failed("replicas", where, "dead, as the Controllers hear", todo))
        elif number not in state.in_sync:
            todo = "look again in a minute; its /healthz says what keeps it (docs/operations.md)"
            found.append(warning("replicas", where, "alive and not in the SyncStateSet", todo))
        else:
            found.append(ok("replicas", where, "in sync"))
    if len(state.in_sync) == 1 and len(state.in_sync) + len(state.not_in_sync) > 1:
        todo = "bring another replica back before anything is done to this one"
        found.append(failed("replicas", state.group, "one copy alone is in sync", todo))
    return found


def _broker(one: Answer) -> list[Finding]:
    where = f"broker {one.address}"
    found = []
    ratio = _number(one.said.get("commitLogDiskRatio"))
    if ratio is not None and ratio >= 0:
        used = round(100 * ratio)
        text = f"{used} % used; {one.said.get('commitLogDirCapacity', '').strip('. ')}"
        if used > SPACE_FAIL:
            todo = "add space, or lower fileReservedTime: docs/operations.md, Disk full"
            found.append(failed("disk", where, text, todo))
        elif used > SPACE_WARN:
            todo = "add space, lower fileReservedTime, or set commitLogMegabytesMax"
            found.append(warning("disk", where, text, todo))
        else:
            found.append(ok("disk", where, text))
    behind = _number(one.said.get("dispatchBehindBytes"))
    if behind is not None and behind > BEHIND_WARN_BYTES:
        text = f"queues lack {behind / 2**20:.0f} MiB of the CommitLog: consumers see messages late"
        todo = "wait after a start; otherwise look at its CPU and its disk"
        found.append(warning("dispatch", where, text, todo))
    if str(one.said.get("brokerActive", "true")).lower() == "false":
        found.append(failed("broker", where, "it says that it is not active", "look at its log"))
    return found


def _clocks(answers: Sequence[Answer]) -> list[Finding]:
    """Every clock against that of most servers: this machine may be the one that is wrong. Of two or fewer
    servers nobody can say which one is; they are compared with this machine."""
    known = [(one, one.clock) for one in answers if one.clock is not None]
    if not known:
        return []
    exact_ms = max(clock.error_ms for _, clock in known)
    many = len(known) > 2
    middle_ms = sorted(clock.ahead_ms for _, clock in known)[len(known) // 2] if many else 0
    whose = "the other servers" if many else "this machine"
    found = [_clock(one, clock, clock.ahead_ms - middle_ms, whose) for one, clock in known]
    wrong = [one for one in found if one is not None]
    level = _clock_level(abs(middle_ms) - exact_ms)
    if level is not Level.OK:
        text = f"this machine is {abs(middle_ms) / 1000:.1f} s from the servers"
        wrong.append(Finding(level, "clocks", "here", text, "start chrony or ntpd here"))
    if wrong:
        return wrong
    told = [0, *(clock.ahead_ms for _, clock in known)]
    text = f"with this machine's {max(told) - min(told)} ms apart at most (known to {exact_ms} ms)"
    return [ok("clocks", f"{len(known)} servers", text)]


def _clock(one: Answer, clock: Clock, apart_ms: int, whose: str) -> Finding | None:
    level = _clock_level(abs(apart_ms) - clock.error_ms)
    if level is Level.OK:
        return None
    way = "ahead" if apart_ms > 0 else "behind"
    text = f"{abs(apart_ms) / 1000:.1f} s {way} of {whose} (known to {clock.error_ms} ms)"
    if level is Level.FAILED:
        text += ": signed requests are refused"
    todo = "start chrony or ntpd there; delayed messages come at the master's time"
    return Finding(level, "clocks", f"{one.role} {one.address}", text, todo)


def _clock_level(apart_ms: int) -> Level:
    if apart_ms >= CLOCK_FAIL_MS:
        return Level.FAILED
    return Level.WARNING if apart_ms >= CLOCK_WARN_MS else Level.OK


def clock_of_runtime(table: Mapping[str, Any]) -> int | None:
    """The wall clock of a broker that tells when it booted and how long ago that is (RocketMQ's do, to the
    second), in ms; None when it does not."""
    boot = _number(table.get("bootTimestamp"))
    parts = _ELAPSED.findall(str(table.get("runtime", "")))
    if boot is None or not parts:
        return None
    return int(boot) + sum(int(count) * _UNIT_MS[unit] for count, unit in parts)


def _number(text: object) -> float | None:
    try:
        return float(str(text))
    except ValueError:
        return None
