"""The promises of campaigns and of the reports made of them: what is counted, and when a target is missed."""

import asyncio
import os
import random
from typing import Any

import pytest

from admin.local.cluster import ClusterNotReady
from bench import failover, idle
from chaos.drills import campaign
from chaos.drills.campaign import CampaignPlan, campaign_line, run_campaign
from chaos.drills.load import DrillPlan
from chaos.drills.measure import Drill
from chaos.history import Fail, History, Invoke, Ok, Read, Unknown
from chaos.worlds.live import Timeline, Victim
from chaos.worlds.rocketmq import VERSION
from client.message import Queue
from runtime.env import Env
from runtime.os_env import OsEnv

OLD, NEW = "h:1", "h:2"
GROUP = "broker-a"


class PlannedWorld:
    """A world whose faults take the master from OLD to NEW and back, and say so to the load."""

    target = "planned"
    group = GROUP

    def __init__(self) -> None:
        self.namesrv = ["h:9"]
        self.master = OLD
        self.told: list[str] = []
        self.fails_full_at = -1

    async def wait_full(self, timeout_s: float) -> None:
        self.told.append("full")
        if self.told.count("full") == self.fails_full_at:
            raise ClusterNotReady("two of three")

    async def choose(self, fault: str, chance: random.Random) -> Victim:
        return Victim("n1", self.master, ("b1",))

    async def inflict(self, fault: str, victim: Victim) -> None:
        self.told.append("fault")
        self.master = NEW if self.master == OLD else OLD

    async def mend(self, fault: str, victim: Victim) -> None:
        self.told.append("mend")

    async def led(self, timeout_s: float) -> bool:
        return True

    async def timeline(self, fault_ms: int) -> Timeline:
        return Timeline(1, 2, 3, 4, leader_ms=5)


class PlannedLoad:
    """Instead of producers: one acknowledgement a queue each 10 ms by whoever is master, all read at the end.

    ``spoil`` may change an event before it is noted.
    """

    world: PlannedWorld
    spoil: Any = staticmethod(lambda event: event)

    def __init__(
        self, env_of: Any, world: Any, plan: DrillPlan, queues: list[Queue], number: int, chance: Any
    ) -> None:
        self.history = History()
        self._world, self._queues = world, queues
        self._env: Env = env_of(0)
        self._count = 0
        self.queues = queues
        self.clock = self._env.monotonic_ms

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            for queue in self._queues:
                now_ms, key = self._env.monotonic_ms(), f"k{queue.queue_id}-{self._count}"
                self.history.add(Invoke(now_ms, "p", key, queue, 7))
                ok = Ok(now_ms, "p", key, queue, self._count, self._count * 100, self._world.master)
                self.history.add(self.spoil(ok))
                self.history.add(Read(99_999_999_999, "c", key, queue, self._count, 7, final=True))
            self._count += 1
            await asyncio.sleep(0.01)

    async def stop(self, timeout_s: float) -> None:
        self._task.cancel()

    async def read_back(self, timeout_s: float) -> bool:
        return True

    async def close(self) -> None:
        self._task.cancel()


@pytest.fixture(autouse=True)
def planned(monkeypatch: pytest.MonkeyPatch) -> None:
    async def make_topic(*_: Any) -> None:
        return None

    monkeypatch.setattr(campaign, "DrillLoad", PlannedLoad)
    monkeypatch.setattr(campaign, "make_topic", make_topic)
    monkeypatch.setattr(campaign, "SETTLE_S", (0.05, 0.06))
    monkeypatch.setattr(PlannedLoad, "spoil", staticmethod(lambda event: event))


PLAN = DrillPlan(scenario="kill-leader-and-master", queues=2, warm_s=0.05, after_s=0.05, recover_s=2.0)


def run(plan: CampaignPlan, world: PlannedWorld) -> campaign.Campaign:
    env = OsEnv(seed=1)
    found, _ = asyncio.run(run_campaign(env, world, plan, env_of=lambda index: OsEnv(seed=index)))
    return found


def test_each_drill_is_measured_alone_and_all_are_judged_together() -> None:
    world = PlannedWorld()
    found = run(CampaignPlan(drill=PLAN, repeat=3), world)
    assert [drill.unfinished for drill in found.drills] == [None] * 3
    assert all(drill.rto_ms is not None and drill.leader_ms == 5 for drill in found.drills)
    assert [drill.victim for drill in found.drills] == ["n1+b1"] * 3
    assert world.told == ["full", *["fault", "mend", "full"] * 3]
    assert found.total.acked > sum(drill.acked for drill in found.drills)
    assert not found.total.violated
    result = found.to_json(PLAN, "planned")
    assert result["acked_total"] == found.total.acked
    assert (result["lost_total"], result["acknowledged_twice_total"], result["leader_p50_ms"]) == (0, 0, 5)
    assert "RTO" in campaign_line(0, CampaignPlan(drill=PLAN, repeat=3), found.drills[0])


def test_an_offset_acknowledged_again_in_a_later_drill_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    world = PlannedWorld()
    spoiled: list[str] = []

    def spoil(event: Ok) -> Ok:
        if world.told.count("mend") == 1 and event.queue.queue_id == 0 and not spoiled:
            spoiled.append(event.key)
            return Ok(event.at_ms, "p", event.key, event.queue, 0, event.physical_offset, event.address)
        return event

    monkeypatch.setattr(PlannedLoad, "spoil", staticmethod(spoil))
    found = run(CampaignPlan(drill=PLAN, repeat=2), world)
    assert found.total.acknowledged_twice == 1
    assert found.total.violated
    assert found.to_json(PLAN, "planned")["acknowledged_twice_total"] == 1


def test_it_goes_on_until_enough_was_acknowledged() -> None:
    few = run(CampaignPlan(drill=PLAN, repeat=1), PlannedWorld())
    more = run(CampaignPlan(drill=PLAN, repeat=1, acks=few.drills[0].acked * 2), PlannedWorld())
    assert len(few.drills) == 1
    assert len(more.drills) > 1


def test_a_cluster_that_does_not_recover_ends_it_with_what_was_measured() -> None:
    world = PlannedWorld()
    world.fails_full_at = 3
    found = run(CampaignPlan(drill=PLAN, repeat=5), world)
    assert len(found.drills) == 1
    assert found.total.unfinished == "drill 2: two of three"
    assert found.to_json(PLAN, "planned")["unfinished_total"] == 1


def test_no_drill_begins_after_the_limit() -> None:
    found = run(CampaignPlan(drill=PLAN, repeat=50, limit_s=0.01), PlannedWorld())
    assert found.drills == []
    assert found.total.unfinished is not None


# --- bench/failover.py


def measured(**changed: Any) -> dict[str, Any]:
    plan = DrillPlan(scenario="handover")
    drills = [Drill(rto_ms=40.0 + i * 7 % 50, leader_ms=300.0 + i, acked=10) for i in range(50)]
    found = campaign.Campaign(drills, Drill(acked=500))
    return failover.shorten(found.to_json(plan, "keelmq")) | changed


def missed(kind: str, result: dict[str, Any]) -> list[str]:
    return [text for text, met in failover.verdicts(kind, result, 50) if not met]


@pytest.mark.parametrize("kind", list(failover.TARGETS))
def test_a_good_campaign_meets_every_target(kind: str) -> None:
    assert missed(kind, measured()) == []


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("handover", {"rto_p50_ms": 101.0}),
        ("handover", {"rto_p99_ms": 301.0}),
        ("handover", {"failed_total": 1}),
        ("stop-master", {"unknown_total": 1}),
        ("kill-controller-leader", {"leader_p50_ms": 601.0}),
        ("kill-controller-leader", {"leader_p99_ms": None}),
        ("freeze-master", {"drills": 49}),
        ("kill-master", {"rto_ms": [100.0] * 34 + [151.0] * 16}),
    ],
)
def test_each_target_can_be_missed(kind: str, changed: dict[str, Any]) -> None:
    assert len(missed(kind, measured(**changed))) == 1


def test_losses_and_doubles_of_any_campaign_are_targets_of_the_whole() -> None:
    found: dict[str, Any] = {"parts": {"keelmq/handover": measured()}}
    failover.judge(found, ["handover"], 50, 500)
    assert {row["verdict"] for row in found["targets"]} == {"met"}
    for changed in ({"lost_total": 1}, {"acknowledged_twice_total": 1}, {"order_violations_total": 1}):
        found["parts"]["keelmq/fill"] = measured(**changed)
        failover.judge(found, ["handover"], 50, 500)
        assert [row["verdict"] for row in found["targets"]].count("missed") == 1
    # What the other side loses is reported, and no verdict on us.
    del found["parts"]["keelmq/fill"]
    found["parts"]["default/handover"] = measured(lost_total=9)
    failover.judge(found, ["handover"], 50, 501)
    assert [row["text"] for row in found["targets"] if row["verdict"] == "missed"] == [
        "500 acknowledged sends >= 501"
    ]
    text = failover.markdown(found)
    assert "| handover | keelmq | 50 | 64 / 89 / 89 |" in text
    assert f"RocketMQ {VERSION} default" in text


def test_a_side_that_did_not_run_says_why() -> None:
    found: dict[str, Any] = {"parts": {"tuned/handover": {"error": "no\nJava"}}}
    failover.judge(found, [], 50, 0)
    assert "did not run: no Java" in failover.markdown(found)


# --- bench/idle.py


def sample(at_s: float, cpu_s: float, decided: dict[str, int], rss: int = 1_000_000) -> idle.Sample:
    return idle.Sample(at_s, {"broker-a-0": idle.Use(cpu_s, rss)}, decided)


def test_an_hour_within_its_limit_is_met() -> None:
    samples = [sample(60.0 * i, 0.6 * i, {"n term": 1}) for i in range(61)]
    result = idle.report(samples, 2.0, None, 3600)
    assert (result["verdict"], result["complete"], result["elections"]) == ("met", True, 0)
    assert result["cpu_percent"] == {"broker-a-0": 1.0}
    assert len(result["minutes"]) == 60
    assert "| broker-a-0 | 1.00 | 1.0 | +0 |" in idle.markdown(result)


@pytest.mark.parametrize(
    ("last", "ended"),
    [
        (sample(60, 1.3, {"n term": 1}), None),
        (sample(60, 0.6, {"n term": 2}), None),
        (sample(60, 0.6, {"n term": 1}), "broker-a-1 ended"),
    ],
)
def test_too_much_cpu_an_election_and_an_ended_server_are_missed(
    last: idle.Sample, ended: str | None
) -> None:
    result = idle.report([sample(0, 0.0, {"n term": 1}), last], 2.0, ended, 60)
    assert result["verdict"] == "missed"


def test_an_election_is_seen_although_the_server_that_won_it_appeared_later() -> None:
    views: list[dict[str, Any]] = [
        {"n0": {"controller": {"term": 3}}, "b0": {"epoch": 1}, "b1": None},
        {"n0": {"controller": {"term": 3}}, "b0": None, "b1": {"epoch": 2}},
        {"n0": {"controller": {"term": 3}}, "b0": {"epoch": 2}, "b1": {"epoch": 2}},
    ]
    samples = [sample(i, 0.0, idle.decided(view)) for i, view in enumerate(views)]
    assert idle.elections(samples) == 1
    assert idle.elections(samples[1:2]) == 0


def test_the_use_of_a_process_is_what_the_system_accounts() -> None:
    before = idle.use_of(os.getpid())
    total = 0
    while idle.use_of(os.getpid()).cpu_s <= before.cpu_s:
        total += sum(range(1000))
    assert idle.use_of(os.getpid()).rss_bytes > 1_000_000


def test_unknown_and_failed_sends_count_for_the_drill_they_ended_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(event: Ok) -> Any:
        if event.key == "k0-8":
            return Fail(event.at_ms, "p", event.key, "refused")
        if event.key == "k1-8":
            return Unknown(event.at_ms, "p", event.key, "no answer")
        return event

    monkeypatch.setattr(PlannedLoad, "spoil", staticmethod(spoil))
    found = run(CampaignPlan(drill=PLAN, repeat=2), PlannedWorld())
    assert [(drill.failed, drill.unknown) for drill in found.drills] == [(1, 1), (0, 0)]
