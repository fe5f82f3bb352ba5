"""Sends the requests of a table to a broker, and says of each answer what can be compared."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any, Final

from model.codes import Request
from model.errors import PeerError, Unknown
from model.message import decode_properties
from remoting import bodies
from remoting.codec import Command
from remoting.service import RemotingClient
from runtime.os_env import OsEnv
from store.files.record import records_in
from tests.interop.answers.wire import Case

Seen = dict[str, Any]
"""``code``; of an answer that is no refusal also ``ext`` and ``body``; <marks> for what differs by run."""

MESSAGES: Final = frozenset(
    {
        Request.PULL_MESSAGE,
        Request.VIEW_MESSAGE_BY_ID,
        Request.QUERY_MESSAGE,
        Request.POP_MESSAGE,
        Request.PEEK_MESSAGE,
    }
)
ONE_WAY: Final = (Request.END_TRANSACTION,)
"""No client waits for an answer to these, and the original has none to some."""
ANSWER_S: Final = 20.0
SOON_S: Final = 2.0
OK: Final = (0, 19, 20, 21)
OF_THE_RUN: Final = ("recallHandle", "indexLastUpdateTimestamp", "indexLastUpdatePhyoffset")
OWN: Final = "DELAYED_AS"
"""keelmq's mark of a delayed message's copy, by which a new master does not make a second one."""
MS_MIN: Final = 1_600_000_000_000
"""A number of at least as much is a time."""
_IDS: Final = (
    (re.compile(r"\b[0-9A-F]{32}\b"), "<id>"),
    (re.compile(r"127\.0\.0\.1:\d+"), "<address>"),
    (re.compile(r"\b1[6-9]\d{11}\b"), "<ms>"),
    (re.compile(r"\b(?:19|20)\d\d-\d\d-\d\d#[\d:]+"), "<time>"),
)


async def ask_all(address: str, cases: Sequence[Case]) -> dict[str, Seen]:
    """By the case's name, in order, all on one connection."""
    env = OsEnv()
    remoting = RemotingClient(env, "asks")
    known: dict[str, str] = {}
    found: dict[str, Seen] = {}
    try:
        for case in cases:
            await asyncio.sleep(case.wait_s)
            known["{now}"] = str(env.now_ms())
            ext = {name: _filled(value, known) for name, value in case.ext.items()}
            command = Command(case.code, ext, case.body)
            try:
                answer = await remoting.call(
                    address, command, ANSWER_S if case.code not in ONE_WAY else SOON_S
                )
            except Unknown:
                found[case.name] = {"code": None}
                continue
            for name, value in answer.ext.items():
                known[f"{{{case.name}.{name}}}"] = value
            if answer.ext.get("msgId"):
                known[f"{{{case.name}.place}}"] = str(int(answer.ext["msgId"][-16:], 16))
            found[case.name] = seen(case, answer)
    finally:
        await remoting.close()
    return found


def _filled(value: str, known: dict[str, str]) -> str:
    for name, instead in known.items() if "{" in value else ():
        value = value.replace(name, instead)
    return value


def seen(case: Case, answer: Command) -> Seen:
    if answer.code not in OK:
        return {"code": int(answer.code)}
    ext = {
        name: f"<{name}>" if name in OF_THE_RUN else _shown(value)
        for name, value in sorted(answer.ext.items())
    }
    if case.code in MESSAGES and answer.body:
        return {"code": int(answer.code), "ext": ext, "body": [_record(r) for r in records_in(answer.body)]}
    return {"code": int(answer.code), "ext": ext, "body": _body(bytes(answer.body))}


def _record(record: Any) -> list[Any]:
    properties = decode_properties(record.properties)
    names = sorted(name for name in properties if name != OWN)
    body = record.body if len(record.body) < 100 else record.body[:100]
    return [record.topic, record.queue_id, record.queue_offset, body.decode(errors="replace"), names,
            record.flag, record.sys_flag, record.reconsume_times]  # fmt: skip


def _body(body: bytes) -> Any:
    if not body:
        return None
    try:
        return _shown(bodies.loads(body, bodies.BELIEVED))
    except PeerError:
        return _shown(body.decode(errors="replace"))


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        return dict(sorted((str(_shown(str(name))), _shown(one)) for name, one in value.items()))
    if isinstance(value, list):
        return sorted((_shown(one) for one in value), key=repr)
    if isinstance(value, str):
        for pattern, instead in _IDS:
            value = pattern.sub(instead, value)
        return value
    if isinstance(value, float):
        return "<float>"
    if isinstance(value, int) and not isinstance(value, bool) and value >= MS_MIN:
        return "<ms>"
    return value
