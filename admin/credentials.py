"""With which key does a command sign what it asks of a cluster that has ``peerCredentialsFile``?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click

from remoting.keys import OPERATORS, Signer, read_keys
from runtime.os_env import OsEnv

VARIABLE: Final = "KEELMQ_CREDENTIALS_FILE"

option: Final = click.option(
    "--credentials",
    "credentials_file",
    type=click.Path(dir_okay=False),
    envvar=VARIABLE,
    metavar="FILE",
    help=f"The cluster's peerCredentialsFile, to sign with [${VARIABLE}].",
)


def read(path: str | None = None) -> Signer | None:
    """The key in ``path``, else in the file the environment names, else None. Raises ConfigError."""
    if path:
        return read_keys(OsEnv(), path, OPERATORS, "--credentials")
    return read_keys(OsEnv(), os.environ.get(VARIABLE, ""), OPERATORS, VARIABLE)


def open_to_others(path: str) -> bool:
    """Whether more than its owner may read or change the file; False when there is none."""
    try:
        return bool(path) and bool(Path(path).stat().st_mode & 0o077)
    except OSError:
        return False
