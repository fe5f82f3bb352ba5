"""With which key does a command sign what it asks of a cluster with ``peerCredentialsFile`` or ACL?"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from model.errors import ConfigError
from remoting.auth import Credentials
from remoting.keys import OPERATORS, Signer, read_keys
from runtime.os_env import OsEnv

VARIABLE: Final = "KEELMQ_CREDENTIALS_FILE"

ACCESS_VARIABLE: Final = "KEELMQ_ACCESS_KEY"
SECRET_VARIABLE: Final = "KEELMQ_SECRET_KEY"
_META: Final = "keelmq.access."

_Command = TypeVar("_Command", bound=Callable[..., Any])


def option(command: _Command) -> _Command:
    """Give a command ``--credentials``, ``--access-key`` and ``--secret-key``, which ``read`` looks at."""
    for name, variable, text in (
        ("secret-key", SECRET_VARIABLE, "Its secret; others on this machine see a command line."),
        ("access-key", ACCESS_VARIABLE, "Sign as this user of a cluster with ACL."),
    ):
        command = click.option(
            f"--{name}",
            envvar=variable,
            expose_value=False,
            callback=_keep,
            metavar="TEXT",
            help=f"{text} [${variable}]",
        )(command)
    return click.option(
        "--credentials",
        "credentials_file",
        type=click.Path(dir_okay=False),
        envvar=VARIABLE,
        metavar="FILE",
        help=f"The cluster's peerCredentialsFile, to sign with [${VARIABLE}].",
    )(command)


def _keep(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    context.meta[f"{_META}{parameter.name}"] = value
    return value


def _user() -> Signer | None:
    context = click.get_current_context(silent=True)
    meta = {} if context is None else context.meta
    access = meta.get(f"{_META}access_key") or os.environ.get(ACCESS_VARIABLE)
    secret = meta.get(f"{_META}secret_key") or os.environ.get(SECRET_VARIABLE)
    if not access and not secret:
        return None
    if not access or not secret:
        raise ConfigError("--access-key and --secret-key go together")
    return Credentials(access, secret)


def read(path: str | None = None) -> Signer | None:
    """The user of the command line or the environment, else the key in ``path``, else in the file that the
    environment names, else None. Raises ConfigError."""
    user = _user()
    if user is not None:
        return user
    name, path = ("--credentials", path) if path else (VARIABLE, os.environ.get(VARIABLE, ""))
    warn_if_open(path)
    return read_keys(OsEnv(), path, OPERATORS, name)


def warn_if_open(path: str) -> None:
    """Of a file that holds a secret."""
    if open_to_others(path):
        click.echo(f"keelmq: {path} can be read by others than its owner: chmod 600 {path}", err=True)


def open_to_others(path: str) -> bool:
    """Whether more than its owner may read or change the file; False when there is none."""
    try:
        return bool(path) and bool(Path(path).stat().st_mode & 0o077)
    except OSError:
        return False
