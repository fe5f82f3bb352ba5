"""How do two ends that share a secret show each other that they have it, without sending it?

Each end says a nonce; a proof is an HMAC under the secret of a label (whose proof, of what) and of all that
was said. What is said, and in which order, is the affair of the protocol: ``controller.raft.transport``
between Controllers, ``ha.proof`` on the HA port.
"""

from __future__ import annotations

import hmac
import random
from typing import Final

from model.errors import ConfigError
from runtime.env import Disk, read_file

SECRET_BYTES_MIN: Final = 16
NONCE_BYTES: Final = 32
MAC_BYTES: Final = 32


def read_secret(disk: Disk, path: str, key: str) -> bytes | None:
    """The content of ``path`` without white space at its ends; None when ``path`` is empty.

    Raises ConfigError naming ``key``: a file that cannot be read, or one too short to be a secret.
    """
    if not path:
        return None
    try:
        secret = read_file(disk, path).strip()
    except OSError as error:
        raise ConfigError(f"{key}={path}: {error}") from None
    if len(secret) < SECRET_BYTES_MIN:
        raise ConfigError(f"{key}={path}: needs at least {SECRET_BYTES_MIN} bytes")
    return secret


def mac(secret: bytes, label: bytes, data: bytes) -> bytes:
    """``MAC_BYTES`` that only a holder of ``secret`` can make; ``label`` says what for."""
    return hmac.digest(secret, label + data, "sha256")


def is_mac(given: bytes, secret: bytes, label: bytes, data: bytes) -> bool:
    """Whether ``given`` is ``mac(secret, label, data)``; takes as long wherever they differ."""
    return hmac.compare_digest(given, mac(secret, label, data))


def fresh_nonce(chance: random.Random, secret: bytes) -> bytes:
    """``NONCE_BYTES`` never said before, which nobody without ``secret`` can foresee from earlier ones."""
    return mac(secret, b"nonce\0", chance.randbytes(NONCE_BYTES))
