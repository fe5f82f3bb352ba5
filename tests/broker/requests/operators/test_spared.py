"""The promise of the requests about parts of RocketMQ that are not here: what the original answers where
these parts are off. The answers themselves are held to a real broker's (``test_wire_answers``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from broker.requests.operators.spared import THRESHOLDS_MAX
from model.codes import Request
from remoting import bodies
from tests.broker.helpers import client_of, running

LITE_GROUP = {"groupName": "lite", "attributes": {"+lite.bind.topic": "T"}}


def subscriptions(*actions: str, **more: object) -> bytes:
    one = {"clientId": "c1", "group": "lite", "topic": "T", **more}
    return json.dumps({"subscriptionSet": [{**one, "action": action} for action in actions]}).encode()


async def test_thresholds_of_cold_reads_are_kept_shown_and_bounded(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:

        async def held() -> dict[str, Any]:
            answer = await client.call(Request.GET_COLD_DATA_FLOW_CTR_INFO)
            found: dict[str, Any] = bodies.loads(answer.body)["configTable"]
            return found

        change = Request.UPDATE_COLD_DATA_FLOW_CTR_CONFIG
        assert (await client.call(change, {}, b"a=1\nb=x\nc=99999999999999999999\n")).code == 0
        assert await held() == {"a": 1}
        assert (await client.call(change, {}, b"no line")).code == 1
        many = b"".join(b"g%d=1\n" % n for n in range(THRESHOLDS_MAX + 5))
        assert (await client.call(change, {}, many)).code == 0
        assert len(await held()) == THRESHOLDS_MAX
        assert (await client.call(change, {}, b"a=2\nnew=2\n")).code == 0
        assert (await held())["a"] == 2
        assert "new" not in await held()
        for group in (b"a", b"nobody", b"\xff"):
            assert (await client.call(Request.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, {}, group)).code == 0
        assert "a" not in await held()


async def test_the_timers_engine_that_is_there_takes_up_messages_again(tmp_path: Path) -> None:
    async with running(tmp_path, timerStopEnqueue=True) as broker, client_of(broker) as client:
        assert (await client.call(Request.SWITCH_TIMER_ENGINE, {"E_T": "R"})).code == 29
        assert broker.config.timer_stop_enqueue
        assert (await client.call(Request.SWITCH_TIMER_ENGINE, {"E_T": "F"})).code == 0
        assert not broker.config.timer_stop_enqueue
    async with running(tmp_path, timerWheelEnable=False) as broker, client_of(broker) as client:
        assert (await client.call(Request.SWITCH_TIMER_ENGINE, {"E_T": "F"})).code == 29


async def test_nobody_subscribes_to_lite_topics_and_groups_bound_to_them_are_shown(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.send("T")
        made = await client.call(
            Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps(LITE_GROUP).encode()
        )
        assert made.code == 0
        before = broker.groups.to_json()

        async def asked(*actions: str, **more: object) -> int:
            answer = await client.call(Request.LITE_SUBSCRIPTION_CTL, {}, subscriptions(*actions, **more))
            return int(answer.code)

        assert [await asked(action) for action in ("PARTIAL_ADD", "COMPLETE_ADD")] == [2018, 2018]
        assert await asked("PARTIAL_REMOVE", "COMPLETE_REMOVE") == 0
        assert await asked("COMPLETE_REMOVE", "PARTIAL_ADD") == 2018
        assert await asked("PARTIAL_ADD", group="nobody") == 604
        assert await asked("PARTIAL_ADD", topic=" ") == 0
        assert (await client.call(Request.LITE_SUBSCRIPTION_CTL, {}, b'{"subscriptionSet": [7]}')).code == 1
        shown = bodies.loads((await client.call(Request.GET_BROKER_LITE_INFO)).body)
        assert shown["groupMeta"] == {"T": ["lite"]}
        assert shown["liteSubscriptionCount"] == 0
        assert broker.groups.to_json() == before, "what is asked about is not made"


async def test_a_list_of_tables_to_export_is_read_to_a_bound(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        for kinds, code in (("topics; Users", 1), ("consumeroffsets;;TOPICS", 0), ("topics;" * 100_000, 1)):
            answer = await client.call(Request.EXPORT_ROCKSDB_CONFIG_TO_JSON, {"configType": kinds})
            assert answer.code == code, kinds[:30]
