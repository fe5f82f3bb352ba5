"""The promise of ``admin.terminal``: a name that somebody chose moves nothing on an operator's terminal."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from admin.commands.reach import show, tell
from admin.exits import run
from admin.terminal import printable, say
from admin.top.screen import lines
from admin.top.view import GroupRow, View
from model.errors import MqError
from tests import ROOT

HOSTILE = "ci\x1b]0;pwn\x07\n2\x9b2J\u202e"
SHOWN = "ci\\x1b]0;pwn\\x07\\n2\\x9b2J\\u202e"


def test_what_does_something_on_a_terminal_is_written_out() -> None:
    assert printable(HOSTILE) == SHOWN
    assert printable("zwölf Äpfel, 十二") == "zwölf Äpfel, 十二"


def test_lines_cells_and_errors_are_written_so(capsys: pytest.CaptureFixture[str]) -> None:
    @click.command()
    def failing() -> None:
        raise MqError(f"{HOSTILE} is not known")

    say(f"client {HOSTILE}")
    assert tell("a screen\nhas lines")
    say(f"broker {HOSTILE}", err=True)
    show([(HOSTILE, 1)], ("client", "queues"))
    run(failing, [])
    said = capsys.readouterr()
    assert f"client {SHOWN}\n" in said.out
    assert "a screen\nhas lines\n" in said.out
    assert f"  {SHOWN}" in said.out or f"{SHOWN} " in said.out
    assert f"broker {SHOWN}\n" in said.err
    for control in "\x1b\x07\x9b\u202e":
        assert control not in said.out + said.err


def test_the_screen_of_top_has_a_line_for_a_group_whatever_its_name() -> None:
    group = GroupRow(HOSTILE, None, None, None, ())
    found = lines(View(0, (), (), (group,), (), "", ()), 5)
    assert any(SHOWN in line for line in found)
    assert not any(c in line for line in found for c in "\x1b\x07\n\x9b")


@pytest.mark.parametrize("place", ["messaging", "access", "controllers", "doctor.py", "group.py", "store.py"])
def test_commands_print_in_no_other_way(place: str) -> None:
    path = ROOT / "admin" / "commands" / place
    for file in path.rglob("*.py") if path.is_dir() else [path]:
        text = Path(file).read_text(encoding="utf-8")
        plain = [m.group(0) for m in re.finditer(r"click\.echo\(\s*f?\"[^\n]*", text)]
        assert plain == [], f"{file}: say() of admin.terminal prints what others wrote"
