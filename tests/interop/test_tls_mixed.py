"""The promise of TLS to groups of both kinds: requests between keelmq's and RocketMQ's servers are encrypted,
their HA links, where RocketMQ has no TLS, are not; and both kinds of masters succeed each other."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from chaos.worlds import rocketmq
from tests.interop import shared_classes
from tests.interop.mixed import KeelmqNode, MixedCluster, Server, running
from tests.interop.story import elect, put_load
from tests.live.commands import keelmq

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def mixed(real_rocketmq: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    """A real broker and one of ours under a keelmq NameServer with Controller; all dial with TLS."""
    cluster = MixedCluster(tmp_path_factory.mktemp("tls-mixed"))
    certs = cluster.directory / "certs"
    for made in (("ca",), ("server", "node", "--host", "127.0.0.1")):
        assert keelmq("certs", *made, "--dir", certs).returncode == 0
    file = cluster.directory / "tls.properties"
    file.write_text(
        "tls.test.mode.enable=false\n"
        f"tls.server.keyPath={certs}/node.key\n"
        f"tls.server.certPath={certs}/node.pem\n"
        "tls.client.authServer=true\n"
        f"tls.client.trustCertPath={certs}/ca.pem\n"
    )
    # Tests look at the servers without TLS.
    ours = {
        "tls.config.file": file,
        "tls.server.mode": "permissive",
        "tls.enable": "true",
        "tls.ha.enable": "false",
    }
    options = f"-Dtls.server.mode=permissive -Dtls.enable=true -Dtls.config.file={file}"
    cluster.add_keelmq_controllers(1)
    for server in cluster.servers:
        assert isinstance(server, KeelmqNode)
        server.config |= {**ours, "adminPort": cluster.base_port + 5}
    cluster.add_broker("real")
    cluster.add_broker("keelmq", adminPort=cluster.base_port + 6, **ours)
    with pytest.MonkeyPatch.context() as patch, running(cluster):
        patch.setenv(rocketmq.JAVA_OPTIONS, shared_classes.quick(options))
        cluster.start_brokers()
        cluster.wait("a full SyncStateSet", cluster.is_full)
        yield cluster


def tls(cluster: MixedCluster, port: int) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{cluster.base_port + port}/status", timeout=5) as answer:
        found: dict[str, Any] = json.load(answer)["tls"]
    return found


def leads(cluster: MixedCluster, broker: Server) -> bool:
    return cluster.master() is broker


@pytest.mark.covers(
    "TLS in a group of both kinds: each leads in turn", client="broker 5.5.0", sides="together"
)
@pytest.mark.more
def test_both_kinds_lead_in_turn_and_dial_with_tls(mixed: MixedCluster) -> None:
    put_load(mixed, 50)
    for _ in range(2):
        target = next(b for b in mixed.brokers if b is not mixed.master())
        elect(mixed, target)
        mixed.wait(f"{target.name} to lead", partial(leads, mixed, target))
        mixed.wait("a full SyncStateSet", mixed.is_full)
        put_load(mixed, 50)
    mixed.wait_level()
    controller = tls(mixed, 5)
    assert controller["handshakes"]["ok"] >= 4, controller  # NameServer and Controller, of two brokers
    assert controller["handshakes"]["failed"] == 0, controller
    real = mixed.brokers[0]
    assert any("SSL enabled for client" in line for line in mixed.said_by_real(real))
    assert any("Handlers prepended to channel pipeline" in line for line in mixed.said_by_real(real))
