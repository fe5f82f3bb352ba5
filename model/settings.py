"""A setting: its RocketMQ key, its text in a file or on a command line, what is said about a wrong one.

A file is read as TOML when its name ends in ``.toml``, else as RocketMQ's ``.conf`` (properties text).
"""

import dataclasses
import difflib
import functools
import ipaddress
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Self, TypeVar

from model.errors import ConfigError

_T = TypeVar("_T")

PORT_MAX: Final = 65535
LONG_MAX: Final = 2**63 - 1
"""The greatest number that any key of RocketMQ takes; floats of times hold it, too."""
CHANGES_BYTES_MAX: Final = 64 << 10
"""Of a configuration that a request brings."""
HIDDEN: Final = "***"
"""What stands for a secret that is set."""


def key(
    name: str,
    default: _T,
    help: str,
    *,
    was: object = None,
    least: int = 0,
    most: int = LONG_MAX,
    secret: bool = False,
) -> _T:
    """Declare a configuration key: its RocketMQ name, default, meaning with its unit, the original's
    default where it is another, of a number the least and the greatest that make sense, and whether its
    value is shown to nobody."""
    if least > 1:
        help = f"{help}; at least {least}"
    about = {"key": name, "help": help, "was": was, "least": least, "most": most, "secret": secret}
    value: _T = field(default=default, metadata=about)
    return value


def properties_of(body: bytes) -> dict[str, str]:
    """``parse_properties`` of what a request brings. Raises ConfigError, also for a text that is no UTF-8, or
    longer than any configuration: each line of it would hold the event loop."""
    if len(body) > CHANGES_BYTES_MAX:
        raise ConfigError(f"a change of the configuration has at most {CHANGES_BYTES_MAX} bytes")
    try:
        return parse_properties(body.decode())
    except UnicodeDecodeError:
        raise ConfigError("the configuration is not UTF-8") from None


def parse_properties(text: str) -> dict[str, str]:
    """Read ``key=value`` lines; ``#`` and ``!`` start a comment line; a trailing ``\\`` continues a line.

    Raises ConfigError naming the line that has no ``=``.
    """
    found: dict[str, str] = {}
    pending = ""
    for number, line in enumerate(text.splitlines(), 1):
        line = pending + line.strip()
        pending = ""
        if not line or line[0] in "#!":
            continue
        if line.endswith("\\"):
            pending = line[:-1]
            continue
        name, separator, value = line.partition("=")
        if not separator:
            raise ConfigError(f"line {number}: expected key=value, found {line!r}")
        found[name.strip()] = value.strip()
    return found


def parse_file(name: str, text: str) -> dict[str, str]:
    """Read configuration text as TOML or properties, by the file's name. Raises ConfigError."""
    if not name.endswith(".toml"):
        try:
            return parse_properties(text)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}: not TOML: {error}") from None
    nested = [k for k, v in table.items() if isinstance(v, dict | list)]
    if nested:
        raise ConfigError(
            f"{name}: {nested[0]} must be a plain value, found a table or array; a key with dots is written"
            ' in quotes: "tls.config.file" = ...'
        )
    return {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in table.items()}


def with_values(name: str, text: str, changes: Mapping[str, str]) -> str:
    """The ``text`` of a file with other values of some keys; all else in it, comments too, stays as it is.

    Raises ConfigError where it is not read, or its form leaves no room for them.
    """
    toml = name.endswith(".toml")
    out: list[str] = []
    left = dict(changes)
    entry: list[str] = []  # the lines of one key
    # TOML's lines end with a line feed alone: in a comment the other separators are text.
    for line in text.removesuffix("\n").split("\n") if toml and text else text.splitlines():
        entry.append(line)
        whole = "".join(part.strip().removesuffix("\\") for part in entry[:-1]) + line.strip()
        comment = whole[:1] in ("#", "!")
        if whole.endswith("\\") and not (toml or comment):
            continue
        key, separator, _ = whole.partition("=")
        key = key.strip().strip("\"'") if toml else key.strip()
        if separator and not comment and key in changes:
            entry = [_line(toml, key, changes[key])]
            left.pop(key, None)
        out += entry
        entry = []
    out += entry + [_line(toml, key, value) for key, value in left.items()]
    changed = "".join(f"{line}\n" for line in out)
    if parse_file(name, changed) != {**parse_file(name, text), **changes}:
        raise ConfigError(f"{name}: no line of it can be changed alone")
    return changed


def _line(toml: bool, name: str, value: str) -> str:
    if not toml:
        return f"{name}={value}"
    shown = json.dumps(name) if "." in name else name
    return f"{shown} = {json.dumps(value, ensure_ascii=False)}"


@dataclass(kw_only=True)
class Config:
    """Base of all configurations: values by RocketMQ key, checked on the way in."""

    given = frozenset[str]()
    """Keys that were set, be it to their defaults."""

    @classmethod
    @functools.cache
    def keys(cls) -> Mapping[str, "dataclasses.Field[Any]"]:
        return MappingProxyType({f.metadata["key"]: f for f in dataclasses.fields(cls)})

    @classmethod
    def from_mapping(cls, values: Mapping[str, str]) -> Self:
        """Build from RocketMQ keys and texts. Raises ConfigError on an unknown key or a bad value."""
        known = cls.keys()
        arguments = {}
        for name, text in values.items():
            if name not in known:
                raise ConfigError(_unknown(name, known))
            arguments[known[name].name] = _convert(name, text, known[name])
        config = cls(**arguments)
        config.given = frozenset(values)
        config.check()
        return config

    @classmethod
    def parse(cls, values: Mapping[str, str], settings: Iterable[str] = ()) -> Self:
        """``values`` overlaid with ``key=value`` settings of the command line."""
        merged = dict(values)
        for setting in settings:
            name, separator, value = setting.partition("=")
            if not separator:
                raise ConfigError(f"--set {setting!r}: expected key=value")
            merged[name.strip()] = value.strip()
        return cls.from_mapping(merged)

    def to_mapping(self) -> dict[str, str]:
        """RocketMQ keys and texts of every value, in order of declaration."""
        return {name: _text(getattr(self, f.name)) for name, f in self.keys().items()}

    def holds(self, name: str, text: str) -> bool:
        """Whether key ``name`` has the value that ``text`` says. Raises ConfigError."""
        of = self.keys()[name]
        return bool(getattr(self, of.name) == _convert(name, text, of))

    def shown(self) -> str:
        """``key=value`` lines for whoever asks for the configuration: without secrets."""
        secrets = {name for name, f in self.keys().items() if f.metadata["secret"]}
        lines = [(n, HIDDEN if n in secrets and v else v) for n, v in self.to_mapping().items()]
        return "".join(f"{name}={value}\n" for name, value in lines)

    def check(self) -> None:
        """Raise ConfigError when a number is too small or too great, or values contradict each other."""
        for name, f in self.keys().items():
            value = getattr(self, f.name)
            if type(value) is int:
                least, most = f.metadata["least"], f.metadata["most"]
                need(value >= least, f"{name}={value}: must be at least {least}")
                need(value <= most, f"{name}={value}: must be at most {most}")


def _unknown(name: str, known: Mapping[str, object]) -> str:
    lower = {k.lower(): k for k in known}
    near = difflib.get_close_matches(name.lower(), list(lower), 1, 0.5)
    hint = f"; did you mean {lower[near[0]]}?" if near else ""
    return f"unknown key {name}{hint}"


def _convert(name: str, text: str, of: "dataclasses.Field[Any]") -> object:
    text = str(text)
    if isinstance(of.default, bool):
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{name}={text}: expected true or false")
        return text.lower() == "true"
    if isinstance(of.default, int):
        try:
            return int(text)
        except ValueError:
            raise ConfigError(f"{name}={text}: expected a whole number") from None
    return text


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def need(condition: bool, text: str) -> None:
    """Raises ConfigError with ``text`` unless ``condition``."""
    if not condition:
        raise ConfigError(text)


def addresses(text: str, name: str = "") -> list[str]:
    """Split ``a:1;b:2`` (``,`` also separates) into addresses. Raises ConfigError without a port; it names
    the key ``name``, if given."""
    found = [part.strip() for part in text.replace(",", ";").split(";") if part.strip()]
    of = f"{name}: " if name else ""
    for address in found:
        host, _, port = address.rpartition(":")
        need(
            bool(host)
            and host.startswith("[") == host.endswith("]")
            and port.isascii()
            and port.isdigit()
            and len(port) < 10,
            f"{of}address {address!r}: expected host:port",
        )
        need(0 < int(port) <= PORT_MAX, f"{of}address {address!r}: a port is 1 to {PORT_MAX}")
    return found


def some_addresses(text: str, name: str) -> list[str]:
    """``addresses`` of an option that is given: it names one at least. Raises ConfigError."""
    found = addresses(text, name)
    need(bool(found), f"{name}: {text!r} names none: expected host:port")
    return found


def one_address(text: str, name: str = "") -> str:
    """``text`` as a ``host:port``. Raises ConfigError."""
    found = addresses(text, name)
    need(len(found) == 1, f"{f'{name}: ' if name else ''}address {text!r}: expected one host:port")
    return found[0]


def peers(text: str, name: str = "") -> dict[str, str]:
    """Split ``n0-host:port;n1-host:port`` into id -> address. Raises ConfigError; it names the key ``name``,
    if given."""
    found: dict[str, str] = {}
    of = f"{name}: " if name else ""
    for part in filter(None, (p.strip() for p in text.split(";"))):
        node, separator, address = part.partition("-")
        need(bool(separator and node and address), f"{of}peer {part!r}: expected id-host:port")
        need(node not in found, f"{of}peer {node} is listed twice")
        found[node] = one_address(address, name)
    return found


def split_address(address: str) -> tuple[str, int]:
    """``host:port`` -> (host, port)."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether ``host`` (a name or an IP address) is this machine's own."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def is_this_machine(host: str) -> bool:
    """Whether ``host``, told to another machine, would mean that one there, or none at all (0.0.0.0)."""
    name = host.lower().removesuffix(".")
    if is_loopback(name) or name == "localhost.localdomain" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_unspecified
    except ValueError:
        return False
