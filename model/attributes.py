"""Which attributes may a topic or a consumer group have, and what does a change of them give?

A change names ``+key`` with a value, or ``-key``. Keys, values and refusals as ``TopicAttributes`` and
``AttributeUtil`` of RocketMQ 5.x have them; a subscription group has no attribute there, and keeps any here.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from model.codes import Response
from model.errors import Refused

LONG_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Attribute:
    """``values``: what it may be, None = a number from -1 on. ``absent``: values keelmq has no store for."""

    changeable: bool
    values: frozenset[str] | None = None
    absent: frozenset[str] = frozenset()


TOPIC_ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    "queue.type": Attribute(False, frozenset({"BatchCQ", "SimpleCQ"}), absent=frozenset({"BatchCQ"})),
    "cleanup.policy": Attribute(False, frozenset({"DELETE", "COMPACTION"}), absent=frozenset({"COMPACTION"})),
    "message.type": Attribute(
        True, frozenset({"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"})
    ),
    "reserve.time": Attribute(True),
}


def altered(
    held: Mapping[str, str] | None,
    changes: Mapping[str, str],
    known: Mapping[str, Attribute] | None,
) -> dict[str, str]:
    """The attributes after ``changes``; those not named stay. ``held``: None = its bearer is made now;
    ``known``: None = any key. Raises Refused."""
    found = dict(held or {})
    seen: set[str] = set()
    for change, value in changes.items():
        sign, name = change[:1], change[1:]
        if sign not in ("+", "-") or not name or (known is not None and ("+" in name or "-" in name)):
            raise _refused(f"{change!r} is not +name or -name")
        if name in seen:
            raise _refused(f"alter duplication key. key: {name}")
        seen.add(name)
        if known is not None:
            _check(sign, name, value, held, known)
        if sign == "+":
            found[name] = value
        else:
            found.pop(name, None)
    return found


def _check(
    sign: str, name: str, value: str, held: Mapping[str, str] | None, known: Mapping[str, Attribute]
) -> None:
    attribute = known.get(name)
    if sign == "-" and held is None:
        raise _refused(f"only add attribute is supported while creating topic. key: {name}")
    if sign == "-" and name not in (held or {}):
        raise _refused(f"attempt to delete a nonexistent key: {name}")
    if attribute is None:
        raise _refused(f"unsupported key: {name}; these are known: {sorted(known)}")
    if held is not None and not attribute.changeable:
        raise _refused(f"attempt to update an unchangeable attribute. key: {name}")
    if sign == "+":
        _check_value(name, value, attribute)


def _check_value(name: str, value: str, attribute: Attribute) -> None:
    if attribute.values is None:
        number = int(value) if value.lstrip("-").isdecimal() and len(value) < 20 else None
        if number is None or not -1 <= number <= LONG_MAX:
            raise _refused(f"{name}={value}: value is not in range(-1, {LONG_MAX})")
    elif value not in attribute.values:
        raise _refused(f"{name}={value}: value is not in set: {sorted(attribute.values)}")
    elif value in attribute.absent:
        raise _refused(f"{name}={value} is not supported by keelmq")


def _refused(why: str) -> Refused:
    return Refused(f"attributes: {why}", Response.SYSTEM_ERROR)
