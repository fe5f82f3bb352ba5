"""How much memory does text take that a client sent?"""

from __future__ import annotations

from typing import Final

EACH_BYTES: Final = 60
"""Of any text, besides its characters."""


def text_bytes(text: str) -> int:
    """What its characters take at most, and always the same: ``sys.getsizeof`` grows when the text is
    encoded. One character beyond U+FFFF makes each of a text's take four bytes."""
    return len(text) if text.isascii() else 4 * len(text)
