"""The promise of the Controllers: ours lead real brokers, real ones lead ours, as their own would."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.conftest import mqadmin_all
from tests.interop.mixed import GROUP, MixedCluster, running
from tests.interop.story import assert_all_is_well, kill_the_master, rejoin

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def real_brokers(real_rocketmq: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    """Three real brokers under three keelmq NameServers with Controllers."""
    cluster = MixedCluster(tmp_path_factory.mktemp("real-brokers"))
    cluster.add_keelmq_controllers(3)
    for _ in range(3):
        cluster.add_broker("real")
    with running(cluster):
        cluster.start_brokers()
        cluster.wait("a full SyncStateSet", cluster.is_full)
        yield cluster


@pytest.mark.covers(
    "Controllers of keelmq: brokers fail over and rejoin", client="broker 5.5.0", sides="together"
)
# A real slave elected by ours: test_mixed_kills.py. A real broker that rejoins: test_mixed_groups.py.
@pytest.mark.more
def test_real_brokers_fail_over_and_rejoin_under_our_controllers(real_brokers: MixedCluster) -> None:
    killed, _ = kill_the_master(real_brokers)
    rejoin(real_brokers, killed)
    assert_all_is_well(real_brokers)


@pytest.mark.covers(
    "electMaster, cleanBrokerMetadata at keelmq's Controllers", client="mqadmin 5.5.0", sides="together"
)
def test_mqadmin_moves_the_master_and_forgets_a_dead_broker(real_brokers: MixedCluster) -> None:
    cluster, controllers = real_brokers, ";".join(real_brokers.controllers)
    master = cluster.master()
    transfer_target, victim = (broker for broker in cluster.brokers if broker is not master)
    group = f"-a {cluster.controllers[0]} -bn {GROUP} -c DefaultCluster"
    moved, alive, seen = mqadmin_all(
        ";".join(cluster.namesrvs),
        cluster.directory,
        f"electMaster {group} -b {cluster.id_of(transfer_target)}",
        f"cleanBrokerMetadata {group} -b {cluster.id_of(victim)}",
        f"getSyncStateSet -a {controllers} -b {GROUP}",
    )
    assert f"#BrokerMasterAddr\t{cluster.address(transfer_target)}" in moved, moved[-1000:]
    assert "is alive" in alive, alive[-1000:]
    assert f"#MasterAddr\t{cluster.address(transfer_target)}" in seen, seen[-1000:]
    victim_id = cluster.id_of(victim)
    victim.stop(signal.SIGKILL)
    cluster.wait("the end of a broker to be noticed", lambda: not cluster.is_alive(victim_id))
    (gone,) = mqadmin_all(
        ";".join(cluster.namesrvs), cluster.directory, f"cleanBrokerMetadata {group} -b {victim_id}"
    )
    assert "success" in gone, gone[-1000:]
    state = cluster.state()
    assert state is not None
    assert victim_id not in {**state.in_sync, **state.not_in_sync}


@pytest.fixture(scope="module")
def real_controllers(real_rocketmq: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    """Three keelmq brokers under three real NameServers with embedded Controllers."""
    cluster = MixedCluster(tmp_path_factory.mktemp("real-controllers"))
    cluster.add_real_controllers(3)
    for _ in range(3):
        cluster.add_broker("keelmq")
    with running(cluster):
        cluster.start_brokers()
        cluster.wait("a full SyncStateSet", cluster.is_full)
        yield cluster


@pytest.mark.covers("Brokers of keelmq fail over and rejoin", client="Controller 5.5.0", sides="together")
@pytest.mark.more
def test_our_brokers_fail_over_and_rejoin_under_real_controllers(real_controllers: MixedCluster) -> None:
    killed, _ = kill_the_master(real_controllers)
    rejoin(real_controllers, killed)
    assert_all_is_well(real_controllers)
