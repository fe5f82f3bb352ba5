"""Keys of TLS: RocketMQ's ``tls.properties``, and the system properties it has besides.

The same names may stand in a server's own file, which then goes before ``tls.config.file``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from model.settings import Config, key, need

PREFIX: Final = "tls."
FILE_KEY: Final = "tls.config.file"
USE_TLS: Final = "useTLS"
"""RocketMQ's name of ``tls.enable`` in a server's own file."""
_UNSAID: Final = ("", "true", "false")


class Mode(enum.StrEnum):
    """What does a port take? (``org.apache.rocketmq.remoting.common.TlsMode``)"""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ClientAuth(enum.StrEnum):
    """Must a client show a certificate?"""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


@dataclass(kw_only=True)
class TlsConfig(Config):
    """What one process needs to know of TLS. Paths are of PEM files."""

    server_mode: str = key(
        "tls.server.mode",
        "",
        "disabled = no TLS, permissive = with and without, enforcing = TLS only; the first byte decides."
        " Empty = permissive where tls.server.certPath is set, else disabled",
        was="permissive",
    )
    enable: str = key(
        "tls.enable",
        "",
        "true = this process dials others with TLS; empty = only while tls.server.mode=enforcing",
    )
    ha_enable: str = key(
        "tls.ha.enable",
        "",
        "true = a slave dials its master's HA port with TLS; empty = as tls.enable. false also keeps the HA"
        " port open to links without TLS, which is all that RocketMQ's brokers speak there",
    )
    test_mode: bool = key(
        "tls.test.mode.enable",
        False,
        "a server makes itself a certificate, a client believes any: for tests only",
        was=True,
    )
    need_client_auth: str = key(
        "tls.server.need.client.auth", "none", "certificate of a client: none, optional or require"
    )
    server_key: str = key("tls.server.keyPath", "", "private key of the server")
    server_key_password: str = key("tls.server.keyPassword", "", "password of that key, if it has one")
    server_cert: str = key(
        "tls.server.certPath", "", "certificate of the server, and what lies between it and its authority"
    )
    server_auth_client: str = key(
        "tls.server.authClient",
        "",
        "check certificates of clients; empty = where tls.server.trustCertPath is set",
        was="false",
    )
    server_trust: str = key(
        "tls.server.trustCertPath", "", "authorities of clients; empty = the system's, with authClient=true"
    )
    client_key: str = key("tls.client.keyPath", "", "private key shown to servers that ask for it")
    client_key_password: str = key("tls.client.keyPassword", "", "password of that key, if it has one")
    client_cert: str = key("tls.client.certPath", "", "certificate shown to servers that ask for one")
    client_auth_server: str = key(
        "tls.client.authServer",
        "",
        "check certificates of servers; empty = where tls.client.trustCertPath is set",
        was="false",
    )
    client_trust: str = key(
        "tls.client.trustCertPath", "", "authorities of servers; empty = the system's, with authServer=true"
    )
    client_check_host: bool = key(
        "tls.client.checkHostName",
        True,
        "with authServer: the certificate must name the address that was dialled, which RocketMQ never asks",
        was=False,
    )

    def check(self) -> None:
        super().check()
        modes, auths = [str(m) for m in Mode], [str(a) for a in ClientAuth]
        self.server_mode, self.need_client_auth = self.server_mode.lower(), self.need_client_auth.lower()
        if not self.server_mode:
            takes = bool(self.server_cert) or self.test_mode
            self.server_mode = str(Mode.PERMISSIVE if takes else Mode.DISABLED)
        need(self.server_mode in modes, f"tls.server.mode={self.server_mode}: expected one of {modes}")
        need(
            self.need_client_auth in auths,
            f"tls.server.need.client.auth={self.need_client_auth}: expected one of {auths}",
        )
        for name in ("tls.enable", "tls.ha.enable", "tls.server.authClient", "tls.client.authServer"):
            attribute = type(self).keys()[name].name
            value = str(getattr(self, attribute)).lower()
            need(value in _UNSAID, f"{name}={value}: expected true or false")
            setattr(self, attribute, value)
        need(
            bool(self.client_key) == bool(self.client_cert),
            "tls.client.keyPath and tls.client.certPath go together: set both, or neither",
        )
        if self.mode is not Mode.DISABLED and not self.test_mode:
            need(
                bool(self.server_key and self.server_cert),
                f"tls.server.mode={self.mode} needs tls.server.keyPath and tls.server.certPath (keelmq certs"
                " makes them), or tls.test.mode.enable=true",
            )
        need(
            self.client_auth is not ClientAuth.REQUIRE or self.test_mode or self.checks_clients,
            "tls.server.need.client.auth=require needs tls.server.trustCertPath: a certificate that nobody"
            " checks proves nothing",
        )

    @property
    def mode(self) -> Mode:
        return Mode(self.server_mode)

    @property
    def client_auth(self) -> ClientAuth:
        return ClientAuth(self.need_client_auth)

    @property
    def checks_clients(self) -> bool:
        return self.server_auth_client == "true" or (not self.server_auth_client and bool(self.server_trust))

    @property
    def checks_servers(self) -> bool:
        if self.test_mode:
            return False
        return self.client_auth_server == "true" or (not self.client_auth_server and bool(self.client_trust))

    @property
    def dials(self) -> bool:
        """Whether this process dials others with TLS."""
        return self.mode is Mode.ENFORCING if not self.enable else self.enable == "true"

    @property
    def dials_ha(self) -> bool:
        """Whether a slave dials its master with TLS."""
        return self.dials if not self.ha_enable else self.ha_enable == "true"

    @property
    def ha_mode(self) -> Mode:
        """Of the HA port: a broker that does not dial with TLS there takes others that do not, either."""
        return Mode.PERMISSIVE if self.mode is Mode.ENFORCING and not self.dials_ha else self.mode

    def files(self) -> tuple[str, ...]:
        """Every file that is read."""
        named = (
            self.server_cert,
            self.server_key,
            self.server_trust,
            self.client_cert,
            self.client_key,
            self.client_trust,
        )
        return tuple(dict.fromkeys(path for path in named if path))


def split_tls(values: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """(keys of TLS, all others) of a server's own file; ``useTLS`` becomes ``tls.enable``."""
    found = {name: value for name, value in values.items() if name.startswith(PREFIX)}
    if USE_TLS in values:
        found.setdefault("tls.enable", values[USE_TLS].strip().lower())
    others = {name: value for name, value in values.items() if name not in found and name != USE_TLS}
    return found, others
