"""A cluster of real processes with TLS on every link, certificates at both ends."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from admin.local.cluster import LocalCluster
from tests.live.commands import keelmq, status


@dataclass
class Secured:
    """A cluster of three brokers, three NameServers with Controllers; all links are mutual TLS."""

    directory: Path
    env: dict[str, str]

    @property
    def certs(self) -> Path:
        return self.directory / "certs"

    @property
    def properties(self) -> Path:
        return self.directory / "tls.properties"

    def run(self, *arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        return keelmq(*arguments, "--dir", self.directory / "c", env={**self.env, **env})

    def write(self, mode: str, **more: str) -> None:
        values = {
            "tls.server.mode": mode,
            "tls.enable": "true",
            "tls.server.certPath": f"{self.certs}/node.pem",
            "tls.server.keyPath": f"{self.certs}/node.key",
            "tls.server.need.client.auth": "require",
            "tls.server.trustCertPath": f"{self.certs}/ca.pem",
            "tls.client.certPath": f"{self.certs}/node.pem",
            "tls.client.keyPath": f"{self.certs}/node.key",
            "tls.client.trustCertPath": f"{self.certs}/ca.pem",
            **more,
        }
        temporary = self.properties.with_suffix(".new")
        temporary.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        temporary.replace(self.properties)

    def statuses(self) -> list[dict[str, Any]]:
        """Of every server."""
        cluster = LocalCluster.open(self.directory / "c")
        found = []
        for node in cluster.layout.nodes:
            with urllib.request.urlopen(f"http://127.0.0.1:{node.admin_port}/status", timeout=5) as answer:
                found.append(json.load(answer))
        return found

    def logs(self) -> str:
        return "".join(path.read_text() for path in (self.directory / "c" / "log").iterdir())

    def master(self) -> str:
        brokers = status(self.directory / "c")["groups"][0]["brokers"]
        return next(str(one["address"]) for one in brokers if one["role"] == "master")


@contextmanager
def secured_cluster(directory: Path) -> Iterator[Secured]:
    """Up, enforcing, until the end."""
    certs = directory / "certs"
    for made in (("ca",), ("server", "node", "--host", "127.0.0.1"), ("client", "shop")):
        assert keelmq("certs", *made, "--dir", certs).returncode == 0
    env = {
        **os.environ,
        "KEELMQ_TLS_CA": str(certs / "ca.pem"),
        "KEELMQ_TLS_CERT": str(certs / "shop.pem"),
        "KEELMQ_TLS_KEY": str(certs / "shop.key"),
    }
    found = Secured(directory, env)
    found.write("enforcing")
    key = f"tls.config.file={found.properties}"
    done = found.run("cluster", "up", "--set", f"broker.{key}", "--set", f"namesrv.{key}")
    try:
        assert done.returncode == 0, done.stderr
        yield found
    finally:
        found.run("cluster", "down")


def wait(what: str, holds: Callable[[], bool], timeout_s: float = 30) -> None:
    until = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < until, what
        time.sleep(0.2)
