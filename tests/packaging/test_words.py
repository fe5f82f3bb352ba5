"""The promise of docs/glossary.md: one word for one thing, and none that only its writers know."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import facts
from tests import ROOT

GLOSSARY = ROOT / "docs" / "glossary.md"
SECTION = "## Words that are not used"
PRIVATE = r"heirs?|vouch(?:es|ed|ing)?|courts?|keepers?|applicants?|(?:mak(?:e|es|ing)|made)[ _]way"
FOUND = re.compile(rf"(?<![^\W_])(?:{PRIVATE})(?![^\W_])", re.IGNORECASE)
"""As a word of a sentence, or of a name."""
NEXT_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
"""Where a word begins in a name like LogReader."""


def texts() -> Iterator[tuple[Path, str]]:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "decisions").glob("*.md")]
    code = [path for name in (*facts.PACKAGES, *facts.ASIDE) for path in (ROOT / name).rglob("*.py")]
    for path in sorted({*pages, *code} - {Path(__file__)}):
        text = path.read_text()
        yield path, text.partition(SECTION)[0] if path == GLOSSARY else text


def private(text: str) -> list[str]:
    return [match[0] for match in FOUND.finditer(NEXT_WORD.sub(" ", text))]


def test_no_page_and_no_code_has_a_word_that_only_its_writers_know() -> None:
    found = {str(path.relative_to(ROOT)): private(text) for path, text in texts()}
    assert len(found) > 1000
    assert {name: words for name, words in found.items() if words} == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("the heir of it", ["heir"]),
        ("def old_heir_of()", ["heir"]),
        ("class LogKeeper: KEEPER, HAKeeper, makeWay", ["Keeper", "KEEPER", "Keeper", "make Way"]),
        ("it makes way, and vouches", ["makes way", "vouches"]),
        ("their voucher; courteous; bookkeepers; make a way; Theirs, BookKeepings", []),
    ],
)
def test_a_private_word_is_seen_alone_and_in_a_name(text: str, words: list[str]) -> None:
    assert private(text) == words


def test_the_glossary_names_each_with_what_to_say_instead() -> None:
    section = GLOSSARY.read_text().partition(SECTION)[2]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| ")][1:]
    named = {word.strip() for row in rows for word in row.split(",")}
    assert named == {"heir", "vouch", "court", "keeper", "applicant", "make way"}
    assert all(FOUND.fullmatch(word) for word in named)
