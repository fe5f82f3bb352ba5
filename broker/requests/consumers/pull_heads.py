"""How is an answer that has messages made in compiled code, or its header alone?

By what the codec itself writes around the numbers of one: the two cannot differ.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import ModuleType
from typing import Final, NamedTuple

from broker.requests.consumers.told import FOUND, MASTER, Told
from model.codes import Response
from remoting import codec
from remoting.codec import Command
from remoting.headers import PullAnswer, PullHeader
from store.files.compiled import compiled


class Given(NamedTuple):
    """What pulls of a topic were answered with; compiled code makes plain tuples of it."""

    frames_bytes: int
    commits: list[tuple[int, int]]
    """Queue, and what its group is said to be behind."""
    reached: list[tuple[int, int]]
    """Queue, and where it is read on."""
    beyond: bool
    """One of the former is behind its latter."""
    records: int
    records_bytes: int
    stored_ms: list[int]
    """When the first record of each pull was stored."""


Answers = tuple[int, Command, PullHeader, list[bytes], Given]
"""Where the pulls end, of the first one request and header, the frames, and what they give."""

_OPAQUE: Final = 111111106
_NUMBERS: Final = (111111101, 111111102, 111111103, 111111104, 111111105)
"""Next, least and greatest offset, the topic's and the group's flags; nothing else looks like one."""
_BEGIN: Final = 8  # of the header, in a frame
_INT: Final = struct.Struct(">i").pack
_INT_BYTES: Final = 4


class PullHeads:
    """Heads of answers with messages, of both dialects."""

    def __init__(self, module: ModuleType) -> None:
        heads = module.PullHeads(_json_parts(), _binary_parts())
        self._head = heads.head
        self.answers: Callable[..., Answers | None] = heads.answers
        """``PullHeads.answers`` of the module."""

    def of(self, told: Told, request: Command) -> bytes | None:
        """What ``head_of`` makes of the reply; None: that has to."""
        code, _, next_offset, least, most, topic_flag, group_flag, body = told
        if code is not Response.SUCCESS:
            return None
        binary = request.serialize == codec.ROCKETMQ
        try:
            head: bytes = self._head(
                binary, request.opaque, next_offset, least, most, topic_flag, group_flag, len(body)
            )
        except OverflowError:
            return None  # a flag may be any number that was once in a table's file
        return head


def compiled_heads() -> PullHeads | None:
    """None: there is no compiled path."""
    module = compiled()
    return None if module is None else PullHeads(module)


def _sample(serialize: int) -> bytes:
    asked = Command(0, opaque=_OPAQUE, serialize=serialize)
    following, least, most, *flags = _NUMBERS
    ext = PullAnswer(following, least, most, MASTER, *flags).to_ext()
    return codec.encode(asked.reply(Response.SUCCESS, remark=FOUND, ext=ext))[_BEGIN:]


def _json_parts() -> tuple[bytes, ...]:
    return _around(_sample(codec.JSON), [b"%d" % number for number in (*_NUMBERS, _OPAQUE)])


def _binary_parts() -> tuple[bytes, ...]:
    """Lengths are left out: that of all ext fields, and those before the numbers."""
    before, behind = _around(_sample(codec.ROCKETMQ), [_INT(_OPAQUE)])
    ext_at = _INT_BYTES + _INT_BYTES + len(FOUND)  # the flag, and the remark with its length
    fields = behind[ext_at + _INT_BYTES :]
    texts = [b"%d" % number for number in _NUMBERS]
    return before, behind[:ext_at], *_around(fields, [_INT(len(text)) + text for text in texts])


def _around(sample: bytes, marks: list[bytes]) -> tuple[bytes, ...]:
    """What stands before each mark, which are there once and in this order, and behind the last one."""
    parts = []
    for mark in marks:
        before, _, sample = sample.partition(mark)
        parts.append(before)
    return *parts, sample
