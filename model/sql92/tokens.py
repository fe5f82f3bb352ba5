"""Where do the words of a SQL92 expression begin and end? Tokens of RocketMQ's ``SelectorParser.jj``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

RESERVED: Final = frozenset(
    "NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH".split()  # noqa: SIM905
)
TOKENS_MAX: Final = 5000
"""An expression is compiled in one go, 3 us each."""
BLANK: Final = " \t\n\r\f"
_TOKEN: Final = re.compile(
    r"""
    [ \t\n\r\f]*+ (?:
    (?P<space> --[^\n\r]*(?:\r\n|\n|\r) | /\*.*?\*/ )
    | (?P<real> [0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)? | \.[0-9]+(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+ )
    | (?P<whole> [1-9][0-9]*[lL]? | 0 )
    | (?P<text> '(?:''|[^'])*' )
    | (?P<word> [a-zA-Z_$][a-zA-Z0-9_$]* )
    | (?P<sign> <> | >= | <= | [=<>(),+-] )
    | (?P<last> \Z )
    )
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
    """The tokens in order, then one of kind "end" for ever. Raises SqlError where none begins, and
    for too many."""
    at, count, new = 0, 0, tuple.__new__
    while at < len(expression):
        found = _TOKEN.match(expression, at)
        if found is None:
            at += len(expression) - at - len(expression[at:].lstrip(BLANK))
            raise SqlError(f"at character {at + 1}: nothing can begin with {expression[at : at + 10]!r}")
        kind = found.lastgroup or ""
        start, end = found.span(kind)
        text = expression[start:end]
        if kind == "word":
            upper = text.upper()
            kind = upper if upper in RESERVED else "name"
        elif kind == "sign":
            kind = text
        if kind not in ("space", "last"):
            count += 1
            if count > TOKENS_MAX:
                raise SqlError(f"the expression has more than {TOKENS_MAX} words, values and signs")
            yield new(Token, (kind, text, start))
        at = end
    while True:
        yield Token("end", "", at)
