"""What reading costs the broker: catch-up of a consumer, and pulls that wait.

    python bench/pull.py [--peer rocketmq] [--before DIR] [--only TEXT] [--waiting 10000] [--json OUT]

One load program drives each side in turn, row by row, on this machine: single broker, ASYNC_FLUSH. First
``--messages`` messages of 1 KiB are stored, in turn over four queues. Then a group that was made known by a
heartbeat reads them again and again from the first, as a push consumer of the Java client does: one pull of
each queue under way, at most 32 messages each. CPU is what the operating system accounts to the broker
process (user + system); each row is the median of ``--repeat`` runs of ``--seconds``, the sides in turn.
``cursors``: so many consumers read beside each other, each on a connection of its own.

The waiting rows: ``--waiting`` pulls, and as many pops, wait for messages that do not come, a hundred on a
connection, and come again as soon as they are answered (15 s). Their figures are percent of one core, beside
what the broker takes with no request at all, and, for as long again, how soon a message wakes the one
consumer of another topic that waits for it. ``--only waiting`` measures them alone.
"""

from __future__ import annotations

import argparse
import json
import selectors
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench import load  # noqa: E402
from bench.load import DIALECTS, Work  # noqa: E402
from bench.page_cache import at_hand  # noqa: E402
from bench.provenance import machine  # noqa: E402
from bench.pulls import Cursor  # noqa: E402
from bench.send import (  # noqa: E402
    QUEUES,
    TOPIC,
    Side,
    create_topic,
    keelmq_broker,
    rocketmq_broker,
)
from bench.waits import WAIT_TOPIC, WAKE_TOPIC, waiting_pops, waiting_pulls  # noqa: E402
from chaos.worlds import rocketmq  # noqa: E402


@dataclass(frozen=True, slots=True)
class Reading:
    """``cursors`` consumers, each on a connection of its own with one pull of each queue under way."""

    dialect: str = "json"
    cursors: int = 1
    count: int = 32

    def __str__(self) -> str:
        return f"{self.dialect}, {self.cursors} x {QUEUES} pulls of {self.count}"


READINGS: Final = (
    Reading(),
    Reading("binary"),
    Reading("json", 16),
    Reading("binary", 16),
    Reading("json", 1, 1),
)


def read(side: Side, work: Reading, seconds: float) -> dict[str, float]:
    """One run. Raises RuntimeError when the broker answers with anything but messages."""
    ready = selectors.DefaultSelector()
    cursors = [
        Cursor(side.address, TOPIC, QUEUES, work.count, DIALECTS[work.dialect]) for _ in range(work.cursors)
    ]
    try:
        for cursor in cursors:
            ready.register(cursor.socket, selectors.EVENT_READ, cursor)
        before_s, begun = side.cpu_s(), time.perf_counter()
        for cursor in cursors:
            cursor.begin()
        while time.perf_counter() < begun + seconds:
            for key, _ in ready.select(10):
                key.data.go_on()
        wall, cpu_s = time.perf_counter() - begun, side.cpu_s() - before_s
        messages = sum(cursor.messages for cursor in cursors)
        pulls = sum(cursor.pulls for cursor in cursors)
    finally:
        ready.close()
        for cursor in cursors:
            cursor.close()
    return {
        "cpu_us": cpu_s * 1e6 / messages,
        "per_s": messages / wall,
        "per_cpu_s": messages / max(cpu_s, 1e-9),
        "a_pull": messages / pulls,
    }


def fill(side: Side, messages: int) -> None:
    """Store at least so many messages, in turn over all queues."""
    stored = 0
    while stored < messages:
        outcome = load.run(side.address, TOPIC, QUEUES, Work(in_flight=64), 0.5)
        if not outcome.ok:
            raise RuntimeError(f"{side.name} refused all sends: {outcome.first_failure}")
        stored += outcome.ok


def waiting(side: Side, kind: str, count: int, seconds: float) -> dict[str, float]:
    """Percent of a core with ``count`` pulls or pops that wait, and without; what wakes beside them."""
    for topic in (WAIT_TOPIC, WAKE_TOPIC):
        create_topic(side.address, topic)
    idle_s, begun = side.cpu_s(), time.perf_counter()
    time.sleep(seconds / 4)
    idle = (side.cpu_s() - idle_s) / (time.perf_counter() - begun)
    wait = waiting_pops if kind == "pops" else waiting_pulls
    return {"idle_percent": 100 * idle, **wait(side, QUEUES, count, seconds)}


def median(runs: list[dict[str, float]]) -> dict[str, Any]:
    found: dict[str, Any] = {name: round(statistics.median(run[name] for run in runs), 2) for name in runs[0]}
    first = next(iter(runs[0]))
    found["spread"] = [round(pick(run[first] for run in runs), 2) for pick in (min, max)]
    return found


def measure(sides: list[Side], given: argparse.Namespace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for side in sides if not given.only.startswith("waiting") else ():
        create_topic(side.address)
        fill(side, given.messages)
        read(side, Reading(), given.warm_up if side.name == "rocketmq" else max(1.0, given.warm_up / 10))
    for work in [work for work in READINGS if given.only in str(work)]:
        runs: dict[str, list[dict[str, float]]] = {side.name: [] for side in sides}
        for turn in range(given.repeat):
            for side in sides if turn % 2 == 0 else reversed(sides):
                runs[side.name].append(read(side, work, given.seconds))
        row: dict[str, Any] = {"work": str(work), **asdict(work)}
        row |= {name: median(found) for name, found in runs.items()}
        for other in runs.keys() - {"keelmq"}:
            row[f"ratio_to_{other}"] = round(row["keelmq"]["cpu_us"] / row[other]["cpu_us"], 3)
        rows.append(row)
        print(line_of(row), flush=True)
    for kind in ("pulls", "pops") if given.waiting else ():
        if given.only in f"waiting {kind}":
            rows.append(wait_in_turn(sides, kind, given))
    return rows


def wait_in_turn(sides: list[Side], kind: str, given: argparse.Namespace) -> dict[str, Any]:
    row: dict[str, Any] = {"work": f"{given.waiting} waiting {kind}"}
    runs: dict[str, list[dict[str, float]]] = {side.name: [] for side in sides}
    for turn in range(given.waiting_repeat):
        for side in sides if turn % 2 == 0 else reversed(sides):
            runs[side.name].append(waiting(side, kind, given.waiting, given.waiting_seconds))
    row |= {name: median(found) for name, found in runs.items()}
    print(line_of(row), flush=True)
    return row


def line_of(row: dict[str, Any]) -> str:
    text = f"{row['work']:>34}"
    for name in ("keelmq", "before", "rocketmq"):
        side = row.get(name)
        if side is None:
            continue
        if "waiting_percent" in side:
            text += (
                f" | {name}: {side['waiting_percent']:.1f} % of a core, idle {side['idle_percent']:.1f} %,"
            )
            text += f" woken after {side['wake_p50_ms']:.2f} ms (p99 {side['wake_p99_ms']:.2f})"
            continue
        low, high = side["spread"]
        text += f" | {name}: {side['cpu_us']:6.2f} us CPU ({low:.2f} to {high:.2f}), {side['per_s']:7.0f}/s"
        text += f", {side['a_pull']:.1f} a pull"
        if f"ratio_to_{name}" in row:
            text += f", ratio {row[f'ratio_to_{name}']:.2f}"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", choices=["rocketmq", "none"], default="none")
    parser.add_argument("--before", type=Path, metavar="DIR", help="a checkout of keelmq to measure beside")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows whose name holds it")
    parser.add_argument("--messages", type=int, default=200_000, help="to be read")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a run")
    parser.add_argument(
        "--waiting", type=int, default=10_000, help="pulls and pops that wait; 0: leave the rows out"
    )
    parser.add_argument("--waiting-seconds", type=float, default=40.0)
    parser.add_argument("--waiting-repeat", type=int, default=1)
    parser.add_argument("--warm-up", type=float, default=20.0, help="seconds before the JVM is measured")
    parser.add_argument("--base-port", type=int, default=28400)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    missing = rocketmq.unavailable() if given.peer == "rocketmq" else None
    if missing:
        print(f"without the real RocketMQ: {missing}", file=sys.stderr)
        given.peer = "none"
    with tempfile.TemporaryDirectory(prefix="keelmq-bench-") as scratch, at_hand(), ExitStack() as stack:
        at = Path(scratch)
        sides = [stack.enter_context(keelmq_broker(at / "keelmq", given.base_port))]
        if given.before is not None:
            before = keelmq_broker(at / "before", given.base_port + 100, given.before, "before")
            sides.append(stack.enter_context(before))
        if given.peer == "rocketmq":
            sides.append(stack.enter_context(rocketmq_broker(at / "r", given.base_port + 200)))
        rows = measure(sides, given)
    if given.json:
        peer = rocketmq.described() if given.peer == "rocketmq" else None
        given.json.write_text(
            json.dumps({"name": "pull", "rows": rows, "machine": machine(), "peer": peer}, indent=2) + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
