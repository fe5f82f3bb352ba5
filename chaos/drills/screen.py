"""How does a drill look on a screen?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from chaos.drills.measure import MOVES_MASTER, PROMISES, Drill, unjudged

STEPS = (
    ("noticed", "noticed_ms", "the Controller knows"),
    ("elected", "elected_ms", "it has named a master"),
    ("promoted", "promoted_ms", "that broker is master"),
    ("routed", "routed_ms", "a NameServer says so"),
    ("leader", "leader_ms", "another Controller answers as leader"),
    ("first ack", "first_ack_ms", "a message is acknowledged again"),
    ("full again", "full_again_ms", "every replica is in the SyncStateSet"),
)


def show_drill(console: Console, scenario: str, number: int, repeat: int, drill: Drill) -> None:
    """One table: the timeline, what it cost, whether all is there."""
    table = Table(title=f"{scenario} {number + 1}/{repeat}: {escape(drill.victim)}", title_justify="left")
    table.add_column("step")
    table.add_column("ms since the fault", justify="right")
    table.add_column("")
    moves = scenario in MOVES_MASTER
    for name, member, text in STEPS:
        value = getattr(drill, member)
        if value is not None and (moves or member != "first_ack_ms"):
            table.add_row(name, f"{value:,.0f}", text)
    worst = "never" if drill.rto_ms is None else f"{drill.rto_ms:,.0f}"
    table.add_section()
    meaning = "last ack before to first ack after" if moves else "longest time without an ack"
    table.add_row("RTO, worst queue", worst, meaning)
    table.add_row("sends", "", f"{drill.acked:,} acked, {drill.unknown:,} unknown, {drill.failed:,} failed")
    table.add_row("read back", "", verdict(drill))
    console.print(table)
    show_violations(console, drill.violations)
    show_unfinished(console, drill.unfinished)


def show_violations(console: Console, violations: Sequence[Mapping[str, Any]]) -> None:
    """Their texts hold what others wrote, paths too: none of it is rich's markup."""
    for violation in violations:
        console.print(f"[red]{violation['checker']}[/red]: {escape(violation['text'])}", highlight=False)


def show_unfinished(console: Console, why: str | None) -> None:
    if why is not None:
        console.print(f"[red]not finished[/red]: {escape(why)}", highlight=False)


def cannot_go_on(console: Console, error: Exception, what: str = "") -> None:
    """``what`` comes before."""
    console.print(f"{escape(what)}[red]cannot go on[/red]: {escape(str(error))}", highlight=False)


def verdict(drill: Drill) -> str:
    """What reading everything back came to, in rich's markup."""
    broken = [f"{count:,} {text}" for name, text in PROMISES.items() if (count := getattr(drill, name))]
    if broken:
        return f"[red]{', '.join(broken)}[/red]"
    if drill.unfinished is not None:
        return f"[yellow]{drill.read_back:,} messages read back, which says nothing of losses[/yellow]"
    return f"[green]{drill.read_back:,} messages: none lost, none twice, all in order[/green]"


def show_campaign(console: Console, result: Mapping[str, Any]) -> None:
    """What all drills of a campaign came to."""
    show_summary(console, result)
    broken = [
        f"{result[f'{name}_total']:,} {text}" for name, text in PROMISES.items() if result[f"{name}_total"]
    ]
    fine = "none lost, none twice, all in order" if result["unfinished"] is None else "not judged for losses"
    verdict = f"[red]{', '.join(broken)}[/red]" if broken else fine
    console.print(
        f"{result['acked_total']:,} acknowledged, {result['failed_total']:,} failed, "
        f"{result['unknown_total']:,} unknown in {result['seconds']:,.0f} s; "
        f"{result['read_back']:,} read back: {verdict}",
        highlight=False,
    )
    show_violations(console, result["violations"])
    show_unfinished(console, result["unfinished"])


def show_summary(console: Console, result: Mapping[str, Any]) -> None:
    count = len(result["drills"])
    if count < 2:
        return
    times = ", ".join(
        f"{name} {value:,.0f} ms"
        for name in ("p50", "p99", "max")
        if (value := result[f"rto_{name}_ms"]) is not None
    )
    if (asked := result["since_request_p50_ms"]) is not None:
        times += f"; since the fault or request p50 {asked:,.0f} ms, "
        times += f"p99 {result['since_request_p99_ms']:,.0f} ms"
    lost = result["lost_total"] if result["lost_total"] or not unjudged(result) else "not known of all"
    console.print(
        f"{count} drills: RTO {times or 'never'}; lost {lost}, "
        f"order violations {result['order_violations_total']}",
        highlight=False,
    )
