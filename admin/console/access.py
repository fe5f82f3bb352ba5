"""Who may use the console? By a password file, or by the key with which it signs what it asks.

A password file has a line ``name:password`` for each person, and is its owner's alone (mode 0600).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Final

from admin.credentials import open_to_others
from model.errors import ConfigError
from remoting.auth import Credentials
from remoting.keys import OPERATORS, Keyring, Signer

PASSWORD_CHARS_MIN: Final = 12
SESSION_MS: Final = 12 * 3600 * 1000
SESSIONS_MAX: Final = 256
WAIT_MS: Final = 1000
"""After a wrong password its address waits so long; what it tries meanwhile is not looked at."""
WAITING_MAX: Final = 1024

Pairs = Callable[[], Iterable[tuple[str, str]]]
"""The names and passwords that are good now."""


def plain_address(text: str) -> str:
    """An IP address in one form: a socket of both families shows IPv4 as IPv6. Raises ValueError."""
    found = ip_address(text.strip().strip("[]"))
    return str(getattr(found, "ipv4_mapped", None) or found)


def said_address(text: str) -> str:
    """The address in a part of X-Forwarded-For, some of which have a port. Raises ValueError."""
    text = text.strip()
    if text.startswith("["):
        text = text.partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    return plain_address(text)


class Proxies:
    """HTTPS proxies before the console, which say from where a request comes, by what they come from."""

    def __init__(self, text: str = "") -> None:
        """Addresses and networks, with commas. Raises ValueError."""
        self._networks: list[IPv4Network | IPv6Network] = [
            ip_network(part if "/" in part else plain_address(part))
            for part in filter(None, (part.strip() for part in text.split(",")))
        ]

    def __bool__(self) -> bool:
        return bool(self._networks)

    def has(self, address: str) -> bool:
        """Whether that is one of them. Raises ValueError."""
        found = ip_address(plain_address(address))
        return any(found in network for network in self._networks)

    def client(self, forwarded: str) -> str:
        """From where a request comes by the X-Forwarded-For of one of them: the last that is no proxy there.
        What stands before it, anybody can have written. Raises ValueError."""
        found = ""
        for part in reversed(forwarded.split(",")):
            found = said_address(part)
            if not self.has(found):
                break
        return found


def of_file(path: str) -> Pairs:
    """Read once. Raises ConfigError, which names the file and the line."""
    where = f"--password-file {path}"
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: {error}") from None
    if open_to_others(path):
        raise ConfigError(f"{where}: others may read it: chmod 600 {path}")
    found = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, password = line.partition(":")
        if not colon or not name.strip():
            raise ConfigError(f"{where}, line {number}: expected name:password")
        if len(password) < PASSWORD_CHARS_MIN:
            raise ConfigError(
                f"{where}, line {number}: a password has at least {PASSWORD_CHARS_MIN} characters"
            )
        found[name.strip()] = password
    if not found:
        raise ConfigError(f"{where}: it names nobody; expected lines of name:password")
    return found.items


def of_key(signer: Signer) -> Pairs:
    """The access and secret keys of operators: a key for peers alone is none. A file is read again when it
    changed."""

    def pairs() -> Iterable[tuple[str, str]]:
        signer.look()
        if isinstance(signer, Keyring):
            return [(key.access_key, key.secret_key) for key in signer.keys if key.fits(OPERATORS)]
        return [(signer.access_key, signer.secret_key)] if isinstance(signer, Credentials) else []

    return pairs


@dataclass(frozen=True, slots=True)
class Entry:
    """How one gets in. ``pairs``: the names and passwords that may log in; None: nobody has to."""

    pairs: Pairs | None = None
    proxies: Proxies = field(default_factory=Proxies)


def proves(pairs: Pairs, name: str, password: str) -> bool:
    """Whether they go together; it takes the same time for a name that nobody has."""
    return _is_one(pairs, _digest(name, password))


def _digest(name: str, password: str) -> bytes:
    parts = [hashlib.sha256(text.encode(errors="surrogatepass")).digest() for text in (name, password)]
    return b"".join(parts)


def _is_one(pairs: Pairs, digest: bytes) -> bool:
    return sum(hmac.compare_digest(_digest(*pair), digest) for pair in pairs()) > 0


class Sessions:
    """Who is logged in: at most ``SESSIONS_MAX``, each for ``SESSION_MS`` and as long as what it was begun
    with is good; the oldest gives way."""

    def __init__(self) -> None:
        self._begun: OrderedDict[str, tuple[str, bytes, float]] = OrderedDict()

    def begin(self, name: str, password: str, now_ms: float) -> str:
        """Returns the new session's token."""
        token = secrets.token_urlsafe(32)
        self._begun[token] = name, _digest(name, password), now_ms + SESSION_MS
        while len(self._begun) > SESSIONS_MAX:
            self._begun.popitem(last=False)
        return token

    def name(self, token: str, pairs: Pairs, now_ms: float) -> str | None:
        """Whose session it is, or None."""
        if token not in self._begun:
            return None
        name, digest, end_ms = self._begun[token]
        if end_ms > now_ms and _is_one(pairs, digest):
            return name
        self.end(token)
        return None

    def end(self, token: str) -> None:
        self._begun.pop(token, None)


class Waits:
    """Which addresses gave a wrong password just now; at most ``WAITING_MAX`` are remembered."""

    def __init__(self) -> None:
        self._until_ms: OrderedDict[str, float] = OrderedDict()

    def wrong(self, address: str, now_ms: float) -> None:
        self._until_ms.pop(address, None)
        self._until_ms[address] = now_ms + WAIT_MS
        while len(self._until_ms) > WAITING_MAX:
            self._until_ms.popitem(last=False)

    def must(self, address: str, now_ms: float) -> bool:
        return self._until_ms.get(address, 0.0) > now_ms
