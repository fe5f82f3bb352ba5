"""The promise of broker.requests.operators: what operators ask is answered, and takes effect at once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from broker.tables import resets
from broker.tables.copies import Copies
from model.codes import Request, Response
from model.errors import Refused
from model.message import retry_topic
from remoting import bodies
from remoting.bodies import queue_key
from remoting.codec import Command
from remoting.headers import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND, PullHeader
from remoting.service import Connection
from tests.broker.helpers import (
    Client,
    client_of,
    eventually,
    heartbeat,
    records,
    role_state,
    running,
)


async def test_what_mqadmin_asks_is_answered(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        sent = [await client.send("T", b"m%d" % n, properties="KEYS\x01k1 k2\x02") for n in range(5)]
        await broker.store.caught_up()
        broker.groups.find("cg")
        await client.call(
            Request.UPDATE_CONSUMER_OFFSET,
            {"consumerGroup": "cg", "topic": "T", "queueId": "0", "commitOffset": "2"},
        )
        queue = queue_key("T", "broker-t", 0)
        stats = bodies.loads((await client.call(Request.GET_TOPIC_STATS_INFO, {"topic": "T"})).body)
        assert (stats["offsetTable"][queue]["minOffset"], stats["offsetTable"][queue]["maxOffset"]) == (
            0,
            5,
        )
        progress = bodies.loads((await client.call(Request.GET_CONSUME_STATS, {"consumerGroup": "cg"})).body)
        assert progress["offsetTable"][queue]["brokerOffset"] == 5
        assert progress["offsetTable"][queue]["consumerOffset"] == 2
        by_who = await client.call(Request.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T"})
        assert bodies.loads(by_who.body) == {"groupList": ["cg"]}
        runtime = bodies.loads((await client.call(Request.GET_BROKER_RUNTIME_INFO)).body)["table"]
        assert runtime["commitLogMaxOffset"] == str(broker.store.log.end)
        assert runtime["brokerVersionDesc"]
        listed = await client.call(Request.GET_ALL_TOPIC_CONFIG)
        assert "T" in bodies.loads(listed.body)["topicConfigTable"]
        ha = bodies.loads((await client.call(Request.GET_BROKER_HA_STATUS)).body)
        assert (ha["master"], ha["masterCommitLogMaxOffset"]) == (True, broker.store.log.end)
        seen = await client.call(Request.VIEW_MESSAGE_BY_ID, {"offset": "0", "topic": "T"})
        assert [r.body for r in records(seen.body)] == [b"m0"]
        query = {
            "topic": "T",
            "key": "k2",
            "maxNum": "10",
            "beginTimestamp": "0",
            "endTimestamp": str(2**62),
        }
        assert len(records((await client.call(Request.QUERY_MESSAGE, query)).body)) == 5
        unique = {**query, "key": sent[3].ext["transactionId"], "_UNIQUE_KEY_QUERY": "true"}
        assert [r.body for r in records((await client.call(Request.QUERY_MESSAGE, unique)).body)] == [b"m3"]
        assert (await client.call(Request.GET_BROKER_EPOCH_CACHE)).code == 1
        assert (await client.call(987654)).code == 3


async def _reset(client: Client, offset: int) -> None:
    ext = {"topic": "T", "group": "cg", "timestamp": "0", "queueId": "0", "offset": str(offset)}
    answer = await client.call(Request.INVOKE_BROKER_TO_RESET_OFFSET, ext)
    assert answer.code == 0, answer.remark


def _pull(offset: int, commit: int = -1, wait_ms: int = 0) -> dict[str, str]:
    flags = PULL_SUBSCRIPTION | (PULL_COMMIT_OFFSET if commit >= 0 else 0) | (PULL_SUSPEND if wait_ms else 0)
    return PullHeader("cg", "T", 0, offset, 32, flags, max(commit, 0), wait_ms, "*").to_ext()


@pytest.mark.parametrize("to", [3, 5])
async def test_what_members_commit_before_they_go_on_where_an_operator_said_does_not_undo_it(
    tmp_path: Path, to: int
) -> None:
    """As RocketMQ 5.5 by default: commits of the time before are answered OK, and the next pull is told."""
    told: list[Command] = []

    async def handler(connection: Connection, request: Command) -> None:
        told.append(request)

    async with running(tmp_path) as broker, client_of(broker, handler) as client:
        for _ in range(5):
            await client.send("T")
        await broker.store.caught_up()
        await client.call(Request.HEART_BEAT, {}, heartbeat("c1", "cg", "T"))
        commit = {"consumerGroup": "cg", "topic": "T", "queueId": "0", "commitOffset": "4"}
        await client.call(Request.UPDATE_CONSUMER_OFFSET, commit)
        await _reset(client, to)
        late = await client.call(Request.UPDATE_CONSUMER_OFFSET, commit)
        assert (late.code, late.remark) == (0, "Offset has been previously reset")
        assert broker.offsets.get("cg", "T", 0) == to
        answer = await client.call(Request.PULL_MESSAGE, _pull(4, commit=4))
        assert (answer.code, answer.ext["nextBeginOffset"]) == (Response.PULL_OFFSET_MOVED, str(to))
        assert (answer.remark, answer.ext["minOffset"], answer.ext["maxOffset"]) == ("OFFSET_RESET", "0", "5")
        assert broker.offsets.get("cg", "T", 0) == to, "what that pull said was of the time before, too"
        assert (await client.call(Request.PULL_MESSAGE, _pull(4, commit=4))).code == 0, "it is told once"
        await client.call(Request.UPDATE_CONSUMER_OFFSET, commit)
        assert broker.offsets.get("cg", "T", 0) == to, "Java's of 4.9 go there ten seconds later"
        await client.call(Request.PULL_MESSAGE, _pull(to))
        await client.call(Request.UPDATE_CONSUMER_OFFSET, commit)
        assert broker.offsets.get("cg", "T", 0) == 4, "now it counts"
        assert Request.RESET_CONSUMER_CLIENT_OFFSET not in [command.code for command in told]


async def test_a_pull_that_waits_is_told_of_a_reset_at_once_and_others_wait_on(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.send("T")
        await broker.store.caught_up()
        other = PullHeader("og", "T", 0, 1, 32, PULL_SUBSCRIPTION | PULL_SUSPEND, 0, 60_000, "*").to_ext()
        waits = asyncio.ensure_future(client.call(Request.PULL_MESSAGE, _pull(1, wait_ms=60_000)))
        waits_on = asyncio.ensure_future(client.call(Request.PULL_MESSAGE, other))
        await eventually(lambda: broker.processors.pulls.held == 2, "both wait")
        await _reset(client, 0)
        answer = await waits
        assert (answer.code, answer.ext["nextBeginOffset"]) == (Response.PULL_OFFSET_MOVED, "0")
        await client.send("T")
        answer = await waits_on
        assert (answer.code, answer.ext["nextBeginOffset"]) == (0, "2")


async def test_a_pull_whose_answer_nobody_hears_is_told_nothing_and_a_new_connection_is_told_again(
    tmp_path: Path,
) -> None:
    """Where the answer got lost, the next pull read on, and its commit undid the reset."""
    async with running(tmp_path) as broker, client_of(broker) as client, client_of(broker) as anew:
        for _ in range(5):
            await client.send("T")
        await broker.store.caught_up()
        broker.groups.find("cg")
        await _reset(client, 2)
        connection = await client.connection()
        connection.oneway(Command(int(Request.PULL_MESSAGE), _pull(4, commit=4)))
        connection.oneway(Command(int(Request.PULL_MESSAGE), _pull(2, commit=2)))
        moved = (Response.PULL_OFFSET_MOVED, "2")
        for one in (client, anew):
            answer = await one.call(Request.PULL_MESSAGE, _pull(4, commit=4))
            assert (answer.code, answer.ext["nextBeginOffset"]) == moved
            assert (await one.call(Request.PULL_MESSAGE, _pull(4, commit=4))).code == 0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(resets, "AGAIN_MS", 0)
            answer = await anew.call(Request.PULL_MESSAGE, _pull(4, commit=4))
        assert (answer.code, answer.ext["nextBeginOffset"]) == moved
        assert broker.offsets.get("cg", "T", 0) == 2


async def test_a_consumer_that_begins_where_its_group_was_reset_to_reads_at_once(tmp_path: Path) -> None:
    """RocketMQ tells it to go on there, too; Java's push consumer then waits for ten seconds."""
    async with running(tmp_path) as broker, client_of(broker) as client:
        for _ in range(5):
            await client.send("T")
        await broker.store.caught_up()
        broker.groups.find("cg")
        await _reset(client, 2)
        answer = await client.call(Request.PULL_MESSAGE, _pull(2, commit=2))
        assert (answer.code, answer.ext["nextBeginOffset"]) == (0, "5")
        assert broker.offsets.resets.count == 0


async def test_live_keys_change_and_others_are_refused_with_a_reason(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.send("T")
        answer = await client.call(Request.UPDATE_BROKER_CONFIG, {}, b"brokerPermission=4\n")
        assert answer.code == 0
        assert (await client.send("T")).code == 16
        answer = await client.call(Request.UPDATE_BROKER_CONFIG, {}, b"listenPort=1\n")
        assert (answer.code, "listenPort" in (answer.remark or "")) == (16, True)
        text = (await client.call(Request.GET_BROKER_CONFIG)).body.decode()
        assert "brokerPermission=4\n" in text


async def test_keys_that_stay_as_they_are_or_mean_nothing_here_are_taken(tmp_path: Path) -> None:
    """mqadmin and the dashboard send back whole configurations, RocketMQ's own keys among them."""
    async with running(tmp_path) as broker, client_of(broker) as client:
        same = f"listenPort={broker.config.listen_port}\nackMessageThreadPoolNums=7\ntransactionCheckMax=3\n"
        answer = await client.call(Request.UPDATE_BROKER_CONFIG, {}, same.encode())
        assert (answer.code, answer.remark) == (0, None)
        assert broker.config.transaction_check_max == 3
        text = (await client.call(Request.GET_BROKER_CONFIG)).body
        assert (await client.call(Request.UPDATE_BROKER_CONFIG, {}, text)).code == 0
        unknown = await client.call(Request.UPDATE_BROKER_CONFIG, {}, b"noSuchKey=1\n")
        assert (unknown.code, "noSuchKey" in (unknown.remark or "")) == (29, True)


async def test_a_change_of_a_group_names_the_attributes_it_changes_and_keeps_the_others(
    tmp_path: Path,
) -> None:
    """As mqadmin updateSubGroup --attributes sends it: "+" sets, "-" takes away."""

    async with running(tmp_path) as broker, client_of(broker) as client:

        async def put(**members: object) -> int:
            raw = json.dumps({"groupName": "g", **members}).encode()
            return (await client.call(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, raw)).code

        policy = {"type": "EXPONENTIAL"}
        assert await put(attributes={"+a": "1", "+b": "2"}, groupRetryPolicy=policy) == 0
        assert await put(attributes={"-a": "", "+c": "3"}, groupRetryPolicy=policy) == 0
        assert await put(attributes={"d": "4"}) == 1
        answer = await client.call(Request.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "g"})
        one = bodies.loads(answer.body)
        assert (one["attributes"], one["groupRetryPolicy"]) == ({"b": "2", "c": "3"}, policy)
        topic = {"topicName": "L", "attributes": {"+message.type": "FIFO"}}
        raw = json.dumps({"topicConfigList": [topic]}).encode()
        assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC_LIST, {}, raw)).code == 0
        one = bodies.loads((await client.call(Request.GET_TOPIC_CONFIG, {"topic": "L"})).body)
        assert one["attributes"] == {"message.type": "FIFO"}


async def test_a_group_that_is_asked_for_is_made_where_groups_are(tmp_path: Path) -> None:
    ask = (Request.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "asked"})
    async with running(tmp_path / "may") as broker, client_of(broker) as client:
        answer = await client.call(*ask)
        assert (answer.code, bodies.loads(answer.body)["groupName"]) == (0, "asked")
        assert "asked" in broker.context.groups.table
        assert (await client.call(ask[0], {"group": "no group!"})).code == 26
    async with (
        running(tmp_path / "may-not", autoCreateSubscriptionGroup="false") as broker,
        client_of(broker) as client,
    ):
        assert (await client.call(*ask)).code == 26
        assert "asked" not in broker.context.groups.table


async def test_a_topic_can_be_made_changed_and_deleted(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        ext = {
            "topic": "Made",
            "defaultTopic": "TBW102",
            "readQueueNums": "2",
            "writeQueueNums": "2",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "order": "false",
            "attributes": "+message.type=NORMAL",
        }
        assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, ext)).code == 0
        one = bodies.loads((await client.call(Request.GET_TOPIC_CONFIG, {"topic": "Made"})).body)
        assert (one["writeQueueNums"], one["attributes"]) == (2, {"message.type": "NORMAL"})
        assert (await client.send("Made", queue_id=1)).code == 0
        assert (await client.send("Made", queue_id=2)).code == 29
        bad = await client.call(Request.UPDATE_AND_CREATE_TOPIC, {**ext, "topic": "TBW102"})
        assert bad.code == 29
        assert (await client.call(Request.DELETE_TOPIC_IN_BROKER, {"topic": "Made"})).code == 0
        assert (await client.call(Request.GET_TOPIC_CONFIG, {"topic": "Made"})).code == 17


@pytest.mark.parametrize(
    ("attributes", "remark"),
    [
        ("=x", "add/alter attribute format is wrong: "),
        ("=", "add/alter attribute format is wrong: "),
        ("message.type=FIFO", "add/alter attribute format is wrong: message.type"),
        ("-message.type=FIFO", "add/alter attribute format is wrong: -message.type"),
        ("+message.type", "delete attribute format is wrong: +message.type"),
        ("+message.type=FIFO,+message.type=DELAY", "key duplication: +message.type"),
    ],
)
async def test_attributes_that_are_no_changes_are_refused_as_the_original_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, attributes: str, remark: str
) -> None:
    ext = {
        "topic": "Made",
        "readQueueNums": "2",
        "writeQueueNums": "2",
        "perm": "6",
        "attributes": attributes,
    }
    async with running(tmp_path) as broker, client_of(broker) as client:
        answer = await client.call(Request.UPDATE_AND_CREATE_TOPIC, ext)
        assert (answer.code, answer.remark) == (Response.SYSTEM_ERROR, remark)
        assert broker.topics.get("Made") is None
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("asked_before_the_end", [1, 2])
async def test_a_list_whose_lease_ends_says_how_many_were_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked_before_the_end: int
) -> None:
    """None, when it ends before the first; else the refusal says it, and the same request makes the rest."""
    raws = [{"topicName": f"t{n}", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6} for n in range(70)]
    body = bodies.dumps({"topicConfigList": raws})
    async with running(tmp_path) as broker, client_of(broker) as client:
        asked = 0

        def refuse() -> Refused | None:
            nonlocal asked
            asked += 1
            return (
                Refused("no lease", Response.SERVICE_NOT_AVAILABLE) if asked > asked_before_the_end else None
            )

        def made() -> int:
            return sum(name.startswith("t") and name[1:].isdigit() for name in broker.topics.table)

        with monkeypatch.context() as patch:
            patch.setattr(Copies, "refuse", lambda _: refuse())
            answer = await client.call(Request.UPDATE_AND_CREATE_TOPIC_LIST, {}, body)
        assert answer.code == Response.SERVICE_NOT_AVAILABLE
        done = 0 if asked_before_the_end == 1 else 64
        assert answer.remark == "no lease" + ("; 64 of 70 were made before" if done else "")
        assert made() == done
        assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC_LIST, {}, body)).code == 0
        assert made() == 70


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"queueId": "0", "offset": "7"}, Response.SYSTEM_ERROR),
        ({"queueId": "0", "offset": "-2"}, Response.SYSTEM_ERROR),
        ({"queueId": "99", "offset": "0"}, Response.INVALID_PARAMETER),
        ({"queueId": "\u00b2", "offset": "3"}, Response.SYSTEM_ERROR),
        ({"queueId": "0", "offset": "3"}, Response.SUCCESS),
        ({"queueId": "0", "offset": "5"}, Response.SUCCESS),
        ({"queueId": "0", "offset": "6"}, Response.SUCCESS),
        ({"queueId": "-1", "offset": "-1"}, Response.SUCCESS),
    ],
)
async def test_a_reset_leads_nowhere_beyond_the_messages_there_are(
    tmp_path: Path, changes: dict[str, str], code: int
) -> None:
    """An offset beyond the end would skip what is sent next."""

    async with running(tmp_path) as broker, client_of(broker) as client:
        broker.groups.find("cg")
        for _ in range(5):
            await client.send("T")
        await broker.store.caught_up()
        ext = {"topic": "T", "group": "cg", "timestamp": "-1", "isForce": "true", **changes}
        assert (await client.call(Request.INVOKE_BROKER_TO_RESET_OFFSET, ext)).code == code
        if code != Response.SUCCESS:
            assert broker.offsets.entries() == []
        else:
            assert broker.offsets.get("cg", "T", 0) == (3 if changes["offset"] == "3" else 5)


async def test_a_slave_clones_no_offsets_that_the_master_would_take_back(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.send("T")
        broker.offsets.commit("from", "T", 0, 1)
        ext = {"srcGroup": "from", "destGroup": "to", "topic": "T"}
        broker.role_state.set(role_state("slave", 2, 1))
        assert (await client.call(Request.CLONE_GROUP_OFFSET, ext)).code == Response.SYSTEM_ERROR
        assert broker.offsets.get("to", "T", 0) is None
        broker.role_state.set(role_state("master", 2, 1))
        assert (await client.call(Request.CLONE_GROUP_OFFSET, ext)).code == 0
        assert broker.offsets.get("to", "T", 0) == 1


async def test_a_group_is_behind_by_all_it_has_not_committed_of_what_it_reads(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        for _ in range(5):
            await client.send("T")
            await client.send("Former")
        await broker.store.caught_up()
        broker.offsets.commit("cg", "Former", 0, 1)

        async def behind() -> int:
            answer = await client.call(Request.GET_CONSUME_STATS, {"consumerGroup": "cg"})
            table = bodies.loads(answer.body)["offsetTable"]
            return sum(queue["brokerOffset"] - queue["consumerOffset"] for queue in table.values())

        assert await behind() == 4
        await client.call(Request.HEART_BEAT, {}, heartbeat("c1", "cg", "T"))
        assert await behind() == 5


async def test_a_group_whose_name_is_no_text_is_refused_and_the_table_can_still_change(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        for wrong in (True, {"a": 1}, None):
            body = bodies.dumps({"groupName": wrong, "x": 1})
            refused = await client.call(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
            assert refused.code == Response.INVALID_PARAMETER, wrong
        body = bodies.dumps({"groupName": "g"})
        assert (await client.call(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)).code == 0


WRONG_GROUPS = ("", " ", "bad group", "bad/group", "\u0433\u0440", "g" * 121)


async def test_a_group_is_made_with_a_name_that_rocketmq_takes_and_no_other(tmp_path: Path) -> None:
    one, several = (
        Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    )
    async with running(tmp_path) as broker, client_of(broker) as client:
        for wrong in WRONG_GROUPS:
            raw = {"groupName": wrong}
            assert (await client.call(one, body=bodies.dumps(raw))).code == Response.INVALID_PARAMETER, wrong
            both = bodies.dumps({"groupConfigList": [{"groupName": "fine"}, raw]})
            assert (await client.call(several, body=both)).code == Response.INVALID_PARAMETER, wrong
            await client.call(Request.HEART_BEAT, {}, heartbeat("c1", wrong, "T"))
            assert retry_topic(wrong) not in broker.topics.table, wrong
        assert not {"fine", *WRONG_GROUPS} & broker.groups.table.keys()
        longest = "%|_-" + "g" * 116
        assert (await client.call(one, body=bodies.dumps({"groupName": longest}))).code == 0
        await client.call(Request.HEART_BEAT, {}, heartbeat("c1", "h" * 120, "T"))
        assert {longest, "h" * 120} <= broker.groups.table.keys()


async def test_a_clients_configuration_of_any_shape_is_answered(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        for subscription in ("text", [1], 5):
            body = bodies.dumps({"subscriptionData": subscription})
            assert "not an object" in str((await client.call(Request.CHECK_CLIENT_CONFIG, body=body)).remark)


async def test_producers_are_told_with_the_time_of_their_last_heartbeat(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        before_ms = broker.env.now_ms()
        await client.call(Request.HEART_BEAT, {}, heartbeat("c1", "", producer="writers"))
        answer = await client.call(Request.GET_ALL_PRODUCER_INFO)
        (one,) = bodies.loads(answer.body)["data"]["writers"]
        assert one["clientId"] == "c1"
        assert before_ms - 1000 <= one["lastUpdateTimestamp"] <= broker.env.now_ms() + 1000
