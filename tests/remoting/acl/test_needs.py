"""The promise of the gate's questions: a request needs what the original's builder says, and what that
leaves open although it changes the cluster needs the cluster."""

from __future__ import annotations

import json

import pytest

from model.acl import plain
from model.acl.plain import Perm
from model.acl.policies import Need
from model.codes import Request
from model.errors import Refused
from remoting.acl.annotated import ANNOTATED
from remoting.acl.needs import needs, plain_needs
from remoting.auth import PEER_CODES
from remoting.codec import Command
from tests import GOLDEN

STRICTER = {
    Request.LITE_PULL_MESSAGE,
    Request.BATCH_ACK_MESSAGE,
    Request.QUERY_ASSIGNMENT,
    Request.CLONE_GROUP_OFFSET,
}
"""What a client gets by them are a topic's messages, their end, or how far a group is: the original asks for
nothing."""


READS = {Request.GET_BROKER_CONFIG, Request.GET_NAMESRV_CONFIG, Request.GET_CONTROLLER_CONFIG}
"""Settings: the original shows them to every user."""


def lines(name: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (GOLDEN / "acl" / name).read_text().splitlines()]


def test_the_table_is_that_of_the_real_classes() -> None:
    kinds = {"TOPIC": "Topic", "GROUP": "Group", "CLUSTER": "Cluster", "UNKNOWN": ""}
    found: dict[object, object] = {}
    for line in lines("annotations.jsonl"):
        fields = tuple((name, kinds[kind], splitter) for name, kind, splitter in line["fields"])  # type: ignore[attr-defined]
        found[line["code"]] = (kinds[str(line["resource"])], tuple(line["actions"]), fields)  # type: ignore[arg-type]
    assert found == ANNOTATED


def test_a_request_needs_what_the_real_builder_says() -> None:
    seen = 0
    for line in lines("authorization.jsonl"):
        asked, said = line["asked"], line["said"]
        assert isinstance(asked, dict)
        assert isinstance(said, dict)
        if "code" not in asked or asked["code"] in STRICTER:
            continue
        seen += 1
        request = Command(asked["code"], asked["ext"], asked.get("body", "").encode())
        found = [[str(need), list(need.actions)] for need in needs(request, "DefaultCluster")]
        wanted = [need for at, need in enumerate(said["needs"]) if need not in said["needs"][:at]]
        if not wanted and found:
            assert asked["code"] in PEER_CODES or asked["code"] in READS, asked
            assert [name for name, _ in found] == ["Cluster:DefaultCluster"]
        else:
            assert found == wanted, asked
    assert seen > 80


@pytest.mark.parametrize(
    ("code", "name"), [(Request.SEND_REPLY_MESSAGE, "topic"), (Request.SEND_REPLY_MESSAGE_V2, "b")]
)
def test_a_reply_needs_nothing_where_clients_send_it_and_elsewhere_what_a_send_needs(
    code: Request, name: str
) -> None:
    """The original lets every signed client reply, to any topic: it would be a send without a right."""
    replies = Command(code, {name: "C_REPLY_TOPIC"})
    assert needs(replies, "C") == []
    assert list(plain_needs(replies, "C")) == []
    elsewhere = Command(code, {name: "orders"})
    assert [(str(need), need.actions) for need in needs(elsewhere, "C")] == [("Topic:orders", ("Pub",))]
    assert [(need.name, need.perm) for need in plain_needs(elsewhere, "C")] == [("orders", Perm.PUB)]


def test_nothing_that_only_peers_and_operators_ask_for_is_open_to_every_user() -> None:
    group = b'{"groupName": "g"}'
    bodies = {
        Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: group,
        Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: b'{"groupConfigList": [%s]}' % group,
        Request.UPDATE_AND_CREATE_TOPIC_LIST: b'{"topicConfigList": [{"topicName": "t"}]}',
    }
    ext = {"topic": "t", "group": "g", "groupName": "g", "destGroup": "g", "consumerGroup": "g"}
    for code in PEER_CODES:
        assert needs(Command(code, ext, bodies.get(Request(code), b"")), "c"), Request(code).name
        if code not in bodies:
            assert needs(Command(code), "c"), Request(code).name


def test_lists_of_topics_and_groups_need_a_right_to_each() -> None:
    body = b'{"groupConfigList": [{"groupName": "a"}, {"groupName": "b"}]}'
    found = needs(Command(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, body), "c")
    assert [str(need) for need in found] == ["Group:a", "Group:b"]
    body = b'{"topicConfigList": [{"topicName": "a"}, {"topicName": "b"}]}'
    found = needs(Command(Request.UPDATE_AND_CREATE_TOPIC_LIST, {}, body), "c")
    assert [(str(need), need.actions) for need in found] == [
        ("Topic:a", ("Create",)),
        ("Topic:b", ("Create",)),
    ]


@pytest.mark.parametrize("body", [b"", b"[", b"[]", b"\xff", b"7", b" " * (1 << 22)])
def test_a_body_that_says_nothing_is_refused(body: bytes) -> None:
    for code in (Request.HEART_BEAT, Request.LOCK_BATCH_MQ):
        with pytest.raises(Refused, match="parse authorization context error"):
            needs(Command(code, {"a": "b"}, body), "c")


def pub(topic: str) -> plain.Need:
    return plain.Need(topic, False, Perm.PUB)


def sub(name: str, is_group: bool = False) -> plain.Need:
    return plain.Need(name, is_group, Perm.SUB)


BEAT = json.dumps(
    {
        "consumerDataSet": [
            {"groupName": "g", "subscriptionDataSet": [{"topic": "T"}, {"topic": "%RETRY%g"}]},
        ]
    }
).encode()
LOCK = b'{"consumerGroup":"g","clientId":"c","mqSet":[{"topic":"T"},{"topic":"T"},{"topic":"%RETRY%g"}]}'


@pytest.mark.parametrize(
    ("code", "ext", "body", "wanted"),
    [
        (Request.SEND_MESSAGE, {"topic": "T", "group": "p"}, b"", [pub("T")]),
        (Request.SEND_MESSAGE_V2, {"a": "p", "b": "T"}, b"", [pub("T")]),
        (Request.SEND_BATCH_MESSAGE, {"a": "p", "b": "T"}, b"", [pub("T")]),
        (Request.SEND_MESSAGE_V2, {"a": "own", "b": "%RETRY%g"}, b"", [sub("g", True)]),
        (Request.CONSUMER_SEND_MSG_BACK, {"group": "g"}, b"", [sub("g", True)]),
        (Request.PULL_MESSAGE, {"topic": "T", "consumerGroup": "g"}, b"", [sub("T"), sub("g", True)]),
        (Request.LITE_PULL_MESSAGE, {"topic": "T", "consumerGroup": "g"}, b"", [sub("T"), sub("g", True)]),
        (
            Request.PULL_MESSAGE,
            {"topic": "%LMQ%x", "consumerGroup": "g"},
            b"",
            [sub("%LMQ%x"), sub("g", True)],
        ),
        (
            Request.SEND_MESSAGE_V2,  # as the original: none to the light queues that its properties name
            {"a": "p", "b": "T", "i": "INNER_MULTI_DISPATCH\x01%LMQ%x\x02"},
            b"",
            [pub("T")],
        ),
        (Request.PULL_MESSAGE, {"topic": "%RETRY%g", "consumerGroup": "g"}, b"", [sub("g", True)]),
        (Request.POP_MESSAGE, {"topic": "T", "consumerGroup": "g"}, b"", [sub("T"), sub("g", True)]),
        (
            Request.ACK_MESSAGE,
            {"topic": "%RETRY%g_T", "consumerGroup": "g"},
            b"",
            [sub("g", True), sub("T")],
        ),
        (
            Request.BATCH_ACK_MESSAGE,
            {},
            b'{"acks":[{"c":"g","t":"T"},{"c":"h","t":"U"}]}',
            [sub("T"), sub("g", True), sub("U"), sub("h", True)],
        ),
        (Request.QUERY_ASSIGNMENT, {}, b'{"topic":"T","consumerGroup":"g"}', [sub("T"), sub("g", True)]),
        (Request.QUERY_MESSAGE, {"topic": "T"}, b"", [sub("T")]),
        (Request.HEART_BEAT, {}, BEAT, [sub("g", True), sub("T")]),
        (Request.LOCK_BATCH_MQ, {}, LOCK, [sub("g", True), sub("T")]),
        (Request.UNLOCK_BATCH_MQ, {}, LOCK, [sub("g", True), sub("T")]),
        (Request.UNREGISTER_CLIENT, {"consumerGroup": "g"}, b"", [sub("g", True)]),
        (Request.UNREGISTER_CLIENT, {"producerGroup": "g"}, b"", []),
        (Request.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"}, b"", [sub("g", True)]),
        (
            Request.UPDATE_CONSUMER_OFFSET,
            {"topic": "T", "consumerGroup": "g"},
            b"",
            [sub("T"), sub("g", True)],
        ),
        (Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}, b"", []),
        (Request.RECALL_MESSAGE, {"topic": "T"}, b"", [plain.Need("T", False, Perm.PUB)]),
        (Request.RECALL_MESSAGE, {"topic": "%RETRY%g"}, b"", [sub("g", True)]),
    ],
)
def test_what_acl_1_asks(code: int, ext: dict[str, str], body: bytes, wanted: list[plain.Need]) -> None:
    assert list(plain_needs(Command(code, ext, body), "C")) == wanted


@pytest.mark.parametrize(
    ("code", "ext", "body", "wanted"),
    [
        (Request.POP_MESSAGE, {"topic": "T", "consumerGroup": "g"}, b"", ["Group:g", "Topic:T"]),
        (Request.ACK_MESSAGE, {"topic": "%RETRY%g_T", "consumerGroup": "g"}, b"", ["Group:g", "Topic:T"]),
        (Request.ACK_MESSAGE, {"topic": "%RETRY%g+T", "consumerGroup": "g"}, b"", ["Group:g", "Topic:T"]),
        (Request.BATCH_ACK_MESSAGE, {}, b'{"acks":[{"c":"g","t":"T"}]}', ["Topic:T", "Group:g"]),
        (Request.QUERY_ASSIGNMENT, {}, b'{"topic":"T","consumerGroup":"g"}', ["Topic:T", "Group:g"]),
    ],
)
def test_what_acl_2_asks_of_those_that_pop(
    code: int, ext: dict[str, str], body: bytes, wanted: list[str]
) -> None:
    found = needs(Command(code, ext, body), "C")
    assert [str(need) for need in found] == wanted
    assert {need.actions for need in found} == {("Sub",)}


READERS = (
    (Request.PULL_MESSAGE, "consumerGroup"),
    (Request.LITE_PULL_MESSAGE, "consumerGroup"),
    (Request.POP_MESSAGE, "consumerGroup"),
    (Request.PEEK_MESSAGE, "consumerGroup"),
    (Request.NOTIFICATION, "consumerGroup"),
    (Request.POLLING_INFO, "consumerGroup"),
    (Request.ACK_MESSAGE, "consumerGroup"),
    (Request.CHANGE_MESSAGE_INVISIBLETIME, "consumerGroup"),
    (Request.QUERY_CONSUMER_OFFSET, "consumerGroup"),
    (Request.UPDATE_CONSUMER_OFFSET, "consumerGroup"),
    (Request.GET_CONSUME_STATS, "consumerGroup"),
    (Request.QUERY_CONSUME_QUEUE, "consumerGroup"),
    (Request.INVOKE_BROKER_TO_RESET_OFFSET, "group"),
    (Request.QUERY_MESSAGE, ""),
    (Request.VIEW_MESSAGE_BY_ID, ""),
    (Request.GET_MAX_OFFSET, ""),
)
VICTIMS = ("%RETRY%victim", "%RETRY%victim_T", "%RETRY%victim+T", "%DLQ%victim", "%RETRY%mine_%RETRY%victim")


@pytest.mark.parametrize(("code", "group_field"), READERS)
@pytest.mark.parametrize("topic", VICTIMS)
def test_who_reads_a_retry_or_dead_letter_topic_needs_its_group(
    code: int, group_field: str, topic: str
) -> None:
    request = Command(code, {"topic": topic, **({group_field: "mine"} if group_field else {})})
    others = {need.name for need in needs(request, "c") if need.kind == "Group"} - {"mine"}
    assert any("victim" in name for name in others)
    if code in PLAIN_READERS:
        others = {need.name for need in plain_needs(request, "c") if need.is_group} - {"mine"}
        assert any("victim" in name for name in others)


PLAIN_READERS = {
    Request.PULL_MESSAGE,
    Request.LITE_PULL_MESSAGE,
    Request.POP_MESSAGE,
    Request.PEEK_MESSAGE,
    Request.NOTIFICATION,
    Request.POLLING_INFO,
    Request.ACK_MESSAGE,
    Request.CHANGE_MESSAGE_INVISIBLETIME,
    Request.UPDATE_CONSUMER_OFFSET,
    Request.QUERY_MESSAGE,
}


@pytest.mark.parametrize("topic", VICTIMS)
def test_so_it_is_where_a_body_names_the_topic(topic: str) -> None:
    consumer = {"groupName": "mine", "subscriptionDataSet": [{"topic": topic}]}
    said: tuple[tuple[Request, dict[str, object]], ...] = (
        (Request.HEART_BEAT, {"consumerDataSet": [consumer]}),
        (Request.LOCK_BATCH_MQ, {"consumerGroup": "mine", "mqSet": [{"topic": topic}]}),
        (Request.BATCH_ACK_MESSAGE, {"acks": [{"c": "mine", "t": topic}]}),
        (Request.QUERY_ASSIGNMENT, {"consumerGroup": "mine", "topic": topic}),
    )
    for code, body in said:
        found = needs(Command(code, {}, json.dumps(body).encode()), "c")
        assert any("victim" in need.name and need.kind == "Group" for need in found), code.name


def test_offsets_are_copied_from_a_group_that_one_has_a_right_to() -> None:
    request = Command(Request.CLONE_GROUP_OFFSET, {"srcGroup": "victim", "destGroup": "mine", "topic": "T"})
    assert Need("Group", "victim", ("Get",)) in needs(request, "C")
    assert Need("Group", "mine", ("Update",)) in needs(request, "C")


def test_a_reply_topic_is_that_of_the_cluster() -> None:
    elsewhere = Command(Request.SEND_REPLY_MESSAGE, {"topic": "orders_REPLY_TOPIC"})
    assert [str(need) for need in needs(elsewhere, "C")] == ["Topic:orders_REPLY_TOPIC"]
    assert [need.name for need in plain_needs(elsewhere, "C")] == ["orders_REPLY_TOPIC"]
