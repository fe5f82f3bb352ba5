"""The promise of the docs: every command is shown as it was typed, with what came."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from cli.main import command
from tests import ROOT
from tests.packaging.recordings import HIDDEN, TYPED, Shell, recorded, typed, without_answers


def commands(of: click.Command, name: str = "keelmq") -> Iterator[str]:
    if isinstance(of, click.Group):
        context = click.Context(of)
        for word in of.list_commands(context):
            found = of.get_command(context, word)
            if found is not None and not found.hidden:
                yield from commands(found, f"{name} {word}")
    else:
        yield name


def test_every_command_is_recorded_on_a_page() -> None:
    pages = [page.read_text() for page in (ROOT / "docs").glob("*.md")]
    lines = [line for page in pages for line in typed(page)]
    every = set(commands(command()))
    assert len(every) > 70
    unseen = {name for name in every if not any(re.search(rf"\b{name}\b(?!-)", line) for line in lines)}
    assert unseen == set()


def test_no_recording_shows_a_traceback() -> None:
    for page in (ROOT / "docs").glob("*.md"):
        assert "Traceback (most recent call last)" not in page.read_text(), page.name


def test_a_page_is_typed_again_and_keeps_its_prose(tmp_path: Path) -> None:
    page = "# A page\n\nProse.\n\n"
    page += f"{TYPED}echo $HOME; exit 3\n    of yesterday\n\n    still\n\n"
    page += f"<!-- run: touch x -->\n{TYPED}ls\n\nEnd."
    shell = Shell(tmp_path)
    made = list(recorded(without_answers(page), shell))
    assert made == [
        *("# A page", "", "Prose.", ""),
        *(f"{TYPED}echo $HOME; exit 3", "    /home/shop", "    (exit code 3)"),
        *("", "<!-- run: touch x -->"),
        *(f"{TYPED}ls", "    tmp", "    x", "", "End."),
    ]
    assert list(recorded(without_answers("\n".join(made)), shell)) == made
    assert HIDDEN.match("<!-- run: touch x -->")
