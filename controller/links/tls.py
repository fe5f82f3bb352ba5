"""How are the Raft links of Controllers encrypted, and how does a certificate name a member?

With ``raftTlsCert``, ``raftTlsKey`` and ``raftTlsCaFile`` every Raft connection is TLS 1.3 and both ends show
a certificate of that CA, which names its member: the id is the common name, or one of the DNS names. The
handshake of ``controller.links.transport`` and its MACs come inside, so a secret still keeps the members of
different groups apart. A connection whose TLS handshake fails never reaches the transport.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from model.errors import ConfigError
from runtime.env import Listener
from runtime.os_env import OsNetwork

P = TypeVar("P", bound=asyncio.BaseProtocol)
HANDSHAKE_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files: this member's certificate (and what lies between it and the CA), its key without a
    password, the CA both ends must come from."""

    cert: str
    key: str
    ca: str


class TlsNetwork(OsNetwork):
    """Real connections as ``runtime.env.Network`` has them, over mutual TLS 1.3."""

    def __init__(self, files: TlsFiles) -> None:
        """Raises ConfigError naming the file that cannot be used."""
        self._server = _context(files, ssl.PROTOCOL_TLS_SERVER)
        self._client = _context(files, ssl.PROTOCOL_TLS_CLIENT)

    async def listen(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, *, shared: bool = False
    ) -> Listener:
        return await self._listen(
            factory,
            host,
            port,
            reuse_port=shared or None,
            ssl=self._server,
            ssl_handshake_timeout=HANDSHAKE_S,
        )

    async def connect(
        self, factory: Callable[[], P], host: str, port: int, *, timeout_s: float = 3.0
    ) -> tuple[asyncio.Transport, P]:
        async with asyncio.timeout(timeout_s):
            # The name is checked by the transport, against the id of the member it wants to reach.
            return await asyncio.get_running_loop().create_connection(
                factory, host, port, ssl=self._client, server_hostname=""
            )


def member_names(peercert: dict[str, Any] | None) -> frozenset[str]:
    """The ids a verified certificate (``ssl.SSLSocket.getpeercert``) stands for."""
    found = peercert or {}
    subject = [value for part in found.get("subject", ()) for key, value in part if key == "commonName"]
    other = [value for kind, value in found.get("subjectAltName", ()) if kind == "DNS"]
    return frozenset(subject + other)


def _context(files: TlsFiles, protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        # A key with a password would have the process ask for it on a terminal it has not got.
        context.load_cert_chain(files.cert, files.key, password="")
    except (OSError, ValueError) as error:
        raise ConfigError(f"raftTlsCert={files.cert}, raftTlsKey={files.key}: {error}") from None
    try:
        context.load_verify_locations(files.ca)
    except (OSError, ValueError) as error:
        raise ConfigError(f"raftTlsCaFile={files.ca}: {error}") from None
    return context
