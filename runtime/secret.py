"""Where does a secret come from, and what does an end say that was never said before?"""

from __future__ import annotations

import json
import logging
import random
import re
from typing import Final

from model.errors import ConfigError
from runtime.env import Disk, read_file, stamp
from runtime.mac import mac

log = logging.getLogger(__name__)

SECRET_BYTES_MIN: Final = 16
NONCE_BYTES: Final = 32
_SEVERAL: Final = re.compile(rb'\{\s*"secrets"')


def read_secret(disk: Disk, path: str, key: str) -> bytes | None:
    """The content of ``path`` without white space at its ends; None when ``path`` is empty.

    Raises ConfigError naming ``key``: a file that cannot be read, or one too short to be a secret.
    """
    if not path:
        return None
    secret = _content(disk, path, key)
    if len(secret) < SECRET_BYTES_MIN:
        raise ConfigError(f"{key}={path}: needs at least {SECRET_BYTES_MIN} bytes")
    return secret


def read_secrets(disk: Disk, path: str, key: str) -> tuple[bytes, ...]:
    """As ``read_secret``, of a file that may have several: ``{"secrets": ["...", "..."]}``. One proves
    oneself with the first, and takes each of them; none without a path."""
    if not path:
        return ()
    content = _content(disk, path, key)
    if not _SEVERAL.match(content):
        found = [content]
    else:
        try:
            found = [text.encode() for text in json.loads(content)["secrets"]]
        except (ValueError, AttributeError, TypeError):
            # The error's own text may show a piece of a secret.
            raise ConfigError(f'{key}={path}: expected {{"secrets": ["...", "..."]}}') from None
    if not found or any(len(secret) < SECRET_BYTES_MIN for secret in found):
        raise ConfigError(f"{key}={path}: needs at least {SECRET_BYTES_MIN} bytes")
    return tuple(found)


def _content(disk: Disk, path: str, key: str) -> bytes:
    try:
        return read_file(disk, path).strip()
    except OSError as error:
        raise ConfigError(f"{shown(disk, key, path)}: {error.strerror}") from None


class Secrets:
    """What ``read_secrets`` finds, now and after each change of the file."""

    def __init__(self, disk: Disk, path: str, key: str) -> None:
        """Raises ConfigError."""
        self._disk = disk
        self._path = path
        self._key = key
        self._seen_as = stamp(disk, path) if path else None
        self._found = read_secrets(disk, path, key)

    def current(self) -> tuple[bytes, ...]:
        """Those in force. A file that cannot be used leaves the former ones. Blocks."""
        found = stamp(self._disk, self._path) if self._path else None
        if found == self._seen_as:
            return self._found
        self._seen_as = found
        if found is None:
            log.error("the secrets in force stay: %s=%s cannot be read any more", self._key, self._path)
            return self._found
        former = self._found
        try:
            self._found = read_secrets(self._disk, self._path, self._key)
        except ConfigError as error:
            log.error("the secrets in force stay: %s", error)
        else:
            if self._found != former:
                log.warning("%s=%s changed: %d in force", self._key, self._path, len(self._found))
        return self._found


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
