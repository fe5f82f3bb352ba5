"""How long does a send take, and a message to its consumer, at a rate that both systems bear?

    python bench/latency.py [--peer rocketmq] [--rate 1000] [--brokers 1 3] [--json OUT]

Open loop: each send of 1 KiB has a moment at which it is due, whatever became of those before, and its time
counts from then: one slow answer is not hidden by the sends it held up (coordinated omission). They go over
``--connections`` in turn; one consumer on a connection of its own holds a pull of each of the four queues,
and the time to it counts from the same moment. Sides in turn, ``--repeat`` runs of ``--seconds``; a figure is
the median of the runs, ``spread`` the lowest and highest p99.9. The JVM gets ``--warm-up`` seconds of load.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import selectors
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.load import Link, Template, Work  # noqa: E402
from bench.page_cache import at_hand  # noqa: E402
from bench.provenance import machine  # noqa: E402
from bench.pulls import Follower  # noqa: E402
from bench.send import (  # noqa: E402
    QUEUES,
    TOPIC,
    Side,
    create_topic,
    keelmq_broker,
    keelmq_group,
    rocketmq_broker,
    rocketmq_group,
)
from chaos.worlds import rocketmq  # noqa: E402

PARTS: Final = (50.0, 99.0, 99.9)
DRAIN_S: Final = 10.0
_NUMBER: Final = re.compile(rb"7F0000010001(\d{20})")


def run(side: Side, rate: int, seconds: float, connections: int) -> dict[str, float]:
    """One run: ms by percentile. Raises RuntimeError: a send was refused, or a message is missing."""
    template = Template(TOPIC, Work(in_flight=1))
    count = round(rate * seconds)
    first = int(time.time()) % 100_000 * 10_000  # numbers of this run alone
    sent_ms, got_ms = [0.0] * count, [0.0] * count
    ready = selectors.DefaultSelector()
    links = [Link(side.address, 1) for _ in range(connections)]
    follower = Follower(side.address, TOPIC, QUEUES)
    try:
        for link in links:
            ready.register(link.socket, selectors.EVENT_READ, link)
        ready.register(follower.socket, selectors.EVENT_READ, follower)
        begun = time.perf_counter() + 0.1
        due = [begun + number / rate for number in range(count)]
        sent = answered = arrived = 0
        while answered < count or arrived < count:
            now = time.perf_counter()
            if now > due[-1] + DRAIN_S:
                raise RuntimeError(f"{side.name}: {answered} of {count} answered, {arrived} arrived")
            while sent < count and due[sent] <= now:
                frame = template.fill(first + sent, sent % QUEUES)
                links[sent % connections].socket.sendall(frame)
                sent += 1
            wait_s = due[sent] - now if sent < count else 0.1
            for key, _ in ready.select(max(wait_s, 0)):
                now = time.perf_counter()
                if key.data is follower:
                    for text in _NUMBER.findall(follower.bodies()):
                        number = int(text) - first
                        if 0 <= number < count and not got_ms[number]:
                            got_ms[number] = (now - due[number]) * 1000
                            arrived += 1
                    continue
                for number, failure in key.data.answers():
                    if failure:
                        raise RuntimeError(f"{side.name} refused a send: {failure!r}")
                    sent_ms[number - first] = (now - due[number - first]) * 1000
                    answered += 1
    finally:
        ready.close()
        follower.socket.close()
        for link in links:
            link.socket.close()
    return _percentiles("send", sent_ms) | _percentiles("to_consumer", got_ms)


def _percentiles(what: str, times_ms: list[float]) -> dict[str, float]:
    ordered = sorted(times_ms)
    last = len(ordered) - 1
    return {f"{what}_p{part:g}_ms": ordered[min(last, int(len(ordered) * part / 100))] for part in PARTS}


def measure(sides: list[Side], what: str, given: argparse.Namespace) -> dict[str, Any]:
    runs: dict[str, list[dict[str, float]]] = {side.name: [] for side in sides}
    for side in sides:
        create_topic(side.address)
        side.load(Work(), given.warm_up if side.name == "rocketmq" else max(1.0, given.warm_up / 10))
        run(side, given.rate, given.seconds / 2, given.connections)  # the JIT and all caches see this work
    for turn in range(given.repeat):
        for side in sides if turn % 2 == 0 else reversed(sides):
            runs[side.name].append(run(side, given.rate, given.seconds, given.connections))
    row: dict[str, Any] = {"work": f"{what}, {given.rate}/s", "rate": given.rate}
    for name, found in runs.items():
        row[name] = {key: round(statistics.median(one[key] for one in found), 3) for key in found[0]}
        last = [one["send_p99.9_ms"] for one in found]
        row[name]["spread"] = [round(min(last), 3), round(max(last), 3)]
    print(line_of(row), flush=True)
    return row


def line_of(row: dict[str, Any]) -> str:
    text = f"{row['work']:>20}"
    for name in ("keelmq", "rocketmq"):
        if name in row:
            side = row[name]
            times = [
                " / ".join(f"{side[f'{what}_p{part:g}_ms']:.2f}" for part in PARTS)
                for what in ("send", "to_consumer")
            ]
            low, high = side["spread"]
            text += f" | {name}: send p50/p99/p99.9 {times[0]} ms (p99.9 {low:.2f} to {high:.2f})"
            text += f", to the consumer {times[1]} ms"
    return text


async def bench(given: argparse.Namespace, scratch: Path) -> list[dict[str, Any]]:
    rows = []
    for count in given.brokers:
        async with AsyncExitStack() as stack:
            sides = []
            at = scratch / str(count)
            if count == 1:
                sides.append(stack.enter_context(keelmq_broker(at / "keelmq", given.base_port)))
            else:
                sides.append(await stack.enter_async_context(keelmq_group(at / "keelmq")))
            if given.peer == "rocketmq" and count == 1:
                sides.append(stack.enter_context(rocketmq_broker(at / "r", given.base_port + 200)))
            elif given.peer == "rocketmq":
                sides.append(await stack.enter_async_context(rocketmq_group(at / "r")))
            what = "1 broker" if count == 1 else "3 brokers"
            rows.append(await asyncio.to_thread(measure, sides, what, given))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", choices=["rocketmq", "none"], default="none")
    parser.add_argument("--brokers", type=int, nargs="+", choices=[1, 3], default=[1, 3])
    parser.add_argument("--rate", type=int, default=1000, help="sends a second")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0, help="of a run")
    parser.add_argument("--warm-up", type=float, default=20.0, help="seconds before the JVM is measured")
    parser.add_argument("--base-port", type=int, default=29800)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    missing = rocketmq.unavailable() if given.peer == "rocketmq" else None
    if missing:
        print(f"without the real RocketMQ: {missing}", file=sys.stderr)
        given.peer = "none"
    with tempfile.TemporaryDirectory(prefix="keelmq-bench-") as scratch, at_hand():
        rows = asyncio.run(bench(given, Path(scratch)))
    if given.json:
        peer = rocketmq.described() if given.peer == "rocketmq" else None
        report = {"name": "latency", "rows": rows, "machine": machine(), "peer": peer}
        given.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
