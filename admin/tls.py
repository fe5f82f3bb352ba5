"""How does a command reach a cluster that speaks TLS?

By ``--tls`` and its companions, or by the environment, which drills and the demo read as well.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click

from model.config.tls import TlsConfig
from model.errors import ConfigError
from runtime.os_env import OsEnv
from runtime.tls.network import TlsDialer
from runtime.tls.state import TlsState

_Command = TypeVar("_Command", bound=Callable[..., Any])

TLS: Final = "KEELMQ_TLS"
CA: Final = "KEELMQ_TLS_CA"
CERT: Final = "KEELMQ_TLS_CERT"
KEY: Final = "KEELMQ_TLS_KEY"
_META: Final = "keelmq.tls"
_NAMES: Final = {
    "tls.client.trustCertPath": ("--tls-ca", CA),
    "tls.client.certPath": ("--tls-cert", CERT),
    "tls.client.keyPath": ("--tls-key", KEY),
}
_HELP: Final = {
    "tls.client.trustCertPath": "Authorities of the servers, PEM [the system's].",
    "tls.client.certPath": "Certificate for servers that ask for one, PEM.",
    "tls.client.keyPath": "Its key, PEM.",
}


def option(command: _Command) -> _Command:
    """Give a command ``--tls``, ``--tls-ca``, ``--tls-cert`` and ``--tls-key``; ``client_env`` reads them."""
    for key, (name, variable) in reversed(_NAMES.items()):
        command = click.option(
            name,
            key.replace(".", "_"),
            type=click.Path(dir_okay=False),
            metavar="FILE",
            expose_value=False,
            callback=_keep_as(key),
            help=f"{_HELP[key]} [${variable}]",
        )(command)
    return click.option(
        "--tls",
        is_flag=True,
        default=None,
        expose_value=False,
        callback=_keep_as("tls.enable"),
        help=f"Dial with TLS; implied by the others. [${TLS}=true]",
    )(command)


def _keep_as(key: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def keep(ctx: click.Context, _: click.Parameter, value: Any) -> None:
        if value:
            ctx.meta.setdefault(_META, {})[key] = "true" if value is True else str(value)

    return keep


def given() -> dict[str, str]:
    """The keys of TLS that the command line and the environment ask for. Raises ConfigError."""
    ctx = click.get_current_context(silent=True)
    found: dict[str, str] = dict(ctx.meta.get(_META, {})) if ctx is not None else {}
    for key, (_, variable) in _NAMES.items():
        if os.environ.get(variable):
            found.setdefault(key, os.environ[variable])
    wanted = os.environ.get(TLS, "").lower()
    if wanted not in ("", "true", "false"):
        raise ConfigError(f"{TLS}={wanted}: expected true or false")
    if wanted == "false" and "tls.enable" not in found:
        return {}
    if not found and not wanted:
        return {}
    return {**found, "tls.enable": "true", "tls.client.authServer": "true"}


def client_env(*, seed: int | None = None) -> OsEnv:
    """The world of a client of this command. Raises ConfigError for files that cannot be used."""
    values = given()
    return env_of(values, seed=seed) if values else OsEnv(seed=seed)


def env_of(values: Mapping[str, str], *, seed: int | None = None) -> OsEnv:
    """As ``client_env``, with these ``tls.*`` keys. Raises ConfigError."""
    try:
        state = TlsState(values)
    except ConfigError as error:
        raise ConfigError(_by_option(str(error))) from None
    return OsEnv(seed=seed, network=TlsDialer(state, _always))


def _by_option(text: str) -> str:
    """``text`` with the names that the user knows."""
    for key, (name, _) in _NAMES.items():
        text = text.replace(key, name)
    return text


def _always(_: TlsConfig) -> bool:
    return True
