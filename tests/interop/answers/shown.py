"""What of a command's output is compared: each line is a field or a row of fields, without what no two runs
have in common (addresses, ids, times, places)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from tests.interop.answers.mqadmin import Differs

_EVERYWHERE: Final = (
    # A refusal is compared by its code: keelmq says why in its own words.
    (r"(CODE: \d+) +DESC: .*?(?=\n\s+at |\n\n|, org\.apache|\Z)", r"\1"),
    (r"\n\s+at [^\n]*", ""),
    (r"\n[\d:,]+ \|-[^\n]*", ""),  # logback's own
    (r"\n(SLF4J|For more information|See https)[^\n]*", ""),
    (r"\b[0-9A-F]{32,40}\b", "<id>"),
    (r"\b1[6-9]\d{11}\b", "<ms>"),
    (r"\d{4}-\d\d-\d\d[ T,]+\d\d:\d\d:\d\d([,.:]\d+)?", "<time>"),
    (r"\b20\d{15}\b", "<time>"),
    (r"127\.0\.0\.1@[\w#@]+", "<client>"),
    (r"127\.0\.0\.1:\d+", "<address>"),
)


SHARED_MIN: Final = 10


def fields(said: str, names: Mapping[str, str], differs: Iterable[Differs] = ()) -> list[str]:
    """The lines of a command's output that are compared, in their order."""
    for name in sorted(names, key=lambda name: -len(names[name])):
        if len(names[name]) > len("broker-a"):
            said = said.replace(names[name], f"<{name}>")
    _, _, text = said.partition("\n")  # the first line is the driver's
    text = "\n" + text
    for pattern, instead in _EVERYWHERE:
        text = re.sub(pattern, instead, text, flags=re.DOTALL)
    found = []
    for line in (" ".join(raw.split()) for raw in text.splitlines()):
        kept: str | None = line
        for differ in differs:
            kept = _without(kept, differ) if kept else kept
        if kept:
            found.append(kept)
    return found


def _without(line: str, differ: Differs) -> str | None:
    match = re.fullmatch(differ.line, line)
    if match is None:
        return line
    for number in range(match.re.groups, 0, -1):
        if match.start(number) >= 0:
            line = line[: match.start(number)] + "…" + line[match.end(number) :]
    return line if match.re.groups else None


def _name(line: str) -> str:
    return re.split(r" ?[=:]", line, maxsplit=1)[0]


def difference(ours: list[str], theirs: list[str], *, shared: bool = False) -> list[str]:
    """The fields that one side alone has; none when both say the same. Tables of hash maps have no order.
    ``shared``: of names with values only those that both have."""
    if shared:
        both = set(map(_name, ours)) & set(map(_name, theirs))
        assert len(both) >= SHARED_MIN, "they have hardly a name in common"
        ours, theirs = ([line for line in lines if _name(line) in both] for lines in (ours, theirs))
    ahead, behind = Counter(ours) - Counter(theirs), Counter(theirs) - Counter(ours)
    return [*(f"keelmq: {line}" for line in ahead), *(f"RocketMQ: {line}" for line in behind)]
