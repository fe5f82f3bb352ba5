"""A directory of certificates: an authority, and what it signed for servers and clients.

    DIR/ca.pem, ca.key      the authority; its key is needed to sign, keep it off the servers
    DIR/NAME.pem, NAME.key  a server's or a client's

Keys are of mode 0600. Nothing that is there is replaced unless the caller says so; what is replaced gives its
owner, group and mode to what follows. A certificate and its key change together: the key first, so that a
server which reads both in between refuses the pair and tries again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from model.errors import ConfigError, MqError
from runtime.os_env import OsDisk
from runtime.tls.contexts import EXTRA
from runtime.tls.validity import Validity, validity

try:
    from runtime.tls import making
except ImportError:  # told when a command needs it
    _MISSING = True
else:
    _MISSING = False

if TYPE_CHECKING:
    from runtime.tls.making import Pair

CA: Final = "ca"
_NEW_AUTHORITY: Final = "A new authority: docs/security.md, A new authority"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Refused(MqError):
    """It would replace a file, or lacks one."""


@dataclass(frozen=True, slots=True)
class Found:
    """One certificate of a directory."""

    name: str
    kind: str
    hosts: tuple[str, ...]
    valid: Validity
    unfit: str = ""
    """Why nobody believes it, or no server starts with it; empty when all is well."""

    def days_left(self, now_ms: int) -> int:
        """Whole days until it ends; negative when it has ended."""
        return (self.valid.not_after_ms - now_ms) // 86_400_000


class CertDirectory:
    """The certificates in one directory."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError without the library that makes certificates."""
        if _MISSING:
            raise ConfigError(f"keelmq certs needs the library cryptography, the extra tls: {EXTRA}")
        self.path = path
        self.given_away: list[Path] = []
        """Files that were replaced, and whose owner this user could not keep."""

    def make_authority(self, name: str, days: int, *, force: bool = False) -> Path:
        """Raises Refused when there is one, with ``force`` when it signed something: that would be worth
        nothing."""
        for path in (self.path / f"{CA}.pem", self.path / f"{CA}.key"):
            if path.exists() and not force:
                raise Refused(f"{path} is there. {_NEW_AUTHORITY}; --force replaces one that signed nothing")
        if signed := sorted(path.stem for path in self.path.glob("*.pem") if path.stem != CA):
            raise Refused(f"{self.path}: {', '.join(signed)} would be believed by nobody. {_NEW_AUTHORITY}")
        return self._write(CA, making.make_authority(name, days))

    def issue(
        self, name: str, days: int, hosts: Sequence[str] = (), *, server: bool, force: bool = False
    ) -> Path:
        """A certificate and its key. Raises Refused when there is one of that name, or no authority."""
        if not _NAME.fullmatch(name) or name == CA:
            raise ConfigError(f"name {name!r}: letters, digits and ._- only, and not {CA}")
        self._need_new(name, force)
        listed = tuple(dict.fromkeys((*hosts, name) if server else ()))
        return self._write(name, self._signed(name, days, listed, server=server))

    def renew(self, names: Sequence[str], days: int) -> list[Path]:
        """New certificates and keys for those there are, with the names and hosts they have. ``names`` empty:
        all but the authority's. Raises Refused for a name that is not there, and where none is."""
        present = {one.name: one for one in self.list() if one.kind != "authority"}
        missing = [name for name in names if name not in present]
        if missing:
            there = ", ".join(sorted(present)) or "none"
            raise Refused(f"{self.path}: there is no certificate {missing[0]}; there is {there}")
        if not present:
            raise Refused(f"{self.path}: there is no certificate (--dir; keelmq certs server makes one)")
        pairs: dict[str, Pair] = {}
        for name in names or sorted(present):
            one = present[name]
            pairs[name] = self._signed(name, days, one.hosts, server=one.kind == "server")
        return [self._write(name, pair) for name, pair in pairs.items()]

    def list(self) -> list[Found]:
        """Every certificate, by name. Raises ConfigError for a file that is none."""
        found = []
        authorities = _content(self.path / f"{CA}.pem")
        for path in sorted(self.path.glob("*.pem")):
            try:
                data = path.read_bytes()
                _, hosts, server = making.subject_of(data)
                valid = validity(data.decode("ascii"))
                trusts = None if path.stem == CA else authorities
                unfit = making.why_unfit(data, _content(path.with_name(f"{path.stem}.key")), trusts)
            except (OSError, ValueError) as error:
                raise ConfigError(f"{path}: no certificate of keelmq certs: {error}") from None
            kind = "authority" if path.stem == CA else "server" if server else "client"
            found.append(Found(path.stem, kind, hosts, valid, unfit))
        return found

    def _authority(self) -> Pair:
        cert, key = self.path / f"{CA}.pem", self.path / f"{CA}.key"
        try:
            return making.Pair(cert.read_bytes(), key.read_bytes())
        except OSError as error:
            raise Refused(f"{error.filename}: {error.strerror}; keelmq certs ca makes an authority") from None

    def _signed(self, name: str, days: int, hosts: Sequence[str], *, server: bool) -> Pair:
        try:
            return making.issue(self._authority(), name, days, hosts, server=server)
        except ValueError as error:
            raise Refused(f"{self.path}/{CA}.pem, {CA}.key: {error}. {_NEW_AUTHORITY}") from None

    def _need_new(self, name: str, force: bool) -> None:
        for path in (self.path / f"{name}.pem", self.path / f"{name}.key"):
            if path.exists() and not force:
                raise Refused(f"{path} is there: --force replaces it, keelmq certs renew makes it anew")

    def _write(self, name: str, pair: Pair) -> Path:
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        cert = self.path / f"{name}.pem"
        key = cert.with_name(f"{name}.key")
        for path, data, mode in ((key, pair.key, 0o600), (cert, pair.cert, 0o644)):
            if not _replace(path, data, mode):
                self.given_away.append(path)
        return cert


def _content(path: Path) -> bytes | None:
    """None where there is nothing that this user can read."""
    try:
        return path.read_bytes()
    except OSError:
        return None


def _replace(path: Path, data: bytes, mode: int) -> bool:
    """Whether it has the owner of what was there. A crash leaves the old file or the new one; nobody else
    reads it in between."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    OsDisk().keep_mode(str(path), str(temporary))
    kept = not path.exists() or path.stat().st_uid == temporary.stat().st_uid
    temporary.replace(path)
    return kept


def now_ms() -> int:
    """Certificates are good by the wall clock."""
    return int(datetime.now(UTC).timestamp() * 1000)
