"""What do two looks say together: who is what, what comes in and goes out, how far are consumers? Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from admin.top.look import Heard, Look
from client.admin import ConsumeStats, SyncState

RATES: Final = {"in": ("putMessageTimesTotal", "putTps"), "out": ("msgGetTotalTodayNow", "getTransferredTps")}
"""Of a broker's runtime table: the counter, and what it says itself, taken while there is one look alone."""


@dataclass(frozen=True, slots=True)
class Server:
    """A NameServer or a Controller. ``problem``: empty when it answered."""

    address: str
    problem: str = ""
    leads: bool = False


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """One broker; what it did not say is None. Rates in messages a second; ``disk``: used part, 0 to 1."""

    id: int
    address: str
    role: str
    in_sync: bool | None
    problem: str = ""
    in_tps: float | None = None
    out_tps: float | None = None
    end: int | None = None
    behind_bytes: int | None = None
    disk: float | None = None


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One broker group. ``epoch``, ``sync_state_set``: None without Controllers."""

    name: str
    master: int | None
    epoch: int | None
    sync_state_set: tuple[int, ...] | None
    brokers: tuple[BrokerRow, ...]


@dataclass(frozen=True, slots=True)
class ConsumerRow:
    """One consumer group. ``behind_ms``: age of the last message it read where it has a lag; None: nothing
    says it."""

    group: str
    topics: int
    lag: int
    behind_ms: int | None
    out_tps: float | None


@dataclass(frozen=True, slots=True)
class View:
    """What is shown. ``partial``: masters that did not say how far consumers are: lags are without theirs."""

    at_ms: int
    nameservers: tuple[Server, ...]
    controllers: tuple[Server, ...]
    groups: tuple[GroupRow, ...]
    consumers: tuple[ConsumerRow, ...]
    states_problem: str
    partial: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        found = _camel(asdict(self))
        assert isinstance(found, dict)
        return found


def _camel(value: Any) -> Any:
    if isinstance(value, dict):
        return {_name(key): _camel(held) for key, held in value.items()}
    return [_camel(held) for held in value] if isinstance(value, (list, tuple)) else value


def _name(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(word.capitalize() for word in rest)


def view(now: Look, before: Look | None) -> View:
    leader = {str(one.said.get("controllerLeaderAddress") or "") for one in now.controllers} - {""}
    names = sorted({*now.routes, *now.states})
    return View(
        now.at_ms,
        tuple(Server(one.address, one.problem) for one in now.nameservers),
        tuple(Server(one.address, one.problem, one.address in leader) for one in now.controllers),
        tuple(_group(name, now, before) for name in names),
        _consumers(now, before),
        now.states_problem,
        tuple(f"{one.address}: {one.problem}" for one in now.progress if one.problem),
    )


def _group(name: str, now: Look, before: Look | None) -> GroupRow:
    state = now.states.get(name)
    members = _members(state, now.routes.get(name) or {})
    master = state.master if state is not None else 0 if 0 in members else None
    end = _number(
        now.brokers.get(members.get(master, "") if master is not None else ""), "commitLogMaxOffset"
    )
    rows = []
    for number, address in sorted(members.items()):
        heard = now.brokers.get(address) or Heard(address, problem="not asked")
        in_sync = None if state is None else number in state.in_sync
        rows.append(_broker(number, heard, number == master, in_sync, end, now, before))
    if state is None:
        return GroupRow(name, master, None, None, tuple(rows))
    return GroupRow(name, master, state.epoch, tuple(sorted(state.in_sync)), tuple(rows))


def _members(state: SyncState | None, routed: Mapping[int, str]) -> Mapping[int, str]:
    return routed if state is None else {**state.in_sync, **state.not_in_sync}


def _broker(
    number: int,
    heard: Heard,
    is_master: bool,
    in_sync: bool | None,
    master_end: float | None,
    now: Look,
    before: Look | None,
) -> BrokerRow:
    role = str(heard.said.get("brokerRole") or ("master" if is_master else "slave")).lower()
    if heard.problem:
        return BrokerRow(number, heard.address, "silent", in_sync, heard.problem)
    end = _number(heard, "commitLogMaxOffset")
    earlier = before.brokers.get(heard.address) if before is not None else None
    seconds = (now.mono_ms - before.mono_ms) / 1000 if before is not None else 0.0
    behind = None if end is None or master_end is None else max(0, int(master_end - end))
    return BrokerRow(
        number,
        heard.address,
        _plain_role(role),
        in_sync,
        "",
        _rate("in", heard, earlier, seconds),
        _rate("out", heard, earlier, seconds),
        None if end is None else int(end),
        behind,
        _number(heard, "commitLogDiskRatio"),
    )


def _plain_role(role: str) -> str:
    """RocketMQ says SYNC_MASTER, ASYNC_MASTER, SLAVE."""
    return role.rpartition("_")[2]


def _number(heard: Heard | None, key: str) -> float | None:
    """Brokers tell numbers as text; RocketMQ a ratio of -1 for a disk it cannot read."""
    try:
        found = float(heard.said[key]) if heard is not None else -1.0
    except (KeyError, ValueError, TypeError):
        return None
    return found if found >= 0 else None


def _rate(which: str, heard: Heard, earlier: Heard | None, seconds: float) -> float | None:
    counter, told = RATES[which]
    total, former = _number(heard, counter), _number(earlier, counter)
    if total is not None and former is not None and total >= former and seconds > 0:
        return (total - former) / seconds
    first = str(heard.said.get(told) or "").split(" ")[0]
    try:
        return float(first)
    except ValueError:
        return None


def _consumers(now: Look, before: Look | None) -> tuple[ConsumerRow, ...]:
    """The furthest behind first."""
    then = _by_group(before) if before is not None else {}
    seconds = (now.mono_ms - before.mono_ms) / 1000 if before is not None else 0.0
    rows = []
    for name, queues in _by_group(now).items():
        behind = [now.at_ms - q.last_ms for q in queues if q.lag > 0 and q.last_ms > 0]
        rows.append(
            ConsumerRow(
                name,
                len({q.queue.topic for q in queues}),
                sum(q.lag for q in queues),
                max(0, *behind) if behind else None,
                _moved(queues, then.get(name) or (), seconds),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.lag, row.group)))


def _by_group(seen: Look) -> dict[str, list[ConsumeStats]]:
    found: dict[str, list[ConsumeStats]] = {}
    for one in seen.progress:
        for name, queues in one.groups.items():
            if queues:
                found.setdefault(name, []).extend(queues)
    return found


def _moved(now: Iterable[ConsumeStats], then: Iterable[ConsumeStats], seconds: float) -> float | None:
    """Messages a second that the group confirmed in queues that both looks have; a reset back is nothing."""
    held = {q.queue: q.consumer_offset for q in then}
    if not held or seconds <= 0:
        return None
    steps = (q.consumer_offset - held[q.queue] for q in now if q.queue in held)
    return sum(max(0, step) for step in steps) / seconds
