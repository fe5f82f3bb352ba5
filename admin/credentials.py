"""With which key does a command sign what it asks of a cluster that has ``peerCredentialsFile``?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click

from remoting.auth import Credentials, read_credentials
from runtime.os_env import OsDisk

VARIABLE: Final = "KEELMQ_CREDENTIALS_FILE"

option: Final = click.option(
    "--credentials",
    "credentials_file",
    type=click.Path(dir_okay=False),
    envvar=VARIABLE,
    metavar="FILE",
    help=f"The cluster's peerCredentialsFile, to sign with [${VARIABLE}].",
)


def read(path: str | None = None) -> Credentials | None:
    """The key in ``path``, else in the file the environment names, else None. Raises ConfigError."""
    if path:
        return read_credentials(OsDisk(), path, "--credentials")
    return read_credentials(OsDisk(), os.environ.get(VARIABLE, ""), VARIABLE)


def open_to_others(path: str) -> bool:
    """Whether more than its owner may read or change the file; False when there is none."""
    try:
        return bool(path) and bool(Path(path).stat().st_mode & 0o077)
    except OSError:
        return False
