"""Which bytes are a value that Controllers keep or send? msgpack's, and the type says which values there are.

    value --type--> plain values --msgpack--> bytes, and back: bounded, and checked against the type

Nothing here can run code or build an object the type does not name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgpack
import msgspec

T = TypeVar("T")

_encode: Final = msgspec.msgpack.Encoder().encode
_HELD: Final[dict[Any, Any]] = {}
"""Of each type a structure with one field of it: msgspec keeps what it learnt about a structure's fields, and
looks at a union of structures anew each time, which takes longer than most conversions."""


class Malformed(ValueError):
    """These bytes are no value of the type."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The longest bytes, text (bytes of it), and list or map taken."""

    bytes_max: int
    text_max: int
    items_max: int


def pack(value: Any) -> bytes:
    return _encode(value)


def unpack(data: bytes | memoryview, of: type[T] | Any, limits: Limits) -> T:
    """Raises Malformed when ``data`` is not exactly one ``of`` within ``limits``."""
    # A length alone reserves memory in a list, and each item takes a byte at least.
    items_max = min(limits.items_max, len(data))
    try:
        plain = msgpack.unpackb(
            data,
            strict_map_key=False,  # ids of brokers are keys
            max_str_len=limits.text_max,
            max_bin_len=limits.bytes_max,
            max_array_len=items_max,
            max_map_len=items_max,
            max_ext_len=0,
        )
        held = msgspec.convert({"value": plain}, _HELD.get(of) or _held(of), builtin_types=(bytes,))
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        # UnicodeDecodeError and msgspec.ValidationError are ValueErrors; a map as a key is a TypeError.
        text = str(error).replace("`$.value", "`$", 1)
        raise Malformed(text or type(error).__name__) from None
    value: T = held.value
    return value


def _held(of: Any) -> Any:
    found = _HELD[of] = msgspec.defstruct("Held", [("value", of)])
    return found
