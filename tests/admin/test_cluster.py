"""The promises of admin.local: layout, processes and cluster, as far as no real server is needed."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from admin.commands.cluster import _show, cluster
from admin.exits import UNFINISHED, USAGE, run
from admin.host.kept_file import keep
from admin.host.serve import split
from admin.local import layout as layouts
from admin.local import processes
from admin.local.cluster import LocalCluster
from admin.local.layout import Layout, group_name, load, make_secret
from model.config import BrokerConfig, ControllerConfig, NamesrvConfig
from model.errors import ConfigError
from model.settings import peers


def test_no_two_servers_share_a_port() -> None:
    layout = Layout.make(controllers=3, groups=2, brokers=3, base_port=20000)
    used: list[int] = []
    for node in layout.broker_nodes:
        listen = int(node.address.rpartition(":")[2])
        used += [listen - 2, listen, listen + 1, node.admin_port]
    for node in layout.namesrvs:
        used += [node.base_port, node.base_port + 1, node.base_port + 2, node.admin_port]
    assert len(used) == len(set(used)) == 6 * 4 + 3 * 4


def test_every_conf_is_one_its_server_accepts(tmp_path: Path) -> None:
    layout = Layout.make(base_port=20000)
    for node in layout.broker_nodes:
        config = BrokerConfig.from_mapping(layout.conf(node, tmp_path))
        assert config.address == node.address
        assert config.enable_controller_mode
    for node in layout.namesrvs:
        own, others = split(layout.conf(node, tmp_path), NamesrvConfig, ControllerConfig)
        assert NamesrvConfig.from_mapping(own).enable_controller_in_namesrv
        controller = ControllerConfig.from_mapping(others)
        assert peers(controller.peers)[controller.self_id] == node.controller_address
        assert controller.raft_addresses()[controller.self_id] == node.raft_address


def test_settings_reach_the_servers_of_their_role(tmp_path: Path) -> None:
    layout = Layout.make(base_port=20000)
    layout.add_settings(["broker.flushDiskType=SYNC_FLUSH", "namesrv.scanNotActiveBrokerInterval=250"])
    assert layout.conf(layout.broker_nodes[0], tmp_path)["flushDiskType"] == "SYNC_FLUSH"
    assert layout.conf(layout.namesrvs[0], tmp_path)["scanNotActiveBrokerInterval"] == "250"


def test_two_groups_cannot_have_one_group_address(tmp_path: Path) -> None:
    one, two = Layout.make(base_port=20000), Layout.make(base_port=20000, groups=2)
    for layout in (one, two):
        layout.add_settings(["broker.groupAddress=127.0.0.1:19999"])
    assert one.conf(one.broker_nodes[0], tmp_path)["groupAddress"] == "127.0.0.1:19999"
    with pytest.raises(ConfigError, match="one group's own"):
        two.conf(two.broker_nodes[0], tmp_path)


@pytest.mark.parametrize("text", ["flushDiskType=x", "proxy.a=b", "broker.=x", "broker.a"])
def test_settings_for_nobody_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"broker\.KEY=VALUE"):
        Layout.make(base_port=20000).add_settings([text])


def test_groups_are_named_in_order() -> None:
    assert [group_name(i) for i in (0, 1, 25, 26)] == ["broker-a", "broker-b", "broker-z", "broker-27"]


def test_the_state_file_brings_the_same_cluster_back(tmp_path: Path) -> None:
    made = LocalCluster.create(tmp_path, brokers=2, settings=["broker.maxMessageSize=1000"])
    found = LocalCluster.open(tmp_path)
    assert found.layout == made.layout
    assert found.layout.settings == {"broker": {"maxMessageSize": "1000"}}


def test_what_a_server_changed_in_its_file_holds_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "start_server", lambda *_, **__: None)

    def started(*settings: str) -> str:
        cluster = LocalCluster.create(tmp_path, settings=settings)
        cluster.start(cluster.layout.broker_nodes[0])
        return file.read_text()

    file = tmp_path / "conf" / "broker-a-0.conf"
    assert "brokerPermission=4\n" in started("broker.brokerPermission=4")
    keep(file, {"fileReservedTime": "24", "brokerPermission": "2"})
    other = LocalCluster.open(tmp_path)
    other.start(other.layout.broker_nodes[1])
    assert "fileReservedTime" not in other.conf_path(other.layout.broker_nodes[1]).read_text()
    for _ in range(2):
        assert {"fileReservedTime=24", "brokerPermission=2"} <= set(started().splitlines())
        for closed in (file, tmp_path / layouts.STATE_FILE):
            assert stat.S_IMODE(closed.stat().st_mode) == 0o600
    assert {"fileReservedTime=24", "brokerPermission=6"} <= set(
        started("broker.brokerPermission=6").splitlines()
    )
    keep(file, {"brokerPermission": "2"})
    assert "brokerPermission=4\n" in started("broker.brokerPermission=4"), "what was given last"
    whole = file.read_text()
    keep(file, {"listenPort": "1"})
    with pytest.raises(ConfigError, match=r"put listenPort=\d+ back"):
        started()
    file.write_text(whole + "raftPeers=n0-h:1\n")
    with pytest.raises(ConfigError, match=r"raftPeers is .* take the line out"):
        started()
    file.write_text("half a line")
    with pytest.raises(ConfigError, match=r"broker-a-0\.conf: line 1"):
        started()


def test_who_has_the_lock_knows_what_others_did_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``down`` that read the file while ``up`` still worked ended nothing, and forgot the servers."""
    LocalCluster.create(tmp_path)
    down, up = LocalCluster.open(tmp_path), LocalCluster.open(tmp_path)
    monkeypatch.setattr(processes, "start_server", lambda *_, **__: 4242)
    with up.locked():
        up.start(up.layout.nodes[0])
    ended: list[int | None] = []

    def end_all(found: list[tuple[int | None, Path]], *, grace_s: float) -> list[int]:
        assert grace_s == processes.GRACE_S
        ended.extend(pid for pid, _ in found)
        return []

    monkeypatch.setattr(processes, "end_all", end_all)
    down.down()
    assert ended.count(4242) == 1
    with up.locked():
        assert {node.pid for node in up.layout.nodes} == {None}


def test_a_cluster_is_not_laid_out_beside_another_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = LocalCluster.create(tmp_path)
    with own.locked(), pytest.raises(ConfigError, match="another command is working"):
        LocalCluster.create(tmp_path, settings=["broker.brokerPermission=4"])
    assert load(tmp_path).settings == {}
    real = LocalCluster._wanted
    monkeypatch.setattr(processes, "start_server", lambda *_, **__: 4242)

    def slowly(directory: Path, given: Any, settings: Any) -> LocalCluster:
        found = real(directory, given, settings)
        if own.layout.nodes[0].pid is None:
            own.start(own.layout.nodes[0])
        return found

    monkeypatch.setattr(LocalCluster, "_wanted", slowly)
    LocalCluster.create(tmp_path, settings=["broker.brokerPermission=4"])
    kept = load(tmp_path)
    assert kept.nodes[0].pid == 4242
    assert kept.settings == {"broker": {"brokerPermission": "4"}}


def test_a_restart_that_is_refused_keeps_no_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = LocalCluster.create(tmp_path)
    again = ["restart", "--rolling", "--dir", str(tmp_path), "--set", "broker.brokerPermission=4"]
    assert run(cluster, again) == UNFINISHED
    assert "nothing was restarted: namesrv-0 does not run" in capsys.readouterr().err
    with made.locked():
        assert run(cluster, again) == USAGE
    assert "another command is working" in capsys.readouterr().err
    assert load(tmp_path).settings == {}


def test_two_writers_of_a_file_do_not_share_a_draft(tmp_path: Path) -> None:
    draft = tmp_path / "cluster.json.tmp"
    draft.write_text("half of another one's")
    layouts.replace(tmp_path / "cluster.json", "whole")
    assert draft.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cluster.json", "cluster.json.tmp"]


def test_another_shape_for_an_existing_cluster_is_refused(tmp_path: Path) -> None:
    LocalCluster.create(tmp_path, brokers=2)
    LocalCluster.create(tmp_path)
    with pytest.raises(ConfigError, match="brokers=2, not 3"):
        LocalCluster.create(tmp_path, brokers=3)


ENDLESS = '{"version": 1, "nodes": [], "settings": {}, "base_port": Infinity, "controllers": 1}'


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 99}', '{"version": 1}', ENDLESS])
def test_a_broken_state_file_is_a_config_error(tmp_path: Path, text: str) -> None:
    (tmp_path / layouts.STATE_FILE).write_text(text)
    with pytest.raises(ConfigError):
        load(tmp_path)


def test_no_cluster_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="keelmq cluster up --dir"):
        load(tmp_path)


def test_the_secret_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "raft.secret"
    make_secret(path)
    first = path.read_text()
    make_secret(path)
    assert path.read_text() == first
    assert len(first.strip()) == 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def sleeper(conf: Path) -> subprocess.Popen[bytes]:
    """A stranger's child with ``conf`` on its command line, which shows a moment after the start."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", str(conf)])
    deadline = time.monotonic() + 5
    while not processes.is_ours(child.pid, conf) and time.monotonic() < deadline:
        time.sleep(0.01)
    return child


def test_a_process_is_ours_only_with_our_conf_on_its_command_line(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    with sleeper(conf) as child:
        try:
            assert processes.is_ours(child.pid, conf)
            assert not processes.is_ours(child.pid, tmp_path / "other.conf")
            assert not processes.send_signal(child.pid, tmp_path / "other.conf", signal.SIGKILL)
            assert not processes.is_ours(os.getpid(), conf)
            assert not processes.is_ours(None, conf)
        finally:
            child.kill()
    assert not processes.is_ours(child.pid, conf)


def test_a_zombie_does_not_run(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    child = sleeper(conf)
    os.kill(child.pid, signal.SIGKILL)
    assert processes.wait_gone([(child.pid, conf)], 5)
    child.wait()


def test_a_frozen_process_hears_the_end_too(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    with sleeper(conf) as child:
        os.kill(child.pid, signal.SIGSTOP)
        assert processes.end_all([(child.pid, conf)], grace_s=5) == []


def views(**changes: Any) -> dict[str, dict[str, Any] | None]:
    """What a full cluster of one NameServer and two brokers says."""
    group = {
        "master": 1,
        "epoch": 4,
        "syncStateSet": [1, 2],
        "brokers": {"1": {"address": "127.0.0.1:20012"}, "2": {"address": "127.0.0.1:20022"}},
    }
    found: dict[str, dict[str, Any] | None] = {
        "namesrv-0": {
            "brokers": {"broker-a": {"0": "127.0.0.1:20012", "2": "127.0.0.1:20022"}},
            "controller": {"isLeader": True, "term": 2, "groups": {"broker-a": group}},
        },
        "broker-a-0": {
            "role": "master",
            "brokerId": 1,
            "epoch": 4,
            "address": "127.0.0.1:20012",
            "maxOffset": 10,
            "confirmOffset": 10,
        },
        "broker-a-1": {
            "role": "slave",
            "brokerId": 2,
            "epoch": 4,
            "address": "127.0.0.1:20022",
            "maxOffset": 10,
            "confirmOffset": 10,
        },
    }
    return {**found, **changes}


def small(tmp_path: Path) -> LocalCluster:
    return LocalCluster(tmp_path, Layout.make(controllers=1, brokers=2, base_port=20000))


def test_a_full_cluster_lacks_nothing(tmp_path: Path) -> None:
    assert small(tmp_path).missing(views()) == ""


def test_what_is_missing_is_said_in_words(tmp_path: Path) -> None:
    cluster = small(tmp_path)
    assert cluster.missing(views(**{"broker-a-1": None})) == "waiting for broker-a-1"
    assert "Controller leader" in cluster.missing(views(**{"namesrv-0": {"controller": {}}}))
    lagging = views()
    assert lagging["namesrv-0"] is not None
    lagging["namesrv-0"]["controller"]["groups"]["broker-a"]["syncStateSet"] = [1]
    assert "1 of 2 brokers" in cluster.missing(lagging)
    stale = views()
    assert stale["namesrv-0"] is not None
    stale["namesrv-0"]["brokers"]["broker-a"]["0"] = "127.0.0.1:20022"
    assert "no route to the master" in cluster.missing(stale)
    old = views()
    assert old["broker-a-0"] is not None
    old["broker-a-0"]["epoch"] = 3
    assert "take over" in cluster.missing(old)


def test_the_status_has_the_members_scripts_read(tmp_path: Path) -> None:
    status = small(tmp_path).status_of(views(**{"broker-a-1": None}))
    assert status["namesrv"] == ["127.0.0.1:20000"]
    assert (
        status["controllers"][0].items()
        >= {
            "id": "n0",
            "address": "127.0.0.1:20001",
            "leader": True,
            "lagEntries": None,
        }.items()
    )
    group = status["groups"][0]
    assert (group["name"], group["master"], group["epoch"], group["syncStateSet"]) == (
        "broker-a",
        1,
        4,
        [1, 2],
    )
    assert set(group["brokers"][0]) >= {
        "id",
        "address",
        "pid",
        "role",
        "maxOffset",
        "confirmOffset",
        "store",
    }
    assert [(b["id"], b["role"]) for b in group["brokers"]] == [(1, "master"), (2, "down")]
    assert group["brokers"][0]["store"] == str(tmp_path / "store" / "broker-a-0")


def test_what_nobody_knows_is_a_dash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("namesrv-0", "broker-a-0", "broker-a-1")
    _show(small(tmp_path).status_of(views(**dict.fromkeys(names))), as_json=False)
    told = capsys.readouterr().out
    assert "epoch -  in sync {}" in told
    assert "None" not in told


def test_a_controller_that_lags_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = views()
    assert found["namesrv-0"] is not None
    found["namesrv-0"]["controller"]["raft"] = {"lagEntries": 7}
    status = small(tmp_path).status_of(found)
    assert status["controllers"][0]["lagEntries"] == 7
    _show(status, as_json=False)
    assert "127.0.0.1:20001  leader  7 decisions behind" in capsys.readouterr().out


def test_between_two_leaders_the_status_shows_what_the_followers_know(tmp_path: Path) -> None:
    found = views()
    assert found["namesrv-0"] is not None
    found["namesrv-0"]["controller"].update(isLeader=False, commitIndex=7)
    status = small(tmp_path).status_of(found)
    assert status["groups"][0]["master"] == 1
    assert status["controllers"][0]["leader"] is False
    assert status["missing"] == "waiting for a Controller leader"


@pytest.mark.parametrize(
    "setting", ["broker.nope=1", "broker.flushDiskType=X", "namesrv.raftElectionMinMs=1"]
)
def test_a_wrong_setting_is_said_and_not_kept(setting: str, tmp_path: Path) -> None:
    name = setting.partition(".")[2].partition("=")[0]
    with pytest.raises(ConfigError, match=name):
        LocalCluster.create(tmp_path, base_port=20000, settings=[setting])
    assert not list(tmp_path.iterdir())
    LocalCluster.create(tmp_path, base_port=20000)
    with pytest.raises(ConfigError, match=name):
        LocalCluster.create(tmp_path, settings=[setting])
    assert load(tmp_path).settings == {}
