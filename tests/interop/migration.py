"""A real RocketMQ group under load becomes a group of keelmq, and a real one again: what does it cost?

    python -m tests.interop.migration [--rate 50] [--json OUT] [--markdown OUT]

docs/migration.md is what an operator does; this does the same, command by command. Three real NameServers
with Controllers and three real brokers; an unmodified Java producer with default settings
(``bench/StockProducer.java``) sends all the time. keelmq brokers join and the real ones leave, then the
Controllers are changed, and all of it the other way round. Audits of the stores against the ledger of
what was acknowledged end each way. Exit code 1 when one finds more than warnings.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from bench.provenance import machine
from bench.stock_producer import TOPIC, Send
from chaos.worlds import rocketmq
from model.codes import Request
from tests import ROOT
from tests.interop import shared_classes
from tests.interop.logs import end_of
from tests.interop.mixed import GROUP, MixedCluster, Server, running
from tests.interop.story import copy_tables, has_tables

QUEUES: Final = 4
OF_THE_CONTROLLERS: Final = (
    *("brokerIdentity", "brokerIdentity.crc", "brokerIdentity-temp"),
    *("epochFileCheckpoint", "epochFileCheckpoint.bak"),
)
"""What a store holds of its Controllers: ids and epochs, which others know nothing of."""
READ_ONLY: Final = 4
SETTLE_ACKS: Final = 20


# --- steps, each of which leaves a full group that serves


def join(cluster: MixedCluster, brokers: Sequence[Server], members: int) -> None:
    """``brokers`` with empty stores become slaves, one after the other; ``members`` are there already."""
    for count, broker in enumerate(brokers, members + 1):
        shutil.rmtree(cluster.store(broker), ignore_errors=True)
        point_at_controllers(cluster, broker)
        broker.start()
        cluster.wait(f"{broker.name} in the SyncStateSet", partial(cluster.is_full, count))


def leave(cluster: MixedCluster, brokers: Sequence[Server], members: int) -> None:
    """``brokers`` are stopped, the slaves first, the master at last, and forgotten; ``members`` are left."""
    master = cluster.master()
    left = members + len(brokers)
    for broker in sorted(brokers, key=lambda broker: broker is master):
        broker_id = cluster.id_of(broker)
        broker.stop()
        left -= 1
        cluster.wait(f"the others to serve without {broker.name}", partial(_leads_without, cluster, broker))
        cluster.wait("a full SyncStateSet", partial(cluster.is_full, left))
        cluster.wait(f"{broker.name} to be taken for dead", partial(_is_dead, cluster, broker_id))
        cluster.wait(f"{broker.name} to be forgotten", partial(_forget, cluster, broker_id))


def change_controllers(cluster: MixedCluster, kind: str, brokers: Sequence[Server]) -> None:
    """New NameServers with Controllers of ``kind`` take the group over; ``brokers`` are its members.

    Nothing is written while the brokers stop, so all logs have one end and any of them can go on.
    """
    old, old_names = list(cluster.servers), list(cluster.controllers)
    made = cluster.add_real_controllers if kind == "real" else cluster.add_keelmq_controllers
    made(len(old_names))
    new = [server for server in cluster.servers if server not in old]
    controllers = cluster.controllers[len(old_names) :]
    for server in new:
        server.start()
    cluster.wait(
        "a new Controller that leads", lambda: cluster.asked(lambda a: a.controller_leader(controllers))
    )
    cluster.controllers = old_names
    _stop_level(cluster, brokers)
    former = brokers[0]
    cluster.controllers = controllers
    for broker in brokers:
        for name in OF_THE_CONTROLLERS:
            (cluster.store(broker) / name).unlink(missing_ok=True)
        point_at_controllers(cluster, broker)
    former.start()
    cluster.wait(f"{former.name} to lead", partial(cluster.is_full, 1))
    cluster.start_brokers(brokers[1:])
    cluster.wait("a full SyncStateSet", partial(cluster.is_full, len(brokers)))
    for server in old:
        server.stop()
    cluster.servers = new
    cluster.namesrvs = cluster.namesrvs[len(old) :]


def point_at_controllers(cluster: MixedCluster, broker: Server) -> None:
    """``broker`` asks the Controllers and tells the NameServers that there are, from its next start on."""
    broker.config["controllerAddr"] = ";".join(cluster.controllers)
    broker.config["namesrvAddr"] = ";".join(cluster.namesrvs)


def _stop_level(cluster: MixedCluster, brokers: Sequence[Server]) -> None:
    """Stop ``brokers``, the master at last, at one end of all logs."""
    master = cluster.master()
    assert master is not None
    permission = f"brokerPermission={READ_ONLY}".encode()
    cluster.asked(
        lambda admin: admin.session.call(
            cluster.address(master), Request.UPDATE_BROKER_CONFIG, {}, permission
        )
    )
    cluster.wait("logs of one length", partial(_is_level, cluster, brokers))
    for broker in sorted(brokers, key=lambda broker: broker is master):
        broker.stop()
    assert _is_level(cluster, brokers), cluster.describe()


def _is_level(cluster: MixedCluster, brokers: Sequence[Server]) -> bool:
    """Whether the logs end at one place, and still do half a second later."""
    ends = [_end(cluster, broker) for broker in brokers]
    time.sleep(0.5)
    return {*ends, *(_end(cluster, broker) for broker in brokers)} == {ends[0]}


def _end(cluster: MixedCluster, broker: Server) -> int:
    return end_of(cluster.store(broker))


def _leads_without(cluster: MixedCluster, broker: Server) -> bool:
    state = cluster.state()
    return state is not None and state.master_address not in (None, "", cluster.address(broker))


def _is_dead(cluster: MixedCluster, broker_id: int) -> bool:
    return not cluster.is_alive(broker_id)


def _forget(cluster: MixedCluster, broker_id: int) -> bool:
    cluster.asked(lambda a: a.forget(cluster.controllers, "DefaultCluster", GROUP, [broker_id]))
    state = cluster.state()
    return state is not None and broker_id not in {**state.in_sync, **state.not_in_sync}


# --- the load and what it was told


class JavaLoad:
    """A ``StockProducer``; ``sends`` grows while it runs."""

    def __init__(self, namesrvs: Sequence[str], rate: int, home: Path) -> None:
        self.sends: list[Send] = []
        classes = rocketmq.compile_java(ROOT / "bench" / "StockProducer.java")
        command = rocketmq.java(
            "StockProducer",
            *(";".join(namesrvs), TOPIC, str(rate)),
            classes=classes,
            user_home=home,
            heap_mb=256,
        )
        home.mkdir(parents=True, exist_ok=True)
        with (home / "errors").open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._reader = threading.Thread(target=self._read, name="java load")

    def __enter__(self) -> JavaLoad:
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(30)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(("ok ", "failed ")):  # the client logs to standard output, too
                self.sends.append(Send.parse(line))

    def serves(self, since_ms: float) -> bool:
        """Whether the last sends, all begun after ``since_ms``, were acknowledged."""
        last = self.sends[-SETTLE_ACKS:]
        return len(last) == SETTLE_ACKS and all(send.ok and send.begun_ms > since_ms for send in last)


def ledger_line(send: Send) -> str:
    """A line of an audit's ledger; the body of a message is its key."""
    key, queue, offset, uniq_key = send.what
    row = {
        "uniq_key": uniq_key,
        "topic": TOPIC,
        "queue_id": int(queue),
        "queue_offset": int(offset),
        "body_crc": zlib.crc32(key.encode()),
        "begun_ms": send.begun_ms,
        "acked_ms": send.ended_ms,
    }
    return json.dumps(row) + "\n"


@dataclass(frozen=True, slots=True)
class Step:
    """What was done, and what the producer saw of it."""

    what: str
    seconds: float
    acked: int
    failed: int
    longest_ms: int
    """Longest time between two acknowledgements."""


class Migration:
    """The whole way, there and back, and what each step took."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.cluster = MixedCluster(directory)
        self.steps: list[Step] = []
        self.audits: dict[str, dict[str, Any]] = {}

    def run(self, rate: int) -> None:
        cluster = self.cluster
        cluster.add_real_controllers(3)
        real = [cluster.add_broker("real") for _ in range(3)]
        with running(cluster):
            for count, broker in enumerate(real, 1):
                broker.start()
                cluster.wait(f"{broker.name} in the SyncStateSet", partial(cluster.is_full, count))
            copy_tables(cluster)
            cluster.asked(lambda admin: admin.create_topic(TOPIC, QUEUES))
            ours = [cluster.add_broker("keelmq") for _ in range(3)]
            # The addresses of both ways: NameServers that do not run yet are passed over.
            namesrvs = [f"127.0.0.1:{cluster.base_port + 10 * i}" for i in range(9)]
            with JavaLoad(namesrvs, rate, self.directory / "java") as load:
                self._settle(load, 0)
                step = partial(self._step, load)
                step("three keelmq brokers join", lambda: join(cluster, ours, 3))
                step("the real brokers leave, the master last", lambda: leave(cluster, real, 3))
                step("keelmq Controllers and NameServers", lambda: self._change("keelmq", ours))
                self._audit("keelmq", load, ours)
                step("three real brokers join", lambda: join(cluster, real, 3))
                step("the keelmq brokers leave, the master last", lambda: leave(cluster, ours, 3))
                step("real Controllers and NameServers", lambda: self._change("real", real))
            self._audit("real", load, real)
            assert all(has_tables(cluster, broker) for broker in real)

    def _change(self, kind: str, brokers: Sequence[Server]) -> None:
        change_controllers(self.cluster, kind, brokers)

    def _settle(self, load: JavaLoad, since_ms: float) -> None:
        self.cluster.wait("the producer to be served", lambda: load.serves(since_ms))

    def _step(self, load: JavaLoad, what: str, do: Callable[[], None]) -> None:
        begun, first = time.time(), len(load.sends)
        do()
        self._settle(load, time.time() * 1000)
        sends = load.sends[max(first - 1, 0) :]
        acked = [send.ended_ms for send in sends if send.ok]
        longest = max(later - earlier for earlier, later in pairwise(acked))
        failed = len(sends) - len(acked)
        self.steps.append(Step(what, round(time.time() - begun, 1), len(acked), failed, longest))
        print(self.steps[-1], flush=True)

    def _audit(self, kind: str, load: JavaLoad, brokers: Sequence[Server]) -> None:
        out = self.directory / f"audit-{kind}"
        ledger = self.directory / f"acked-{kind}.jsonl"
        ledger.write_text("".join(ledger_line(send) for send in list(load.sends) if send.ok))
        stores = [f"{broker.name}={self.cluster.store(broker)}" for broker in brokers]
        command = [sys.executable, "-m", "cli.main", "audit", *stores, "--ledger", str(ledger)]
        done = subprocess.run([*command, "--out", str(out)], cwd=ROOT, capture_output=True, text=True)
        summary = json.loads((out / "summary.json").read_text()) if (out / "summary.json").exists() else {}
        self.audits[kind] = {
            "exit_code": done.returncode,
            "verdict": summary.get("verdict", done.stderr[-500:]),
            "acknowledged": summary.get("ledger", {}).get("lines"),
            "lost": summary.get("findings", {}).get("acked_missing", 0),
            "findings": summary.get("findings"),
        }
        print(kind, self.audits[kind], flush=True)


def markdown(steps: Sequence[Step], audits: dict[str, dict[str, Any]]) -> str:
    lines = [
        "| step | seconds | acknowledged | failed sends | longest time without an acknowledgement, ms |",
        "|---|---|---|---|---|",
    ]
    for step in steps:
        lines.append(
            f"| {step.what} | {step.seconds} | {step.acked:,} | {step.failed:,} | {step.longest_ms:,} |"
        )
    head = "| audit of the three stores | acknowledged so far | lost | verdict | findings |"
    lines += ["", head, "|---|---|---|---|---|"]
    for kind, found in audits.items():
        told = ", ".join(f"{name} {count}" for name, count in found["findings"].items()) or "none"
        numbers = f"{found['acknowledged']:,} | {found['lost']} | {found['verdict']} | {told}"
        lines.append(f"| all {kind} | {numbers} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=int, default=50, help="sends a second")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    missing = rocketmq.unavailable()
    if missing:
        print(f"the real RocketMQ cannot run here: {missing}", file=sys.stderr)
        return 3
    rocketmq.fetch()
    os.environ.setdefault(rocketmq.JAVA_OPTIONS, shared_classes.quick())
    with tempfile.TemporaryDirectory(prefix="keelmq-migration-") as directory:
        migration = Migration(Path(directory))
        migration.run(given.rate)
    table = markdown(migration.steps, migration.audits)
    print(table)
    if given.markdown is not None:
        given.markdown.write_text(table + "\n")
    if given.json is not None:
        rows = [asdict(step) for step in migration.steps]
        report = {"name": "migration", "steps": rows, "audits": migration.audits, "machine": machine()}
        given.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if all(found["exit_code"] in (0, 1) for found in migration.audits.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
