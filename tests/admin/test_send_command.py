"""The promise of ``keelmq send``: what cannot be sent is known before the first message leaves."""

from __future__ import annotations

import asyncio
import io
import sys
from pathlib import Path
from typing import cast

import click
import pytest

from admin.commands.messaging.bodies import Bodies
from admin.commands.messaging.message import PartlySent, _Sending
from admin.exits import USAGE, run
from cli.main import command
from client.message import Message, Queue, SendResult, SendStatus
from client.sending.producer import Producer


class Accepts:
    """In place of a producer: bodies it took."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def send(self, message: Message) -> SendResult:
        if not message.body:
            raise ValueError("a message needs a body of at least one byte")
        self.bodies.append(message.body)
        return SendResult(SendStatus.SEND_OK, Queue(message.topic, "b", 0), 0, "id", "")


def sent(bodies: Bodies) -> list[bytes]:
    producer = Accepts()
    sending = _Sending(Message(topic="t", body=b""), as_json=False)
    asyncio.run(sending.all(cast(Producer, producer), bodies))
    return producer.bodies


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--lines-from", "{file}"], "lines, line 3: a message needs a body of at least one byte"),
        (["x", "a", ""], "body 3: a message needs a body"),
        (["x", "--file", "{empty}"], "empty: a message needs a body"),
        (["x", "--file", "{large}"], "large: the body is 4194305 bytes, at most 4194304 are allowed"),
        (["x", "--lines-from", "{large}"], "large, line 1: longer than 4,194,304 bytes"),
    ],
)
def test_what_cannot_be_sent_is_known_before_the_first_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    """The NameServer is none: whoever asked it would say so."""
    content = {"file": b"a\nb\n\nc\n", "empty": b"", "large": b"x" * 4_194_305}
    places = {name: tmp_path / ("lines" if name == "file" else name) for name in content}
    for name, data in content.items():
        places[name].write_bytes(data)
    given = [one.format(**places) for one in arguments]
    assert run(command(), ["send", "t", *given, "--namesrv", "127.0.0.1:1"]) == USAGE
    said = capsys.readouterr()
    assert said.out == ""
    assert text in said.err
    assert "nothing was sent" in said.err


def stdin(monkeypatch: pytest.MonkeyPatch, text: bytes) -> Bodies:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    return Bodies((), (), (), lines=True)


def test_of_lines_that_stream_it_is_said_how_many_were_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        PartlySent, match=r"stdin, line 3: a message needs .*; 2 messages were sent before it"
    ):
        sent(stdin(monkeypatch, b"a\nb\n\nc\n"))
    with pytest.raises(click.UsageError, match=r"stdin, line 1: .*; nothing was sent"):
        sent(stdin(monkeypatch, b"\na\n"))


def test_what_has_no_line_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "none").touch()
    (tmp_path / "one").write_text("a")
    assert sent(Bodies((), (), (tmp_path / "none", tmp_path / "one"), lines=False)) == [b"a"]
    assert sent(stdin(monkeypatch, b"")) == []
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"keelmq: {tmp_path / 'none'} has no line: nothing was sent of it"
    assert second == "keelmq: stdin has no line: nothing was sent of it"
