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
from chaos.drills.live.kept import reasons
from chaos.drills.live.names import OURS, SWITCH, THEIRS, TOXIPROXY
from chaos.drills.measure import percentile
from chaos.partitions import SHAPES

NAMES: Final = {OURS: "keelmq", THEIRS: "RocketMQ"}
MEANS: Final = {SWITCH: "namespaces", TOXIPROXY: "Toxiproxy"}
PEER: Final = ("version", "java", "options")
COLUMNS: Final[Mapping[str, Callable[[Counted], str]]] = {
    "runs": lambda found: shown(found.runs),
    "strikes": lambda found: shown(found.strikes),
    "judged": lambda found: shown(found.judged),
    "acknowledged": lambda found: shown(found.acked),
    "lost": lambda found: shown(found.lost),
    "order": lambda found: shown(found.order),
    "offsets twice": lambda found: shown(found.twice),
    "two masters": lambda found: shown(found.two_masters),
    "other violations": lambda found: shown(found.others),
    "not judged": lambda found: shown(found.unjudged),
    "not finished": lambda found: shown(found.unfinished),
    "available": lambda found: share(found.availability),
    "worst stall, ms": lambda found: ms(found.stall_ms),
    "RTO p50, ms": lambda found: ms(found.rto_p50_ms),
    "RTO p99, ms": lambda found: ms(found.rto_p99_ms),
    "RTO max, ms": lambda found: ms(found.rto_max_ms),
}
THEIR_PLANS: Final = (
    "The plans are those of keelmq's mode *default*, step by step. `master-alone` is RocketMQ's own default: "
    "its master acknowledges alone. `all-ack`: all members of its SyncStateSet do, as keelmq's do in mode "
    "*default*."
)
TEXT: Final = (
    "- *strikes*: faults that hit a server, one at a time; the next one waits for the full group. "
    "What a plan "
    "does to the same server to go on with it (a wipe after its kill, the kill that ends a disk "
    "error) is part"
    " of one strike.\n"
    "- *judged*: strikes of runs in which every queue of the full group was read back; "
    "*acknowledged* is what "
    "was acknowledged in these, clients that ignore routes included. *not judged*: acknowledged in the other "
    "runs, of which nobody can say whether it is lost.\n"
    "- *lost*: acknowledged messages that the healed group does not give back. *order*: violations of the "
    "order of a producer, of real time and of dense offsets.\n"
    "- *offsets twice*: offsets that two messages were given. *two masters*: in one epoch; of RocketMQ that "
    "is not asked (`-`).\n"
    "- *not finished*: runs that came to no end; their strikes are struck again by another run.\n"
    "- *available*: the share of served windows of 100 ms, of those in which a send was under way, from each "
    "fault until 5 s after it was mended or the first acknowledgement after that, whichever is later, and to "
    "the end of an outage that has begun by then; the "
    "mean of the runs.\n"
    "- *worst stall*: the longest time in which somebody asked and no queue answered, the waits between two "
    "faults included. *RTO*: of each strike and queue that was asked the longest outage until the next "
    "strike, one value each: from a send that goes unanswered to the next acknowledgement; of a rolling "
    "restart or an upgrade each restarted server is one. Of runs of commit bb5892a6 and before all three "
    "count what had no acknowledgement, whether or not anybody asked.\n"
)


def page(campaign: Campaign, command: str, beside: Iterable[str] = (), at_most: int | None = None) -> str:
    """``command`` wrote the page; ``beside``: files of earlier ones; ``at_most``: it is of a "
    "rehearsal. Raises
    no error for a campaign that is not done: what is missing is told."""
    results = campaign.results()
    systems = [
        part
        for target, rows in _by_target(campaign.rows)
        for part in (
            f"## {NAMES[target]}",
            _sentence(rows, campaign),
            *([THEIR_PLANS] if target == THEIRS else []),
            _table(rows, campaign),
        )
    ]
    parts = [
        f"# Faults on real processes{_when(results)}",
        *([] if at_most is None else [f"**A rehearsal: at most {at_most} strikes of each row are asked.**"]),
        *systems,
        "## How it was measured",
        _about(campaign, results, command),
        TEXT,
        "## Asked, and counted",
        _asked(campaign),
        "## Shapes of the partitions",
        _shapes(campaign),
        *_troubles(campaign, results),
    ]
    earlier = [f"[{Path(name).stem}]({name})" for name in sorted(beside)]
    if earlier:
        parts.append(f"Other campaigns: {', '.join(earlier)}.")
    return "\n\n".join(parts) + "\n"


def _when(results: Sequence[Mapping[str, Any]]) -> str:
    days = sorted({str(one["at"])[:10] for one in results if one.get("at")})
    return "" if not days else f": {days[0]}" if len(days) == 1 else f": {days[0]} to {days[-1]}"


def _about(campaign: Campaign, results: Sequence[Mapping[str, Any]], command: str) -> str:
    spent_s = sum(sum((one.get("spent_s") or {}).values()) for one in results)
    times = sorted(datetime.fromisoformat(str(one["at"])) for one in results if one.get("at"))
    carried = ", ".join(f"`{one}`" for one in campaign.commands)
    carried = f"Carried out by {carried}; this" if carried else "This"
    lines = [
        f"All runs are of commit {campaign.release or '(none yet)'}: {len(results)} runs, "
        f"{spent_s / 60:,.0f} min in all. {carried} page was written by `{command}`."
    ]
    if times:
        day = "%H:%M" if times[0].date() == times[-1].date() else "%Y-%m-%d %H:%M"
        lines.append(f"The first ended at {times[0]:%Y-%m-%d %H:%M}, the last at {times[-1]:{day}} UTC.")
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


def _sentence(rows: Sequence[Row], campaign: Campaign) -> str:
    """The verdict on one system."""
    found = Counted.of(campaign.results(rows))
    asked = sum(row.strikes for row in rows)
    missing = sum(map(campaign.missing, rows))
    aside = campaign.broken_aside({row.target for row in rows})
    also = f"; {aside} more runs, which are not counted, broke a promise" if aside else ""
    if not found.runs:
        return f"Nothing was struck yet: {asked:,} strikes are missing{also}."
    masters = "" if found.two_masters is None else f"{found.two_masters} epochs with two masters, "
    lost = "not known how many" if found.lost is None else f"{found.lost:,}"
    unjudged = f"; {found.unjudged:,} more were acknowledged in runs that could not be judged"
    return (
        f"**Of {found.acked:,} messages acknowledged under {found.judged:,} judged strikes {lost} were lost, "
        f"with {found.order} violations of order, {found.twice} offsets given twice, {masters}{found.others} "
        f"other violations{unjudged if found.unjudged else ''}; {found.unfinished} of {found.runs} runs did "
        f"not finish, and {missing or 'none'} of the {asked:,} strikes asked are missing{also}.**"
    )


def _asked(campaign: Campaign) -> str:
    """By goal: strikes of runs that finished and were judged, or broke a promise."""
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


def _table(rows: Sequence[Row], campaign: Campaign) -> str:
    lines = []
    for row in rows:
        found = Counted.of(campaign.results([row]))
        if found.runs:
            fault = row.kind if row.kind != "partition" else f"{row.kind}, {MEANS[row.links]}"
            lines.append([fault, row.mode, *(told(found) for told in COLUMNS.values())])
    everything = Counted.of(campaign.results(rows))
    lines.append(["all", "", *(told(everything) for told in COLUMNS.values())])
    return _lines(["fault", "mode", *COLUMNS], lines)


def _shapes(campaign: Campaign) -> str:
    rows = [row for row in campaign.rows if row.kind == "partition"]
    lines = []
    for (target, links), some in groupby(rows, key=lambda row: (row.target, row.links)):
        shapes: Counter[str] = Counter()
        for one in campaign.results(list(some)):
            shapes.update((one.get("faults") or {}).get("shapes") or {})
        lines.append([NAMES[target], MEANS[links], *(shapes[shape] for shape in SHAPES)])
    return _lines(["system", "means", *SHAPES], lines)


def _troubles(campaign: Campaign, results: Sequence[Mapping[str, Any]]) -> list[str]:
    """What was violated, why runs did not finish, faults were skipped, and results are not counted."""
    lines = []
    for one in results:
        if broken := one.get("broken"):
            counts = ", ".join(f"{checker} {count}" for checker, count in broken.items())
            texts = [f"{told['checker']}: {told['text']}" for told in one.get("violations") or ()]
            first = f"; the first: {texts[0].partition(chr(10))[0]}" if texts else ""
            of = f"{one.get('target', OURS)} {one['scenario']} seed {one['seed']}"
            lines.append(f"- violations, {of}: {counts}{first}")
    lines += reasons(results)
    relays = sum(one.get("proxies") == "relay" for one in results)
    lines += [f"- not counted: {told}" for told in campaign.refused]
    if relays:
        lines.append(f"- {relays} runs had the relay in the place of Toxiproxy")
    return ["## What broke, and what was not carried out", "\n".join(lines)] if lines else []


def _by_target(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    return [(target, found) for target in NAMES if (found := [row for row in rows if row.target == target])]


def _lines(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
