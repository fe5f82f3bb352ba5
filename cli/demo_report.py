"""How is one demo told on a page: the verdict, the failover millisecond by millisecond, the proof?"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

from audit.report import STYLE as AUDIT_STYLE
from audit.report import number

if TYPE_CHECKING:
    from cli.demo_run import Result

STYLE: Final = Path(__file__).with_name("demo_report.css").read_text()
BIN_MS: Final = 100.0
WIDTH: Final = 1000.0
HEIGHT: Final = 240.0
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
    tone = TONES[result.exit_code]
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>keelmq demo: {WORDS[result.exit_code]}</title><style>{AUDIT_STYLE}{STYLE}</style></head>"
        f'<body><main><section class="verdict {tone}"><div class=word>{WORDS[result.exit_code]}</div>'
        f"<h1>{escape(HEADLINES[result.exit_code])}</h1><p class=soft>{escape(_story(result))}</p></section>"
        f"{_numbers(result)}{_plot(result)}{_timeline(result)}{_audit(result)}{_broken(result)}{_how(result)}"
        "</main></body></html>\n"
    )


def _story(result: Result) -> str:
    plan = result.plan
    return (
        f"{plan.rate} messages/s of {plan.size_bytes} bytes for {plan.seconds:.0f} s against three brokers. "
        f"{result.victim} was killed (SIGKILL) at {result.kill_ms / 1000:.1f} s while it was master, "
        f"{result.successor} took over in epoch {result.epochs[1]}, and {result.victim} came back as a slave "
        f"at {result.restart_ms / 1000:.1f} s."
    )


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f} ms".replace(",", " ")


def _numbers(result: Result) -> str:
    drill = result.drill
    cells = [
        (_ms(drill.rto_ms), "RTO: last to first ack, worst queue"),
        (number(result.rpo), "RPO: acknowledged, then gone"),
        (number(drill.duplicates), "duplicates"),
        (number(drill.order_violations), "order violations"),
        (number(drill.acked), "acknowledged"),
        (number(drill.unknown + drill.failed), "unknown or refused"),
        (number(result.consumed), "consumed"),
    ]
    return (
        "<div class=numbers>"
        + "".join(f"<div><b>{escape(a)}</b><span>{escape(b)}</span></div>" for a, b in cells)
        + "</div>"
    )


def _plot(result: Result) -> str:
    until_ms = max(result.stop_ms, result.acks_ms[-1] if result.acks_ms else 0.0, BIN_MS)
    counts = bins(result.acks_ms, until_ms)
    top = max([*counts, 1])
    step = WIDTH / len(counts)
    bars = "".join(
        f'<rect x="{n * step:.2f}" y="{HEIGHT - HEIGHT * c / top:.2f}" width="{max(step - 0.4, 0.4):.2f}" '
        f'height="{HEIGHT * c / top:.2f}"/>'
        for n, c in enumerate(counts)
        if c
    )
    marks = [("kill", result.kill_ms, "bad"), ("restart", result.restart_ms, "info")]
    if result.first_ack_ms is not None:
        marks.append(("first ack", result.first_ack_ms, "good"))
    scale = WIDTH / (len(counts) * BIN_MS)
    lines = "".join(
        f'<g class="{tone}"><line x1="{at * scale:.2f}" x2="{at * scale:.2f}" y1="-{18 + 14 * (n == 2)}" '
        f'y2="{HEIGHT}"/><text x="{at * scale + 4:.2f}" y="-{8 + 16 * (n == 2)}">{name} '
        f"{at / 1000:.2f} s</text></g>"
        for n, (name, at, tone) in enumerate(marks)
        if at
    )
    seconds = until_ms / 1000
    every = max(1, round(seconds / 10))
    ticks = "".join(
        f'<text class=tick x="{s * 1000 * scale:.1f}" y="{HEIGHT + 16}">{s} s</text>'
        for s in range(0, int(seconds) + 1, every)
    )
    return (
        "<h2>Acknowledged messages per 100 ms</h2>"
        f'<svg class=plot viewBox="-8 -40 {WIDTH + 16:.0f} {HEIGHT + 64:.0f}" role=img '
        'aria-label="acknowledged messages over time">'
        f'<text class=tick x="0" y="-28">{top} per 100 ms</text>'
        f'<line class=axis x1="0" x2="{WIDTH}" y1="{HEIGHT}" y2="{HEIGHT}"/>'
        f"<g class=bars>{bars}</g>{lines}{ticks}</svg>"
    )


def _timeline(result: Result) -> str:
    drill = result.drill
    known = [(name, getattr(drill, member), text) for name, member, text in STEPS]
    span = max([value for _, value, _ in known if value is not None], default=1.0) or 1.0
    rows = [
        "<tr><td>killed</td><td class=n>0 ms</td><td><div class=step><i style='left:0'></i></div></td>"
        f"<td class=soft>SIGKILL to {escape(result.victim)}</td></tr>"
    ]
    for name, value, text in known:
        dot = f"<i style='left:{100 * value / span:.1f}%'></i>" if value is not None else ""
        rows.append(
            f"<tr><td>{name}</td><td class=n>{_ms(value)}</td><td><div class=step>{dot}</div></td>"
            f"<td class=soft>{text}</td></tr>"
        )
    return (
        "<h2>The failover</h2><div class=scroll><table class=steps>"
        "<tr><th>step<th class=n>after the kill<th><th></tr>" + "".join(rows) + "</table></div>"
    )


def _audit(result: Result) -> str:
    audit = result.audit
    if audit is None:
        return "<h2>The proof</h2><p>The stores could not be audited.</p>"
    ends = ", ".join(f"{escape(name)} {number(end)}" for name, end in sorted(result.ends.items()))
    return (
        "<h2>The proof</h2>"
        f"<p>After the cluster was stopped, {escape(audit.engine)} read all {len(audit.replicas)} stores: "
        f"<b>{escape(audit.verdict)}</b>, {number(audit.records)} records, {number(audit.ledger_lines)} "
        f"acknowledgements looked up, {len(audit.findings)} findings, {audit.seconds:.1f} s. "
        "<a href='audit/index.html'>The audit's report</a></p>"
        f"<p class=soft>Ends of the logs, bytes: {ends}.</p>"
    )


def _broken(result: Result) -> str:
    texts = [*result.violations[:50]]
    if result.drill.unfinished:
        texts.append(f"not finished: {result.drill.unfinished}")
    if not texts:
        return ""
    return "<h2>What went wrong</h2><ul>" + "".join(f"<li>{escape(t)}</li>" for t in texts) + "</ul>"


def _how(result: Result) -> str:
    plan = result.plan
    command = f"keelmq demo --seconds {plan.seconds:g} --rate {plan.rate} "
    command += f"--size {plan.size_bytes} --seed {plan.seed}"
    return (
        "<h2>How it was measured</h2><ul>"
        "<li>RTO: in each queue the time from the last acknowledgement before the kill to the first by "
        "another broker; the worst of all queues. Steps come from the servers' own events.</li>"
        "<li>RPO: acknowledged messages that reading everything back does not find, or that are on no "
        "disk.</li>"
        "<li>Order: a message acknowledged before another of its queue was begun must stand before it; each "
        "queue reads back without a hole.</li>"
        "<li>A send without an answer is unknown: it may be stored, is never repeated, counts for nothing."
        "</li>"
        f"<li>Once more: <code>{escape(command)}</code></li></ul>"
    )
