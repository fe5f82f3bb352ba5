"""The promise when a master dies: three Controllers of its own kind let the other kind succeed it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.load import unserved
from tests.interop.mixed import MixedCluster, running
from tests.interop.story import assert_all_is_well, kill_the_master, rejoin, start_group

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


def _kill_succeed_rejoin(cluster: MixedCluster) -> None:
    """Every broker but the first, who leads, is of the other kind."""
    leader, *targets = cluster.brokers
    killed, successor = kill_the_master(cluster, leader, targets)
    assert killed is leader
    # Before the killed one is back: nobody but the successor can have them.
    cluster.wait("the successor to serve all that was acknowledged", lambda: not unserved(cluster), 30)
    assert cluster.master() is successor
    rejoin(cluster, killed)
    assert cluster.master() is successor
    assert_all_is_well(cluster)


@pytest.mark.covers(
    "A killed real master is succeeded by keelmq", client="broker, Controller 5.5.0", sides="together"
)
# A real master killed: test_mixed_groups.py. Ours elected by a real Controller: test_migration.py.
@pytest.mark.more
def test_our_slave_succeeds_a_killed_real_master_under_real_controllers(
    real_rocketmq: Path, tmp_path: Path
) -> None:
    cluster = MixedCluster(tmp_path / "real")
    cluster.add_real_controllers(3)
    with running(cluster):
        start_group(cluster, "real", "keelmq", 2)
        _kill_succeed_rejoin(cluster)


@pytest.mark.covers(
    "A killed master of keelmq is succeeded by a real slave", client="broker 5.5.0", sides="together"
)
def test_a_real_slave_succeeds_our_killed_master_under_our_controllers(
    real_rocketmq: Path, tmp_path: Path
) -> None:
    cluster = MixedCluster(tmp_path / "ours")
    cluster.add_keelmq_controllers(3)
    with running(cluster):
        start_group(cluster, "keelmq", "real", 2)
        _kill_succeed_rejoin(cluster)
