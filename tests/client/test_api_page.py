"""The promise of docs/client/api.md: it names everything that applications import, as it is now."""

from __future__ import annotations

import keelmq
from tests.client.api_page import PAGE, TITLES, page


def test_every_name_has_its_place() -> None:
    assert sorted(name for names in TITLES.values() for name in names) == sorted(keelmq.__all__)


def test_the_page_is_as_the_docstrings_are() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.client.api_page"
