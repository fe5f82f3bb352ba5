"""How does a holder of a secret show that bytes are its own? With an HMAC-SHA256 over a label and them."""

from __future__ import annotations

import hmac
from typing import Final

MAC_BYTES: Final = 32


def mac(secret: bytes, label: bytes, data: bytes) -> bytes:
    """``MAC_BYTES`` that only a holder of ``secret`` can make; ``label`` says what for."""
    return hmac.digest(secret, label + data, "sha256")


def is_mac(given: bytes, secret: bytes, label: bytes, data: bytes) -> bool:
    """Whether ``given`` is ``mac(secret, label, data)``; takes as long wherever they differ."""
    return hmac.compare_digest(given, mac(secret, label, data))
