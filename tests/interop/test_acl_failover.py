"""The promise of ACL to official clients during a failover: it changes nothing of who may do what."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.interop.acl_sides import ACL_2, ALICE, INNER, Side
from tests.interop.mixed import KeelmqNode, MixedCluster, running

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]


@pytest.mark.covers(
    "ACL: rights stand while another master takes over", client="Java 5.5.0, Go v2", sides="keelmq"
)
def test_rights_stand_during_a_failover(real_rocketmq: Path, go_driver: Path, tmp_path: Path) -> None:
    """The master is killed while allowed and denied clients, of Java and Go, send."""
    cluster = MixedCluster(tmp_path / "group")
    cluster.add_keelmq_controllers(1)
    inner = {
        "innerClientAuthenticationCredentials": json.dumps({"accessKey": INNER[0], "secretKey": INNER[1]})
    }
    for server in cluster.servers:
        assert isinstance(server, KeelmqNode)
        server.config.update(inner)
    for _ in range(3):
        cluster.add_broker("keelmq", **ACL_2)
    with running(cluster):
        cluster.start_brokers()
        cluster.wait("a full SyncStateSet", cluster.is_full)
        master = cluster.master()
        assert master is not None
        side = Side("group", cluster.directory, ";".join(cluster.namesrvs), cluster.address(master), [])
        done = side.mqadmin(
            real_rocketmq,
            "updateTopic -b BROKER -t Allowed -r 4 -w 4",
            "updateTopic -b BROKER -t Denied -r 4 -w 4",
            # Every broker of the cluster is asked, slaves too, in any order.
            "createUser -c DefaultCluster -u alice -p alice-secret",
            "createAcl -c DefaultCluster -s User:alice -r Topic:Allowed -a Pub,Sub -d Allow",
        )
        assert not any("command failed" in one for one in done), done
        flows = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for command in (
                side.driver(real_rocketmq, f"flow {ALICE} Allowed 15000"),
                side.driver(real_rocketmq, f"flow {ALICE} Denied 15000"),
                # The Go client looks for a new master every 30 s.
                [str(go_driver), side.namesrv, *f"flow {ALICE} Allowed 45000".split()],
                [str(go_driver), side.namesrv, *f"flow {ALICE} Denied 45000".split()],
            )
        ]
        time.sleep(6)
        master.send_signal(signal.SIGKILL)
        outputs = [flow.communicate(timeout=120)[0] for flow in flows]
        seen = [side.seen(output) for output in outputs]
        for facts, output in zip(seen, outputs, strict=True):
            flowed, last = facts[-2:]
            if last["topic"] == "Allowed":
                assert int(last["done"]) > 0, output[-2000:]
                assert int(flowed["silent"]) < 5_000, f"it sends to the new master: {output[-2000:]}"
            else:
                assert last["done"] == "0", output[-2000:]
                assert "has no permission to access Topic:Denied" in flowed["why"], output[-2000:]
        new = cluster.master()
        assert new is not None
        assert new is not master
