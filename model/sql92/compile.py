"""How does a SQL92 expression become a function of a message's properties?

Recursive descent over the grammar of RocketMQ's ``SelectorParser.jj``: or, and, equality, comparison, unary,
primary. Each rule gives a ``Node``: what it evaluates to, and what of it the rules above may ask (is it a
Boolean expression, a constant, a property?).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from model.sql92.tokens import SqlError, Token, tokens
from model.sql92.values import (
    INT_MAX,
    LONG_MAX,
    Long,
    NoComparison,
    Value,
    compare,
    compare_order,
    equal,
)

__all__ = ["Filter", "SqlError", "Texts", "compile_filter", "is_compiled"]

DEPTH_MAX: Final = 64
"""Of conditions in brackets in each other, ``a OR (b AND (c OR ...``; brackets around the same have no bound
of their own. The original ends with its stack."""
EXPRESSION_CHARS_MAX: Final = 16 * 1024
CHARS_MAX: Final = 128 * 1024
CALLS_MAX: Final = 250
"""In each other, to evaluate an expression."""
DOUBLE_MIN: Final = 5e-324
NODE_STEPS: Final = 500
"""Of an operator or an operand, where a step is one character compared, about a nanosecond."""
SEARCH_STEPS_MAX: Final = 100
"""For each character of what is searched: a longer part is searched for in linear time."""
Properties = Mapping[str, str]

_ORDERS: Final[dict[str, Callable[[int], bool]]] = {
    ">": lambda found: found > 0,
    ">=": lambda found: found >= 0,
    "<": lambda found: found < 0,
    "<=": lambda found: found <= 0,
}


class Texts(dict[str, str]):
    """The properties of a message. ``found``: what was searched for in them, by the number of the search."""

    __slots__ = ("found",)

    def __init__(self, properties: Properties) -> None:
        super().__init__(properties)
        self.found: dict[int, bool] = {}

    @classmethod
    def parse(cls, text: str) -> Texts:
        """Of one that is there twice the last, as in the original's decoder."""
        pairs = (part.partition("\x01") for part in text.split("\x02"))
        return cls({name: value for name, separator, value in pairs if separator})


Evaluate = Callable[[Texts], Value]


@dataclass(frozen=True, slots=True)
class Node:
    """``constant``: ``value`` is all it gives. ``name``: of the property it is; "" = it is none. ``calls``:
    in each other, to evaluate it."""

    evaluate: Evaluate
    boolean: bool = False
    constant: bool = False
    value: Value = None
    name: str = ""
    calls: int = 1


def compile_filter(expression: str) -> Filter:
    """Raises SqlError, whose text begins as the original's refusal."""
    found = _compiled.get(expression)
    if found is None:
        found = _compile(expression)
        _compiled.keep(expression, found)
    return found


def is_compiled(expression: str) -> bool:
    """Whether ``compile_filter`` has it already."""
    return expression in _compiled


class Compiled:
    """The filters met last, of expressions of ``CHARS_MAX`` characters together: compiled, a character takes
    up to 110 bytes."""

    def __init__(self) -> None:
        self.chars = 0
        self._filters: OrderedDict[str, Filter] = OrderedDict()

    def __len__(self) -> int:
        return len(self._filters)

    def __contains__(self, expression: str) -> bool:
        return expression in self._filters

    def get(self, expression: str) -> Filter | None:
        found = self._filters.get(expression)
        if found is not None:
            self._filters.move_to_end(expression)
        return found

    def keep(self, expression: str, compiled: Filter) -> None:
        self._filters[expression] = compiled
        self.chars += len(expression)
        while self.chars > CHARS_MAX:
            self.chars -= len(self._filters.popitem(last=False)[0])


_compiled: Final = Compiled()


class Search(NamedTuple):
    """CONTAINS of a property: each is done once a message, however often an expression names it."""

    number: int
    name: str
    part: str

    def steps(self, texts: Texts) -> int:
        """At most so many characters are compared."""
        return len(texts.get(self.name, "")) * min(len(self.part), SEARCH_STEPS_MAX)


class Filter:
    """Whether a message with these properties is chosen; how much work that is, before it is done."""

    def __init__(self, expression: str, evaluate: Evaluate, searches: list[Search], terms: int) -> None:
        self.expression = expression
        self._evaluate = evaluate
        self._searches = searches
        self.terms_steps = terms * NODE_STEPS
        self._by_name: dict[str, int] = {}
        for one in searches:
            weight = self._by_name.get(one.name, 0)
            self._by_name[one.name] = weight + min(len(one.part), SEARCH_STEPS_MAX)

    def __call__(self, properties: Properties) -> bool:
        return self.of(Texts(properties))

    def of(self, texts: Texts) -> bool:
        try:
            return self._evaluate(texts) is True
        except NoComparison:
            return False

    def steps(self, texts: Texts) -> int:
        """No more than these are done: terms, and the lengths of what is searched times those of the parts
        it is searched for."""
        return self.terms_steps + sum(
            [weight * len(texts.get(name, "")) for name, weight in self._by_name.items()]
        )

    def search(self, texts: Texts) -> Iterator[int]:
        """Do all searches of a message, one after the other, and give their steps. ``of`` does none then."""
        for one in self._searches:
            text = texts.get(one.name)
            if text is not None:
                texts.found[one.number] = one.part in text
                yield one.steps(texts)


def _compile(expression: str) -> Filter:
    try:
        if len(expression) > EXPRESSION_CHARS_MAX:
            raise SqlError(f"the expression has more than {EXPRESSION_CHARS_MAX} characters")
        parser = _Parser(expression)
        evaluate = _boolean(parser.either()).evaluate
    except (SqlError, NoComparison) as error:
        raise SqlError(f"Invalid MessageSelector. {error}") from None
    return Filter(expression, evaluate, parser.searches, parser.terms)


_SIGNS: Final = frozenset({"+", "-", "NOT"})


class _Parser:
    """Each method reads one rule and stands behind it. Raises SqlError."""

    def __init__(self, expression: str) -> None:
        self._tokens = tokens(expression)
        self._now = next(self._tokens)
        self._ahead: Token | None = None
        self._depth = 0
        self._searched: dict[tuple[str, str, str, bool], Node] = {}
        self._numbers: dict[tuple[str, str], int] = {}
        self.searches: list[Search] = []
        self.terms = 0
        """Words and signs that were read."""

    def _take(self) -> Token:
        taken = self._now
        self.terms += 1
        self._now = self._ahead or next(self._tokens)
        self._ahead = None
        return taken

    def _next_kind(self) -> str:
        """Of the token behind this one."""
        if self._ahead is None:
            self._ahead = next(self._tokens)
        return self._ahead.kind

    def _need(self, kind: str) -> Token:
        if self._now.kind != kind:
            found = f"{self._now.text!r}" if self._now.kind != "end" else "nothing"
            raise SqlError(f"at character {self._now.at + 1}: {kind} is expected, {found} is there")
        return self._take()

    def either(self, read: Node | None = None) -> Node:
        """``read``: its first primary, which was read before."""
        first = self._all(read)
        if self._now.kind != "OR":
            return first
        parts = [_boolean(first)]
        while self._now.kind == "OR":
            self._take()
            parts.append(_boolean(self._all()))
        return _settled_by(True, parts)

    def _all(self, read: Node | None = None) -> Node:
        first = self._equality(read)
        if self._now.kind != "AND":
            return first
        parts = [_boolean(first)]
        while self._now.kind == "AND":
            self._take()
            parts.append(_boolean(self._equality()))
        return _settled_by(False, parts)

    def _equality(self, read: Node | None = None) -> Node:
        left = self._comparison(read)
        while self._now.kind in ("=", "<>", "IS"):
            sign = self._take().kind
            if sign != "IS":
                found = _equal(left, self._comparison())
                left = found if sign == "=" else _not(found)
                continue
            negated = self._now.kind == "NOT"
            if negated:
                self._take()
            self._need("NULL")
            left = _not(_is_null(left)) if negated else _is_null(left)
        return left

    def _comparison(self, read: Node | None = None) -> Node:
        left = self._unary() if read is None else read
        while True:
            negated = self._now.kind == "NOT"
            kind = self._next_kind() if negated else self._now.kind
            if kind in _ORDERS and not negated:
                self._take()
                left = _ordered(left, kind, self._unary())
                continue
            if kind not in ("CONTAINS", "STARTSWITH", "ENDSWITH", "BETWEEN", "IN"):
                if negated:
                    text = "NOT is there, and no CONTAINS, STARTSWITH, ENDSWITH, BETWEEN or IN behind it"
                    raise SqlError(f"at character {self._now.at + 1}: {text}")
                return left
            if negated:
                self._take()
            self._take()
            left = self._worded(left, kind, negated=negated)

    def _worded(self, left: Node, kind: str, *, negated: bool) -> Node:
        if kind == "BETWEEN":
            low = self._unary()
            self._need("AND")
            return _between(left, low, self._unary(), negated=negated)
        if kind == "IN":
            self._need("(")
            listed = [self._text()]
            while self._now.kind == ",":
                self._take()
                listed.append(self._text())
            self._need(")")
            return _in(left, frozenset(listed), negated=negated)
        return self._search(left, kind, self._text(), negated=negated)

    def _search(self, left: Node, kind: str, part: str, *, negated: bool) -> Node:
        """The same one again where a property was searched for the same before."""
        key = (left.name, kind, part, negated)
        found = self._searched.get(key) if left.name else None
        if found is None and kind == "CONTAINS" and left.name and part:
            found = _contains(left, self._number(left.name, part), part, negated=negated)
        elif found is None:
            found = _searched(left, kind, part, negated=negated)
        self._searched[key] = found
        return found

    def _number(self, name: str, part: str) -> int:
        """Of the search of a property for ``part``, negated or not."""
        other = self._numbers.setdefault((name, part), len(self.searches))
        if other == len(self.searches):
            self.searches.append(Search(other, name, part))
        return other

    def _unary(self) -> Node:
        signs: list[str] = []
        while self._now.kind in _SIGNS:
            sign = self._take().kind
            if sign == "+":
                continue
            signs.append(sign)
            if signs[-3:] == [sign] * 3:
                del signs[-2:]  # three of one kind are as one
        found = self._primary()
        for sign in reversed(signs):
            found = _negated(found) if sign == "-" else _not(_boolean(found))
        return found

    def _bracketed(self) -> Node:
        """Brackets that begin at one place are opened in a row, and their ends are seen one by one: only
        what is in each other behind an operator is read in a call of its own."""
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise SqlError(f"at character {self._now.at + 1}: nested more than {DEPTH_MAX} deep")
        opened = 0
        while self._now.kind == "(":
            self._take()
            opened += 1
        found: Node | None = None
        for _ in range(opened):
            found = self.either(found)
            self._need(")")
        assert found is not None, "asked at a bracket"
        self._depth -= 1  # an error ends the parser: the depth does not matter then
        return found

    def _primary(self) -> Node:
        token = self._now
        if token.kind == "(":
            return self._bracketed()
        if token.kind == "text":
            return _constant(self._text())
        if token.kind == "whole":
            return _constant(_whole(self._take().text))
        if token.kind == "real":
            return _constant(_real(self._take().text))
        if token.kind in ("TRUE", "FALSE", "NULL"):
            self._take()
            return _constant({"TRUE": True, "FALSE": False, "NULL": None}[token.kind], boolean=True)
        if token.kind == "name":
            name = self._take().text
            return Node(lambda texts: texts.get(name), name=name)
        found = f"{token.text!r}" if token.kind != "end" else "nothing"
        raise SqlError(f"at character {token.at + 1}: a value or a property is expected, {found} is there")

    def _text(self) -> str:
        return self._need("text").text[1:-1].replace("''", "'")


# -- literals ------------------------------------------------------------------------------------------


def _whole(text: str) -> int:
    digits = text.rstrip("lL")
    if len(digits) > 19 or int(digits) > LONG_MAX:
        raise SqlError(f"{digits[:40]} is greater than {LONG_MAX}")
    number = int(digits)
    return number if number <= INT_MAX else Long(number)


def _real(text: str) -> float:
    number = float(text)
    if number == float("inf"):
        raise SqlError(f"{text[:40]} is greater than 1.7976931348623157E308")
    if number < DOUBLE_MIN:
        raise SqlError(f"{text[:40]} is less than 4.9E-324")
    return number


def _constant(value: Value, *, boolean: bool = False) -> Node:
    return Node(lambda texts: value, boolean=boolean, constant=True, value=value)


# -- what the rules make -------------------------------------------------------------------------------


def _boolean(node: Node) -> Node:
    """``node`` as a condition. A property alone is never true: it is a String. Raises SqlError."""
    if node.boolean:
        return node
    if node.name:
        evaluate = node.evaluate
        return _condition(lambda texts: None if evaluate(texts) is None else False, node)
    raise SqlError(f"an expression does not result in a boolean value: {_shown(node)}")


def _condition(evaluate: Evaluate, *parts: Node) -> Node:
    """A Boolean expression over ``parts``. Raises SqlError when it would be too deep to evaluate."""
    calls = 1 + max(part.calls for part in parts)
    if calls > CALLS_MAX:
        raise SqlError(f"more than {CALLS_MAX} operators in each other")
    return Node(evaluate, boolean=True, calls=calls)


def _shown(node: Node) -> str:
    return node.name or (repr(node.value) if node.constant else "a number")


def _settled_by(settles: bool, parts: list[Node]) -> Node:
    """OR (``settles`` True) or AND (False) of ``parts``: the first that is ``settles`` decides; without one
    the outcome is unknown (None) if that of any part is."""
    parts = list({id(part): part for part in parts}.values())  # the same again says nothing else
    inner = [part.evaluate for part in parts]

    def evaluate(texts: Texts) -> Value:
        unknown = False
        for part in inner:
            found = part(texts)
            if found is settles:
                return settles
            unknown = unknown or found is None
        return None if unknown else not settles

    return _condition(evaluate, *parts)


def _not(node: Node) -> Node:
    inner = node.evaluate

    def evaluate(texts: Texts) -> Value:
        found = inner(texts)
        return None if found is None else not found

    return _condition(evaluate, node)


def _negated(node: Node) -> Node:
    inner = node.evaluate

    def evaluate(texts: Texts) -> Value:
        found = inner(texts)
        if isinstance(found, bool) or not isinstance(found, int | float):
            return None  # a property is a String
        return Long(-found) if isinstance(found, Long) else -found

    return Node(evaluate, calls=node.calls + 1)


def _equal(left: Node, right: Node) -> Node:
    for node in (left, right):
        if node.constant and node.value is None:
            raise SqlError("NULL cannot be compared: IS NULL asks for it")
    if left.constant and right.constant and left.boolean and not right.boolean:
        raise SqlError(f"{_shown(left)} cannot be compared with {_shown(right)}")
    first, second = left.evaluate, right.evaluate

    def evaluate(texts: Texts) -> Value:
        one, other = first(texts), second(texts)
        if one is None:
            return True if other is None else None
        return other is not None and equal(one, other)

    return _condition(evaluate, left, right)


def _is_null(node: Node) -> Node:
    inner = node.evaluate
    return _condition(lambda texts: inner(texts) is None, node)


def _ordered(left: Node, sign: str, right: Node) -> Node:
    for node in (left, right):
        is_number = isinstance(node.value, int | float) and not isinstance(node.value, bool)
        if (node.constant and not is_number) or node.boolean:
            raise SqlError(f"{_shown(node)} cannot be compared by {sign}")
    first, second, holds = left.evaluate, right.evaluate, _ORDERS[sign]

    def evaluate(texts: Texts) -> Value:
        one = first(texts)
        if one is None:
            return None
        other = second(texts)
        return None if other is None else holds(compare_order(one, other))

    return _condition(evaluate, left, right)


def _between(value: Node, low: Node, high: Node, *, negated: bool) -> Node:
    if negated:
        return _settled_by(True, [_ordered(value, "<", low), _ordered(value, ">", high)])
    if low.constant and high.constant:
        if low.value is None or high.value is None:
            raise SqlError("the values of BETWEEN cannot be NULL")
        if compare(high.value, low.value) < 0:
            raise SqlError(f"BETWEEN {_shown(low)} AND {_shown(high)}: the first is above the second")
    return _settled_by(False, [_ordered(value, ">=", low), _ordered(value, "<=", high)])


def _in(node: Node, listed: frozenset[str], *, negated: bool) -> Node:
    if not node.name:
        raise SqlError(f"IN is for a property, not for {_shown(node)}")
    inner = node.evaluate

    def evaluate(texts: Texts) -> Value:
        found = inner(texts)
        return None if found is None else (found in listed) is not negated

    return _condition(evaluate, node)


def _searched(node: Node, kind: str, part: str, *, negated: bool) -> Node:
    inner = node.evaluate
    found_in: Callable[[str], bool] = {
        "CONTAINS": lambda text: part in text,
        "STARTSWITH": lambda text: text.startswith(part),
        "ENDSWITH": lambda text: text.endswith(part),
    }[kind]

    def evaluate(texts: Texts) -> Value:
        text = inner(texts)
        if not part or not isinstance(text, str):
            return False  # negated or not
        return found_in(text) is not negated

    return _condition(evaluate, node)


def _contains(node: Node, number: int, part: str, *, negated: bool) -> Node:
    """CONTAINS of a property: what was found before is not searched for again."""
    name = node.name

    def evaluate(texts: Texts) -> Value:
        text = texts.get(name)
        if text is None:
            return False  # negated or not
        found = texts.found.get(number)
        if found is None:
            found = texts.found[number] = part in text
        return found is not negated

    return _condition(evaluate, node)
