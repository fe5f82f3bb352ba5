"""The promise to clients with ``namespaceV2``: its fields ``ns`` and ``nsd`` come with every request, and the
broker does what it does without them, as the original's."""

from __future__ import annotations

from pathlib import Path

from model.codes import Request
from remoting.codec import Command
from tests.broker.helpers import Client, records, running


class Namespaced(Client):
    async def call(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", timeout_s: float = 10.0
    ) -> Command:
        return await super().call(code, {**(ext or {}), "nsd": "true", "ns": "shop"}, body, timeout_s)


async def test_what_a_client_of_a_namespace_sends_is_read_with_and_without_one(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        plain, of_shop = Client(broker), Namespaced(broker)
        for sender in (of_shop, plain, of_shop):
            assert (await sender.send("T")).code == 0
        await broker.store.caught_up()
        for reader in (plain, of_shop):
            found = records((await reader.pull("T", 0)).body)
            assert [(record.topic, record.queue_offset) for record in found] == [("T", 0), ("T", 1), ("T", 2)]
            assert "shop" not in "".join(record.properties for record in found)
        place = {"consumerGroup": "cg", "topic": "T", "queueId": "0"}
        committed = await of_shop.call(Request.UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": "2"})
        assert committed.code == 0
        assert (await plain.call(Request.QUERY_CONSUMER_OFFSET, place)).ext["offset"] == "2"
        await plain.remoting.close()
        await of_shop.remoting.close()
