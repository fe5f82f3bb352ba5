"""How is a body written as JSON, in the strict form and in fastjson's?

fastjson, which RocketMQ's Java side uses, writes maps with keys that are not text as no other JSON does:

    integer keys bare       "offsetTable":{0:5,1:7}
    object keys as objects  "offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{"brokerOffset":5}}

In Python an integer key is an ``int``, an object key an ``ObjectKey``. Both writers order members by name and
leave out members that are None, as the original does.

    dumps          strict JSON: integer keys as "0", an object key as the text of its JSON
    dumps_dialect  fastjson's: keys as above; with ``indent`` as the original writes its config files
    loads          reads both; integer keys come as text ("0" in either dialect), object keys as ObjectKey

What is read has a ``Bound``, looked at before anything is parsed: as it comes that of a request, whose sender
may be anybody. A request may need more (``remoting/request_bodies``); answers and files are ``BELIEVED``.
"""

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

import msgspec

from model.errors import PeerError

DEPTH_MAX: Final = 100


class Bound(NamedTuple):
    """How much is parsed at most; None: any amount.

    Holds: with the bounds of a request no body costs more than a strict one of 2 MiB of short numbers does.
    """

    size: int | None
    tokens: int | None = 150_000
    """Commas, colons and opening brackets: what parsing costs goes with them, 0.05 to 0.1 us each."""
    odd: int | None = 128 << 10
    """Bytes of what is not strict JSON: parsed twice, and its keys are quoted in between."""
    slow: int | None = 16 << 10
    """Bytes for the reader that is written in Python, 0.5 us each; it is needed for object keys."""
    depth: int | None = DEPTH_MAX
    """Levels of nesting. The parser's own limit is the interpreter's recursion limit, which is not ours."""

    def checked(self) -> "Bound":
        """For a body that ``check`` has let through: what is looked at while it is parsed is left."""
        return self._replace(size=None, tokens=None, depth=None)

    def check(self, data: bytes | bytearray | memoryview) -> None:
        """Raises PeerError."""
        if self.size is not None and len(data) > self.size:
            raise PeerError(f"the body has {len(data)} bytes, at most {self.size} are taken")
        if self.tokens is not None and len(data) > self.tokens:
            text = bytes(data)
            if sum(map(text.count, (b",", b":", b"[", b"{"))) > self.tokens:
                raise PeerError(f"the body has more than {self.tokens} parts")
        if self.depth is not None and _deeper(data, self.depth):
            raise PeerError("body is nested too deep")


REQUEST: Final = Bound(64 << 10)
BELIEVED: Final = Bound(None, None, None, None, None)
"""A file of this server's own, or the answer of one it chose to ask."""


_NO_MARKS: Final = bytes(set(range(256)) - set(b'[]{}"'))
_SAME: Final = bytes.maketrans(b"{}", b"[]")
_STEPS: Final = bytes.maketrans(b"[]", b"\1\xff")
_PASSES: Final = 8
"""Usual bodies have no more levels; each pass takes one away, and what is left becomes short."""


def _deeper(data: bytes | bytearray | memoryview, depth: int) -> bool:
    """Is it nested deeper than that? What is in quotes has the odd numbers of what a split leaves.

    Each step is one pass in C over what the one before left: 2 ms for 1 MiB of a table's entries.
    """
    text = bytes(data)
    if text.count(b"[") + text.count(b"{") <= depth:
        return False
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Two quotes side by side end a text and begin the next one, or hold nothing: without them the rest is
    # inside or outside as before.
    text = text.translate(_SAME, _NO_MARKS).replace(b'""', b"")
    outside = b"".join(text.split(b'"')[::2])
    for level in range(_PASSES):
        if outside.count(b"[") + level <= depth:
            return False
        outside = outside.replace(b"[]", b"")  # the innermost level
    steps = outside.translate(_STEPS)
    return max(accumulate(array("b", steps)), default=0) + _PASSES > depth


class ObjectKey(tuple[tuple[str, Any], ...]):
    """An object used as a key of a map: pairs (member, value), sorted by member; equal when all are equal."""

    __slots__ = ()

    @classmethod
    def of(cls, **members: str | int | bool | None) -> "ObjectKey":
        return cls(sorted(members.items()))

    def get(self, name: str, default: Any = None) -> Any:
        return next((value for member, value in self if member == name), default)

    def to_dict(self) -> dict[str, Any]:
        return dict(self)


def queue_key(topic: str, broker: str, queue_id: int) -> ObjectKey:
    """The key of one queue in ConsumeStats, TopicStatsTable and the reset-offset bodies."""
    return ObjectKey.of(brokerName=broker, queueId=queue_id, topic=topic)


class Raw(str):
    """JSON already written: a value that the writers take as it is."""

    __slots__ = ()


class Members:
    """A map for ``pieces`` whose (key, member) pairs are made as they are written: none is kept."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        self.pairs = pairs


class Items:
    """A list for ``pieces`` whose items are made as they are written: none is kept."""

    __slots__ = ("items",)

    def __init__(self, items: Iterable[Any]) -> None:
        self.items = items


class Entries:
    """A map's members already written by ``entry`` for ``depth``, in order: a value that the writers take as
    it is, and that ``pieces`` gives some at a time."""

    __slots__ = ("depth", "texts")

    def __init__(self, texts: Sequence[str], depth: int = 0) -> None:
        self.texts = texts
        self.depth = depth


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


_SIMPLE: Final = frozenset({str, int})
ENTRIES_A_PIECE: Final = 256
_INTEGERS: Final = frozenset({int})
_TEXTS: Final = frozenset({str})


def dumps(value: Any) -> bytes:
    """Strict JSON. Raises TypeError for a value JSON has no form for: our own mistake."""
    return _write(value, strict=True, line="").encode()


def dumps_dialect(value: Any, indent: bool = False) -> bytes:
    """fastjson's JSON; ``indent`` puts each member on a line of its own behind tabs. Raises TypeError."""
    return _write(value, strict=False, line="\n" if indent else "").encode()


def _write(value: Any, *, strict: bool, line: str) -> str:
    """``line`` starts a new line at the depth of ``value``; empty without indentation."""
    if type(value) in _SIMPLE:  # most values by far
        return _encode(value).decode()
    if isinstance(value, Raw):
        return value
    if isinstance(value, Entries):
        return joined(value.texts, value.depth)
    if isinstance(value, ObjectKey | Members | Items):
        value = _made(value)
    if isinstance(value, dict | Mapping):  # a dict is told from the others without a call
        return _write_map(value, strict, line)
    if isinstance(value, list | tuple):
        if not line and value and _SIMPLE.issuperset(map(type, value)):
            return _encode(value).decode()
        inner = line + "\t" if line else ""
        items = [f"{inner}{_write(item, strict=strict, line=inner)}" for item in value]
        return "[" + ",".join(items) + line + "]" if items else "[]"
    if value is None or isinstance(value, str | bool | int | float):
        return _encode(value).decode()
    raise TypeError(f"no JSON for {type(value).__name__}: {value!r}")


def _made(value: ObjectKey | Members | Items) -> dict[Any, Any] | list[Any]:
    if isinstance(value, ObjectKey):
        return value.to_dict()
    return dict(value.pairs) if isinstance(value, Members) else list(value.items)


def _write_map(value: Mapping[Any, Any], strict: bool, line: str) -> str:
    inner = line + "\t" if line else ""
    kinds = set(map(type, value))
    if kinds == _INTEGERS and not (line and strict) and _is_numbers(value):
        return _write_numbers(value, strict, line)
    texts = kinds <= _TEXTS
    members = [
        f"{inner}{_encode(key).decode() if texts else _key(key, strict)}:"
        f"{_write(member, strict=strict, line=inner)}"
        for key, member in (sorted(value.items()) if texts else sorted(value.items(), key=_order))
        if member is not None
    ]
    return "{" + ",".join(members) + line + "}" if members else "{}"


def _is_numbers(value: Mapping[Any, Any]) -> bool:
    """Whether it has integer keys and values alone, and one at least."""
    return (
        bool(value)
        and type(next(iter(value))) is int
        and _INTEGERS.issuperset(map(type, value))
        and _INTEGERS.issuperset(map(type, value.values()))
    )


def _write_numbers(value: Mapping[int, int], strict: bool, line: str = "") -> str:
    """Integer keys and values, of a group's offsets for instance: a topic has up to 65,535 queues."""
    keys = list(value)
    ordered = sorted(keys)
    written = _encode(dict(value) if keys == ordered else {key: value[key] for key in ordered}).decode()
    text = written if strict else written.replace('"', "")
    if not line:
        return text
    return "{" + (line + "\t" + text[1:-1].replace(",", f",{line}\t")) + line + "}"


def entry(key: str, value: Any, depth: int) -> str:
    """One member of a map as ``dumps_dialect`` writes it ``depth`` levels down; 0: without indentation."""
    line = "\n" + "\t" * depth if depth else ""
    return f"{line}{_key(key, False)}:{_write(value, strict=False, line=line)}"


def joined(entries: Sequence[str], depth: int) -> Raw:
    """A map of what ``entry`` wrote, in order."""
    if not entries:
        return Raw("{}")
    return Raw("{" + ",".join(entries) + ("\n" + "\t" * (depth - 1) if depth else "") + "}")


def pieces(
    value: Any, *, strict: bool = True, ordered: bool = True, depth: int = 2, line: str = ""
) -> Iterator[str]:
    """The text of ``dumps`` (``strict``) or ``dumps_dialect`` in pieces, for what is made in slices: no
    piece is longer than one member ``depth`` levels down. ``ordered`` off: members come in the map's own
    order, as sorting a large map is one long step; those of ``Members`` always do. ``line`` as for a value
    with indentation: what begins a line at its depth, a newline for the whole."""
    form = _Form(strict, ordered)
    if isinstance(value, Members):
        yield from _map_pieces(value.pairs, form, depth, line)
    elif isinstance(value, Items):
        yield from _list_pieces(value.items, form, depth, line)
    elif depth > 0 and isinstance(value, Entries):
        yield from _entry_pieces(value)
    elif (
        depth > 0 and isinstance(value, Mapping) and not (isinstance(value, ObjectKey) or _is_numbers(value))
    ):
        pairs = sorted(value.items(), key=_order) if ordered else value.items()
        yield from _map_pieces(pairs, form, depth, line)
    elif depth > 0 and isinstance(value, list | tuple) and not isinstance(value, ObjectKey):
        yield from _list_pieces(value, form, depth, line)
    else:
        yield _write(value, strict=strict, line=line)


def _entry_pieces(value: Entries) -> Iterator[str]:
    before = "{"
    for at in range(0, len(value.texts), ENTRIES_A_PIECE):
        yield before + ",".join(value.texts[at : at + ENTRIES_A_PIECE])
        before = ","
    end = "\n" + "\t" * (value.depth - 1) if value.depth else ""
    yield "{}" if before == "{" else end + "}"


class _Form(NamedTuple):
    """As ``pieces`` takes them."""

    strict: bool
    ordered: bool

    def of(self, value: Any, depth: int, line: str) -> Iterator[str]:
        return pieces(value, strict=self.strict, ordered=self.ordered, depth=depth, line=line)


def _map_pieces(pairs: Iterable[tuple[Any, Any]], form: _Form, depth: int, line: str) -> Iterator[str]:
    before, inner = "{", line and line + "\t"
    for key, member in pairs:
        if type(member) in _SIMPLE:  # most members by far
            yield f"{before}{inner}{_key(key, form.strict)}:{_encode(member).decode()}"
            before = ","
        elif member is not None:
            yield f"{before}{inner}{_key(key, form.strict)}:"
            yield from form.of(member, depth - 1, inner)
            before = ","
    yield "{}" if before == "{" else line + "}"


def _list_pieces(items: Iterable[Any], form: _Form, depth: int, line: str) -> Iterator[str]:
    before, inner = "[", line and line + "\t"
    for item in items:
        yield before + inner
        yield from form.of(item, depth - 1, inner)
        before = ","
    yield "[]" if before == "[" else line + "]"


def _order(member: tuple[Any, Any]) -> tuple[int, Any]:
    """Integer keys by number, then text, then object keys by their values: queue 2 before queue 10."""
    key = member[0]
    if isinstance(key, int):
        return 0, key
    if isinstance(key, ObjectKey):
        return 2, [(name, isinstance(value, str), 0 if value is None else value) for name, value in key]
    return 1, str(key)


def _key(key: Any, strict: bool) -> str:
    if isinstance(key, str):
        return _encode(key).decode()
    if isinstance(key, int) and not isinstance(key, bool):
        return f'"{int(key)}"' if strict else str(int(key))
    if isinstance(key, ObjectKey):
        text = _write(key, strict=strict, line="")
        return _encode(text).decode() if strict else text
    raise TypeError(f"no JSON key for {type(key).__name__}: {key!r}")


def loads(data: bytes | bytearray | memoryview, bound: Bound = REQUEST) -> Any:
    """The value of a body in either dialect. Raises PeerError."""
    bound.check(data)
    if not data:
        raise PeerError("body is empty, expected JSON")
    try:
        return _decode(data)
    except RecursionError:
        raise PeerError("body is nested too deep") from None
    except (msgspec.DecodeError, ValueError) as strict:
        try:
            return _odd(bytes(data).decode(), bound, str(strict))
        except UnicodeDecodeError:
            raise PeerError(f"body is not JSON: {strict}") from None


def loads_object(data: bytes | bytearray | memoryview, bound: Bound = REQUEST) -> dict[str, Any]:
    """As ``loads``, and the value must be an object. Raises PeerError."""
    value = loads(data, bound)
    if not isinstance(value, dict):
        raise PeerError(f"body is a JSON {type(value).__name__}, expected an object")
    return value


def believed_object(data: bytes | bytearray | memoryview) -> dict[str, Any]:
    """As ``loads_object``, of any length. Raises PeerError."""
    return loads_object(data, BELIEVED)


def _odd(text: str, bound: Bound, strict: str) -> Any:
    """The value of what strict JSON refuses: integer keys are quoted, which is quick; what else is odd is
    read slowly, up to a bound."""
    if bound.odd is not None and len(text) > bound.odd:
        raise PeerError(f"body is not JSON: {strict}")
    if _MARKS.search(text) is None:
        try:
            return _decode(_quoted(text))
        except RecursionError:
            raise PeerError("body is nested too deep") from None
        except (msgspec.DecodeError, ValueError):
            pass  # it has object keys, or is no JSON at all
    if bound.slow is not None and len(text) > bound.slow:
        raise PeerError(f"body is not JSON: {strict}")
    return _Reader(text).whole()


_MARKS: Final = re.compile("[\x00-\x02]")
"""No JSON has them as they are; ``_quoted`` marks with them."""
_FIRST_KEY: Final = re.compile(r"\{[ \t\r\n]*+(?=-?[0-9]{1,20}:)")
_NEXT_KEY: Final = re.compile(r",[ \t\r\n]*+(?=-?[0-9]{1,20}:)")
_AFTER_KEY: Final = re.compile(r":(?<=[0-9]:)")


def _quoted(text: str) -> str:
    """``text`` with its integer keys in quotes. Each step is one pass in C: a body of 1 MiB takes as long as
    three to eight of strict JSON do, not a hundred."""
    odd = "\\" in text
    if odd:
        text = text.replace("\\\\", "\0\0").replace('\\"', "\1\1")
    parts = text.split('"')  # what is in quotes has the odd numbers
    outside = '"'.join(parts[::2])
    outside = _AFTER_KEY.sub("\2:", _NEXT_KEY.sub(",\2", _FIRST_KEY.sub("{\2", outside)))
    parts[::2] = outside.split('"')
    text = '"'.join(parts).replace("\2", '"')
    return text.replace("\1\1", '\\"').replace("\0\0", "\\\\") if odd else text


_BLANK: Final = re.compile(r"[ \t\r\n]*")
_STRING: Final = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_PLAIN: Final = re.compile(r"[-+0-9.eE]+|true|false|null")
_INTEGER: Final = re.compile(r"-?[0-9]{1,20}")
_FLAT: Final = re.compile(
    r'\{(?>(?:[^{}\[\]"]|"(?>(?:[^"\\]|\\.)*)")*)\}|\[(?>(?:[^{}\[\]"]|"(?>(?:[^"\\]|\\.)*)")*)\]', re.DOTALL
)
"""A map or list of plain values: most of what a long answer with object keys is made of."""


class _Reader:
    """Recursive descent over fastjson's dialect; used for what strict JSON with integer keys is not."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def whole(self) -> Any:
        value = self._value(0)
        if self._peek():
            raise self._error("something follows the value")
        return value

    def _error(self, what: str) -> PeerError:
        # Not what stands there: it may be a password.
        return PeerError(f"body is not JSON: {what} at character {self._at}")

    def _peek(self) -> str:
        blank = _BLANK.match(self._text, self._at)
        if blank is not None:
            self._at = blank.end()
        return self._text[self._at : self._at + 1]

    def _take(self, expected: str) -> None:
        if self._peek() != expected:
            raise self._error(f"expected {expected!r}")
        self._at += 1

    def _value(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise PeerError("body is nested too deep")
        first = self._peek()
        if first in ("{", "["):
            flat = _FLAT.match(self._text, self._at)
            if flat is not None:
                try:
                    value = _decode(flat.group())
                except (msgspec.DecodeError, ValueError):
                    pass  # it has integer keys, or is none
                else:
                    self._at = flat.end()
                    return value
            return self._object(depth) if first == "{" else self._array(depth)
        return self._scalar(_STRING if first == '"' else _PLAIN)

    def _scalar(self, pattern: re.Pattern[str]) -> Any:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise self._error("expected a value")
        try:
            value = _decode(found.group())
        except (msgspec.DecodeError, ValueError):
            raise self._error("bad value") from None
        self._at = found.end()
        return value

    def _array(self, depth: int) -> list[Any]:
        self._take("[")
        items: list[Any] = []
        if self._peek() == "]":
            self._at += 1
            return items
        while True:
            items.append(self._value(depth + 1))
            if self._peek() != ",":
                self._take("]")
                return items
            self._at += 1

    def _object(self, depth: int) -> dict[Any, Any]:
        self._take("{")
        found: dict[Any, Any] = {}
        if self._peek() == "}":
            self._at += 1
            return found
        while True:
            key = self._object_key(depth + 1)
            self._take(":")
            found[key] = self._value(depth + 1)
            if self._peek() != ",":
                self._take("}")
                return found
            self._at += 1

    def _object_key(self, depth: int) -> str | ObjectKey:
        first = self._peek()
        if first == '"':
            return str(self._scalar(_STRING))
        if first == "{":
            members = self._value(depth)
            try:
                key = ObjectKey(sorted(members.items()))
                hash(key)
            except TypeError:
                raise self._error("an object key holds more than plain values") from None
            return key
        integer = _INTEGER.match(self._text, self._at)
        if integer is None:
            raise self._error("expected a key")
        self._at = integer.end()
        return integer.group()
