"""SQL92 filters: the original's own parser and ours choose the same messages, over expressions of a seed.

python -m tests.interop.test_sql_filter      writes tests/golden/sql92.json anew, by the original
"""

from __future__ import annotations

import base64
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from chaos.worlds import rocketmq
from model.sql92 import SqlError, compile_filter

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

GOLDEN = Path(__file__).parent.parent / "golden" / "sql92.json"
NAMES = ("a", "b", "c_1", "$d", "TAGS")
NUMBERS = ("0", "1", "5", "7L", "2147483647", "2147483648", "9223372036854775807", "9223372036854775808",
           "5.5", "5.", ".5", "1e3", "0.0", "1E400", "007")  # fmt: skip
TEXTS = ("''", "'x'", "'5'", "'a''b'", "'true'", "'TRUE'", "'1e3'", "'ä'")
VALUES = ("", "x", "5", "5.0", " 5 ", "05", "+5", "-5", "1e3", "2147483648", "9223372036854775808", "true",
          "TRUE", "a'b", "NaN", "Infinity", "5d", "xyz", "ä", "5.5f", "1_0")  # fmt: skip
FIXED = (
    "a = 5", "a <> 5", "a > 5", "a >= 5", "a < 5 AND b = 'x'", "a BETWEEN 1 AND 7L",
    "a NOT BETWEEN 1 AND 3", "a IN ('5', 'x')", "a NOT IN ('5')", "a IS NULL", "a IS NOT NULL OR b = 'x'",
    "NOT (a = 5)", "NOT a", "a", "TRUE", "FALSE", "NULL", "TRUE = a", "a = TRUE", "a CONTAINS 'x'",
    "a NOT STARTSWITH 'x'", "a ENDSWITH ''", "-a = 5", "a = -5", "+a > 1", "a > b", "a = b", "a = NULL",
    "TRUE = 5", "5 = TRUE", "TRUE > 5", "'x' > 5", "a > 'x'", "a BETWEEN 5 AND 1", "a BETWEEN NULL AND 1",
    "5 IN ('5')", "a IN ()", "a IS 5", "a = 5 trailing", "a = 5 )", "", "   ",
    "a = 5 -- note\n AND b = 'x'", "a /* note */ = 5", "a = 'open", "a & b", "#", "a = 9223372036854775808",
    "a > 1E400", "a > 0.0", "a = b = c_1", "(a = 5) = TRUE", "a IN ('5') AND NOT b IS NULL", "a like 'x'",
    "a and b", "not a is null", "A = 5", "a > 5 = TRUE", "a = 1 AND", "a OR", "OR a", "((a)) = 5",
)  # fmt: skip


def expression(draw: random.Random, depth: int = 0) -> str:
    """One of the grammar, or nearly."""
    operand = draw.choice((draw.choice(NAMES), draw.choice(NAMES), draw.choice(NUMBERS), draw.choice(TEXTS)))
    other = draw.choice(
        (draw.choice(NAMES), draw.choice(NUMBERS), draw.choice(TEXTS), "TRUE", "FALSE", "NULL")
    )
    if draw.random() < 0.1:
        other = f"-{other}"
    if depth < 3 and draw.random() < 0.45:
        inner = [expression(draw, depth + 1) for _ in range(draw.randint(2, 3))]
        return draw.choice((" AND ", " OR ", " = ", " or ")).join(
            f"({one})" if draw.random() < 0.4 else one for one in inner
        )
    negated = draw.choice(("", "", "NOT "))
    return draw.choice(
        (
            f"{operand} {draw.choice(('=', '<>', '>', '>=', '<', '<='))} {other}",
            f"{operand} {draw.choice(('=', '<>', '>', '>=', '<', '<='))} {other}",
            f"{operand} {negated}BETWEEN {draw.choice(NUMBERS)} AND {other}",
            f"{operand} {negated}IN ({', '.join(draw.choices(TEXTS, k=draw.randint(1, 6)))})",
            f"{operand} {negated}{draw.choice(('CONTAINS', 'STARTSWITH', 'endswith'))} {draw.choice(TEXTS)}",
            f"{operand} IS {negated}NULL",
            f"NOT {operand}",
            f"{negated}({operand} = {other})",
            other,
        )
    )


def cases(seed: int, count: int) -> list[tuple[str, dict[str, str]]]:
    draw = random.Random(seed)
    found = []
    for turn in range(count):
        text = FIXED[turn] if turn < len(FIXED) else expression(draw)
        names = draw.sample(NAMES, draw.randint(0, len(NAMES)))
        if turn < len(FIXED):
            names = ["a", "b"]
        found.append((text, {name: draw.choice(VALUES) for name in names}))
    return found


def by_the_original(asked: list[tuple[str, dict[str, str]]], scratch: Path) -> list[bool | None]:
    """What each case chooses; None = the expression is refused."""
    classes = rocketmq.compile_java(Path(__file__).parent / "java" / "SqlDriver.java")
    line = rocketmq.java("SqlDriver", classes=classes, user_home=scratch, heap_mb=256)
    lines = []
    for text, properties in asked:
        packed = "\x02".join(f"{name}\x01{value}" for name, value in properties.items())
        lines.append("\t".join(base64.b64encode(part.encode()).decode() for part in (text, packed)))
    done = subprocess.run(line, input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    said = done.stdout.split()
    assert len(said) == len(asked)
    return [{"E": None, "T": True, "F": False}[one] for one in said]


def ours(text: str, properties: dict[str, str]) -> bool | None:
    try:
        return compile_filter(text)(properties)
    except SqlError:
        return None


@pytest.mark.covers("SQL92: 20,000 expressions choose the same messages", client="filter 5.5.0", sides="both")
@pytest.mark.skipif(rocketmq.unavailable() is not None, reason=str(rocketmq.unavailable()))
def test_both_choose_the_same_messages(tmp_path: Path) -> None:
    asked = cases(7, 20_000)
    theirs = by_the_original(asked, tmp_path)
    differ = [(case, said) for case, said in zip(asked, theirs, strict=True) if ours(*case) is not said]
    assert not differ, (len(differ), differ[:5])
    assert {None, True, False} == set(theirs)
    assert theirs.count(True) > 1000, "the cases say something"


def main() -> int:
    asked = cases(1, len(FIXED) + 140)
    with tempfile.TemporaryDirectory() as scratch:
        theirs = by_the_original(asked, Path(scratch))
    rows = [
        {"expression": text, "properties": properties, "chosen": said}
        for (text, properties), said in zip(asked, theirs, strict=True)
    ]
    GOLDEN.write_text("[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
