"""Where does a secret come from, and what does an end say that was never said before?"""

from __future__ import annotations

import random
from typing import Final

from model.errors import ConfigError
from runtime.env import Disk, read_file
from runtime.mac import mac

SECRET_BYTES_MIN: Final = 16
NONCE_BYTES: Final = 32


def read_secret(disk: Disk, path: str, key: str) -> bytes | None:
    """The content of ``path`` without white space at its ends; None when ``path`` is empty.

    Raises ConfigError naming ``key``: a file that cannot be read, or one too short to be a secret.
    """
    if not path:
        return None
    try:
        secret = read_file(disk, path).strip()
    except OSError as error:
        raise ConfigError(f"{shown(disk, key, path)}: {error.strerror}") from None
    if len(secret) < SECRET_BYTES_MIN:
        raise ConfigError(f"{key}={path}: needs at least {SECRET_BYTES_MIN} bytes")
    return secret


def shown(disk: Disk, key: str, path: str) -> str:
    """A setting that names a file with secrets, as an error tells it. Where it looks like none, the value may
    be the secret itself, and errors are kept in journals."""
    directory = path.rpartition("/")[0]
    if path.startswith("/") or (directory and disk.is_dir(directory)):
        return f"{key}={path}"
    return f"{key} (its value is to be the path of a file, and is not shown)"


def fresh_nonce(chance: random.Random, secret: bytes) -> bytes:
    """``NONCE_BYTES`` never said before, which nobody without ``secret`` can foresee from earlier ones."""
    return mac(secret, b"nonce\0", chance.randbytes(NONCE_BYTES))
