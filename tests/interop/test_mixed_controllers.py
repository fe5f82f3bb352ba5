"""The promise of the Controllers: ours lead real brokers, real ones lead ours, as their own would."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.mixed import MixedCluster, assert_all_is_well, kill_the_master, rejoin, running

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def real_brokers(real_rocketmq: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    """Three real brokers under three keelmq NameServers with Controllers."""
    cluster = MixedCluster(tmp_path_factory.mktemp("real-brokers"), 24000)
    cluster.add_keelmq_controllers(3)
    for _ in range(3):
        cluster.add_broker("real")
    with running(cluster):
        cluster.start_brokers()
        cluster.wait("a full SyncStateSet", cluster.is_full)
        yield cluster


def test_real_brokers_fail_over_and_rejoin_under_our_controllers(real_brokers: MixedCluster) -> None:
    killed, _ = kill_the_master(real_brokers)
    rejoin(real_brokers, killed)
    assert_all_is_well(real_brokers)


@pytest.fixture(scope="module")
def real_controllers(real_rocketmq: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    """Three keelmq brokers under three real NameServers with embedded Controllers."""
    cluster = MixedCluster(tmp_path_factory.mktemp("real-controllers"), 24200)
    cluster.add_real_controllers(3)
    for _ in range(3):
        cluster.add_broker("keelmq")
    with running(cluster):
        cluster.start_brokers()
        cluster.wait("a full SyncStateSet", cluster.is_full)
        yield cluster


def test_our_brokers_fail_over_and_rejoin_under_real_controllers(real_controllers: MixedCluster) -> None:
    killed, _ = kill_the_master(real_controllers)
    rejoin(real_controllers, killed)
    assert_all_is_well(real_controllers)
