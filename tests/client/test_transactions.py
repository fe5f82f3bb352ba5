"""The promise of transactions: consumers see a message when its work was done, and only then."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from client.consuming.pull import PullConsumer
from client.message import Message, Queue, Received, SendResult
from client.sending.producer import Producer
from client.sending.transactions import Decision
from model.codes import Request
from model.errors import MqError
from tests.client.servers import Pair, routed, run
from tests.waiting import until

ASKED_SOON = {"transaction_timeout_ms": 200, "transaction_check_interval_ms": 200}


async def nothing_to_tell(message: Received) -> Decision:
    raise AssertionError(f"the broker asks about {message.msg_id}")


async def commit(_: SendResult) -> Decision:
    return Decision.COMMIT


async def roll_back(_: SendResult) -> Decision:
    return Decision.ROLLBACK


async def unknown(_: SendResult) -> Decision:
    return Decision.UNKNOWN


async def bodies(servers: Pair, queue: Queue) -> list[bytes]:
    async with PullConsumer(servers.env, "cg", servers.namesrv) as consumer:
        return [message.body for message in await consumer.read_all(queue)]


async def queue_of(servers: Pair, producer: Producer) -> Queue:
    await producer.send(Message(topic="Pays", body=b"plain"))
    return (await routed(servers, "Pays"))[0]


def test_a_message_is_seen_when_it_is_committed_and_never_when_it_is_rolled_back(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        async with Producer(servers.env, "pg", servers.namesrv, check=nothing_to_tell) as producer:
            queue = await queue_of(servers, producer)
            seen: list[list[bytes]] = []

            async def look_then_commit(sent: SendResult) -> Decision:
                assert sent.queue == queue
                seen.append(await bodies(servers, queue))
                return Decision.COMMIT

            kept = Message(topic="Pays", body=b"kept", tags="t", keys=["k"])
            done = await producer.send_in_transaction(kept, look_then_commit, queue=queue)
            assert (done.decision, done.told, done.why) == (Decision.COMMIT, True, "")
            gone = Message(topic="Pays", body=b"gone")
            assert (await producer.send_in_transaction(gone, roll_back, queue=queue)).told
            assert b"kept" not in seen[0]
            assert [b for b in await bodies(servers, queue) if b != b"plain"] == [b"kept"]

    run(tmp_path, work)


@pytest.mark.parametrize("answer", [Decision.COMMIT, Decision.ROLLBACK])
def test_the_broker_asks_about_what_it_was_not_told(tmp_path: Path, answer: Decision) -> None:
    async def work(servers: Pair) -> None:
        asked: list[bytes] = []

        async def check(message: Received) -> Decision:
            asked.append(message.body)
            assert message.topic == "Pays"
            # Not known yet the first time: the broker asks again.
            return answer if len(asked) > 1 else Decision.UNKNOWN

        async with Producer(servers.env, "pg", servers.namesrv, check=check) as producer:
            queue = await queue_of(servers, producer)
            done = await producer.send_in_transaction(Message(topic="Pays", body=b"x"), unknown, queue=queue)
            assert not done.told
            await until(lambda: len(asked) > 1)
            await until(lambda: not producer._transactions._checking)
            expected = [b"x"] if answer is Decision.COMMIT else []
            found: list[bytes] = []
            for _ in range(100):
                found = [b for b in await bodies(servers, queue) if b != b"plain"]
                if found == expected:
                    break
                await asyncio.sleep(0.05)
            assert found == expected
            assert set(asked) == {b"x"}

    run(tmp_path, work, **ASKED_SOON)


def test_work_that_fails_is_the_callers_and_check_decides_later(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:

        async def check(message: Received) -> Decision:
            return Decision.COMMIT

        async def fails(_: SendResult) -> Decision:
            raise RuntimeError("the database went away")

        async with Producer(servers.env, "pg", servers.namesrv, check=check) as producer:
            queue = await queue_of(servers, producer)
            with pytest.raises(RuntimeError, match="database"):
                await producer.send_in_transaction(Message(topic="Pays", body=b"x"), fails, queue=queue)
            for _ in range(200):
                if b"x" in await bodies(servers, queue):
                    break
                await asyncio.sleep(0.05)
            assert b"x" in await bodies(servers, queue)

    run(tmp_path, work, **ASKED_SOON)


def test_an_end_that_no_master_takes_is_told_and_not_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("client.sending.transactions.CHANGED_S", 0.01)

    async def work(servers: Pair) -> None:
        async with Producer(servers.env, "pg", servers.namesrv, check=nothing_to_tell) as producer:
            queue = await queue_of(servers, producer)
            tries = 0

            async def lost(_: str, code: int, *__: object, **___: object) -> None:
                nonlocal tries
                tries += code == Request.END_TRANSACTION
                raise MqError("the link ended")

            async def work_then_cut(_: SendResult) -> Decision:
                monkeypatch.setattr(producer.session, "call", lost)
                return Decision.COMMIT

            done = await producer.send_in_transaction(
                Message(topic="Pays", body=b"x"), work_then_cut, queue=queue
            )
            monkeypatch.undo()
            assert (done.told, done.why, tries) == (False, "the link ended", 3)

    run(tmp_path, work)


def test_wrong_uses_are_refused_before_anything_is_sent(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        async with Producer(servers.env, "pg", servers.namesrv) as producer:
            with pytest.raises(ValueError, match="check="):
                await producer.send_in_transaction(Message(topic="Pays", body=b"x"), commit)
        async with Producer(servers.env, "pg", servers.namesrv, check=nothing_to_tell) as producer:
            later = Message(topic="Pays", body=b"x", delay_level=1)
            with pytest.raises(ValueError, match="cannot be delayed"):
                await producer.send_in_transaction(later, commit)

    run(tmp_path, work)
