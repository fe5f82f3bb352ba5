"""How does a holder of a secret show that bytes are its own? With an HMAC-SHA256 over a label and them."""

from __future__ import annotations

import hmac
from typing import Final

MAC_BYTES: Final = 32


def mac(secret: bytes, label: bytes, data: bytes) -> bytes:
    """``MAC_BYTES`` that only a holder of ``secret`` can make; ``label`` says what for."""
    return hmac.digest(secret, label + data, "sha256")


class Keyed:
    """``mac`` by one secret for many messages: what depends on the secret alone is computed once."""

    def __init__(self, secret: bytes) -> None:
        self._keyed = hmac.new(secret, digestmod="sha256")

    def mac(self, label: bytes, data: bytes) -> bytes:
        keyed = self._keyed.copy()
        keyed.update(label + data)
        return keyed.digest()

    def is_mac(self, given: bytes, label: bytes, data: bytes) -> bool:
        """As the function."""
        return hmac.compare_digest(given, self.mac(label, data))


def is_mac(given: bytes, secret: bytes, label: bytes, data: bytes) -> bool:
    """Whether ``given`` is ``mac(secret, label, data)``; takes as long wherever they differ."""
    return hmac.compare_digest(given, mac(secret, label, data))
