"""A partition by Toxiproxy: every connection between machines of a network passes a proxy of its own.

Servers and clients know the real addresses and connect to them; the switch between their namespaces brings
the packets to the proxy of that machine and that port, which runs on a machine of its own. A cut swallows
what one says to the other (toxic ``timeout``). Unlike behind a switch that drops packets, a connect succeeds
meanwhile, and connections end with the cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from admin.local.layout import Node
from chaos.links.server import LinkServer, find_toxiproxy
from chaos.live.network import CLIENTS, Network
from chaos.live.noted import Process

MACHINE: Final = "toxiproxy"
"""Where the proxies run."""
CONTROL_PORT: Final = 8474
FIRST_PORT: Final = 10_000
SILENCE: Final = "timeout"


class Detours:
    """The proxies between all machines of one network. Make it by ``lay``."""

    def __init__(self, server: LinkServer) -> None:
        self._server = server
        self._links: dict[tuple[str, str], list[str]] = {}
        """Names of the proxies by who connects, and to whom."""
        self.cutting = False

    @property
    def means(self) -> str:
        """``toxiproxy`` or ``relay``: a report says which."""
        return self._server.kind

    @property
    def process(self) -> Process:
        return self._server.process

    @classmethod
    async def lay(cls, network: Network, nodes: Sequence[Node], log: Path) -> Detours:
        """A proxy for each machine and each port of another one. ``network`` has the machine MACHINE. Raises
        NoLinks, NoNetwork; nothing is left then."""
        host = network.control_host(MACHINE)
        server = LinkServer.start(log, find_toxiproxy(), host, CONTROL_PORT, network.enter(MACHINE))
        detours, proxy = cls(server), network.host(MACHINE)
        ways: list[tuple[str, str, int, str, int]] = []
        try:
            for source in (CLIENTS, *(node.name for node in nodes)):
                for node in nodes:
                    if node.name == source:
                        continue
                    names = detours._links[source, node.name] = []
                    for port in served(node):
                        at, name = FIRST_PORT + len(ways), f"{source}>{node.name}:{port}"
                        await server.create(name, f"{proxy}:{at}", f"{network.host(node.name)}:{port}")
                        names.append(name)
                        ways.append((network.host(source), network.host(node.name), port, proxy, at))
            await network.detour(ways)
        except BaseException:
            server.stop()
            raise
        return detours

    async def cut(self, pairs: Iterable[Sequence[str]], direction: str) -> None:
        """Swallow what the first of each pair says to the second (``out``), what it hears from it (``in``),
        or both. Raises NoLinks."""
        silenced: dict[tuple[str, str], None] = {}
        for one, other in pairs:
            if direction in ("both", "out"):
                silenced |= dict.fromkeys(self._said(one, other))
            if direction in ("both", "in"):
                silenced |= dict.fromkeys(self._said(other, one))
        self.cutting = self.cutting or bool(silenced)
        await self._server.add_to_all(silenced, SILENCE)

    async def spoil(self, name: str, kind: str, attributes: Mapping[str, int]) -> None:
        """A toxic on each connection from and to a machine, both ways. Raises NoLinks."""
        links = [link for ends, link in self._links.items() if name in ends]
        self.cutting = True
        streams = [(proxy, way) for link in links for proxy in link for way in ("upstream", "downstream")]
        await self._server.add_to_all(streams, kind, attributes)

    def _said(self, one: str, other: str) -> list[tuple[str, str]]:
        """The streams in which ``one`` speaks to ``other``: on connections of its own, and on the other's."""
        own = [(name, "upstream") for name in self._links.get((one, other), ())]
        return own + [(name, "downstream") for name in self._links.get((other, one), ())]

    async def heal(self) -> None:
        """Every link as it was. Raises NoLinks."""
        await self._server.reset()
        self.cutting = False

    def stop(self) -> None:
        self._server.stop()


def served(node: Node) -> tuple[int, ...]:
    """The ports of a server that peers and clients use: all but its status."""
    first = node.base_port
    return (first, first + 1, first + 2) if node.role == "namesrv" else (first, first + 2, node.ha_port)
