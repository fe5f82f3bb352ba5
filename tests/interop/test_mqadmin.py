"""The promise to operators: the real mqadmin works against a keelmq cluster."""

from __future__ import annotations

import re

import pytest

from tests.interop.conftest import Cluster, mqadmin_all

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


@pytest.mark.covers("clusterList", client="mqadmin 5.5.0", sides="keelmq")
def test_cluster_list_shows_the_master_and_both_slaves(cluster: Cluster) -> None:
    rows = [r.split() for r in cluster.mqadmin("clusterList").splitlines() if "broker-a" in r]
    assert len(rows) == 3, rows
    assert sorted(row[2] for row in rows)[0] == "0"
    assert all(row[0] == "DefaultCluster" for row in rows)


@pytest.mark.covers("updateTopic, topicRoute", client="mqadmin 5.5.0", sides="keelmq")
def test_update_topic_makes_a_route_with_its_queues(cluster: Cluster) -> None:
    said = cluster.mqadmin("updateTopic", "-c", "DefaultCluster", "-t", "AdminTopic", "-r", "6", "-w", "6")
    assert "success" in said
    route = cluster.mqadmin("topicRoute", "-t", "AdminTopic")
    assert '"writeQueueNums":6' in route.replace(" ", "")
    assert '"brokerName":"broker-a"' in route.replace(" ", "")


@pytest.mark.covers("topicStatus", client="mqadmin 5.5.0", sides="keelmq")
def test_topic_status_counts_what_was_sent(cluster: Cluster) -> None:
    cluster.mqadmin("updateTopic", "-c", "DefaultCluster", "-t", "AdminStatus", "-r", "2", "-w", "2")
    assert cluster.driver("sync", "AdminStatus", "10").returncode == 0
    rows = [r.split() for r in cluster.mqadmin("topicStatus", "-t", "AdminStatus").splitlines()]
    ends = [int(row[3]) - int(row[2]) for row in rows if row and row[0] == "broker-a"]
    assert ends == [5, 5], rows


@pytest.mark.covers("getSyncStateSet", client="mqadmin 5.5.0", sides="keelmq")
def test_get_sync_state_set_names_all_three_replicas(cluster: Cluster) -> None:
    said = cluster.mqadmin("getSyncStateSet", "-a", cluster.controllers, "-b", "broker-a")
    assert "#brokerName\tbroker-a" in said, said
    assert "#MasterBrokerId" in said
    assert said.count("InSyncReplica:") == 3, said


@pytest.mark.covers(
    "haStatus, getBrokerEpoch, getControllerMetaData, getControllerConfig",
    client="mqadmin 5.5.0",
    sides="keelmq",
)
def test_the_state_of_controllers_and_replication_can_be_read(cluster: Cluster) -> None:
    controllers = cluster.controllers.split(";")
    listed = cluster.mqadmin("clusterList").splitlines()
    addresses = {row.split()[2]: row.split()[3] for row in listed if "broker-a" in row}
    slave = next(address for broker_id, address in addresses.items() if broker_id != "0")
    metadata, master, follower, epochs, config = mqadmin_all(
        cluster.namesrv,
        cluster.scratch,
        f"getControllerMetaData -a {controllers[0]}",
        f"haStatus -b {addresses['0']}",
        f"haStatus -b {slave}",
        "getBrokerEpoch -b broker-a",
        f"getControllerConfig -a {controllers[0]}",
    )
    assert sum(f":{address}" in metadata for address in controllers) == 3, metadata
    assert any(f"#ControllerLeaderAddress\t{address}" in metadata for address in controllers), metadata
    assert "#InSyncSlaveNum\t2" in master, master
    assert f"#MasterAddr\t{addresses['0']}" in follower, follower
    assert epochs.count("#Epoch: EpochEntry{epoch=1, startOffset=0,") == 3, epochs
    assert "controllerDLegerSelfId" in config


def _settings(said: str) -> dict[str, dict[str, str]]:
    """What getControllerConfig printed: the keys of each Controller, by its address."""
    parts = re.split(r"^=+([\w.]+:\d+)=+$", said, flags=re.MULTILINE)[1:]
    tables = (re.findall(r"^(\w+) *=  (.*)$", part, re.MULTILINE) for part in parts[1::2])
    return dict(zip(parts[::2], map(dict, tables), strict=True))


@pytest.mark.covers("updateControllerConfig", client="mqadmin 5.5.0", sides="keelmq")
def test_a_key_is_changed_on_every_controller_and_its_members_on_none(cluster: Cluster) -> None:
    at = f"-a {cluster.controllers}"
    tries = f"updateControllerConfig {at} -k electMasterMaxRetryCount -v"
    _, before, changed, after, refused, back, last = mqadmin_all(
        cluster.namesrv,
        cluster.scratch,
        f"getControllerMetaData {at}",  # warms the JVM up: on a busy machine its first call runs out of time
        f"getControllerConfig {at}",
        f"{tries} 7",
        f"getControllerConfig {at}",
        f"updateControllerConfig {at} -k controllerDLegerPeers -v n9-127.0.0.1:1",
        f"{tries} 3",
        f"getControllerConfig {at}",
    )
    found = _settings(before)
    assert found.keys() == set(cluster.controllers.split(";")), before
    assert all(keys["electMasterMaxRetryCount"] == "3" for keys in found.values()), before
    assert "update controller config success!" in changed, changed
    assert _settings(after) == {
        address: {**keys, "electMasterMaxRetryCount": "7"} for address, keys in found.items()
    }
    assert "controllerDLegerPeers cannot be changed while the controller serves" in refused, refused
    assert "update controller config success!" in back, back
    assert _settings(last) == found


@pytest.mark.covers(
    "queryCq, brokerConsumeStats, clean and delete commands, deleteSubGroup, updateTopic -a",
    client="mqadmin 5.5.0",
    sides="keelmq",
)
def test_queues_counters_and_cleaning_by_the_real_tool(cluster: Cluster) -> None:
    cluster.mqadmin("updateTopic", "-c", "DefaultCluster", "-t", "AdminQueues", "-r", "2", "-w", "2")
    assert cluster.driver("sync", "AdminQueues", "10").returncode == 0
    listed = cluster.mqadmin("clusterList").splitlines()
    master = next(row.split()[3] for row in listed if "broker-a" in row and row.split()[2] == "0")
    _, queue, stats, expired, unused, segments, group, gone, attribute, other = mqadmin_all(
        cluster.namesrv,
        cluster.scratch,
        "clusterList",  # warms the JVM up
        f"queryCq -t AdminQueues -q 0 -i 1 -c 3 -b {master}",
        f"brokerConsumeStats -b {master} -t 10000",
        f"cleanExpiredCQ -b {master}",
        f"cleanUnusedTopic -b {master}",
        f"deleteExpiredCommitLog -b {master}",
        "updateSubGroup -c DefaultCluster -g AdminGone",
        "deleteSubGroup -c DefaultCluster -g AdminGone",
        f"updateTopic -b {master} -t AdminKind -a +message.type=FIFO",
        f"updateTopic -b {master} -t AdminKind -a +colour=red",
    )
    assert re.search(r"max: [1-9]\d*, min: 0", queue), queue  # tried again, it has more
    assert queue.count("physicOffset") == 3, queue
    assert "Diff Total: " in stats, stats
    for said in (expired, unused, segments):
        assert "success" in said, said
    assert "success" in group, group
    assert "Exception" not in gone, gone
    assert "success" in gone, gone
    assert "success" in attribute, attribute
    assert "unsupported key: colour" in other, other
