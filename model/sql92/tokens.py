"""Where do the words of a SQL92 expression begin and end? Tokens of RocketMQ's ``SelectorParser.jj``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

RESERVED: Final = frozenset(
    "NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH".split()  # noqa: SIM905
)
_TOKEN: Final = re.compile(
    r"""
    (?P<space> [ \t\n\r\f]+ | --[^\n\r]*(?:\r\n|\n|\r) | /\*.*?\*/ )
    | (?P<real> [0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)? | \.[0-9]+(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+ )
    | (?P<whole> [1-9][0-9]*[lL]? | 0 )
    | (?P<text> '(?:''|[^'])*' )
    | (?P<word> [a-zA-Z_$][a-zA-Z0-9_$]* )
    | (?P<sign> <> | >= | <= | [=<>(),+-] )
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)


class SqlError(ValueError):
    """The expression is none."""


class Token(NamedTuple):
    """``kind``: real, whole, text, name, end; of a reserved word or a sign, that itself. ``at``: of its first
    character, from 0."""

    kind: str
    text: str
    at: int


def tokens(expression: str) -> Iterator[Token]:
    """The tokens in order, then one of kind "end" for ever. Raises SqlError where none begins."""
    at = 0
    while at < len(expression):
        found = _TOKEN.match(expression, at)
        if found is None:
            raise SqlError(f"at character {at + 1}: nothing can begin with {expression[at : at + 10]!r}")
        kind, text = found.lastgroup or "", found.group()
        if kind == "word":
            kind = text.upper() if text.upper() in RESERVED else "name"
        elif kind == "sign":
            kind = text
        if kind != "space":
            yield Token(kind, text, at)
        at = found.end()
    while True:
        yield Token("end", "", at)
