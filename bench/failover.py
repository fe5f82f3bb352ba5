"""How long is a group without a master, and is anything lost? Drills on keelmq and on the real RocketMQ.

    python bench/failover.py [--repeat 50] [--acks 1000000] [--kinds kill-master,handover,...]
                             [--peers default,tuned,jraft|none] [--peer-repeat 5] [--extra-repeat 10]
                             [--resume OUT] [--json OUT]

Each kind is one campaign of ``keelmq drill KIND --campaign``: three brokers, three Controllers, defaults, one
cluster, load that never stops, all checks at the end. When all kinds together have acknowledged fewer than
``--acks`` sends, a last campaign kills masters at ``--fill-rate`` until they have. The real servers take the
same drills with the same client, load and checks, with their defaults, ``tuned`` (the servers' own keys set
for a fast failover) and ``jraft`` (tuned, with the other of their two Raft libraries: the election timeout of
DLedger in the Controller cannot be set); ``allAckInSyncStateSet`` is on, else the two would not promise the
same. Two campaigns of keelmq have no target and no peer: a frozen slave, and a killed master where a majority
acknowledges (``majorityAck``).

The result is written after every campaign; ``--resume OUT`` goes on where OUT ends, so that it can be run in
parts. Prints Markdown. Exit code 2: a target of keelmq was missed or a promise broken; 3: something did not
finish.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.provenance import machine  # noqa: E402
from chaos.drills.measure import percentile  # noqa: E402
from chaos.worlds import rocketmq  # noqa: E402

DONE, FAILED, UNFINISHED = 0, 2, 3


@dataclass(frozen=True, slots=True)
class Target:
    """Upper bounds in ms, of the RTO or (``of`` = "leader") of the time until a new leader answers.

    ``no_failed``: after the client's retries every send is acknowledged; not even one outcome is unknown.
    """

    p50_ms: float
    p99_ms: float
    of: str = "rto"
    no_failed: bool = False


TARGETS: Final[dict[str, Target]] = {
    "kill-master": Target(250, 1000),
    "freeze-master": Target(2000, 3000),
    "handover": Target(100, 300, no_failed=True),
    "stop-master": Target(100, 300, no_failed=True),
    "kill-controller-leader": Target(600, 1500, of="leader", no_failed=True),
    "kill-leader-and-master": Target(2000, 4000),
}
FILL: Final = "kill-master"
TUNED: Final = (
    "broker.brokerHeartbeatInterval=500",
    "broker.controllerHeartBeatTimeoutMills=2000",
    "broker.syncBrokerMetadataPeriod=1000",
    "broker.syncControllerMetadataPeriod=1000",
    "broker.checkSyncStateSetPeriod=1000",
    "broker.registerNameServerPeriod=10000",
    "broker.haSendHeartbeatInterval=1000",
    "broker.haHousekeepingInterval=5000",
    "broker.haMaxTimeSlaveNotCatchup=3000",
    "namesrv.scanNotActiveBrokerInterval=500",
    "namesrv.scanInactiveMasterInterval=500",
)
JRAFT: Final = (
    *TUNED,
    "namesrv.controllerType=jRaft",
    "namesrv.jRaftElectionTimeoutMs=500",
    "namesrv.jRaftScanWaitTimeoutMs=500",
)
PEER_DRILL_S: Final = 150
"""A restarted real broker may take a minute and more until it is in the SyncStateSet again."""
PEERS: Final[dict[str, tuple[str, ...]]] = {"default": (), "tuned": TUNED, "jraft": JRAFT}
OWN: Final[dict[str, tuple[str, ...]]] = {"keelmq": (), "majority": ("broker.majorityAck=true",)}
EXTRAS: Final = (("keelmq", "freeze-slave"), ("majority", "kill-master"))
DRIFT_MAX: Final = 1.5
"""A failover must not take longer because many have gone before and the log has grown."""
PROMISES: Final = (
    "lost",
    "phantom",
    "duplicates",
    "order_violations",
    "offset_reuse",
    "acknowledged_twice",
    "read_then_gone",
)
STEPS: Final = ("noticed", "elected", "promoted", "routed", "first_ack", "full_again")


@dataclass(frozen=True, slots=True)
class Part:
    """One campaign. ``side``: keelmq or the name of a peer; ``kind`` "fill" is more of one kind."""

    side: str
    kind: str
    repeat: int
    rate: float
    limit_s: float
    acks: int = 0

    @property
    def key(self) -> str:
        return f"{self.side}/{self.kind}"

    @property
    def settings(self) -> tuple[str, ...]:
        """What differs from the side's defaults."""
        return {**PEERS, **OWN}[self.side]

    def command(self, out: Path) -> list[str]:
        scenario = FILL if self.kind == "fill" else self.kind
        command = [sys.executable, "-m", "cli.main", "drill", scenario, "--campaign"]
        command += ["--repeat", str(self.repeat), "--rate", str(self.rate), "--limit", str(self.limit_s)]
        command += ["--acks", str(self.acks), "--json", str(out)]
        if self.side in PEERS:
            command += ["--target", "rocketmq"]
        for setting in self.settings:
            command += ["--set", setting]
        return command


def run(part: Part) -> dict[str, Any]:
    """Carry out one campaign and shorten its result. One that gave none says why in ``error``."""
    with tempfile.TemporaryDirectory(prefix="keelmq-bench-") as scratch:
        out = Path(scratch) / "campaign.json"
        where = machine()
        ending_s = 600  # the start, the end of the last drill, the reading back and the judgement
        try:
            done = subprocess.run(
                part.command(out), cwd=ROOT, capture_output=True, text=True, timeout=part.limit_s + ending_s
            )
        except subprocess.TimeoutExpired as error:
            return {"error": f"not over after {error.timeout:.0f} s"}
        if not out.exists():
            return {"error": (done.stderr or done.stdout)[-800:]}
        result = shorten(json.loads(out.read_text(encoding="utf-8")))
        return {**result, "rate": part.rate, "settings": list(part.settings), "machine": where}


def shorten(result: Mapping[str, Any]) -> dict[str, Any]:
    """What the report needs of a campaign; the median of each step of the failover included."""
    drills = result["drills"]
    steps: dict[str, float] = {}
    for name in STEPS:
        found = sorted(drill[f"{name}_ms"] for drill in drills if drill[f"{name}_ms"] is not None)
        if found:
            steps[f"{name}_p50_ms"] = found[(len(found) - 1) // 2]
    kept = [
        f"{of}_{which}_ms" for of in ("rto", "since_request", "leader") for which in ("p50", "p99", "max")
    ]
    kept += [f"{name}_total" for name in ("acked", "failed", "unknown", "unfinished", *PROMISES)]
    return {
        "drills": len(drills),
        **{name: result[name] for name in kept},
        **steps,
        "rto_ms": [drill["rto_ms"] for drill in drills],
        "steps_ms": {
            name: [drill[f"{name}_ms"] for drill in drills] for name in STEPS if f"{name}_p50_ms" in steps
        },
        "seconds": result["seconds"],
        "unfinished": result["unfinished"],
        "violations": result["violations"],
    }


def verdicts(kind: str, result: Mapping[str, Any], repeat: int) -> Iterator[tuple[str, bool]]:
    """Each target of a kind in words, and whether it was met."""
    target = TARGETS[kind]
    what = "RTO" if target.of == "rto" else "new leader answers"
    for which, bound in (("p50", target.p50_ms), ("p99", target.p99_ms)):
        value = result.get(f"{target.of}_{which}_ms")
        told = "never" if value is None else f"{value:,.0f} ms"
        yield f"{what} {which} {told} <= {bound:,.0f} ms", value is not None and value <= bound
    if target.no_failed:
        failed, unknown = result.get("failed_total"), result.get("unknown_total")
        yield f"{failed} failed and {unknown} unknown sends = 0", failed == 0 and unknown == 0
    yield f"{result.get('drills', 0)} drills >= {repeat}", result.get("drills", 0) >= repeat
    if (thirds := first_and_last_third(result)) is not None:
        first, last = thirds
        text = f"last third p50 {last:,.0f} ms <= {DRIFT_MAX} x first third {first:,.0f} ms"
        yield text, last <= DRIFT_MAX * first


def first_and_last_third(result: Mapping[str, Any]) -> tuple[float, float] | None:
    """The median RTO (ms) of a campaign's first and last third; None for fewer than ten drills."""
    times = [time for time in result.get("rto_ms", ()) if time is not None]
    if len(times) < 10:
        return None
    first = percentile(sorted(times[: len(times) // 3]), 50)
    last = percentile(sorted(times[-(len(times) // 3) :]), 50)
    assert first is not None
    assert last is not None
    return first, last


def broken(result: Mapping[str, Any]) -> list[str]:
    """The promises a campaign broke."""
    return [f"{name} {result[f'{name}_total']}" for name in PROMISES if result.get(f"{name}_total")]


def markdown(found: Mapping[str, Any]) -> str:
    """The report as it stands."""
    parts: Mapping[str, Mapping[str, Any]] = found["parts"]
    lines = [
        "| drill | side | drills | RTO p50 / p99 / max ms | new leader p50 / p99 ms | acknowledged "
        "| failed | unknown | lost | twice |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    order = {kind: index for index, kind in enumerate([*TARGETS, "freeze-slave", "fill"])}
    for key in sorted(parts, key=lambda key: (order.get(key.partition("/")[2], 99), key)):
        side, _, kind = key.partition("/")
        name = f"RocketMQ {rocketmq.VERSION} {side}" if side in PEERS else side
        result = parts[key]
        if "error" in result:
            why = " ".join(result["error"].split())[-120:]
            lines.append(f"| {kind} | {name} | did not run: {why} |" + " |" * 7)
            continue
        rto = " / ".join(_ms(result[f"rto_{which}_ms"]) for which in ("p50", "p99", "max"))
        leader = " / ".join(_ms(result[f"leader_{which}_ms"]) for which in ("p50", "p99"))
        counts = [result[f"{n}_total"] for n in ("acked", "failed", "unknown", "lost", "acknowledged_twice")]
        cells = [kind, name, str(result["drills"]), rto, leader, *(f"{count:,}" for count in counts)]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| target | | verdict |", "|---|---|---|"]
    lines += [f"| {row['kind']} | {row['text']} | {row['verdict']} |" for row in found["targets"]]
    return "\n".join(lines)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def judge(found: dict[str, Any], kinds: Sequence[str], repeat: int, acks: int) -> None:
    """Hold what was measured against the targets; fills in ``targets`` and the totals of keelmq."""
    parts: Mapping[str, Mapping[str, Any]] = found["parts"]
    rows: list[dict[str, str]] = []

    def row(kind: str, text: str, met: bool) -> None:
        rows.append({"kind": kind, "text": text, "verdict": "met" if met else "missed"})

    for kind in kinds:
        if result := parts.get(f"keelmq/{kind}"):
            for text, met in verdicts(kind, result, repeat):
                row(kind, text, met)
    own = [result for key, result in parts.items() if key.partition("/")[0] in OWN]
    totals = {
        name: sum(result.get(f"{name}_total", 0) for result in own)
        for name in ("acked", "failed", "unknown", *PROMISES)
    }
    row("all", f"{totals['acked']:,} acknowledged sends >= {acks:,}", totals["acked"] >= acks)
    row("all", f"{totals['lost']} acknowledged messages lost = 0", totals["lost"] == 0)
    twice = totals["acknowledged_twice"]
    row("all", f"{twice} queue offsets acknowledged twice = 0", twice == 0)
    others = sum(totals[name] for name in PROMISES) - totals["lost"] - twice
    row("all", f"{others} other broken promises = 0", others == 0)
    found["targets"], found["totals"] = rows, totals
    found["rows"] = [
        {"work": kind, **{key.partition("/")[0]: parts[key] for key in parts if key.endswith(f"/{kind}")}}
        for kind in [*TARGETS, "freeze-slave", "fill"]
        if any(key.endswith(f"/{kind}") for key in parts)
    ]


def plan(arguments: argparse.Namespace) -> Iterator[Part]:
    """The campaigns in their order; keelmq first."""
    for kind in arguments.kinds:
        yield Part("keelmq", kind, arguments.repeat, arguments.rate, 30 + 10 * arguments.repeat)
    for side, kind in EXTRAS if arguments.extra_repeat else ():
        yield Part(side, kind, arguments.extra_repeat, arguments.rate, 30 + 20 * arguments.extra_repeat)
    for peer in arguments.peers:
        for kind in arguments.kinds:
            limit_s = PEER_DRILL_S * arguments.peer_repeat
            yield Part(peer, kind, arguments.peer_repeat, arguments.peer_rate, limit_s)


def names(known: Sequence[str], none: bool = False) -> Any:
    """A parser of ``a,b,c`` out of ``known``."""

    def parse(text: str) -> list[str]:
        if none and text == "none":
            return []
        found = [name.strip() for name in text.split(",") if name.strip()]
        for name in found:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return found

    return parse


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=50, help="drills of each kind on keelmq")
    parser.add_argument("--peer-repeat", type=int, default=5)
    parser.add_argument("--extra-repeat", type=int, default=10, help="0: none of them")
    parser.add_argument("--kinds", type=names(list(TARGETS)), default=list(TARGETS))
    parser.add_argument("--peers", type=names(list(PEERS), none=True), default=["default", "tuned"])
    parser.add_argument("--rate", type=float, default=1000.0, help="messages/s in all")
    parser.add_argument("--peer-rate", type=float, default=1000.0)
    parser.add_argument("--acks", type=int, default=0, help="sends to be acknowledged by keelmq in all")
    parser.add_argument("--fill-rate", type=float, default=2500.0)
    parser.add_argument("--fill-limit", type=float, default=900.0, help="seconds")
    parser.add_argument("--resume", type=Path, metavar="OUT", help="go on where this result ends")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    out = arguments.json or arguments.resume
    found: dict[str, Any] = {"name": "failover", "parts": {}, "machine": machine()}
    if arguments.resume is not None and arguments.resume.exists():
        found["parts"] = json.loads(arguments.resume.read_text(encoding="utf-8"))["parts"]
    missing = rocketmq.unavailable() if arguments.peers else None
    if missing is not None:
        print(f"without the real RocketMQ: {missing}", file=sys.stderr)
        arguments.peers = []

    def carry_out(part: Part) -> None:
        done = found["parts"].get(part.key)
        if done is not None and "error" not in done and (part.acks or done["drills"] >= part.repeat):
            return
        print(f"{part.key}: {part.repeat} drills at {part.rate:.0f} msg/s", file=sys.stderr, flush=True)
        found["parts"][part.key] = run(part)
        judge(found, arguments.kinds, arguments.repeat, arguments.acks)
        if out is not None:
            out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        print(json.dumps({"part": part.key, **found["parts"][part.key]}), file=sys.stderr, flush=True)

    own = [part for part in plan(arguments) if part.side in OWN]
    for part in own:
        carry_out(part)
    judge(found, arguments.kinds, arguments.repeat, arguments.acks)
    left = arguments.acks - found["totals"]["acked"]
    if left > 0:
        # What an earlier fill acknowledged counts already; the new one is added to it below.
        before = found["parts"].pop("keelmq/fill", None)
        carry_out(Part("keelmq", "fill", 1, arguments.fill_rate, arguments.fill_limit, acks=left))
        if before is not None and "error" not in before:
            found["parts"]["keelmq/fill"] = added(before, found["parts"]["keelmq/fill"])
    for part in plan(arguments):
        if part.side in PEERS:
            carry_out(part)
    judge(found, arguments.kinds, arguments.repeat, arguments.acks)
    if out is not None:
        out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(markdown(found))
    if any(row["verdict"] == "missed" for row in found["targets"]):
        return FAILED
    unfinished = any("error" in part or part["unfinished_total"] for part in found["parts"].values())
    return UNFINISHED if unfinished else DONE


def added(before: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Two fills as one: counts are summed, times are the later one's."""
    if "error" in more:
        return dict(before)
    summed = {name: before[name] + more[name] for name in more if name.endswith("_total")}
    return {**more, **summed, "drills": before["drills"] + more["drills"]}


if __name__ == "__main__":
    sys.exit(main())
