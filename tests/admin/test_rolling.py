"""The promises of a rolling restart: one server at a time, slaves first; it stops when all is not whole."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from admin.handover import CannotHandOver, HandedOver
from admin.local import layout, rolling
from admin.local.cluster import LocalCluster
from admin.local.layout import Layout, Node
from admin.local.rolling import NotRestarted, RollingRestart, Step, interruptions, lacking, order
from runtime.os_env import OsEnv


class PretendCluster(LocalCluster):
    """A cluster without processes: its servers come back at once, but those in ``lost``."""

    def __init__(self, directory: Path, groups: int = 1, brokers: int = 3) -> None:
        super().__init__(directory, Layout.make(groups=groups, brokers=brokers, base_port=20000))
        self.masters = {name: f"{name}-0" for name in self.layout.group_names}
        self.controllers_leader = "namesrv-1"
        self.away: set[str] = set()
        self.lost: set[str] = set()
        self.acts: list[str] = []
        self.started = asyncio.Event()

    def is_running(self, node: Node) -> bool:
        return True

    def end(self, chosen: Sequence[Node], grace_s: float = 0) -> list[str]:
        assert not self.away, f"{self.away} are away already"
        self.away |= {node.name for node in chosen}
        self.acts += [f"stop {node.name}" for node in chosen]
        return []

    def launch(self, node: Node) -> None:
        self.acts.append(f"start {node.name}")
        self.started.set()
        if node.name not in self.lost:
            self.away.discard(node.name)

    async def views(self) -> dict[str, dict[str, Any] | None]:
        return {node.name: None if node.name in self.away else self._view(node) for node in self.layout.nodes}

    def _view(self, node: Node) -> dict[str, Any]:
        if node.role == "broker":
            return self._broker(node)
        groups = {name: self._group(name) for name in self.layout.group_names}
        controller = {"isLeader": node.name == self.controllers_leader, "term": 1, "groups": groups}
        routes = {name: {0: self.layout.node(self.masters[name]).address} for name in groups}
        return {"controller": {**controller, "raft": {"lagEntries": 0}}, "brokers": routes}

    def _group(self, name: str) -> dict[str, Any]:
        ids = [node.index + 1 for node in self.layout.broker_nodes if node.group == name]
        master = self.layout.node(self.masters[name]).index + 1
        brokers = {str(i): {"address": "", "alive": True} for i in ids}
        return {"master": master, "epoch": 1, "syncStateSet": ids, "brokers": brokers}

    def _broker(self, node: Node) -> dict[str, Any]:
        master = self.masters[node.group] == node.name
        slaves = [n.index + 1 for n in self.layout.broker_nodes if n.group == node.group and n is not node]
        return {
            "role": "master" if master else "slave",
            "brokerId": node.index + 1,
            "address": node.address,
            "epoch": 1,
            "writable": None,
            "slaves": [{"id": i, "lagBytes": 0} for i in slaves] if master else [],
            "life": {"following": None if master else {"state": "following"}},
        }


@pytest.fixture(autouse=True)
def right(monkeypatch: pytest.MonkeyPatch) -> None:
    async def granted(*_: Any) -> None:
        pass

    monkeypatch.setattr(rolling, "need_right", granted)


def names(steps: Sequence[Step]) -> list[str]:
    return [step.server for step in steps]


async def test_controllers_leader_and_masters_come_last(tmp_path: Path) -> None:
    cluster = PretendCluster(tmp_path, groups=2)
    cluster.masters["broker-b"] = "broker-b-1"
    steps = order(cluster, await cluster.views())
    assert names(steps) == [
        *("namesrv-0", "namesrv-2", "namesrv-1"),
        *("broker-a-1", "broker-a-2", "broker-a-0"),
        *("broker-b-0", "broker-b-2", "broker-b-1"),
    ]
    assert [step.server for step in steps if step.handover] == ["broker-a-0", "broker-b-1"]


async def test_one_at_a_time_with_a_handover_before_the_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = PretendCluster(tmp_path)
    monkeypatch.setattr(rolling, "hand_over", _handover_to(cluster, "broker-a-2"))
    done = await RollingRestart(cluster, OsEnv()).run()
    servers = ["namesrv-0", "namesrv-2", "namesrv-1", "broker-a-1", "broker-a-2", "broker-a-0"]
    steps = [[f"stop {name}", f"start {name}"] for name in servers]
    steps[-1].insert(0, "hand over broker-a")
    assert cluster.acts == [act for step in steps for act in step]
    assert [(one.server, one.new_master) for one in done if one.new_master] == [("broker-a-0", 3)]


def _handover_to(cluster: PretendCluster, name: str) -> Callable[..., Any]:
    async def hand_over(
        env: Any, namesrv: Any, controllers: Any, cluster_name: str, group: str, **_: Any
    ) -> Any:
        cluster.acts.append(f"hand over {group}")
        cluster.masters[group] = name
        return HandedOver(group, 1, cluster.layout.node(name).index + 1, 1, 5.0)

    return hand_over


async def test_it_stops_at_a_server_that_does_not_come_back_and_leaves_the_rest_alone(tmp_path: Path) -> None:
    cluster = PretendCluster(tmp_path)
    cluster.lost = {"broker-a-1"}
    with pytest.raises(NotRestarted) as error:
        await RollingRestart(cluster, OsEnv(), timeout_s=0.05).run()
    assert str(error.value) == (
        "stopped at broker-a-1: waiting for broker-a-1; left alone: broker-a-0, broker-a-2"
    )
    assert cluster.acts[-2:] == ["stop broker-a-1", "start broker-a-1"]


async def test_nothing_is_restarted_while_the_cluster_is_not_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rolling, "BEGIN_S", 0.05)
    cluster = PretendCluster(tmp_path)
    cluster.away = {"broker-a-2"}
    with pytest.raises(NotRestarted, match=r"^nothing was restarted: waiting for broker-a-2$"):
        await RollingRestart(cluster, OsEnv()).run()
    assert cluster.acts == []


async def test_a_key_that_may_not_hand_over_is_noticed_before_the_first_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any) -> None:
        raise CannotHandOver("ELECT_MASTER must be signed here")

    monkeypatch.setattr(rolling, "need_right", refuse)
    cluster = PretendCluster(tmp_path)
    with pytest.raises(NotRestarted, match=r"^nothing was restarted: ELECT_MASTER must be signed here$"):
        await RollingRestart(cluster, OsEnv()).run()
    assert cluster.acts == []


async def test_a_failed_handover_stops_before_the_master_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any, **__: Any) -> Any:
        raise CannotHandOver("no slave is alive")

    monkeypatch.setattr(rolling, "hand_over", refuse)
    cluster = PretendCluster(tmp_path)
    with pytest.raises(NotRestarted, match=r"^stopped at broker-a-0: no slave is alive$"):
        await RollingRestart(cluster, OsEnv()).run()
    assert "stop broker-a-0" not in cluster.acts


async def test_a_server_whose_file_cannot_be_written_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stopped first, and stayed down."""
    cluster = PretendCluster(tmp_path)
    real = layout.replace

    def replace(path: Path, text: str) -> None:
        if path.name == "broker-a-2.conf":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        real(path, text)

    monkeypatch.setattr(layout, "replace", replace)
    with pytest.raises(NotRestarted, match=r"^stopped at broker-a-2: \[Errno 28\] No space .*; left alone"):
        await RollingRestart(cluster, OsEnv()).run()
    assert "stop broker-a-2" not in cluster.acts
    assert not cluster.away


async def test_a_place_that_was_changed_meanwhile_stops_no_server(tmp_path: Path) -> None:
    cluster = PretendCluster(tmp_path)
    node = cluster.layout.node("broker-a-1")
    node.written = cluster.layout.conf(node, tmp_path)

    def tell(text: str) -> None:
        if text.startswith(node.name):
            cluster.conf_path(node).write_text("listenPort=1\n")

    with pytest.raises(NotRestarted, match=r"^stopped at broker-a-1: .*listenPort is what"):
        await RollingRestart(cluster, OsEnv(), tell=tell).run()
    assert "stop broker-a-1" not in cluster.acts


async def test_a_server_that_cannot_be_started_again_is_said_to_be_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = PretendCluster(tmp_path)

    def launch(node: Node) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(cluster, "launch", launch)
    monkeypatch.setattr(cluster, "is_running", lambda node: node.name not in cluster.away)
    with pytest.raises(NotRestarted, match=r"Cannot allocate memory; namesrv-0 is down; left alone"):
        await RollingRestart(cluster, OsEnv()).run()


def _changed(view: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**view, **changes}


@pytest.mark.parametrize(
    ("server", "changes", "text"),
    [
        ("broker-a-1", {"life": {"following": {"state": "connecting"}}}, "broker-a-1 does not follow"),
        ("broker-a-1", {"role": "fenced"}, "broker-a-1 does not follow"),
        ("broker-a-1", {"epoch": 0}, "has not heard of epoch 1"),
        ("broker-a-0", {"slaves": [{"id": 2}]}, "broker-a-2 does not follow"),
        ("broker-a-0", {"writable": "disk full"}, "takes no messages: disk full"),
    ],
)
async def test_a_broker_that_only_seems_in_sync_holds_the_next_step_back(
    tmp_path: Path, server: str, changes: dict[str, Any], text: str
) -> None:
    cluster = PretendCluster(tmp_path)
    views = await cluster.views()
    assert lacking(cluster, views) == ""
    views[server] = _changed(views[server] or {}, **changes)
    assert text in lacking(cluster, views)


async def test_a_controller_that_is_behind_holds_the_next_step_back(tmp_path: Path) -> None:
    cluster = PretendCluster(tmp_path)
    views = await cluster.views()
    controller = (views["namesrv-0"] or {})["controller"]
    views["namesrv-0"] = _changed(
        views["namesrv-0"] or {}, controller={**controller, "raft": {"lagEntries": 3}}
    )
    assert lacking(cluster, views) == "namesrv-0 is 3 decisions behind"


@pytest.mark.parametrize(
    ("controllers", "brokers", "settings", "reasons"),
    [
        (3, 3, [], 0),
        (3, 2, [], 0),
        (1, 3, [], 1),
        (3, 1, [], 1),
        (1, 1, [], 2),
        (3, 2, ["broker.minInSyncReplicas=2"], 1),
        (3, 2, ["broker.majorityAck=true"], 1),
        (3, 3, ["broker.majorityAck=true", "broker.minInSyncReplicas=2"], 0),
    ],
)
def test_what_one_server_away_would_interrupt(
    controllers: int, brokers: int, settings: list[str], reasons: int
) -> None:
    layout = Layout.make(controllers=controllers, brokers=brokers, base_port=20000)
    layout.add_settings(settings)
    assert len(interruptions(layout)) == reasons


@pytest.mark.parametrize(
    ("key", "value", "reasons"),
    [("minInSyncReplicas", "3", 1), ("inSyncReplicas", "2", 0), ("majorityAck", "true", 0)],
)
def test_what_was_changed_on_a_running_broker_counts(
    tmp_path: Path, key: str, value: str, reasons: int
) -> None:
    """``updateBrokerConfig`` writes into the broker's file; the next start takes it from there."""
    cluster = LocalCluster(tmp_path, Layout.make(groups=2, base_port=20000))
    node = cluster.layout.node("broker-b-1")
    node.written = cluster.layout.conf(node, tmp_path)
    cluster.conf_path(node).parent.mkdir()
    cluster.conf_path(node).write_text(f"brokerName=broker-b\n{key}={value}\n")
    assert interruptions(cluster.layout) == []
    cluster.take(())
    found = interruptions(cluster.layout)
    assert len(found) == reasons
    assert all("of the 3 brokers of broker-b," in text for text in found)


async def test_an_interrupted_restart_leaves_no_server_down(tmp_path: Path) -> None:
    cluster = PretendCluster(tmp_path)
    cluster.lost = {"namesrv-0"}
    running = asyncio.ensure_future(RollingRestart(cluster, OsEnv()).run())
    await cluster.started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert cluster.acts == ["stop namesrv-0", "start namesrv-0"]
