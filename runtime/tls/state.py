"""Which certificates does a process use now, when are they read again, and what became of handshakes?

The files are looked at again and again (``runtime.tls.watch``). Once they have stayed the same between
two looks they are read, and new connections use what they say; those that are open go on as they are. Files
that are wrong change nothing: one line in the log, ``error`` in the status, until they are mended.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from model.config.tls import FILE_KEY, TlsConfig
from model.errors import ConfigError
from model.settings import parse_file
from runtime.env import Env
from runtime.report.complaints import Complaints
from runtime.tls.contexts import Contexts, load
from runtime.tls.rehearsal import advice, rehearse_anywhere
from runtime.tls.reminder import Reminder
from runtime.tls.watch import Watch, look_at

log = logging.getLogger(__name__)


def wall_ms() -> int:
    """What certificates are good for is said in wall-clock time."""
    return time.time_ns() // 1_000_000


class TlsState:
    """The TLS of one process."""

    def __init__(self, values: Mapping[str, str], now_ms: Callable[[], int] = wall_ms) -> None:
        """``values``: the ``tls.*`` keys of the server's own file. Raises ConfigError."""
        self.handshakes: Counter[str] = Counter({"ok": 0, "failed": 0, "refused": 0})
        self.error: str | None = None
        self.reloads = 0
        self.complaints = Complaints(log, lambda: now_ms() / 1000)
        self._values = {name: value for name, value in values.items() if name != FILE_KEY}
        self._file = values.get(FILE_KEY, "")
        self._now_ms = now_ms
        self._reminder = Reminder(log, "TLS: the certificate of this server")
        self._said: frozenset[str] = frozenset()  # keys that the file in use gives a value
        seen = look_at([self._file])
        config, self._said = self._config()
        self._watch = Watch(self._paths(config))
        self._watch.use(seen + look_at(config.files()))
        self.now: Contexts = load(config, now_ms())
        self._believed = not rehearse_anywhere(self.now, now_ms())

    def look(self) -> None:
        """Read the files again if they have changed. Blocks."""
        if not self._watch.changed(self._paths(self.now.config)):
            return
        try:
            seen = look_at([self._file])
            config, said = self._config()
            seen += look_at(config.files())
            fresh = load(config, self._now_ms())
            believed = self._check_believed(fresh)
        except ConfigError as error:
            self.error = str(error)
            log.error("TLS: the new files are not used, the former ones are: %s", error)
            return
        self.now, self._believed = fresh, believed
        self._said = said
        self._watch.use(seen)
        self.error = None
        self.reloads += 1
        log.info("TLS: files read again, new connections use them: %s", self._summary())

    def _check_believed(self, fresh: Contexts) -> bool:
        """Whether a server with these files would believe this one. Raises ConfigError when it would with the
        former files alone: a certificate of another authority would cut this server off from its group."""
        problem = rehearse_anywhere(fresh, self._now_ms())
        if problem and self._believed:
            raise ConfigError(
                f"a server with the same files could not dial this one: {problem}. "
                + advice(problem, "the files of tls.client.trustCertPath and tls.server.trustCertPath")
            )
        return not problem

    @property
    def server(self) -> ssl.SSLContext | None:
        """For connections that begin now."""
        return self.now.server

    async def look_off_loop(self, env: Env) -> None:
        """``look``, and a reminder of a certificate that ends soon."""
        await env.offload(self.look)
        self._reminder.look(self.now.own, self._now_ms())

    def status(self) -> dict[str, Any]:
        """JSON-ready."""
        own = self.now.own
        return {
            "mode": str(self.now.config.mode),
            "dials": self.now.config.dials,
            "clientAuth": str(self.now.config.client_auth),
            "handshakes": dict(sorted(self.handshakes.items())),
            "notAfter": None if own is None else own.not_after,
            "notAfterMs": None if own is None else own.not_after_ms,
            "reloads": self.reloads,
            "error": self.error,
        }

    def _summary(self) -> str:
        own = self.now.own
        until = "" if own is None else f", certificate until {own.not_after}"
        config = self.now.config
        asks = f"tls.server.need.client.auth={config.client_auth}"
        return f"tls.server.mode={config.mode}, {asks}{until}"

    def _config(self) -> tuple[TlsConfig, frozenset[str]]:
        """What the file says, and which keys it gives a value. Raises ConfigError."""
        values: dict[str, str] = {}
        if self._file:
            try:
                text = Path(self._file).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "it is not text"
                raise ConfigError(f"{FILE_KEY}={self._file}: cannot be read: {why}") from None
            values = parse_file(self._file, text)
        said = frozenset(name for name, value in values.items() if value)
        if gone := self._said - said:
            # Cut off while it is written, it would open what was closed: a mode, who must show a certificate.
            raise ConfigError(
                f"{self._file}: {', '.join(sorted(gone))} stood there before; a key is taken back"
                " by its default, or by a restart"
            )
        try:
            return TlsConfig.from_mapping({**values, **self._values}), said
        except ConfigError as error:
            raise ConfigError(f"{self._file}: {error}" if self._file else str(error)) from None

    def _paths(self, config: TlsConfig) -> tuple[str, ...]:
        return (self._file, *config.files())
