"""The promise of SQL92 subscriptions: a consumer gets what its expression takes, all of it, in order; a wrong
one is refused as the original refuses it; nobody else waits for a long search."""

from __future__ import annotations

import asyncio
from pathlib import Path

from model.codes import Request, Response
from remoting import bodies
from remoting.codec import Command
from remoting.headers import PULL_SUBSCRIPTION, PULL_SUSPEND, PullHeader, SendHeader
from tests.broker.helpers import Client, batch_body, client_of, records, running


def pull(
    offset: int, expression: str, *, suspend_ms: int = 0, count: int = 32, kind: str = "SQL92"
) -> Command:
    flags = PULL_SUBSCRIPTION | (PULL_SUSPEND if suspend_ms else 0)
    header = PullHeader("cg", "T", 0, offset, count, flags, 0, suspend_ms, expression, expression_type=kind)
    return Command(int(Request.PULL_MESSAGE), header.to_ext())


async def ask(client: Client, command: Command) -> Command:
    return await client.remoting.call(client.address, command, 20)


async def send(client: Client, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        await client.send("T", b"%d" % number, properties=f"n\x01{number}\x02kind\x01{'ab'[number % 2]}\x02")


async def drained(client: Client, expression: str, end: int, count: int = 32) -> tuple[list[bytes], int]:
    """(bodies in order, pulls) of a consumer that begins at 0 and reads to ``end``."""
    found, offset, pulls = [], 0, 0
    while offset < end:
        answer = await ask(client, pull(offset, expression, count=count))
        assert answer.code in (Response.SUCCESS, Response.PULL_RETRY_IMMEDIATELY), answer.remark
        found += [record.body for record in records(answer.body)]
        assert int(answer.ext["nextBeginOffset"]) > offset, "each pull goes on"
        offset, pulls = int(answer.ext["nextBeginOffset"]), pulls + 1
    return found, pulls


async def test_a_consumer_gets_what_its_expression_takes(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await send(client, 100)
        await broker.store.caught_up()
        found, _ = await drained(client, "kind = 'b' AND n BETWEEN 10 AND 60", 100)
        assert found == [b"%d" % n for n in range(11, 60, 2)]
        few, _ = await drained(client, "kind = 'a'", 100, count=3)
        assert few == [b"%d" % n for n in range(0, 100, 2)], "also in small pulls"
        none, pulls = await drained(client, "n > 1000", 100)
        assert none == []
        assert pulls <= 4, "a pull passes over many messages"


async def test_a_held_pull_waits_behind_what_it_does_not_take(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client, client_of(broker) as sender:
        await send(sender, 1)
        await broker.store.caught_up()
        waiting = asyncio.create_task(ask(client, pull(1, "n = 7", suspend_ms=15_000)))
        await asyncio.sleep(0.1)
        await send(sender, 6, first=1)
        await broker.store.caught_up()
        await asyncio.sleep(0.1)
        assert not waiting.done(), "six came that it does not want"
        await send(sender, 1, first=7)
        answer = await asyncio.wait_for(waiting, 5)
        assert [record.body for record in records(answer.body)] == [b"7"]
        assert answer.ext["nextBeginOffset"] == "8"


async def test_wrong_expressions_are_refused_as_the_original_refuses_them(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await send(client, 1)
        await broker.store.caught_up()
        wrong = await ask(client, pull(0, "n >"))
        assert wrong.code == Response.SUBSCRIPTION_PARSE_FAILED
        unknown = await ask(client, pull(0, "n = 1", kind="XPATH"))
        assert unknown.code == Response.SUBSCRIPTION_PARSE_FAILED
        checks = {}
        for text in ("n = 1", "n >"):
            told = {"clientId": "c", "group": "cg", "subscriptionData": {
                "topic": "T", "subString": text, "expressionType": "SQL92"}}  # fmt: skip
            checks[text] = await client.call(Request.CHECK_CLIENT_CONFIG, {}, bodies.dumps(told))
        assert checks["n = 1"].code == 0
        assert checks["n >"].code == Response.SUBSCRIPTION_PARSE_FAILED
        assert (checks["n >"].remark or "").startswith("Invalid MessageSelector. ")
        beat = {"clientID": "c", "consumerDataSet": [{"groupName": "cg", "subscriptionDataSet": [
            {"topic": "T", "subString": "n >", "expressionType": "SQL92", "subVersion": 1}]}]}  # fmt: skip
        assert (await client.call(Request.HEART_BEAT, {}, bodies.dumps(beat))).code == 0
        own = await ask(client, Command(int(Request.PULL_MESSAGE), PullHeader("cg", "T", 0, 0, 32).to_ext()))
        assert own.code == Response.FILTER_DATA_NOT_EXIST


async def test_an_operator_can_turn_expressions_off(tmp_path: Path) -> None:
    async with running(tmp_path, enablePropertyFilter="false") as broker, client_of(broker) as client:
        await send(client, 1)
        refused = await ask(client, pull(0, "n = 0"))
        assert refused.code == 1
        assert refused.remark == "The broker does not support consumer to filter message by SQL92"


async def test_a_long_search_lets_others_have_their_turn(tmp_path: Path) -> None:
    """Work, counted in records: no single pull looks at more than one look's worth of them."""
    async with running(tmp_path) as broker, client_of(broker) as client:
        body = [(b"x", f"n\x01{number}\x02", 0) for number in range(500)]
        await client.send("T")
        for _ in range(12):
            await client.call(Request.SEND_BATCH_MESSAGE, batch_header(), batch_body(body))
        await broker.store.caught_up()
        end = broker.store.max_queue_offset("T", 0)
        assert end > 6000
        slow = " OR ".join(f"n CONTAINS 'z{number}'" for number in range(300))
        found, pulls = await drained(client, slow, end)
        assert found == []
        assert pulls >= 3


def batch_header() -> dict[str, str]:
    text = "UNIQ_KEY\x01" + "0" * 32 + "\x02"
    return SendHeader("pg", "T", 0, 1_700_000_000_000, properties=text, batch=True).to_ext()
