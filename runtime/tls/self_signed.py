"""The certificate a server makes itself for ``tls.test.mode.enable``. Needs the extra ``tls``."""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path
from typing import Final

from runtime.tls.making import issue, make_authority
from runtime.tls.validity import Validity, validity

DAYS: Final = 30


def load_into(context: ssl.SSLContext) -> Validity:
    """A certificate nobody has to believe, of an authority whose key is forgotten at once."""
    pair = issue(
        make_authority("keelmq test mode", DAYS), "keelmq", DAYS, ("localhost", "127.0.0.1"), server=True
    )
    # The library reads files only; a directory of mode 0700 keeps them from others.
    with tempfile.TemporaryDirectory(prefix="keelmq-tls-") as directory:
        cert, key = Path(directory, "cert.pem"), Path(directory, "key.pem")
        cert.write_bytes(pair.cert)
        key.write_bytes(pair.key)
        context.load_cert_chain(cert, key, password="")
    return validity(pair.cert.decode())
