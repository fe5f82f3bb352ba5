"""The promise of long bodies: who merely names a key makes the server compute little, once, and in slices."""

from __future__ import annotations

import asyncio
import hmac
from typing import Any

import pytest

from model.codes import Request, Response
from model.config import NamesrvConfig
from model.errors import Refused
from remoting import long_bodies
from remoting.acl.gate import Gate
from remoting.auth import Credentials, kept_as
from remoting.codec import Command
from remoting.long_bodies import SLICED_BYTES, STEP_BYTES
from remoting.service import RemotingServer
from runtime import turns
from tests.remoting.keys import KEY, WRONG
from tests.remoting.support import client_of, serving

MIB = 1 << 20
ALICE = Credentials("alice", "alice-secret")


class Meter:
    """Bytes of bodies that went through a MAC."""

    def __init__(self) -> None:
        self.size = 0

    def new(self, key: bytes, msg: bytes, digest: str) -> Any:
        mac, meter = _NEW(key, msg, digest), self

        class Counted:
            def update(self, data: bytes) -> None:
                meter.size += len(data)
                mac.update(data)

            def digest(self) -> bytes:
                return mac.digest()

        return Counted()


_NEW = hmac.new


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> Meter:
    found = Meter()
    monkeypatch.setattr(hmac, "new", found.new)
    return found


def behind_a_gate(server: RemotingServer) -> None:
    config = NamesrvConfig.from_mapping({"authenticationEnabled": "true", "authorizationEnabled": "true"})
    server.guard.gate = Gate.of(config, server.guard.audit, None, "c")
    server.guard.gate.directory.create_user("alice", {"password": ALICE.secret_key}, True)


async def test_a_body_no_request_of_its_code_has_is_refused_before_its_signature_is_computed(
    meter: Meter,
) -> None:
    async with serving(credentials=KEY) as (server, address), client_of() as client:
        behind_a_gate(server)
        for key in (KEY, ALICE):
            signed = key.signed(Command(Request.UPDATE_BROKER_CONFIG, {}, bytes(MIB)))
            meter.size = 0
            answer = await client.call(address, signed)
            assert answer.code == Response.SYSTEM_ERROR
            assert "1048576 bytes, at most 65536 are taken" in (answer.remark or "")
            assert meter.size == 0


async def test_a_wrong_signature_over_a_long_body_is_computed_once_whoever_asks(meter: Meter) -> None:
    async with serving(credentials=KEY) as (server, address), client_of() as client:
        behind_a_gate(server)
        signed = WRONG.signed(Command(Request.REGISTER_BROKER, {}, bytes(MIB)))
        meter.size = 0
        answer = await client.call(address, signed)
        assert answer.code == Response.NO_PERMISSION
        assert meter.size == MIB


async def test_the_longest_body_is_looked_at_in_slices_and_the_right_signature_passes(
    meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(credentials=KEY) as (_, address), client_of() as client:
        signed = KEY.signed(Command(Request.REGISTER_BROKER, {}, bytes(SLICED_BYTES + STEP_BYTES)))
        calls: list[int] = []
        kept = kept_as
        turned = 0

        async def turning() -> None:
            nonlocal turned
            while True:
                turned += 1
                await asyncio.sleep(0)

        def noted(*given: Any) -> None:
            calls.append(turned)
            kept(*given)

        monkeypatch.setattr(turns, "SLICE_MS", 0.0)
        monkeypatch.setattr(long_bodies, "kept_as", noted)
        meter.size = 0
        other = asyncio.create_task(turning())
        answer = await client.call(address, signed)
        other.cancel()
        assert answer.code == 0
        assert len(answer.body) == meter.size == SLICED_BYTES + STEP_BYTES
        assert calls[0] >= SLICED_BYTES // STEP_BYTES, "the loop went round between the steps"


async def test_a_message_that_is_too_long_is_refused_before_anything_of_it_is_computed(meter: Meter) -> None:
    def need(size: int) -> None:
        if size > MIB:
            raise Refused(f"{size} bytes", Response.MESSAGE_ILLEGAL)

    async with serving(credentials=KEY) as (server, address), client_of() as client:
        behind_a_gate(server)
        server.guard.starts.bodies.need_message = need
        signed = WRONG.signed(Command(Request.SEND_MESSAGE_V2, {}, bytes(SLICED_BYTES + 1)))
        meter.size = 0
        answer = await client.call(address, signed)
        assert (answer.code, meter.size) == (Response.MESSAGE_ILLEGAL, 0)
