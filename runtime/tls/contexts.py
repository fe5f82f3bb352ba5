"""Of which files are the two TLS contexts of a process made, and what is said about one that is wrong?"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from model.config.tls import ClientAuth, Mode, TlsConfig
from model.errors import ConfigError
from runtime.tls.alerts import TellingContext
from runtime.tls.validity import Validity, validity

_LOWEST: Final = ssl.TLSVersion.TLSv1_2  # Java 8's clients
EXTRA: Final = "pip install 'keelmq[tls]'"


@dataclass(frozen=True, slots=True)
class Contexts:
    """One reading of the files. Connections keep the one they began with."""

    config: TlsConfig
    server: ssl.SSLContext | None
    """None: this process takes no TLS."""
    client: ssl.SSLContext
    own: Validity | None
    """Of the server's certificate."""


def load(config: TlsConfig, now_ms: int) -> Contexts:
    """Read every file. Raises ConfigError naming the key, the file and what is wrong with it."""
    server = None
    own: Validity | None = None
    if config.mode is not Mode.DISABLED:
        server, own = _server(config, now_ms)
    return Contexts(config, server, client_context(config, now_ms), own)


def _server(config: TlsConfig, now_ms: int) -> tuple[ssl.SSLContext, Validity]:
    context = TellingContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _LOWEST
    context.options |= ssl.OP_NO_RENEGOTIATION  # each would be a handshake's work, without a count
    if config.test_mode:
        return context, _self_signed(context)
    own = _chain(context, "server", config.server_cert, config.server_key, config.server_key_password, now_ms)
    if config.checks_clients and config.client_auth is not ClientAuth.NONE:
        must = config.client_auth is ClientAuth.REQUIRE
        context.verify_mode = ssl.CERT_REQUIRED if must else ssl.CERT_OPTIONAL
        _trust(context, "tls.server.trustCertPath", config.server_trust, ssl.Purpose.CLIENT_AUTH)
    return context, own


def client_context(config: TlsConfig, now_ms: int) -> ssl.SSLContext:
    """What this process dials with. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = _LOWEST
    context.check_hostname = config.checks_servers and config.client_check_host
    context.verify_mode = ssl.CERT_REQUIRED if config.checks_servers else ssl.CERT_NONE
    if config.checks_servers:
        _trust(context, "tls.client.trustCertPath", config.client_trust, ssl.Purpose.SERVER_AUTH)
    if config.client_cert and not config.test_mode:
        _chain(context, "client", config.client_cert, config.client_key, config.client_key_password, now_ms)
    return context


def _chain(context: ssl.SSLContext, end: str, cert: str, key: str, password: str, now_ms: int) -> Validity:
    named = f"tls.{end}.certPath={cert}"
    found = good_until(named, cert, now_ms)
    try:
        # A key with a password would have the process ask for it on a terminal it has not got.
        context.load_cert_chain(cert, key, password=password)
    except FileNotFoundError:
        raise ConfigError(f"tls.{end}.keyPath={key}: there is no such file{_looked_at(key)}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{named}, tls.{end}.keyPath={key}: {_reason(error)}. The key must be a PEM key of this"
            f" certificate, readable here; its password goes into tls.{end}.keyPassword"
        ) from None
    return found


def good_until(named: str, path: str, now_ms: int) -> Validity:
    """Of a server's own certificate. Raises ConfigError when it has expired, or is none."""
    found = _validity(named, path)
    if found.not_after_ms <= now_ms:
        raise ConfigError(f"{named}: it expired at {found.not_after}: renew it (keelmq certs renew)")
    return found


def _validity(named: str, path: str) -> Validity:
    try:
        return validity(Path(path).read_text(encoding="ascii"))
    except OSError as error:
        raise ConfigError(f"{named}: cannot be read{_looked_at(path)}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{named}: {error}; expected PEM") from None


def _looked_at(path: str) -> str:
    """Where, for a path that goes by the directory the server was started in."""
    return "" if Path(path).is_absolute() else f" (looked at {Path(path).absolute()}: give the whole path)"


def _trust(context: ssl.SSLContext, name: str, path: str, purpose: ssl.Purpose) -> None:
    if not path:
        context.load_default_certs(purpose)
        return
    _validity(f"{name}={path}", path)
    try:
        context.load_verify_locations(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name}={path}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _self_signed(context: ssl.SSLContext) -> Validity:
    try:
        from runtime.tls.self_signed import load_into
    except ImportError:
        raise ConfigError(
            f"tls.test.mode.enable=true makes a certificate, which needs the extra tls: {EXTRA}"
        ) from None
    return load_into(context)
