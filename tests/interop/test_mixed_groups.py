"""The promise of one log: real and keelmq brokers hold the same bytes, whoever of them leads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from admin.local.layout import make_secret
from tests.interop.mixed import MixedCluster, running
from tests.interop.story import (
    assert_all_is_well,
    copy_tables,
    elect,
    hand_over,
    has_tables,
    kill_the_master,
    put_load,
    rejoin,
    start_group,
)

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def real_master(real_rocketmq: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    """One real broker, the first master, and two keelmq brokers, which prove themselves to each other and
    believe the real one without; keelmq Controllers."""
    cluster = MixedCluster(tmp_path_factory.mktemp("real-master"))
    cluster.add_keelmq_controllers(3)
    secret = cluster.directory / "ha.secret"
    make_secret(secret)
    with running(cluster):
        start_group(cluster, "real", "keelmq", 2, haSecretFile=secret, trustPeers="true")
        yield cluster


@pytest.fixture(scope="module")
def keelmq_master(real_rocketmq: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    """One keelmq broker, the first master, and two real brokers; a real Controller."""
    cluster = MixedCluster(tmp_path_factory.mktemp("keelmq-master"))
    cluster.add_real_controllers(1)
    with running(cluster):
        start_group(cluster, "keelmq", "real", 2)
        yield cluster


@pytest.mark.covers(
    "A group of both kinds, idle: the SyncStateSet stays", client="broker 5.5.0", sides="together"
)
@pytest.mark.more
def test_an_idle_group_of_both_kinds_keeps_its_sync_state_set(keelmq_master: MixedCluster) -> None:
    before = keelmq_master.state()
    time.sleep(12)  # a real slave reports every 5 s when nothing happens
    after = keelmq_master.state()
    assert before is not None
    assert after is not None
    assert (after.epoch, after.sync_state_set_epoch) == (before.epoch, before.sync_state_set_epoch)


def _succeed_and_take_back(cluster: MixedCluster) -> None:
    """Every broker but the first, who leads, is of the other kind."""
    leader, *targets = cluster.brokers
    copy_tables(cluster)
    killed, successor = kill_the_master(cluster, leader, targets)
    assert killed is leader
    assert has_tables(cluster, successor)
    rejoin(cluster, leader)
    assert_all_is_well(cluster)
    hand_over(cluster, leader)
    assert_all_is_well(cluster)


@pytest.mark.covers(
    "A real master, slaves of keelmq: they succeed it and take it back",
    client="broker 5.5.0",
    sides="together",
)
def test_our_slaves_of_a_real_master_succeed_it_and_take_it_back(real_master: MixedCluster) -> None:
    _succeed_and_take_back(real_master)


@pytest.mark.covers(
    "Elections without a write between them part nobody", client="broker 5.5.0", sides="together"
)
def test_elections_without_a_write_between_them_part_nobody(real_master: MixedCluster) -> None:
    # A real broker records no epoch that starts where the one before it does: its list falls behind ours.
    real, ours, _ = real_master.brokers
    put_load(real_master, 20)
    for transfer_target in (real, ours, real, ours, real):
        if real_master.master() is not transfer_target:
            elect(real_master, transfer_target)
    put_load(real_master, 50)
    assert_all_is_well(real_master)


@pytest.mark.covers(
    "A master of keelmq, real slaves: they succeed it and take it back",
    client="broker 5.5.0",
    sides="together",
)
@pytest.mark.more
def test_real_slaves_of_our_master_succeed_it_and_take_it_back(keelmq_master: MixedCluster) -> None:
    _succeed_and_take_back(keelmq_master)
