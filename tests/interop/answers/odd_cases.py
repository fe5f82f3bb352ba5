"""What no standard client sends: to most of it RocketMQ and keelmq answer otherwise, each with its reason."""

from __future__ import annotations

from typing import Any, Final

from model.codes import Request
from remoting.headers import EndTransactionHeader, SendHeader
from tests.interop.answers.wire import BORN_MS, Case, ask, heartbeat, pop, pull, send, topic, unique_id


def _empty(name: str) -> Case:
    header = SendHeader("senders", "Odd", 0, BORN_MS, properties=f"UNIQ_KEY\x01{unique_id(name)}\x02")
    return Case(name, int(Request.SEND_MESSAGE_V2), header.to_ext(), b"")


def _check(name: str, expression: str) -> Case:
    wanted = {"topic": "Odd", "subString": expression, "expressionType": "SQL92"}
    body = {"clientId": "c1", "group": "odds", "subscriptionData": wanted}
    return ask(name, Request.CHECK_CLIENT_CONFIG, body)


def _tagged() -> dict[str, Any]:
    beat = heartbeat("c9", "odd_tags", "Odd")
    beat["consumerDataSet"][0]["subscriptionDataSet"][0] |= {
        "subString": "A",
        "tagsSet": ["A"],
        "codeSet": [],
    }
    return beat


_Q: Final[dict[str, Any]] = {"consumerGroup": "odds", "topic": "Odd"}
_GROUP: Final = Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP

CASES: Final = (
    topic("make a topic for odd requests", "Odd"),
    ask("make a group for odd requests", _GROUP, {"groupName": "odds"}),
    ask("make a group with an illegal name", _GROUP, {"groupName": "bad/group"}),
    ask("make a group with a blank name", _GROUP, {"groupName": " "}),
    ask("make a group with a name of 121 characters", _GROUP, {"groupName": "g" * 121}),
    ask("make a group with a name of 120 characters", _GROUP, {"groupName": "g" * 120}),
    ask(
        "make groups, one of them with an illegal name",
        Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        {"groupConfigList": [{"groupName": "fine"}, {"groupName": "bad group"}]},
    ),
    ask("beat as a group with an illegal name", Request.HEART_BEAT, heartbeat("c9", "bad group", "Odd")),
    ask("ask for the settings of an illegal group", Request.GET_SUBSCRIPTIONGROUP_CONFIG, group="bad group"),
    # Sends
    send("send an odd message with the tag A", "Odd", properties="TAGS\x01A\x02a\x01\uff11\x02"),
    send("send an odd message with the tag B", "Odd", properties="TAGS\x01B\x02"),
    _empty("send an empty body"),
    send("send with a delay level that is no number", "Odd", properties="DELAY\x01x\x02"),
    send("send for 9223372036854775807 s from now", "Odd", properties=f"TIMER_DELAY_SEC\x01{2**63 - 1}\x02"),
    ask(
        "end a half as nothing that there is",
        Request.END_TRANSACTION,
        **EndTransactionHeader("senders", 0, 0, 5, "").to_ext(),
    ),
    # Reads
    ask("beat with tags and no hashes of them", Request.HEART_BEAT, _tagged()),
    pull("pull as the heartbeat with tags said", "Odd", 0, sys_flag=0, group="odd_tags", wait_s=0.3),
    pull("pull digits beyond ASCII by a number", "Odd", 0, subscription="a = 1", expression_type="SQL92"),
    pop("pop no message", group="odds", topic="Odd", maxMsgNums=0),
    pop("pop for less than no time", group="odds", topic="Odd", invisibleTime=-1),
    # Offsets
    ask("commit the offset -1", Request.UPDATE_CONSUMER_OFFSET, **_Q, queueId=0, commitOffset=-1),
    ask("commit an offset of no queue", Request.UPDATE_CONSUMER_OFFSET, **_Q, queueId=99, commitOffset=1),
    ask(
        "commit an offset past the end", Request.UPDATE_CONSUMER_OFFSET, **_Q, queueId=0, commitOffset=1 << 40
    ),
    ask("ask for an offset past the end", Request.QUERY_CONSUMER_OFFSET, **_Q, queueId=0),
    # SQL92
    _check("check a NOT without its word", "a NOT = 1"),
    _check("check 300 brackets around the same", "(" * 300 + "a = 1" + ")" * 300),
    _check("check 500 signs in a row", "NOT " * 500 + "(a = 1)"),
    _check("check 65 conditions in each other", "a = 1 OR (" * 65 + "a = 1" + ")" * 65),
    _check("check an expression of 17,000 characters", f"a = '{'x' * 17_000}'"),
)

DIFFERS: Final[dict[str, str]] = {
    "send an empty body": "RocketMQ ends with a NullPointerException; keelmq stores it",
    "send with a delay level that is no number": "keelmq answers MESSAGE_ILLEGAL: nobody sends it again",
    "send for 9223372036854775807 s from now": (
        "in RocketMQ's arithmetic a time that is over; keelmq refuses it, as any too far away"
    ),
    "pull as the heartbeat with tags said": "to RocketMQ tags without hashes are none; keelmq hashes them",
    "pull digits beyond ASCII by a number": "RocketMQ reads numbers in the digits of any script",
    "pop no message": "keelmq refuses it (29); RocketMQ answers as if it had waited",
    "pop for less than no time": "keelmq refuses it (29), also a change to it, which RocketMQ takes",
    "commit the offset -1": "RocketMQ keeps it; keelmq refuses it",
    "commit an offset of no queue": "RocketMQ keeps it; keelmq refuses it",
    "ask for an offset past the end": "keelmq says the end: to go on from there misses nothing",
    "check 65 conditions in each other": (
        "keelmq reads 64: more would take a call in each other; RocketMQ goes on to the end of its stack"
    ),
    "check an expression of 17,000 characters": "keelmq reads 16,384 (docs/security.md)",
}
"""Case -> why its answer is not compared."""
