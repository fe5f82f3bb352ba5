"""Does an address match a white list of ACL 1.0, or a source of an ACL 2.0 policy?

White lists (RocketMQ's ``RemoteAddressStrategyFactory``):

    empty                        no address
    *   *.*.*.*   *:*:*:*:*:*:*:*   every address
    192.168.1.{5,7}   1::{5,7}   the addresses named; 192.168.1.5,10.0.0.1 too
    192.168.1.*   192.168.1-9.*  a range in one of the last three parts; what follows it is not looked at
    1050::5:600:300c:*           the same of IPv6, hexadecimal
    192.168.1.5                  one address

Sources of a policy are addresses, compared as text, or ``address/prefix``.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from model.errors import ConfigError

_EVERY: Final = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})


@dataclass(frozen=True, slots=True)
class White:
    """One entry. ``every``, or one of ``names``, or its part ``index`` between ``low`` and ``high`` behind
    ``head``."""

    every: bool = False
    names: frozenset[str] = frozenset()
    head: tuple[str, ...] = ()
    low: int = 0
    high: int = -1

    def matches(self, address: str) -> bool:
        if self.every:
            return True
        address = canonical(address)
        if address in self.names:
            return True
        if self.high < self.low:
            return False
        wide = ":" in address
        parts = address.split(":" if wide else ".")
        at = len(self.head)
        if len(parts) != (8 if wide else 4) or tuple(parts[:at]) != self.head:
            return False
        return self.low <= int(parts[at], 16 if wide else 10) <= self.high


NOBODY: Final = White()


def canonical(address: str) -> str:
    """An address in the one form that is compared: IPv6 in full and upper case, without its zone (``%eth0``);
    other text as it is."""
    return _canonical(address) if ":" in address else address


@lru_cache(4096)
def _canonical(address: str) -> str:
    try:
        found = ipaddress.IPv6Address(address.strip("[]").partition("%")[0])
    except ValueError:
        return address
    return str(found.ipv4_mapped) if found.ipv4_mapped else found.exploded.upper()


def host_of(remote: str) -> str:
    """The address in ``ip:port`` or ``[ip]:port``."""
    return remote.rpartition(":")[0].strip("[]")


def address_of(peer: Any) -> str:
    """``ip:port`` of a socket address; nothing where there is none."""
    if not isinstance(peer, tuple) or len(peer) < 2:
        return ""
    host = str(peer[0])
    return f"[{host}]:{peer[1]}" if ":" in host else f"{host}:{peer[1]}"


def white(text: str | None) -> White:
    """One entry of a white list. Raises ConfigError."""
    text = (text or "").strip()
    if not text:
        return NOBODY
    if text in _EVERY:
        return White(every=True)
    if text.endswith("}"):
        return _named(_unbraced(text), text)
    if "," in text:
        return _named(text.split(","), text)
    if "*" in text or "-" in text:
        return _wide_range(text) if ":" in text else _range(text)
    return _named([text], text)


def _named(addresses: list[str], text: str) -> White:
    return White(names=frozenset(_one(address, text) for address in addresses if address))


def _unbraced(text: str) -> list[str]:
    head, brace, tail = text.partition("{")
    if not brace or not head.endswith((".", ":")) or (":" not in head and head.count(".") != 3):
        raise ConfigError(f"white list {text!r}: the braces stand for the last part of an address")
    return [head + part.strip() for part in tail[:-1].split(",") if part]


def _one(address: str, text: str) -> str:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        raise ConfigError(f"white list {text!r}: {address!r} is no address") from None
    return canonical(address)


def _range(text: str) -> White:
    parts = [part.strip() for part in text.split(".")]
    at = next((i for i, part in enumerate(parts) if i and ("*" in part or "-" in part)), 0)
    if len(parts) != 4 or not at:
        raise ConfigError(f"white list {text!r}: a range is one of the last three of four parts")
    low, high = _bounds(parts[at], 10, 255, text)
    head = tuple(parts[:at])
    if not all(part.isdecimal() and len(part) <= 3 and int(part) <= 255 for part in head):
        raise ConfigError(f"white list {text!r}: the parts before the range are 0 to 255")
    return White(head=head, low=low, high=high)


def _wide_range(text: str) -> White:
    """``head:low-high``, ``head:*`` or ``head:low-high:*``."""
    both = text.endswith(":*") and "-" in text
    before = text.removesuffix(":*") if both else text
    head, _, last = before.rpartition(":")
    if "*" in head or "-" in head:
        raise ConfigError(f"white list {text!r}: a range ends an IPv6 address, or ':*' follows it")
    low, high = _bounds(last, 16, 0xFFFF, text)
    known = 6 if both else 7
    short, _, rest = head.partition("::")
    groups = [group for group in short.split(":") if group]
    if "::" in head:
        behind = [group for group in rest.split(":") if group]
        groups += ["0"] * (known - len(groups) - len(behind)) + behind
    try:
        wide = tuple(f"{int(group, 16):04X}" for group in groups)
    except ValueError:
        raise ConfigError(f"white list {text!r}: the parts before the range are hexadecimal") from None
    if len(wide) != known:
        raise ConfigError(f"white list {text!r}: {len(wide)} parts stand before the range, not {known}")
    return White(head=wide, low=low, high=high)


def _bounds(part: str, base: int, most: int, text: str) -> tuple[int, int]:
    if part == "*":
        return 0, most
    low, dash, high = part.partition("-")
    try:
        bounds = int(low, base), int(high, base)
    except ValueError:
        bounds = (1, 0)
    top = f"{most:x}" if base == 16 else str(most)
    if not dash or not 0 <= bounds[0] <= bounds[1] <= most:
        raise ConfigError(f"white list {text!r}: {part!r} is no range within 0 and {top}")
    return bounds


# Sources of policies


def is_source(text: str) -> bool:
    """Whether a policy may name it: an address, or address/prefix."""
    try:
        ipaddress.ip_network(text, strict=False) if "/" in text else ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def from_source(address: str, source: str) -> bool:
    if "/" not in source:
        return canonical(address) == canonical(source)
    try:
        return ipaddress.ip_address(canonical(address)) in ipaddress.ip_network(source, strict=False)
    except ValueError:
        return False
