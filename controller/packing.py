"""Which bytes are a value that Controllers keep or send? msgpack's, and the type says which values there are.

    value --type--> plain values --msgpack--> bytes, and back: bounded, and checked against the type

Nothing here can run code or build an object the type does not name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import msgpack
import msgspec

T = TypeVar("T")


class Malformed(ValueError):
    """These bytes are no value of the type."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The longest bytes, text (bytes of it), and list or map taken."""

    bytes_max: int
    text_max: int
    items_max: int


def pack(value: Any) -> bytes:
    data: bytes = msgpack.packb(msgspec.to_builtins(value, builtin_types=(bytes,)))
    return data


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
        value: T = msgspec.convert(plain, of, builtin_types=(bytes,))
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        # UnicodeDecodeError and msgspec.ValidationError are ValueErrors; a map as a key is a TypeError.
        raise Malformed(str(error) or type(error).__name__) from None
    return value
