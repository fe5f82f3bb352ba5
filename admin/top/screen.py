"""How does a view look on a terminal? Lines of text, cut to its size. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from admin.terminal import printable
from admin.top.view import BrokerRow, ConsumerRow, GroupRow, Server, View


def lines(view: View, groups_max: int) -> list[str]:
    """``groups_max``: consumer groups shown by name, the furthest behind first; the rest is summed."""
    return [*map(printable, (*_head(view), *_groups(view), *_consumers(view, groups_max)))]


def cut(text: Sequence[str], width: int, height: int) -> list[str]:
    """As much as fits; the last line says how much does not."""
    kept = list(text)
    if len(kept) > height:
        hidden = len(kept) - height + 1
        kept = [*kept[: height - 1], f"... {hidden} lines more: a higher terminal shows them"]
    return [line[:width] for line in kept]


def _head(view: View) -> list[str]:
    at = datetime.fromtimestamp(view.at_ms / 1000, UTC).strftime("%H:%M:%S UTC")
    found = [f"keelmq top  {at}"]
    for what, servers in (("NameServers", view.nameservers), ("Controllers", view.controllers)):
        if servers:
            found.append(f"{what:<12} {'  '.join(map(_server, servers))}")
    if view.states_problem:
        found.append(f"{'':<12} {view.states_problem}: epochs and SyncStateSets are not known")
    return found


def _server(one: Server) -> str:
    return f"{one.address} {'SILENT' if one.problem else 'leads' if one.leads else 'ok'}"


def _groups(view: View) -> list[str]:
    if not view.groups:
        return ["", "no broker group is known"]
    columns = f"{'in/s':>9} {'out/s':>9} {'log end':>16} {'behind':>10} {'disk':>5}"
    found = []
    for group in view.groups:
        found += ["", _group(group), f"  {'broker':<26} {'role':<7} {columns}", *map(_broker, group.brokers)]
    return found


def _group(group: GroupRow) -> str:
    taken, given = _sum(b.in_tps for b in group.brokers), _sum(b.out_tps for b in group.brokers)
    words = [group.name]
    if group.epoch is not None:
        words.append(f"epoch {group.epoch}")
    words.append("NO MASTER" if group.master is None else f"master {group.master}")
    if group.sync_state_set is not None:
        words.append(f"in sync {{{','.join(map(str, group.sync_state_set))}}} of {len(group.brokers)}")
    return "  ".join([*words, f"in {rate(taken)}/s", f"out {rate(given)}/s"])


def _sum(rates: Iterable[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


def _broker(row: BrokerRow) -> str:
    who = f"{row.id} {row.address}"
    mark = "  NOT IN SYNC" if row.in_sync is False else ""
    if row.problem:
        return f"  {who:<26} SILENT  {row.problem}{mark}"
    return (
        f"  {who:<26} {row.role:<7} {rate(row.in_tps):>9} {rate(row.out_tps):>9}"
        f" {count(row.end):>16} {size(row.behind_bytes):>10} {part(row.disk):>5}{mark}"
    )


def _consumers(view: View, groups_max: int) -> list[str]:
    found = ["", f"{'consumer group':<36} {'topics':>6} {'lag':>12} {'behind':>8} {'read/s':>9}"]
    found += map(_consumer, view.consumers[:groups_max])
    rest = view.consumers[groups_max:]
    if rest:
        found.append(f"and {len(rest)} groups more, with a lag of {sum(row.lag for row in rest):,}")
    if not view.consumers and not view.partial:
        found.append("none has read yet")
    found += [f"without what {problem}" for problem in view.partial]
    return found


def _consumer(row: ConsumerRow) -> str:
    return (
        f"{row.group:<36} {row.topics:>6} {row.lag:>12,} {time(row.behind_ms, row.lag):>8}"
        f" {rate(row.out_tps):>9}"
    )


def rate(value: float | None) -> str:
    """Messages a second; ``-``: not known."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def count(value: int | None) -> str:
    """``-``: not known."""
    return "-" if value is None else f"{value:,}"


def size(value: int | None) -> str:
    """Bytes for people; ``-``: not known."""
    if value is None:
        return "-"
    amount = float(value)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"


def part(value: float | None) -> str:
    """A part of 1 in percent; ``-``: not known."""
    return "-" if value is None else f"{value:.0%}"


def time(behind_ms: int | None, lag: int) -> str:
    """How old what a group read last is; ``-``: it has a ``lag`` and nothing says it."""
    if behind_ms is None:
        return "-" if lag else "0s"
    seconds = behind_ms / 1000
    return (
        f"{seconds:.1f}s"
        if seconds < 60
        else f"{seconds / 60:.0f}m"
        if seconds < 3600
        else f"{seconds / 3600:.0f}h"
    )
