"""The promise of admin.host.logs: text from outside begins no log line, and commands no terminal."""

from __future__ import annotations

import io
import logging
import struct

import pytest

from admin.host.logs import LineFormatter
from model.errors import PeerError
from remoting.codec import decode

FORGED = "12\n09:00:00.000 I keelmq.audit: act: root\x1b[2J\r\x85\u2028\u202e"


def lines_of(text: str, error: Exception | None = None) -> list[str]:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(LineFormatter())
    record = logging.LogRecord("remoting", logging.WARNING, "", 0, "closing: %s", (text,), None)
    if error is not None:
        record.exc_info = (type(error), error, error.__traceback__)
    handler.handle(record)
    return out.getvalue().split("\n")


def test_a_record_is_one_line_of_printable_text() -> None:
    line, rest = lines_of(FORGED)
    assert rest == ""
    assert line.isprintable()
    assert line.endswith(r"closing: 12\n09:00:00.000 I keelmq.audit: act: root\x1b[2J\r\x85\u2028\u202e")


def test_half_a_surrogate_pair_can_be_written() -> None:
    assert lines_of("\ud800")[0].endswith(r"closing: \ud800")


def test_text_of_every_language_stays_as_it_is() -> None:
    assert lines_of("späť 消息 №…")[0].endswith("closing: späť 消息 №…")


def test_no_line_of_a_traceback_looks_like_one_of_the_logs() -> None:
    first, *below, last = lines_of("it broke", ValueError(FORGED))
    assert first.endswith("it broke")
    assert len(below) >= 2
    assert all(line.startswith("    ") and line.isprintable() for line in below)
    assert last == ""


@pytest.mark.parametrize("name", ["code", "opaque", "flag", "version"])
def test_a_number_of_a_header_that_is_text_is_quoted(name: str) -> None:
    fields = {"code": "1", name: '"7\\n8"'}
    header = "{{{}}}".format(",".join(f'"{key}":{value}' for key, value in fields.items()))
    with pytest.raises(PeerError) as refused:
        decode(struct.pack(">II", 4 + len(header), len(header)) + header.encode())
    assert str(refused.value) == rf"{name} is not a 32-bit number: '7\n8'"
