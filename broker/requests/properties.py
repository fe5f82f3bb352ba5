"""How is one property of a properties text replaced, added or taken out?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from model.message import VALUE_END, decode_properties, encode_properties, property_of
from remoting.headers import INT_MAX

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,32}", re.ASCII)


def closed(text: str) -> str:
    """``text`` with the trailing separator older clients leave out, so that more can follow."""
    return text + VALUE_END if text and not text.endswith(VALUE_END) else text


def changed(text: str, put: Mapping[str, str], drop: Iterable[str] = ()) -> str:
    """``text`` with ``put`` set and ``drop`` taken out; order kept, new ones last."""
    properties = decode_properties(text)
    for name in drop:
        properties.pop(name, None)
    properties.update(put)
    return encode_properties(properties)


def has(text: str, name: str) -> bool:
    return property_of(text, name) is not None


def int_property(text: str, name: str) -> int | None:
    """The whole number in a property, as ``Integer.parseInt`` reads it; None when it is absent or not one.
    A client writes what it likes there."""
    value = property_of(text, name)
    if value is None or _WHOLE.fullmatch(value) is None:
        return None
    number = int(value)
    return number if -INT_MAX - 1 <= number <= INT_MAX else None
