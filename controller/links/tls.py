"""How are the Raft links of Controllers encrypted, and how does a certificate name a member?

With ``raftTlsCert``, ``raftTlsKey`` and ``raftTlsCaFile`` every Raft connection is TLS 1.3 and both ends show
a certificate of that CA, which names its member: the id is the common name, or one of the DNS names. The
handshake of ``controller.links.transport`` and its MACs come inside, so a secret still keeps the members of
different groups apart. A connection whose TLS handshake fails never reaches the transport. Renewed files are
read without a stop, unless they could not be used (expired, of an authority that members with the same files
would not believe); links that are up go on with what they began with.
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
from runtime.tls.contexts import good_until
from runtime.tls.door import Door
from runtime.tls.network import listen
from runtime.tls.places import Places
from runtime.tls.rehearsal import advice, handshake
from runtime.tls.reminder import Reminder
from runtime.tls.state import wall_ms
from runtime.tls.validity import Validity
from runtime.tls.watch import Watch
from runtime.tls.words import told

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

    def __init__(self, files: TlsFiles, now_ms: Callable[[], int] = wall_ms) -> None:
        """Raises ConfigError naming the file that cannot be used."""
        self.failed: dict[str, str] = {}  # member -> why TLS with it failed, until a link to it is up
        self.error: str | None = None
        self.reloads = 0
        self.handshakes: Counter[str] = Counter({"ok": 0, "failed": 0, "refused": 0})
        self.complaints = Complaints(log, lambda: asyncio.get_running_loop().time())
        self._files = files
        self._now_ms = now_ms
        self._reminder = Reminder(log, "TLS of Raft: the certificate of this Controller")
        self._watch = Watch(astuple(files))
        self._now = _load(files, now_ms())

    @property
    def server(self) -> ssl.SSLContext:
        """For connections that begin now."""
        return self._now.server

    @property
    def own(self) -> Validity:
        """Of this member's certificate."""
        return self._now.own

    @property
    def doubt(self) -> str:
        """Why a member with the same files could not link to this one; empty when it could."""
        return self._now.doubt

    def status(self) -> dict[str, Any]:
        """JSON-ready."""
        own = self._now.own
        return {
            "handshakes": dict(sorted(self.handshakes.items())),
            "notAfter": own.not_after,
            "notAfterMs": own.not_after_ms,
            "reloads": self.reloads,
            "error": self.error,
            "failed": dict(sorted(self.failed.items())),
        }

    def trouble(self) -> list[str]:
        """Why links may not come about."""
        own = self._now.own
        expired = (
            [f"its raftTlsCert expired at {own.not_after}"] if own.not_after_ms <= self._now_ms() else []
        )
        return expired + [f"TLS with {member}: {why}" for member, why in sorted(self.failed.items())]

    def look(self) -> None:
        """Read the files again if they have changed; wrong ones change nothing. A certificate that ends soon
        is complained about. Blocks."""
        if self._watch.changed(astuple(self._files)):
            self._read()
        self._reminder.look(self._now.own, self._now_ms())

    def _read(self) -> None:
        try:
            fresh = _load(self._files, self._now_ms())
            if fresh.doubt and not self._now.doubt:
                raise ConfigError(
                    f"a member with the same files could not link to this one: {fresh.doubt}. "
                    + advice(fresh.doubt, "raftTlsCaFile everywhere")
                )
        except ConfigError as error:
            self.error = str(error)
            log.error("TLS of Raft: the new files are not used, the former ones are: %s", error)
            return
        self._now, self.error = fresh, None
        self.reloads += 1
        log.info(
            "TLS of Raft: files read again, new links use them, certificate until %s", fresh.own.not_after
        )

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
                factory, host, port, ssl=self._now.client, server_hostname=""
            )


def member_names(peercert: dict[str, Any] | None) -> frozenset[str]:
    """The ids a verified certificate (``ssl.SSLSocket.getpeercert``) stands for."""
    found = peercert or {}
    subject = [value for part in found.get("subject", ()) for key, value in part if key == "commonName"]
    other = [value for kind, value in found.get("subjectAltName", ()) if kind == "DNS"]
    return frozenset(subject + other)


def fault(error: Exception | None) -> str | None:
    """What TLS says of the end of a connection; None: it ended for another reason."""
    return told(error) if isinstance(error, ssl.SSLError) else None


@dataclass(frozen=True, slots=True)
class _Contexts:
    """One reading of the files. ``doubt``: why a member with the same files could not link to this one."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    own: Validity
    doubt: str


def _load(files: TlsFiles, now_ms: int) -> _Contexts:
    own = good_until(f"raftTlsCert={files.cert}", files.cert, now_ms)
    server = _ready(TellingContext(ssl.PROTOCOL_TLS_SERVER), files)
    client = _ready(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), files)
    return _Contexts(server, client, own, handshake(server, client, None))


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
