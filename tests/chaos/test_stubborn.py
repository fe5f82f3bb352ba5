"""The promise of senders that ignore routes: what a deposed master acknowledges alone is found, and that they
are answered hides no outage of the clients that ask where to send."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chaos.checks import Evidence, check_all
from chaos.checks.liveness import STUBBORN, Group
from chaos.drills.live.scenario import DrillResult, DrillSpec, _judge
from chaos.drills.live.stubborn import PER_SECOND, StubbornSender, counted, join, routed
from chaos.drills.load import DrillLoad, DrillPlan
from chaos.drills.measure import Drill
from chaos.history import Fail, Happened, History, HistoryEvent, Invoke, Observed, Ok, Read, Unknown
from chaos.live.outcome import Outcome
from chaos.scenarios import Plan
from chaos.workload import Load
from client.message import Queue, SendFailed, SendUnknown
from model.codes import Response
from model.errors import PeerError
from model.errors import Unknown as NoAnswer
from remoting.codec import Command
from runtime.os_env import OsEnv
from tests.fakes.live import FakeCluster

QUEUE = Queue("t", "broker-a", 1)
ADDRESS = "127.0.0.1:10911"
STORED = {"msgId": "7F00000100002A9F0000000000000064", "queueId": "1", "queueOffset": "5"}


def sender(answer: Command | Exception, asked: list[tuple[str, Command]]) -> StubbornSender:
    async def call(address: str, command: Command, timeout_s: float) -> Command:
        asked.append((address, command))
        if isinstance(answer, Exception):
            raise answer
        return answer

    found = StubbornSender(OsEnv(seed=1), "stubborn0", ["127.0.0.1:1"], ADDRESS)
    cast(Any, found)._session = SimpleNamespace(remoting=SimpleNamespace(call=call))
    return found


async def test_it_asks_its_own_broker_once_and_tells_the_ends_apart() -> None:
    asked: list[tuple[str, Command]] = []
    acked = await sender(Command(Response.SUCCESS, STORED), asked).send("k1", QUEUE, b"x")
    assert (acked.queue, acked.queue_offset, acked.physical_offset, acked.address) == (QUEUE, 5, 100, ADDRESS)
    ends: list[tuple[Command | Exception, type[Exception]]] = [
        (Command(Response.NO_PERMISSION, {}, remark="a slave"), SendFailed),
        (ConnectionRefusedError("nobody listens"), SendFailed),
        (NoAnswer("no answer"), SendUnknown),
        (PeerError("no frame"), SendUnknown),
        (Command(Response.SYSTEM_ERROR, {}, remark="the disk"), SendUnknown),
        (Command(Response.FLUSH_SLAVE_TIMEOUT, STORED), SendUnknown),
    ]
    for answer, error in ends:
        with pytest.raises(error):
            await sender(answer, asked).send("k2", QUEUE, b"x")
    assert {address for address, _ in asked} == {ADDRESS}
    assert len(asked) == 7


def test_one_is_bound_to_each_broker(tmp_path: Path) -> None:
    class Joined:
        def __init__(self) -> None:
            self.clients: dict[str, Any] = {}

        def beside(self, name: str, client: Any, load: Load, chance: random.Random) -> None:
            assert load.per_second == PER_SECOND
            self.clients[name] = client

    cluster, load = FakeCluster(tmp_path), Joined()
    join(cast(Any, load), lambda number: OsEnv(seed=number), cluster, Load(), 1)
    addresses = [client._address for client in load.clients.values()]
    assert addresses == [node.address for node in cluster.layout.broker_nodes]
    assert all(name.startswith(STUBBORN) for name in load.clients)


def a_run() -> list[HistoryEvent]:
    """Clients are without an answer for 6 s; meanwhile the deposed master acknowledges to who asks it."""
    events: list[HistoryEvent] = [Happened(1000.0, "b0", "partition", {"pairs": []})]
    for number, at in enumerate((*range(0, 1000, 100), *range(7000, 20_000, 100))):
        asked = 901 if at == 7000 else at
        events += [Invoke(asked, "p", f"k{at}", QUEUE, 1), Ok(at + 1.0, "p", f"k{at}", QUEUE, number, number)]
        events.append(Read(21_000.0, "c", f"k{at}", QUEUE, number, 1, final=True))
    for at in range(1000, 7000, 100):
        key = f"s{at}"
        events += [Invoke(at, "stubborn0", key, QUEUE, 1), Ok(at + 1.0, "stubborn0", key, QUEUE, at, at)]
    events += [Invoke(2.0, "stubborn1", "r", QUEUE, 1), Fail(3.0, "stubborn1", "r", "a slave")]
    events += [Invoke(2.0, "stubborn2", "u", QUEUE, 1), Unknown(3.0, "stubborn2", "u", "silent")]
    return events


def test_what_a_deposed_master_acknowledges_alone_is_a_loss() -> None:
    drill = Drill(full_again_ms=1.0)
    broken = _judge(drill, History(a_run()), [QUEUE], 20_000.0, Plan([]))
    assert drill.lost == 60
    assert broken["lost"] == 60
    assert (drill.acked, drill.failed, drill.unknown) == (200, 0, 0), "acknowledged: of all, as losses are"
    others = History(event for event in a_run() if not getattr(event, "process", "").startswith(STUBBORN))
    assert _judge(Drill(full_again_ms=1.0), others, [QUEUE], 20_000.0, Plan([])) == {}


def test_that_it_is_answered_hides_no_outage() -> None:
    history, drill = History(a_run()), Drill(full_again_ms=1.0)
    _judge(drill, history, [QUEUE], 20_000.0, Plan([]))
    assert drill.rto_ms == 6100.0
    told = DrillResult(drill, Outcome(), history, {}, 20_000.0).to_json(
        DrillSpec(scenario="x", seed=1, plan=Plan([]))
    )
    assert told["rto_max_ms"] == 6100.0
    assert [901.0, 7001.0] in told["timeline"]["gaps"]
    assert told["stubborn_sends"] == counted(history) == {"ok": 60, "fail": 1, "unknown": 1}
    assert len(routed(history).sends()) == 140


def test_liveness_asks_for_clients_that_follow_routes() -> None:
    group = Group(brokers=["b0", "b1", "b2"], controllers=["n0"], enough=2, until_ms=20_000.0)
    seen = [Observed(at, name, 1, "slave", 1, 0, 0) for name in group.brokers for at in range(0, 20_000, 100)]
    told = check_all(Evidence(History([*a_run(), *seen]), complete=False, group=group))
    assert "serves_with_a_majority" in {violation.checker for violation in told}


def test_a_plan_of_before_is_repeated_without_them() -> None:
    spec = DrillSpec(scenario="x", seed=1, plan=Plan([]))
    data = spec.to_json()
    assert DrillSpec.from_json(data).stubborn
    del data["stubborn"]
    assert not DrillSpec.from_json(data).stubborn


def test_the_load_starts_and_stops_them_with_its_own() -> None:
    said: list[str] = []

    class Client:
        async def start(self) -> None:
            said.append("start")

        async def stop(self) -> None:
            said.append("stop")

        async def send(self, key: str, queue: Queue, body: bytes) -> Any:
            raise SendFailed("a slave", 1, ())

    async def main() -> None:
        world = SimpleNamespace(namesrv=["127.0.0.1:1"])
        load = DrillLoad(
            lambda number: OsEnv(seed=number),
            cast(Any, world),
            DrillPlan(scenario="x", queues=1, load=Load(producers=0)),
            [QUEUE],
            0,
            random.Random(1),
            follow=lambda *_: cast(Any, Client()),
        )
        load.beside("stubborn0", Client(), Load(per_second=500.0), random.Random(1))
        await load.start()
        await asyncio.sleep(0.05)
        await load.stop(1.0)
        await load.close()
        assert load.errors() == []
        assert counted(load.history)["fail"] > 0
        assert said.count("start") == said.count("stop") == 2  # of the follower, too

    asyncio.run(main())
