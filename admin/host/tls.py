"""What does a server's process do for TLS? Reads the files at its start, and shows them in its status."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from admin.credentials import open_to_others
from model.config.tls import FILE_KEY, Mode
from runtime.os_env import OsEnv
from runtime.report.events import Event
from runtime.tls.network import TlsNetwork
from runtime.tls.places import Places
from runtime.tls.state import TlsState

log = logging.getLogger("keelmq")


class Server(Protocol):
    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    def status(self) -> dict[str, Any]: ...
    def health(self) -> str | None: ...


def tls_of(values: Mapping[str, str], told: Collection[str] = ()) -> TlsState | None:
    """The TLS that a server's own file asks for; None: it asks for none. ``told``: of these paths it was said
    who can read them. Raises ConfigError."""
    if not values:
        return None
    state = TlsState(values)
    config = state.now.config
    if config.mode is Mode.DISABLED and not config.dials and FILE_KEY not in values:
        return None
    log.info("TLS: tls.server.mode=%s, dials with TLS: %s", config.mode, "yes" if config.dials else "no")
    if config.test_mode and config.mode is not Mode.DISABLED:
        log.warning("TLS: tls.test.mode.enable=true: no certificate is checked, for tests only")
    elif config.dials and not config.checks_servers:
        log.warning("TLS: certificates of servers are not checked: set tls.client.trustCertPath")
    for path in dict.fromkeys((config.server_key, config.client_key)):
        if path not in told and open_to_others(path):
            log.warning("%s can be read by others than its owner: chmod 600", path)
    return state


def env_with(tls: TlsState | None, places: Places, watch: Callable[[Event], None]) -> OsEnv:
    """The world of a process: with TLS, where it has one."""
    if tls is None:
        return OsEnv(watch=watch)
    return OsEnv(watch=watch, network=TlsNetwork(tls, places), ha_network=TlsNetwork(tls, places, ha=True))


class WithTls:
    """A server whose status tells of its TLS."""

    def __init__(self, server: Server, tls: TlsState) -> None:
        self._server = server
        self._tls = tls

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop()

    def status(self) -> dict[str, Any]:
        return {**self._server.status(), "tls": self._tls.status()}

    def health(self) -> str | None:
        return self._server.health()

    def ready(self) -> str | None:
        """As admin.host.endpoint asks the server itself."""
        reason: str | None = getattr(self._server, "ready", self._server.health)()
        return reason
