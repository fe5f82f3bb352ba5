"""The promise of ACL and TLS to official clients during a failover: it changes nothing of who may do what, in
a group of keelmq's brokers and in one of the real ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.interop import shared_classes
from tests.interop.acl_sides import ACL_2, ALICE, INNER, Side, old_library
from tests.interop.mixed import KeelmqNode, MixedCluster, running
from tests.interop.real_tls import java_options
from tests.live.commands import keelmq

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

TLS: Final = ("-Dtls.enable=true",)
"""Of a Java client: it believes any certificate."""
SETUP: Final = (
    "updateTopic -b BROKER -t Allowed -r 4 -w 4",
    "updateTopic -b BROKER -t Denied -r 4 -w 4",
    # Every broker of the cluster is asked, slaves too, in any order.
    "createUser -c DefaultCluster -u alice -p alice-secret",
    "createAcl -c DefaultCluster -s User:alice -r Topic:Allowed -a Pub,Sub -d Allow",
)


def keelmq_group(directory: Path, file: Path | None) -> MixedCluster:
    cluster = MixedCluster(directory)
    cluster.add_keelmq_controllers(1)
    tls = {} if file is None else {"tls.config.file": file, "tls.server.mode": "permissive"}
    inner = {
        "innerClientAuthenticationCredentials": json.dumps({"accessKey": INNER[0], "secretKey": INNER[1]})
    }
    for server in cluster.servers:
        assert isinstance(server, KeelmqNode)
        server.config.update(inner | tls)
    for _ in range(3):
        cluster.add_broker("keelmq", **ACL_2, **tls)
    return cluster


def real_group(directory: Path) -> MixedCluster:
    cluster = MixedCluster(directory)
    cluster.add_real_controllers(1)
    for _ in range(2):
        cluster.add_broker("real", **ACL_2)
    return cluster


def certificates(directory: Path) -> Path:
    for made in (("ca",), ("server", "node", "--host", "127.0.0.1")):
        assert keelmq("certs", *made, "--dir", directory).returncode == 0
    file = directory / "tls.properties"
    file.write_text(
        "tls.test.mode.enable=false\n"
        f"tls.server.keyPath={directory}/node.key\n"
        f"tls.server.certPath={directory}/node.pem\n"
        "tls.client.authServer=true\n"
        f"tls.client.trustCertPath={directory}/ca.pem\n"
    )
    return file


@contextmanager
def group(kind: str, directory: Path, file: Path | None) -> Iterator[tuple[MixedCluster, Side]]:
    """Three brokers of keelmq or two real ones, with users; with a ``file`` of TLS they let it in."""
    with ExitStack() as ends:
        if kind == "real":
            options = f"-Dtls.server.mode=permissive -Dtls.config.file={file}" if file is not None else ""
            ends.enter_context(java_options(shared_classes.quick(options)))
        cluster = keelmq_group(directory, file) if kind == "keelmq" else real_group(directory)
        ends.enter_context(running(cluster))
        cluster.start_brokers()
        cluster.wait("a full SyncStateSet", cluster.is_full)
        master = cluster.master()
        assert master is not None
        yield cluster, Side("group", directory, ";".join(cluster.namesrvs), cluster.address(master), [])


def flow(command: list[str], **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **environment},
    )


def need_rights_to_stand(
    cluster: MixedCluster, side: Side, flows: dict[str, subprocess.Popen[str]], begun_s: float
) -> None:
    """The master dies while ``flows`` send to Allowed and to Denied."""
    master = cluster.master()
    assert master is not None
    time.sleep(begun_s)
    master.send_signal(signal.SIGKILL)
    for name, process in flows.items():
        output = process.communicate(timeout=180)[0]
        flowed, last = side.seen(output)[-2:]
        if last["topic"] == "Allowed":
            assert int(last["done"]) > 0, f"{name}: {output[-2000:]}"
            assert int(flowed["silent"]) < 5_000, f"{name} sends to the new master: {output[-2000:]}"
        else:
            assert last["done"] == "0", f"{name}: {output[-2000:]}"
            assert "has no permission to access Topic:Denied" in flowed["why"], f"{name}: {output[-2000:]}"
    new = cluster.master()
    assert new is not None
    assert new is not master


@pytest.mark.covers(
    "ACL: rights stand while another master takes over", client="Java 5.5.0, Java 4.9.7", sides="keelmq"
)
def test_rights_stand_during_a_failover(real_rocketmq: Path, tmp_path: Path) -> None:
    old = old_library()
    with group("keelmq", tmp_path / "group", None) as (cluster, side):
        done = side.mqadmin(real_rocketmq, *SETUP)
        assert not any("command failed" in one for one in done), done
        flows = {
            f"{library.parent.name} {topic}": flow(side.driver(library, f"flow {ALICE} {topic} 15000"))
            for library in (real_rocketmq, old)
            for topic in ("Allowed", "Denied")
        }
        need_rights_to_stand(cluster, side, flows, 6)


@pytest.mark.more
@pytest.mark.covers(
    "ACL with TLS: rights stand while another master takes over",
    client="Java 5.5.0, Java 4.9.7, Go v2",
    sides="both",
)
@pytest.mark.parametrize("kind", ["keelmq", "real"])
def test_rights_stand_during_a_failover_with_tls(
    kind: str, real_rocketmq: Path, go_driver: Path, tmp_path: Path
) -> None:
    """The real group answers and takes over as keelmq's does; without TLS one client of 5.5 sends beside."""
    old, file = old_library(), certificates(tmp_path)
    with group(kind, tmp_path / "group", file) as (cluster, side):
        done = side.mqadmin(real_rocketmq, *SETUP)
        assert not any("command failed" in one for one in done), done
        flows = {}
        for topic in ("Allowed", "Denied"):
            # The Go client looks for a new master every 30 s.
            words = f"flow {ALICE} {topic} 50000"
            flows[f"5.5 {topic}"] = flow(side.driver(real_rocketmq, words))
            flows[f"5.5 TLS {topic}"] = flow(side.driver(real_rocketmq, words, options=TLS))
            flows[f"4.9 TLS {topic}"] = flow(side.driver(old, words, options=TLS))
            flows[f"Go TLS {topic}"] = flow([str(go_driver), side.namesrv, *words.split()], TLS="yes")
        need_rights_to_stand(cluster, side, flows, 10)
        for broker in cluster.brokers if kind == "real" else ():
            assert any("Handlers prepended to channel" in line for line in cluster.said_by_real(broker))
