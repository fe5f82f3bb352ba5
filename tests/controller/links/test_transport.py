"""The promise of controller.links.transport: only members are heard, and only what they said, in order."""

import asyncio
import hashlib
import logging
import struct
from collections.abc import Callable, Sized
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from controller.links.link import Link
from controller.links.transport import STRANGERS_MAX
from model.errors import ConfigError
from runtime.report.complaints import LINES_AT_ONCE, Complaints
from tests.fakes.controller.raft_sim import wait_for
from tests.fakes.controller.strangers import SECRET, End, Stranger, alone, frame, members, pair, text
from tests.lines import lines_of


def test_members_hear_each_other_in_order() -> None:
    async def main(one: End, two: End) -> None:
        await wait_for(lambda: one.ups and two.ups)
        for number in range(200):
            assert one.transport.send("n1", b"%d" % number * (number + 1))
        assert two.transport.send("n0", b"back")
        await wait_for(lambda: len(two.heard) == 200 and one.heard)
        assert two.heard == [("n0", b"%d" % number * (number + 1)) for number in range(200)]
        assert one.heard == [("n1", b"back")]

    pair(main)


@pytest.mark.parametrize(
    ("secrets", "extra"),
    [
        ((SECRET, b"another secret!!"), {}),
        ((None, SECRET), {}),
        ((SECRET, None), {}),
        ((SECRET,) * 2, {"n9": "127.0.0.1:1"}),
    ],
)
def test_another_secret_or_another_list_of_members_never_connects(
    secrets: tuple[bytes | None, bytes | None], extra: dict[str, str]
) -> None:
    async def main(one: End, two: End) -> None:
        await asyncio.sleep(0.4)
        assert (one.ups, two.ups) == ([], [])
        assert not one.transport.send("n1", b"x")

    pair(main, secrets, extra=extra)


def test_without_a_secret_members_must_be_on_loopback() -> None:
    with pytest.raises(ConfigError, match=r"raftSecretFile is needed: Controller n1 at 10\.0\.0\.1:9"):
        End("n0", {"n0": "127.0.0.1:9", "n1": "10.0.0.1:9"}, None)

    async def main(one: End, two: End) -> None:
        await wait_for(lambda: one.ups and two.ups)

    pair(main, (None, None))


def reached(found: Sized, count: int) -> bool:
    return len(found) == count


async def wait_dead(end: End, stranger: Stranger) -> None:
    assert await stranger.ended()
    assert end.heard == []


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x80\x04\x95" + b"cposix\nsystem\n" * 5,
        b"readonly" + bytes(60),
        b"KMQRAFT1" + bytes(32) + text("n0") + text("n2"),  # looks for somebody else
        b"KMQRAFT1" + bytes(32) + text("n1") + text("n1"),  # calls itself as this one
        b"KMQRAFT1" + bytes(32) + text("n7") + text("n1"),  # no member
        b"KMQRAFT1" + bytes(32) + b"\x02\xff\xff" + text("n1"),
        b"KMQRAFT1" + bytes(32) + text("n0") + text("n1") + frame(b"", 1, b"eager"),
        b"KMQRAFT1" + bytes(32) + text("n0") + text("n1") + b"",  # and then says nothing more
    ],
)
def test_strangers_are_cut_off_unheard(said: bytes) -> None:
    async def main(end: End) -> None:
        stranger = await Stranger.to(end)
        stranger.writer.write(said)
        await wait_dead(end, stranger)
        assert end.ups == []

    alone(main)


def test_a_guessed_proof_is_not_enough() -> None:
    async def main(end: End) -> None:
        stranger = await Stranger.to(end)
        key, _ = await stranger.shake(end, b"wrong")
        stranger.writer.write(frame(key, 1, b"x"))
        await wait_dead(end, stranger)
        assert end.ups == []

    alone(main)


def test_the_acceptors_own_proof_played_back_is_not_enough() -> None:
    async def main(end: End) -> None:
        stranger = await Stranger.to(end)
        stranger.writer.write(b"KMQRAFT1" + bytes(32) + text("n0") + text("n1"))
        challenge = await stranger.reader.readexactly(64)
        stranger.writer.write(challenge[32:])
        await wait_dead(end, stranger)
        assert end.ups == []

    alone(main)


def test_a_member_by_hand_is_heard_and_a_forged_repeated_or_huge_frame_ends_it() -> None:
    async def main(end: End) -> None:
        forgeries: list[Callable[[bytes], bytes]] = [
            lambda key: frame(hashlib.sha256(key).digest(), 2, b"forged"),
            lambda key: frame(key, 1, b"one"),  # again
            lambda key: frame(key, 3, b"three"),  # two is missing
            lambda key: struct.pack(">I", 1 << 30),
            lambda key: struct.pack(">I", 3) + b"abc",
            lambda key: frame(key, 2, b"broken"),
        ]
        for number, forge in enumerate(forgeries, 1):
            stranger = await Stranger.to(end)
            key, _ = await stranger.shake(end, SECRET)
            stranger.writer.write(frame(key, 1, b"one"))
            await wait_for(partial(reached, end.heard, number))
            stranger.writer.write(forge(key))
            assert await stranger.ended()
            await wait_for(partial(reached, end.downs, number))
        assert end.heard == [("n0", b"one")] * len(forgeries)

    alone(main)


def test_a_new_connection_of_a_member_replaces_its_old_one() -> None:
    async def main(end: End) -> None:
        first, second = await Stranger.to(end), await Stranger.to(end)
        await first.shake(end, SECRET)
        await wait_for(lambda: len(end.ups) == 1)
        key, _ = await second.shake(end, SECRET)
        assert await first.ended()
        second.writer.write(frame(key, 1, b"here"))
        await wait_for(lambda: end.heard)
        assert (end.ups, end.downs) == (["n0", "n0"], ["n0"])
        second.writer.close()

    alone(main)


def test_a_copy_of_a_connected_member_is_refused_and_told_of_until_that_one_is_gone() -> None:
    """Started from a copied directory: it may repeat votes, and the two would end each other's links."""

    async def main(one: End, two: End) -> None:
        await wait_for(lambda: one.ups and two.ups)
        copy = End("n0", {**two.transport.addresses, **members(1)}, SECRET, seed=2)
        await copy.transport.start()
        try:
            await wait_for(lambda: [event.name for event in two.transport.env.events])
            await wait_for(lambda: len(copy.downs) > 20)
            assert (one.downs, two.downs, two.ups) == ([], [], ["n0"])
            (told,) = two.transport.env.events
            assert (told.name, told.fields["member"]) == ("member_doubled", "n0")
            await one.transport.stop()
            await wait_for(lambda: two.ups == ["n0", "n0"])
        finally:
            await copy.transport.stop()

    pair(main)


def test_a_silent_member_is_cut_off_and_signs_of_life_are_given() -> None:
    async def main(end: End) -> None:
        stranger = await Stranger.to(end)
        _, key = await stranger.shake(end, SECRET)
        sign = await asyncio.wait_for(stranger.reader.readexactly(36), 5)
        assert sign == frame(key, 1, b"")
        assert await stranger.ended()
        assert end.downs == ["n0"]

    alone(main)


def test_a_crowd_of_strangers_does_not_keep_a_member_out() -> None:
    async def main(end: End) -> None:
        crowd = [await Stranger.to(end) for _ in range(STRANGERS_MAX * 2)]
        member = await Stranger.to(end)
        key, _ = await member.shake(end, SECRET)
        member.writer.write(frame(key, 1, b"through"))
        await wait_for(lambda: end.heard == [("n0", b"through")])
        for stranger in crowd:
            assert await stranger.ended()
        member.writer.close()

    alone(main)


def test_a_link_that_broke_is_made_again() -> None:
    async def main(one: End, two: End) -> None:
        await wait_for(lambda: one.ups and two.ups)
        two.transport.drop("n0")
        await wait_for(lambda: len(one.ups) == 2 and len(two.ups) == 2)
        assert one.transport.send("n1", b"again")
        await wait_for(lambda: two.heard)

    pair(main)


def test_late_strangers_without_end_make_a_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints(logging.getLogger("controller.links"), lambda: 0.0)
    for _ in range(1000):
        Link(cast(Any, SimpleNamespace(complaints=complaints, on_ended=lambda link: None)), None)._too_late()
    assert complaints.total == 1000
    assert len(lines_of(caplog)) == LINES_AT_ONCE
