"""The promise of remoting.auth: the real client's signatures are right, anybody else's are not, and no value
of a signed request can change."""

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.codes import Request, Response
from model.errors import Refused
from remoting.auth import PEER_CODES, Credentials, fields
from remoting.codec import Command, decode, encode
from remoting.service import Connection, RemotingClient, RemotingServer
from runtime.os_env import OsEnv
from tests import GOLDEN
from tests.remoting.support import run

SIGNED = GOLDEN / "acl" / "signed.jsonl"
OURS = Credentials("keelmq", "0123456789abcdef")
OTHER_SECRET = Credentials("keelmq", "0123456789abcdeF")
OTHER_NAME = Credentials("keelmQ", "0123456789abcdef")
TEXTS = st.dictionaries(st.text(max_size=4).filter(lambda k: k not in ("AccessKey", "Signature")), st.text())


def vectors() -> list[Any]:
    """Requests the real AclClientRPCHook signed. The real server takes all but one: it reads an empty value
    of a binary header as null, and its rule then puts the text "null" into what it signs."""
    return [pytest.param(line, id=line["name"]) for line in map(json.loads, SIGNED.read_text().splitlines())]


@pytest.mark.parametrize("vector", vectors())
def test_what_the_real_thing_signed_is_signed_right_here_as_well(vector: dict[str, Any]) -> None:
    command = decode(bytes.fromhex(vector["hex"]))
    assert (
        Credentials(vector["accessKey"], vector["secretKey"]).signature(command) == command.ext["Signature"]
    )
    stated = vector["header"]["extFields"]
    assert {k: v for k, v in command.ext.items() if v} == {k: v for k, v in stated.items() if v}
    assert vector["accepted"] == (vector["name"] != "send_v2_binary")


def test_signed_by_us_is_signed_as_by_the_original() -> None:
    (vector,) = (p.values[0] for p in vectors() if p.id == "register_broker")
    theirs = decode(bytes.fromhex(vector["hex"]))
    plain = replace(theirs, ext={k: v for k, v in theirs.ext.items() if k not in ("AccessKey", "Signature")})
    assert Credentials(vector["accessKey"], vector["secretKey"]).signed(plain).ext == theirs.ext
    assert "Signature" not in plain.ext


@given(ext=TEXTS, body=st.binary(max_size=20), code=st.sampled_from(sorted(PEER_CODES)))
def test_what_was_signed_is_taken_and_any_other_value_or_body_is_not(
    ext: dict[str, str], body: bytes, code: int
) -> None:
    signed = OURS.signed(Command(code, ext, body))
    OURS.check(signed)
    OURS.check(decode(encode(signed)))
    OURS.check(OURS.signed(signed))  # twice is once
    changed = [replace(signed, body=body + b"x")]
    changed += [replace(signed, ext={**signed.ext, key: value + "x"}) for key, value in signed.ext.items()]
    changed += [replace(signed, ext={**signed.ext, "zz": "more"})]
    changed += [OTHER_SECRET.signed(signed), OTHER_NAME.signed(signed), Command(code, ext, body)]
    for one in changed:
        with pytest.raises(Refused) as refused:
            OURS.check(one)
        assert refused.value.code == Response.NO_PERMISSION


def test_another_name_with_the_right_secret_is_no_peer() -> None:
    with pytest.raises(Refused, match="another key"):
        OURS.check(OTHER_NAME.signed(Command(Request.CLEAN_BROKER_DATA)))


def test_a_refusal_says_what_to_do_and_nothing_of_the_key() -> None:
    for command in (Command(Request.REGISTER_BROKER), OTHER_SECRET.signed(Command(Request.REGISTER_BROKER))):
        with pytest.raises(Refused) as refused:
            OURS.check(command)
        for word in (
            "REGISTER_BROKER",
            "peerCredentialsFile",
            "--credentials",
            "tools.yml",
            "innerClientAuth",
        ):
            assert word in refused.value.remark
        assert OURS.secret_key not in refused.value.remark + repr(OURS)
        assert OURS.signature(command) not in refused.value.remark


def test_values_are_one_text_so_the_sorting_matters() -> None:
    assert fields(Command(1, {"b": "2", "a": "1", "B": "0", "Signature": "no"}, b"!")) == b"012"


# on the wire


@asynccontextmanager
async def serving(heard: list[int], signs: bool = False, **options: Any) -> AsyncIterator[str]:
    async def handler(connection: Connection, request: Command) -> Command | None:
        heard.append(request.code)
        if ask := request.ext.get("ask"):
            return request.reply((await connection.call(Command(int(ask)), 5)).code)
        return request.reply()

    server = RemotingServer(OsEnv(seed=1), "test", handler, **options)
    if signs:
        server.sign_calls()
    port = await server.start("127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop()


@asynccontextmanager
async def client_of(credentials: Credentials | None) -> AsyncIterator[RemotingClient]:
    async def handler(connection: Connection, request: Command) -> Command | None:
        return request.reply()

    client = RemotingClient(OsEnv(seed=1), "client", handler=handler, credentials=credentials)
    try:
        yield client
    finally:
        await client.close()


def test_a_server_with_a_key_lets_peer_requests_of_others_reach_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard: list[int] = []

    async def work() -> None:
        async with serving(heard, credentials=OURS) as address:
            for credentials in (None, OTHER_SECRET, OTHER_NAME):
                async with client_of(credentials) as client:
                    for code in sorted(PEER_CODES):
                        answer = await client.call(address, Command(code))
                        assert answer.code == Response.NO_PERMISSION, Request(code).name
                    await client.oneway(address, Command(Request.BROKER_HEARTBEAT))
                    # Answered after it, on the same connection: the oneway request was looked at.
                    assert (await client.call(address, Command(Request.HEART_BEAT))).code == 0
            async with client_of(OURS) as client:
                for code in sorted(PEER_CODES):
                    assert (await client.call(address, Command(code))).code == 0

    with caplog.at_level(logging.WARNING):
        run(work)
    assert heard == [Request.HEART_BEAT] * 3 + sorted(PEER_CODES)
    assert len([r for r in caplog.records if "refused" in r.message]) == 3, "one line a connection"


def test_a_client_believes_peer_requests_only_of_a_server_that_signs() -> None:
    async def work() -> None:
        for options, code in (
            ({"credentials": OURS, "signs": True}, 0),
            ({"credentials": OURS}, Response.NO_PERMISSION),
            ({}, Response.NO_PERMISSION),
        ):
            async with serving([], **options) as address, client_of(OURS) as client:
                asked = Command(Request.HEART_BEAT, {"ask": str(int(Request.NOTIFY_BROKER_ROLE_CHANGED))})
                assert (await client.call(address, asked)).code == code

    run(work)


def test_without_a_key_everybody_is_heard_as_before() -> None:
    heard: list[int] = []

    async def work() -> None:
        async with serving(heard) as address, client_of(None) as client:
            for code in sorted(PEER_CODES):
                assert (await client.call(address, Command(code))).code == 0

    run(work)
    assert heard == sorted(PEER_CODES)
