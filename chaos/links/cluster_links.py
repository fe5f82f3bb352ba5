"""Which links of a local cluster go through proxies, and what breaks them?

Every broker tells its slaves an address of its HA port (``brokerIP2``) where a proxy listens: 127.0.0.2 with
the port that the broker itself has on 127.0.0.1. So a fault on ``ha:NAME`` is one between that broker, as
master, and all its slaves; Controllers, NameServers and clients still hear it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from admin.local.layout import HOST, Layout, Node
from chaos.links.server import LinkServer, find_toxiproxy

PROXY_HOST: Final = "127.0.0.2"


@dataclass(frozen=True, slots=True)
class LinkFault:
    """``kind``: of a toxic, put on both directions; none: nobody listens, and connections have ended."""

    kind: str = ""
    attributes: tuple[tuple[str, int], ...] = ()


LINK_FAULTS: Final[Mapping[str, LinkFault]] = {
    "cut-replication": LinkFault(),
    "silence-replication": LinkFault("timeout"),
    "slow-replication": LinkFault("latency", (("latency", 30), ("jitter", 20))),
    "reset-replication": LinkFault("reset_peer"),
    "slice-replication": LinkFault("slicer", (("average_size", 64), ("size_variation", 60), ("delay", 50))),
}


class ClusterLinks:
    """The proxies of one cluster. Make it before the cluster starts, by ``lay``."""

    def __init__(self, server: LinkServer, layout: Layout) -> None:
        self._server, self._layout = server, layout

    @property
    def means(self) -> str:
        """``toxiproxy`` or ``relay``: a report says which."""
        return self._server.kind

    @classmethod
    async def lay(cls, layout: Layout, log: Path) -> ClusterLinks:
        """Start the proxies, and have brokers tell their slaves these addresses. Raises NoLinks."""
        links = cls(LinkServer.start(log, find_toxiproxy()), layout)
        try:
            for node in layout.broker_nodes:
                port = node.ha_port
                await links._server.create(_name(node), f"{PROXY_HOST}:{port}", f"{HOST}:{port}")
        except BaseException:
            links.stop()
            raise
        layout.settings.setdefault("broker", {})["brokerIP2"] = PROXY_HOST
        return links

    async def inflict(self, fault: str, node: Node) -> None:
        """Break the links from the slaves to ``node``. Raises NoLinks."""
        what = LINK_FAULTS[fault]
        if not what.kind:
            await self._server.enable(_name(node), False)
            return
        for stream in ("upstream", "downstream"):
            await self._server.add(_name(node), what.kind, stream, dict(what.attributes))

    async def heal(self) -> None:
        """Every link as it was."""
        await self._server.reset()

    def stop(self) -> None:
        self._server.stop()


def _name(node: Node) -> str:
    return f"ha:{node.name}"
