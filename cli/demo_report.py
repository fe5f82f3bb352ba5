"""How is one demo told on a page: the verdict, the failover millisecond by millisecond, the proof?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from audit.pages import html
from audit.pages.html import ms, number

if TYPE_CHECKING:
    from cli.demo_run import Result

TEMPLATES: Final = Path(__file__).with_name("templates")
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
    plan = result.plan
    command = f"keelmq demo --seconds {plan.seconds:g} --rate {plan.rate} "
    command += f"--size {plan.size_bytes} --seed {plan.seed}"
    unfinished = [f"not finished: {result.drill.unfinished}"] if result.drill.unfinished else []
    values = {
        "result": result,
        "tone": TONES[result.exit_code],
        "word": WORDS[result.exit_code],
        "headline": HEADLINES[result.exit_code],
        "story": _story(result),
        "numbers": _numbers(result),
        "plot": _plot(result),
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


def _plot(result: Result) -> dict[str, Any]:
    """Where the plot's bars, marks and ticks stand."""
    until_ms = max(result.stop_ms, result.acks_ms[-1] if result.acks_ms else 0.0, BIN_MS)
    counts = bins(result.acks_ms, until_ms)
    top = max([*counts, 1])
    step = WIDTH / len(counts)
    scale = WIDTH / (len(counts) * BIN_MS)
    marks = [("kill", "bad", result.kill_ms, 0), ("restart", "info", result.restart_ms, 0)]
    if result.first_ack_ms is not None:
        marks.append(("first ack", "good", result.first_ack_ms, 16))
    every_s = max(1, round(until_ms / 10_000))
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "top": top,
        "bar_width": round(max(step - 0.4, 0.4), 2),
        "bars": [(round(n * step, 2), round(HEIGHT * c / top, 2)) for n, c in enumerate(counts) if c],
        "marks": [
            (name, tone, round(at * scale, 2), rise, f"{at / 1000:.2f}")
            for name, tone, at, rise in marks
            if at
        ],
        "ticks": [(round(s * 1000 * scale, 1), s) for s in range(0, int(until_ms / 1000) + 1, every_s)],
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
