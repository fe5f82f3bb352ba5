"""The page of a campaign, in Markdown: every number is counted from the results, none is written by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from chaos.drills.live.campaign.goals import Row
from chaos.drills.live.campaign.state import Campaign
from chaos.drills.live.counted import Counted, ms, share, shown
from chaos.drills.live.matrix import reasons
from chaos.drills.live.scenario import OURS, SWITCH, THEIRS
from chaos.drills.measure import percentile
from chaos.partitions import SHAPES

NAMES: Final = {OURS: "keelmq", THEIRS: "RocketMQ"}
MEANS: Final = {SWITCH: "namespaces", "toxiproxy": "Toxiproxy"}
PEER: Final = ("version", "java", "options")
COLUMNS: Final[Mapping[str, Callable[[Counted], str]]] = {
    "runs": lambda found: shown(found.runs),
    "strikes": lambda found: shown(found.strikes),
    "not finished": lambda found: shown(found.unfinished),
    "acknowledged": lambda found: shown(found.acked),
    "lost": lambda found: shown(found.lost),
    "order": lambda found: shown(found.order),
    "offsets twice": lambda found: shown(found.twice),
    "two masters": lambda found: shown(found.two_masters),
    "other violations": lambda found: shown(found.others),
    "available": lambda found: share(found.availability),
    "worst stall, ms": lambda found: ms(found.stall_ms),
    "RTO p50, ms": lambda found: ms(found.rto_p50_ms),
    "RTO p99, ms": lambda found: ms(found.rto_p99_ms),
    "RTO max, ms": lambda found: ms(found.rto_max_ms),
}
TEXT: Final = (
    "*Strikes*: faults that hit a server, one at a time; the next one waits for the full group. "
    "*Not finished*: runs that came to no end; their strikes are not among those of the first table.\n"
    "*Lost*: acknowledged messages that the healed group does not give back. *Order*: violations of the order"
    " of a producer, of real time and of dense offsets.\n"
    "*Offsets twice*: offsets that two messages were given. *Two masters*: in one epoch; of RocketMQ that is "
    "not asked (`-`).\n"
    "*Available*: the share of windows of 100 ms in which something was acknowledged, from each fault until "
    "5 s after it was mended; the mean of the runs.\n"
    "*Worst stall*: the longest time in which no queue had an acknowledgement, the waits between two faults "
    "included. *RTO*: of each strike and queue the longest time without an acknowledgement until the next."
)


def page(campaign: Campaign, command: str, beside: Iterable[str] = ()) -> str:
    """``command`` repeats the campaign; ``beside``: files of earlier ones. Raises no error for one that is
    not done: what is missing stands in the first table."""
    results = campaign.results()
    parts = [
        f"# Faults on real processes{_when(results)}",
        _about(campaign, results, command),
        _verdict(campaign),
        "## Asked, and counted",
        _asked(campaign),
        "## keelmq, by fault and mode",
        _table([row for row in campaign.rows if row.target == OURS], campaign, by_system=False),
        *_both(campaign),
        "## Shapes of the partitions",
        _shapes(campaign),
        "## What the columns say",
        TEXT,
        *_troubles(results),
    ]
    earlier = [f"[{Path(name).stem}]({name})" for name in sorted(beside)]
    if earlier:
        parts.append(f"Earlier campaigns: {', '.join(earlier)}.")
    return "\n\n".join(parts) + "\n"


def _when(results: Sequence[Mapping[str, Any]]) -> str:
    days = sorted({str(one["at"])[:10] for one in results if one.get("at")})
    return "" if not days else f": {days[0]}" if len(days) == 1 else f": {days[0]} to {days[-1]}"


def _about(campaign: Campaign, results: Sequence[Mapping[str, Any]], command: str) -> str:
    spent_s = sum(sum((one.get("spent_s") or {}).values()) for one in results)
    times = sorted(datetime.fromisoformat(str(one["at"])) for one in results if one.get("at"))
    lines = [
        f"Written by `{command}`, which carries out what is missing and goes on where it was interrupted. "
        f"All runs are of commit {campaign.release or '(none yet)'}: {len(results)} runs, "
        f"{spent_s / 60:,.0f} min in all, several side by side."
    ]
    if times:
        lines.append(f"The first ended at {times[0]:%Y-%m-%d %H:%M} UTC, the last at {times[-1]:%H:%M}.")
    lines += _machine(results)
    lines.append(
        "Each run has a cluster of its own: three NameServers with Controllers and three brokers, each in a "
        "network namespace of its own where links are broken and on an ext4 of its own where disks are; 4 "
        "producers of 25 messages/s each to 4 queues, and one client for each broker that ignores routes "
        "([chaos.md](../chaos.md))."
    )
    return "\n".join(lines)


def _machine(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """What they ran on, how busy that was, and which RocketMQ."""
    machines = [one["machine"] for one in results if one.get("machine")]
    peers = sorted(
        {", ".join(str(one["peer"].get(key)) for key in PEER) for one in results if one.get("peer")}
    )
    loads = sorted(float(one["load_1_min"]) for one in machines if "load_1_min" in one)
    lines = []
    if loads:
        cores = " or ".join(sorted({str(one["cpus"]) for one in machines}))
        told = f"median {percentile(loads, 50):.1f}, at most {loads[-1]:.1f}"
        lines.append(f"The machine has {cores} cores; its load average at the runs' ends: {told}.")
    if peers:
        lines.append(f"RocketMQ {'; '.join(peers)}.")
    return lines


def _verdict(campaign: Campaign) -> str:
    told = []
    for target, rows in _by_target(campaign.rows):
        found = Counted.of(campaign.results(rows))
        missing = sum(map(campaign.missing, rows))
        masters = "-" if found.two_masters is None else found.two_masters
        told.append(
            f"**{NAMES[target]}**: {found.strikes:,} strikes, {found.acked:,} acknowledged, "
            f"{shown(found.lost)} lost, {found.order} order violations, {found.twice} offsets given twice, "
            f"{masters} epochs with two masters, {found.others} other violations, {found.unfinished} of "
            f"{found.runs} runs not finished, {missing or 'no'} strikes missing."
        )
    return "\n".join(told)


def _asked(campaign: Campaign) -> str:
    """By goal: strikes of runs that finished, or broke a promise."""
    lines = []
    goals = list(dict.fromkeys(row.goal for row in campaign.rows))
    for target, rows in _by_target(campaign.rows):
        for goal in goals:
            own = [row for row in rows if row.goal == goal]
            if not own:
                continue
            found = Counted.of(campaign.results(own))
            parts = [f"{sum(map(campaign.counted, some))} {what}" for what, some in _parts(own)]
            lines.append(
                [
                    NAMES[target],
                    goal,
                    sum(row.strikes for row in own),
                    sum(map(campaign.counted, own)),
                    sum(map(campaign.missing, own)),
                    ", ".join(parts),
                    shown(found.lost),
                ]
            )
    return _lines(["system", "faults", "asked", "counted", "missing", "by", "lost"], lines)


def _parts(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Of one goal: its means where it has several, else its kinds, else its modes."""
    for told in (lambda row: MEANS[row.links], lambda row: row.kind, lambda row: row.mode):
        found: dict[str, list[Row]] = {}
        for row in rows:
            found.setdefault(told(row), []).append(row)
        if len(found) > 1:
            return list(found.items())
    return list(found.items())


def _table(rows: Sequence[Row], campaign: Campaign, *, by_system: bool) -> str:
    lines = []
    for row in rows:
        found = Counted.of(campaign.results([row]))
        if found.runs:
            fault = row.kind if row.kind != "partition" else f"{row.kind}, {MEANS[row.links]}"
            mode = f"{NAMES[row.target]}, {row.mode}" if by_system else row.mode
            lines.append([fault, mode, *(told(found) for told in COLUMNS.values())])
    if not by_system:
        everything = Counted.of(campaign.results(rows))
        lines.append(["all", "", *(told(everything) for told in COLUMNS.values())])
    return _lines(["fault", "system and mode" if by_system else "mode", *COLUMNS], lines)


def _both(campaign: Campaign) -> list[str]:
    """The kinds that both systems are struck by, fault by fault."""
    theirs = [row for row in campaign.rows if row.target == THEIRS]
    rows = []
    for kind, links in dict.fromkeys((row.kind, row.links) for row in theirs):
        rows += [row for row in campaign.rows if (row.kind, row.links) == (kind, links)]
    text = (
        "RocketMQ's plans are those of keelmq's mode *default*, step by step. `master-alone` is its own "
        "default: its master acknowledges alone. `all-ack`: all members of its SyncStateSet do, as keelmq's "
        "do in mode *default*."
    )
    return ["## Beside RocketMQ", text, _table(rows, campaign, by_system=True)] if theirs else []


def _shapes(campaign: Campaign) -> str:
    rows = [row for row in campaign.rows if row.kind == "partition"]
    lines = []
    for (target, links), some in groupby(rows, key=lambda row: (row.target, row.links)):
        shapes: Counter[str] = Counter()
        for one in campaign.results(list(some)):
            shapes.update((one.get("faults") or {}).get("shapes") or {})
        lines.append([NAMES[target], MEANS[links], *(shapes[shape] for shape in SHAPES)])
    return _lines(["system", "means", *SHAPES], lines)


def _troubles(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each violation, why runs did not finish, and faults were skipped."""
    lines = [
        f"- violation, {one.get('target', OURS)} {one['scenario']} seed {one['seed']}: {told['checker']}: "
        f"{str(told['text']).partition(chr(10))[0]}"
        for one in results
        for told in one.get("violations") or ()
    ]
    lines += reasons(results)
    relays = sum(one.get("proxies") == "relay" for one in results)
    if relays:
        lines.append(f"- {relays} runs had the relay in the place of Toxiproxy")
    return ["## What broke, and what was not carried out", "\n".join(lines)] if lines else []


def _by_target(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    return [(target, found) for target in NAMES if (found := [row for row in rows if row.target == target])]


def _lines(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
