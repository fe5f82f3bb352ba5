"""How are the Raft links of Controllers encrypted, and how does a certificate name a member?

With ``raftTlsCert``, ``raftTlsKey`` and ``raftTlsCaFile`` every Raft connection is TLS 1.3 and both ends show
a certificate of that CA, which names its member: the id is the common name, or one of the DNS names. The
handshake of ``controller.links.transport`` and its MACs come inside, so a secret still keeps the members of
different groups apart. A connection whose TLS handshake fails never reaches the transport. Renewed files are
read without a stop; links that are up go on with what they began with.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any, Final, TypeVar

from model.config.tls import Mode
from model.errors import ConfigError
from runtime.env import Listener
from runtime.os_env import OsNetwork
from runtime.report.complaints import Complaints
from runtime.tls.alerts import TellingContext
from runtime.tls.door import Door
from runtime.tls.network import listen
from runtime.tls.places import Places
from runtime.tls.watch import Watch

P = TypeVar("P", bound=asyncio.BaseProtocol)
PLACES: Final = Places(64, 64)
"""Of links that have not begun: members are few."""

log = logging.getLogger(__name__)


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
        self.handshakes: Counter[str] = Counter({"ok": 0, "failed": 0, "refused": 0})
        self.complaints = Complaints(log, lambda: asyncio.get_running_loop().time())
        self._files = files
        self._watch = Watch(astuple(files))
        self._server, self._client = _contexts(files)

    @property
    def server(self) -> ssl.SSLContext:
        """For connections that begin now."""
        return self._server

    def look(self) -> None:
        """Read the files again if they have changed; wrong ones change nothing. Blocks."""
        if not self._watch.changed(astuple(self._files)):
            return
        try:
            self._server, self._client = _contexts(self._files)
        except ConfigError as error:
            log.error("TLS of Raft: the new files are not used, the former ones are: %s", error)
        else:
            log.info("TLS of Raft: files read again, new links use them")

    async def _listen(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **more: Any
    ) -> Listener:
        door = Door(factory, self, lambda: Mode.ENFORCING, PLACES)
        return await listen(door, host, port, **more)

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


def _contexts(files: TlsFiles) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """(server's, client's)."""
    server = _ready(TellingContext(ssl.PROTOCOL_TLS_SERVER), files)
    return server, _ready(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), files)


def _ready(context: ssl.SSLContext, files: TlsFiles) -> ssl.SSLContext:
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
