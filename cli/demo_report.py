"""How is one demo told on a page: the verdict, the failover message by message, the proof?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from audit.pages import html
from audit.pages.html import ms, number
from chaos.history import Ok
from cli import chart
from cli.chart import Axis
from cli.dips import dips, latencies

if TYPE_CHECKING:
    from cli.demo_run import Result

TEMPLATES: Final = Path(__file__).with_name("templates")
BIN_MS: Final = 100.0
BEFORE_MS: Final = 100.0
AFTER_MS: Final = 200.0
"""So much of the time around the failover is shown, and more where it was longer."""
TONES: Final = {0: "clean", 1: "warnings", 2: "diverged", 3: "unfinished"}
WORDS: Final = {0: "held", 1: "held, with warnings", 2: "broken", 3: "unfinished"}
HEADLINES: Final = {
    0: "The master died under load. Nothing acknowledged is missing.",
    1: "The master died under load. Nothing acknowledged is missing; the audit has something to look at.",
    2: "A promise was broken.",
    3: "The demo could not check everything.",
}
STEPS: Final = (
    ("noticed", "noticed_ms", "the Controller knows that the master is gone"),
    ("elected", "elected_ms", "the Controllers agreed on another"),
    ("promoted", "promoted_ms", "that broker is master and accepts messages"),
    ("routed", "routed_ms", "the first NameServer sends clients there"),
    ("first ack", "first_ack_ms", "a producer's message is acknowledged again"),
)


def bins(acks_ms: list[float], until_ms: float) -> list[int]:
    """Acknowledgements per 100 ms from 0 to ``until_ms``."""
    counts = [0] * (int(until_ms // BIN_MS) + 1)
    for at in acks_ms:
        place = int(at // BIN_MS)
        if 0 <= place < len(counts):
            counts[place] += 1
    return counts


def page(result: Result) -> str:
    """The whole page, without outside parts."""
    plan = result.plan
    command = f"keelmq demo --seconds {plan.seconds:g} --rate {plan.rate} "
    command += f"--size {plan.size_bytes} --seed {plan.seed}"
    unfinished = [f"not finished: {result.drill.unfinished}"] if result.drill.unfinished else []
    latency_ms = latencies(result)
    values = {
        "result": result,
        "tone": TONES[result.exit_code],
        "word": WORDS[result.exit_code],
        "headline": HEADLINES[result.exit_code],
        "story": _story(result),
        "numbers": _numbers(result),
        "latency": latency_ms if latency_ms["max"] is not None else {},
        "close": close_up(result),
        "whole": _whole(result),
        "dips": dips(result),
        "steps": _steps(result),
        "audit": result.audit,
        "wrong": [*result.violations[:50], *unfinished],
        "command": command,
    }
    return html.page("demo.html", values, beside=TEMPLATES)


def _story(result: Result) -> str:
    plan = result.plan
    return (
        f"{plan.rate} messages/s of {plan.size_bytes} bytes for {plan.seconds:.0f} s against three brokers. "
        f"{result.victim} was killed (SIGKILL) at {result.kill_ms / 1000:.1f} s while it was master, "
        f"{result.successor} took over in epoch {result.epochs[1]}, and {result.victim} came back as a slave "
        f"at {result.restart_ms / 1000:.1f} s."
    )


def _numbers(result: Result) -> list[tuple[str, str]]:
    drill = result.drill
    return [
        (ms(drill.rto_ms), "RTO: last to first ack, worst queue"),
        (number(result.rpo), "RPO: acknowledged, then gone"),
        (number(drill.duplicates), "duplicates"),
        (number(drill.order_violations), "order violations"),
        (number(drill.acked), "acknowledged"),
        (number(drill.unknown + drill.failed), "unknown or refused"),
        (number(result.consumed), "consumed"),
    ]


def close_up(result: Result) -> dict[str, Any]:
    """The failover from near: a line for each acknowledgement, a row for each queue."""
    out_ms = result.drill.rto_ms or result.drill.first_ack_ms or BIN_MS
    axis = Axis(result.kill_ms - max(BEFORE_MS, out_ms / 2), result.kill_ms + max(AFTER_MS, out_ms * 1.5))
    acks = [event for event in result.history.events if isinstance(event, Ok) and axis.holds(event.at_ms)]
    times = dict(enumerate(result.drill.rto_queues_ms))
    rows = []
    for queue in sorted({(ack.queue.broker_name, ack.queue.queue_id) for ack in acks}):
        own = [ack for ack in acks if (ack.queue.broker_name, ack.queue.queue_id) == queue]
        before = [ack.at_ms for ack in own if ack.at_ms <= result.kill_ms]
        after = [ack.at_ms for ack in own if ack.at_ms > result.kill_ms]
        paths = [("before", chart.strokes(before, axis)), ("after", chart.strokes(after, axis))]
        rows.append((f"queue {queue[1]}", paths, ms(times.get(queue[1]))))
    found = [("killed", "bad", result.kill_ms)]
    spans = []
    if result.first_ack_ms is not None:
        found.append((f"first ack +{ms(result.first_ack_ms - result.kill_ms)}", "good", result.first_ack_ms))
        spans = [(*axis.wide(result.kill_ms, result.first_ack_ms), "bad", "no master acknowledges")]
    return {
        **_drawn(found, axis),
        "ticks": chart.ticks(axis, zero_ms=result.kill_ms),
        "spans": spans,
        "rows": rows,
    }


def _whole(result: Result) -> dict[str, Any]:
    """The whole run: acknowledgements, and the slowest of them, by 100 ms."""
    acks_ms = result.acks_ms
    until_ms = max([result.stop_ms, BIN_MS, *acks_ms[-1:]])
    axis = Axis(0.0, until_ms)
    counts = bins(acks_ms, until_ms)
    slowest = [0.0] * len(counts)
    for send in result.history.sends():
        if send.outcome == "ok" and send.ended_ms is not None:
            place = int(send.ended_ms // BIN_MS)
            slowest[place] = max(slowest[place], send.ended_ms - send.invoked_ms)
    found = [("kill", "bad", result.kill_ms), ("restart", "plain", result.restart_ms)]
    top, most_ms = max([*counts, 1]), max([*slowest, 1.0])
    spans = [
        (*axis.wide(dip["from_ms"], dip["from_ms"] + dip["ms"]), _dip_tone(dip), dip["why"])
        for dip in dips(result)
    ]
    marked = [(f"{name} {at / 1000:.2f} s", tone, at) for name, tone, at in found if at]
    return {
        **_drawn(marked, axis),
        "ticks": chart.ticks(axis),
        "spans": spans,
        "top": top,
        "slowest_ms": most_ms,
        "acks": chart.bars(counts, BIN_MS, axis, top),
        "latency": chart.bars(slowest, BIN_MS, axis, most_ms),
    }


def _dip_tone(dip: dict[str, Any]) -> str:
    return "bad" if dip["kind"] == "failover" else "soft"


def _drawn(found: list[tuple[str, str, float]], axis: Axis) -> dict[str, Any]:
    marks = chart.marks(found, axis)
    return {
        "marks": marks,
        "lanes": 1 + max((one["lane"] for one in marks), default=0),
        "lines": [(axis.x(at), tone) for _, tone, at in found],
    }


def _steps(result: Result) -> list[tuple[str, float | None, float | None, str]]:
    """(name, ms after the kill, where on the line in %, what it means)."""
    known = [(name, getattr(result.drill, member), text) for name, member, text in STEPS]
    span = max([value for _, value, _ in known if value is not None], default=1.0) or 1.0
    killed = [("killed", 0.0, 0.0, f"SIGKILL to {result.victim}")]
    return [
        *killed,
        *(
            (name, value, None if value is None else round(100 * value / span, 1), text)
            for name, value, text in known
        ),
    ]
