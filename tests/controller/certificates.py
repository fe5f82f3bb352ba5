"""Certificates for tests, made when they are needed."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from controller.links.tls import TlsFiles


@dataclass
class Authority:
    """A CA of its own in ``directory``."""

    directory: Path
    name: str

    def __post_init__(self) -> None:
        self.ca, self._key = self.directory / f"{self.name}.pem", self.directory / f"{self.name}.key"
        made = ("-keyout", self._key, "-out", self.ca, "-days", "3", "-subj", f"/CN={self.name}")
        _openssl("req", "-x509", *_KEY, *made)

    def issue(self, member: str, trusts: "Authority | None" = None) -> TlsFiles:
        """A certificate for ``member``, whose peers must come from ``trusts`` (by default this CA)."""
        stem = self.directory / f"{self.name}-{member}"
        key, asked, cert = (stem.with_name(f"{stem.name}.{kind}") for kind in ("key", "csr", "pem"))
        _openssl("req", "-new", *_KEY, "-keyout", key, "-out", asked, "-subj", f"/CN={member}")
        signer = ("-CA", self.ca, "-CAkey", self._key, "-set_serial", "7", "-days", "3")
        _openssl("x509", "-req", "-in", asked, *signer, "-out", cert)
        return TlsFiles(str(cert), str(key), str((trusts or self).ca))


_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-batch")


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)
