"""How is one property of a properties text replaced, added or taken out?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from model.message import VALUE_END, decode_properties, encode_properties, property_of


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
    """The whole number in a property; None when it is absent or not one."""
    value = property_of(text, name)
    if value is None:
        return None
    try:
        return int(value)
    except ValueError:
        return None
