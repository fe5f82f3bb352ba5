"""The promise of the elections, as whole stories a person can read (``transcripts/*.txt`` beside it)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.controller.elections.transcripts import rewritten

STORIES = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_the_decider_does_what_the_transcript_says(path: Path) -> None:
    now = rewritten(path)
    if os.environ.get("KEELMQ_REWRITE"):
        path.write_text(now)
    assert now == path.read_text(), "if this is meant: KEELMQ_REWRITE=1, and read the difference"


def test_there_are_transcripts() -> None:
    assert len(STORIES) >= 8
