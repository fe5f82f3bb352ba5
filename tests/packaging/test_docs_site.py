"""The promise of mkdocs.yml and the tutorial: each page has a place, links and commands lead somewhere."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from admin.local.cluster import LocalCluster
from admin.local.layout import Layout
from cli.main import command
from tests import ROOT

DOCS = ROOT / "docs"
SITE: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
TUTORIAL = (DOCS / "tutorial.md").read_text()
COMMANDS = sorted({line.split("   ")[0] for line in re.findall(r"^ {4}(?:\$ )?keelmq (.*)$", TUTORIAL, re.M)})
PAGES = sorted(DOCS.rglob("*.md"))


def named(part: Any) -> Iterator[str]:
    """The pages below a part of ``nav``."""
    if isinstance(part, str):
        yield part
    else:
        for below in part.values() if isinstance(part, dict) else part:
            yield from named(below)


def heading(line: str) -> str:
    """Its anchor, as GitHub and mkdocs make it of a heading of words."""
    words = re.sub(r"[^\w\s-]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line).lower())
    return re.sub(r"\s+", "-", words.strip())


def test_every_page_has_one_place() -> None:
    found = list(named(SITE["nav"]))
    others = ("decisions/", "results/")
    pages = [str(page.relative_to(DOCS)) for page in PAGES]
    assert sorted(found) == [page for page in pages if not page.startswith(others)]
    assert SITE["not_in_nav"].split() == [f"{folder}*.md" for folder in others]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_leads_to_a_page_and_a_heading(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)]*))?\)", page.read_text()):
        to = (page.parent / target).resolve() if target else page
        assert to.exists(), target
        assert to.is_relative_to(DOCS), f"{target}: the site has no such page"
        if anchor:
            headings = [heading(line) for line in re.findall(r"^#+ (.*)$", to.read_text(), re.M)]
            assert anchor in headings, f"{target}#{anchor}"


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_tutorial_takes_its_options(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: click.Command = command()
    arguments = shlex.split(line)
    context = click.Context(found)
    while isinstance(found, click.Group):
        below = found.get_command(context, arguments.pop(0))
        assert below is not None, line
        found = below
    for parameter in found.params:
        if isinstance(parameter.type, click.Path):
            monkeypatch.setattr(parameter.type, "exists", False)
    found.make_context(found.name, arguments)


def test_the_tutorial_has_commands() -> None:
    assert len(COMMANDS) >= 15


def test_the_tutorial_kills_the_broker_that_leads_and_no_fixed_one() -> None:
    """Whoever asks the Controllers first leads: any of the three."""
    (pattern,) = re.findall(r"^    pkill -9 -f (\S+)", TUTORIAL, re.M)
    layout = Layout.make(base_port=20_000)
    own = LocalCluster(Path("clusters/one"), layout)
    files = {str(own.conf_path(node).relative_to(Path.cwd())) for node in layout.nodes}
    assert {pattern.replace("-N.", f"-{number}.") for number in range(3)} <= files
    assert pattern not in files
