"""The promises of a consumer that pops: nothing is lost, what is slow is kept, what fails comes again, and
no more is in flight than was allowed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from client.admin import AdminClient
from client.consuming.pop.calls import PopCalls, Popped
from client.consuming.pop.consumer import PopConsumer
from client.consuming.pop.options import PopOptions
from client.consuming.pull import PullConsumer
from client.message import Message, Received
from client.sending.producer import Producer
from model.codes import Request, Response
from model.errors import Refused
from tests.client.servers import Pair, routed, run
from tests.waiting import until

Listener = Callable[[list[Received]], Awaitable[bool | None]]


async def fill(servers: Pair, count: int, topic: str = "Orders", tags: str | None = None) -> list[bytes]:
    """So many messages, over all queues of a new topic."""
    async with AdminClient(servers.env, servers.namesrv) as admin:
        await admin.create_topic(topic, 4)
    await routed(servers, topic)
    bodies = [b"%s%d" % ((tags or "m").encode(), n) for n in range(count)]
    async with Producer(servers.env, "pg", servers.namesrv) as producer:
        for body in bodies:
            await producer.send(Message(topic=topic, body=body, tags=tags))
    return bodies


def popping(servers: Pair, listener: Listener, wants: str = "*", **options: Any) -> PopConsumer:
    how = PopOptions(**{"from_first": True, "poll_s": 0.5, **options})
    return PopConsumer(
        servers.env, "pops", servers.namesrv, listener, subscriptions={"Orders": wants}, options=how
    )


def go(directory: Path, work: Callable[[Pair], Any], **settings: Any) -> None:
    run(directory, work, **{"revive_interval_ms": 100, **settings})


async def nothing_open(servers: Pair) -> None:
    """Nothing that was popped could come again."""
    await asyncio.sleep(0.5)  # the broker reads what was acknowledged each 0.1 s
    await until(lambda: not servers.broker.processors.pops.log.open_checkpoints)


def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The codes of the client's requests, one by one."""
    codes: list[int] = []
    ask = PopCalls._ask

    async def counted(self: PopCalls, topic: str, broker: str, code: int, *rest: Any, **how: Any) -> Any:
        codes.append(code)
        return await ask(self, topic, broker, code, *rest, **how)

    monkeypatch.setattr(PopCalls, "_ask", counted)
    return codes


def test_two_members_share_all_queues_and_each_message_comes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(servers: Pair) -> None:
        codes = asked(monkeypatch)
        sent = await fill(servers, 120)
        seen: Counter[bytes] = Counter()

        async def listener(messages: list[Received]) -> None:
            seen.update(m.body for m in messages)

        async with popping(servers, listener) as one, popping(servers, listener) as two:
            await until(lambda: len(seen) == len(sent) and not one.held and not two.held)
        assert seen == Counter(sent)
        await nothing_open(servers)
        acks = codes.count(Request.ACK_MESSAGE) + codes.count(Request.BATCH_ACK_MESSAGE)
        assert codes.count(Request.BATCH_ACK_MESSAGE) > 0
        assert acks < len(sent) / 2, "acknowledgements share requests"

    go(tmp_path, work)


def test_a_slow_message_is_kept_from_others_until_it_is_handled(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        await fill(servers, 3)
        begun: Counter[bytes] = Counter()
        done: list[bytes] = []

        async def slow(messages: list[Received]) -> None:
            begun[messages[0].body] += 1
            await asyncio.sleep(1.8)  # longer than a pop hides it, and two wait for that
            done.append(messages[0].body)

        first = popping(servers, slow, invisible_s=1.0, concurrency=1)
        async with first:
            await until(lambda: first.held == 3)
            async with popping(servers, slow, invisible_s=1.0):
                await until(lambda: len(done) == 3 and not first.held, timeout_s=20)
        assert set(begun.values()) == {1}

    go(tmp_path, work)


def test_a_failure_comes_again_soon_and_too_many_are_a_dead_letter(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        await fill(servers, 2)
        tries: list[tuple[bytes, int]] = []

        async def listener(messages: list[Received]) -> bool:
            tries.append((messages[0].body, messages[0].reconsume_times))
            if messages[0].body == b"m0" and messages[0].reconsume_times == 1:
                raise RuntimeError("the program's own")
            return messages[0].body == b"m1"

        async with popping(servers, listener, retry_after_s=(0.2,), retry_max=2) as consumer:
            await until(lambda: len(tries) == 4 and not consumer.held, timeout_s=20)
            async with PullConsumer(servers.env, "ops", servers.namesrv) as reader:
                await routed(servers, "%DLQ%pops")
                (queue,) = await reader.queues("%DLQ%pops")
                (dead,) = await reader.read_all(queue)
        assert sorted(tries) == [(b"m0", 0), (b"m0", 1), (b"m0", 2), (b"m1", 0)]
        assert (dead.body, dead.properties["ORIGIN_MESSAGE_ID"] != "") == (b"m0", True)
        await nothing_open(servers)

    go(tmp_path, work)


def test_no_more_is_in_hand_than_was_allowed(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        sent = await fill(servers, 40)
        seen: set[bytes] = set()
        running: Counter[str] = Counter()
        most: Counter[str] = Counter()

        async def listener(messages: list[Received]) -> None:
            running["now"] += 1
            most["calls"] = max(most["calls"], running["now"])
            most["held"] = max(most["held"], consumer.held)
            assert len(messages) <= 2
            await asyncio.sleep(0.01)
            running["now"] -= 1
            seen.update(m.body for m in messages)

        consumer = popping(servers, listener, held_max=6, concurrency=2, batch_max=2)
        async with consumer:
            await until(lambda: seen == set(sent), timeout_s=20)
        assert 0 < most["held"] <= 6
        assert 0 < most["calls"] <= 2

    go(tmp_path, work)


def test_what_a_stopping_member_did_not_begin_comes_to_another_at_once(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        sent = await fill(servers, 8)
        begun: list[bytes] = []
        hang = asyncio.Event()

        async def hangs(messages: list[Received]) -> None:
            begun.append(messages[0].body)
            if len(begun) == 2:
                await hang.wait()

        first = popping(servers, hangs, concurrency=1, grace_s=0.3)
        await first.start()
        await until(lambda: len(begun) == 2 and first.held == 7)
        await first.stop()
        await first.stop()
        seen: set[bytes] = set()

        async def listener(messages: list[Received]) -> None:
            seen.update(m.body for m in messages)

        # A minute before the time of what was popped is over.
        async with popping(servers, listener):
            await until(lambda: seen == set(sent) - {begun[0]}, timeout_s=20)

    go(tmp_path, work)


def test_tags_are_chosen_and_the_others_are_passed(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        await fill(servers, 4, tags="A")
        await fill(servers, 4, tags="B")
        seen: list[bytes] = []

        async def listener(messages: list[Received]) -> None:
            seen.extend(m.body for m in messages)

        async with popping(servers, listener, wants="B||C"):
            await until(lambda: len(seen) == 4)
            await asyncio.sleep(0.3)
        assert sorted(seen) == [b"B0", b"B1", b"B2", b"B3"]

    go(tmp_path, work)


def test_at_a_broker_without_batches_each_is_acknowledged_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(servers: Pair) -> None:
        ack = PopCalls.ack

        async def older(self: PopCalls, popped: list[Popped]) -> None:
            if len(popped) > 1:
                raise Refused("request type 200151 not supported", Response.REQUEST_CODE_NOT_SUPPORTED)
            await ack(self, popped)

        monkeypatch.setattr(PopCalls, "ack", older)
        sent = await fill(servers, 40)
        seen: Counter[bytes] = Counter()

        async def listener(messages: list[Received]) -> None:
            seen.update(m.body for m in messages)

        async with popping(servers, listener) as consumer:
            await until(lambda: len(seen) == len(sent) and not consumer.held)
        assert seen == Counter(sent)
        await nothing_open(servers)

    go(tmp_path, work)
