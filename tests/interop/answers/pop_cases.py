"""Requests of clients that pop: popped, acknowledged, kept longer, in order."""

from __future__ import annotations

from typing import Final

from model.codes import Request
from tests.interop.answers.wire import (
    POPPED,
    Case,
    ask,
    pop,
)

CASES: Final[tuple[Case, ...]] = (
    ask(
        "ask for queues to read",
        Request.QUERY_ASSIGNMENT,
        {
            "topic": "Wide",
            "consumerGroup": "readers",
            "clientId": "c1",
            "strategyName": "AVG",
            "messageModel": "CLUSTERING",
        },
    ),
    ask(
        "ask for queues with no known strategy",
        Request.QUERY_ASSIGNMENT,
        {
            "topic": "Wide",
            "consumerGroup": "readers",
            "clientId": "c1",
            "strategyName": "NONE",
            "messageModel": "CLUSTERING",
        },
    ),
    ask(
        "tell a group to pop",
        Request.SET_MESSAGE_REQUEST_MODE,
        {"topic": "Popped", "consumerGroup": "readers", "mode": "POP", "popShareQueueNum": 0},
    ),
    ask(
        "tell a group to pop its retry topic",
        Request.SET_MESSAGE_REQUEST_MODE,
        {"topic": "%RETRY%readers", "consumerGroup": "readers", "mode": "POP", "popShareQueueNum": 0},
    ),
    pop("pop"),
    pop("pop the next", maxMsgNums=2),
    pop("pop 33 messages", maxMsgNums=33),
    pop("pop from no topic", topic="None"),
    pop("pop from no queue", queueId=9),
    pop("pop by a group that may not read", group="banned"),
    pop("pop by an expression that cannot be parsed", group="odd", exp="a >", expType="SQL92"),
    pop("pop in order", group="in_order", order="true", attemptId="a1"),
    pop("pop in order, while one is out", group="in_order", order="true", attemptId="a2"),
    pop("pop in order, the same attempt", group="in_order", order="true", attemptId="a1"),
    ask("acknowledge with what is no handle", Request.ACK_MESSAGE, **POPPED, extraInfo="1 2", offset=0),
    ask(
        "acknowledge an offset that is not there",
        Request.ACK_MESSAGE,
        **POPPED,
        extraInfo="0 {now} 60000 0 0 broker-a 0 99",
        offset=99,
    ),
    ask(
        "change the invisible time of no topic",
        Request.CHANGE_MESSAGE_INVISIBLETIME,
        **{**POPPED, "topic": "None"},
        extraInfo="0 {now} 60000 0 0 broker-a 0 0",
        offset=0,
        invisibleTime=5000,
    ),
    ask("peek", Request.PEEK_MESSAGE, consumerGroup="peekers", topic="Popped", queueId=0, maxMsgNums=2),
    ask(
        "peek from no topic",
        Request.PEEK_MESSAGE,
        consumerGroup="peekers",
        topic="None",
        queueId=0,
        maxMsgNums=2,
    ),
    ask(
        "be notified of what is there",
        Request.NOTIFICATION,
        consumerGroup="peekers",
        topic="Popped",
        queueId=0,
        pollTime=0,
        bornTime="{now}",
    ),
    ask(
        "be notified of nothing",
        Request.NOTIFICATION,
        consumerGroup="peekers",
        topic="Empty",
        queueId=0,
        pollTime=0,
        bornTime="{now}",
    ),
    ask("how many pops wait", Request.POLLING_INFO, consumerGroup="peekers", topic="Popped", queueId=0),
    ask(
        "how many pops wait on no topic",
        Request.POLLING_INFO,
        consumerGroup="peekers",
        topic="None",
        queueId=0,
    ),
)
