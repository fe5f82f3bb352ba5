"""Does a message cost the same whatever there is of topics, connections and log, and however long it is?

    python bench/growth.py [--only TEXT] [--log-gib 1 4] [--write DIR] [--json OUT]

One broker of keelmq for each series, ASYNC_FLUSH. A series changes one thing and keeps the rest at one topic
of four queues, one connection with 64 JSON sends in flight, 1 KiB, a young log: ``topics`` (sends go to all
in turn, each of which has had some before), ``connections`` (one send in flight on each), ``size`` of the
body, ``log`` (what it holds at least before). CPU is what the operating system accounts to the broker while
all connections are open. Each run begins with free memory (``bench/page_cache.py``). The values of
``connections`` and ``size`` are measured in turn, ``--repeat`` times; topics and log grow, so theirs follow
each other. A figure is the median, and the ratio is to the first of its series. Of ``size`` the cost of a KiB
is told too: bytes have to be copied. ``--write`` puts a table and a plot, ``growth.md`` and ``growth.svg``,
there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench import load  # noqa: E402
from bench.load import ManyTopics, Work  # noqa: E402
from bench.page_cache import at_hand, forget  # noqa: E402
from bench.plot import lines_svg  # noqa: E402
from bench.provenance import machine  # noqa: E402
from bench.send import QUEUES, TOPIC, Side, create_topic, keelmq_broker  # noqa: E402
from chaos.worlds import rocketmq  # noqa: E402

PREFIX: Final = "BenchGrowth"
IN_FLIGHT: Final = 64
LIMIT: Final = 1.3
TOPICS: Final = (1, 100, 10_000)
CONNECTIONS: Final = (1, 100, 1000, 5000)
SIZES: Final = (100, 1024, 16 * 1024, 128 * 1024, 1000 * 1000)
IDLE_S: Final = 5
IDLE_SHARE: Final = 0.1
"""Of a core: a sync of files, a few at a time, goes on for minutes where there are many."""
REST_S: Final = 300
UNREAD_BYTES: Final = 8 << 20  # of long messages so many are in flight, and not 64


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a series, and how it is loaded."""

    series: str
    value: int
    work: Work
    topics: int = 0
    log_bytes: int = 0

    def load(self, side: Side, seconds: float) -> float:
        """CPU microseconds a message. Raises RuntimeError when all sends are refused."""
        template = ManyTopics(PREFIX, self.topics, self.work) if self.topics else None
        marks: list[float] = []
        outcome = load.run(
            side.address,
            TOPIC,
            QUEUES,
            self.work,
            seconds,
            template=template,
            mark=lambda: marks.append(side.cpu_s()),
        )
        if not outcome.ok:
            raise RuntimeError(f"{self.series} {self.value}: all sends refused: {outcome.first_failure}")
        return (marks[1] - marks[0]) * 1e6 / outcome.ok


def points(log_gib: Sequence[int]) -> list[list[Point]]:
    """The series."""
    plain = Work(in_flight=IN_FLIGHT)
    return [
        [Point("connections", count, Work(in_flight=1, connections=count)) for count in CONNECTIONS],
        [
            Point("size", size, Work(size, in_flight=min(IN_FLIGHT, max(UNREAD_BYTES // size, 1))))
            for size in SIZES
        ],
        [Point("topics", count, plain, topics=count) for count in TOPICS],
        [Point("log", gib, plain, log_bytes=gib << 30) for gib in (0, *log_gib)],
    ]


def grow(side: Side, point: Point) -> None:
    """Make the topics and the log that ``point`` is measured with."""
    while log_end(side) < point.log_bytes:
        load.run(side.address, TOPIC, QUEUES, Work(16 * 1024), 1.0)
    for number in range(point.topics):
        create_topic(side.address, f"{PREFIX}{number:05d}")
    sent = 0
    while sent < 2 * QUEUES * point.topics:  # their files are made with the first message
        template = ManyTopics(PREFIX, point.topics, point.work)
        sent += load.run(side.address, TOPIC, QUEUES, point.work, 1.0, template=template).ok
    rest(side)


def rest(side: Side) -> None:
    """Return when ``side`` has done what it does later: made the files of new queues, written its index.
    Raises TimeoutError."""
    idle_s, end = 0, time.monotonic() + REST_S
    while idle_s < IDLE_S:
        if time.monotonic() > end:
            raise TimeoutError(f"the broker is still busy after {REST_S} s")
        cpu_s = side.cpu_s()
        time.sleep(1)
        idle_s = idle_s + 1 if side.cpu_s() - cpu_s < IDLE_SHARE else 0


def log_end(side: Side) -> int:
    _, body = rocketmq.call(side.address, 28)
    return int(json.loads(body)["table"]["commitLogMaxOffset"])


def series_of(
    side: Side, wanted: list[Point], given: argparse.Namespace, stores: Path
) -> list[dict[str, Any]]:
    runs: dict[int, list[float]] = {point.value: [] for point in wanted}

    def run(point: Point) -> None:
        for log in stores.glob("*/commitlog"):
            forget(log)
        runs[point.value].append(point.load(side, given.seconds))

    if wanted[0].series in ("log", "topics"):
        for point in wanted:
            grow(side, point)
            for _ in range(given.repeat):
                run(point)
    else:
        for point in wanted:
            point.load(side, given.seconds / 2)
        for turn in range(given.repeat):
            for point in wanted if turn % 2 == 0 else wanted[::-1]:
                run(point)
    rows: list[dict[str, Any]] = []
    for point in wanted:
        cpu_us = statistics.median(runs[point.value])
        spread = [round(pick(runs[point.value]), 2) for pick in (min, max)]
        row: dict[str, Any] = {"series": point.series, "value": point.value, "cpu_us": round(cpu_us, 2)}
        row["spread"] = spread
        row["ratio"] = round(cpu_us / rows[0]["cpu_us"], 3) if rows else 1.0
        row["cpu_us_a_kib"] = round(cpu_us / (point.work.body_bytes / 1024), 3)
        rows.append(row)
        print(row, flush=True)
    return rows


def label(row: dict[str, Any]) -> str:
    value = row["value"]
    if row["series"] == "log":
        return f"{value} GiB" if value else "young"
    return f"{value:,} B" if row["series"] == "size" else f"{value:,}"


def table(rows: list[dict[str, Any]], where: dict[str, Any]) -> str:
    lines = [
        "# What a message costs as things grow",
        "",
        "Made by `python bench/growth.py --write docs/results`: one broker, 1 KiB, 64 JSON sends in flight",
        "unless the row says otherwise; CPU of the broker, medians. A ratio is to the first of its series.",
        "",
        f"Machine: {where}",
        "",
        "![ratio to the first value of each series](growth.svg)",
        "",
        "| series | value | µs CPU / message | lowest to highest | ratio | µs CPU / KiB |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        low, high = row["spread"]
        lines.append(
            f"| {row['series']} | {label(row)} | {row['cpu_us']:.2f} | {low:.2f} to {high:.2f}"
            f" | {row['ratio']:.2f} | {row['cpu_us_a_kib']:.2f} |"
        )
    over = [row for row in rows if row["series"] != "size" and row["ratio"] > LIMIT]
    said = ", ".join(f"{row['series']} {label(row)} ({row['ratio']:.2f})" for row in over)
    clients = [row["cpu_us"] for row in rows if row["series"] == "connections"] or [1.0, 1.0]
    lines += [
        "",
        f"Over {LIMIT} times: {said or 'none'}. (A longer body is more bytes to check and to copy.)",
        "One client alone pays for a turn of its own with each message; many share one. The dearest of the",
        f"numbers of connections but the first costs {max(clients[1:]) / min(clients[1:]):.2f} of the least.",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="series whose name holds it")
    parser.add_argument("--log-gib", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a run")
    parser.add_argument("--base-port", type=int, default=29000)
    parser.add_argument("--write", type=Path, metavar="DIR")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for wanted in points(given.log_gib):
        if given.only not in wanted[0].series:
            continue
        with (
            tempfile.TemporaryDirectory(prefix="keelmq-bench-") as scratch,
            at_hand(),
            keelmq_broker(Path(scratch), given.base_port) as side,
        ):
            create_topic(side.address)
            side.load(Work(), 2.0)
            rows += series_of(side, wanted, given, Path(scratch))
    where = machine()
    if given.write:
        (given.write / "growth.md").write_text(table(rows, where))
        (given.write / "growth.svg").write_text(
            lines_svg("CPU a message, ratio to the first", rows, label, LIMIT)
        )
    if given.json:
        given.json.write_text(json.dumps({"name": "growth", "rows": rows, "machine": where}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
