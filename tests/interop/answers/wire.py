"""How the requests are made that are sent to both systems (``wire_cases``)."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass, field
from typing import Any, Final

from model.codes import Request
from remoting.headers import EndTransactionHeader, PullHeader, SendHeader

BORN_MS: Final = 1_700_000_000_000
SUBSCRIPTION, COMMIT = 4, 1
"""Bits of a pull's sysFlag."""
HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class Case:
    """``{name.x}`` in a field stands for field x of the answer to the case of that name; ``{now}`` for the
    time in ms. ``wait_s``: before it."""

    name: str
    code: int
    ext: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    wait_s: float = 0.0


def unique_id(name: str) -> str:
    """What the client would say is the id of the message of that case."""
    return hashlib.sha256(name.encode()).hexdigest()[:32].upper()


def send(name: str, topic: str, queue: int = 0, *, v1: bool = False, body: bytes = b"", **more: Any) -> Case:
    properties = f"UNIQ_KEY\x01{unique_id(name)}\x02WAIT\x01true\x02" + more.pop("properties", "")
    header = SendHeader("senders", topic, queue, BORN_MS, properties=properties, **more)
    code = Request.SEND_MESSAGE if v1 else Request.SEND_MESSAGE_V2
    return Case(name, int(code), header.to_ext(full_names=v1), body or b"body of " + name.encode())


def pull(name: str, topic: str, offset: int, queue: int = 0, **more: Any) -> Case:
    wait_s = more.pop("wait_s", 0.0)
    header = PullHeader(
        more.pop("group", "readers"), topic, queue, offset, 32, more.pop("sys_flag", SUBSCRIPTION), **more
    )
    return Case(name, int(Request.PULL_MESSAGE), header.to_ext(), b"", wait_s)


def sql(expression: str) -> Case:
    return pull(f"pull by SQL92: {expression}", "Sql", 0, subscription=expression, expression_type="SQL92")


def end(name: str, half: str, decision: int, group: str = "senders") -> Case:
    header = EndTransactionHeader(group, 0, 0, decision, "").to_ext()
    ext = {
        "tranStateTableOffset": f"{{{half}.queueOffset}}",
        "commitLogOffset": f"{{{half}.place}}",
        "msgId": f"{{{half}.transactionId}}",
    }
    return Case(name, int(Request.END_TRANSACTION), {**header, **ext})


def ask(name: str, code: Request, body: Any = b"", **ext: Any) -> Case:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Case(name, int(code), {k: str(v) for k, v in ext.items()}, raw)


def topic(name: str, topic: str, **more: object) -> Case:
    ext = {"topic": topic, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
           "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
           "defaultTopic": "TBW102"}  # fmt: skip
    return ask(name, Request.UPDATE_AND_CREATE_TOPIC, **{**ext, **more})


def batch(*bodies: bytes) -> bytes:
    out = []
    for number, body in enumerate(bodies):
        raw = f"UNIQ_KEY\x01{0xB000 + number:032X}\x02".encode()
        head = struct.pack(">iiiii", 22 + len(body) + len(raw), 0, 0, 0, len(body))
        out.append(head + body + struct.pack(">h", len(raw)) + raw)
    return b"".join(out)


def heartbeat(
    client: str, group: str, topic: str, model: str = "CLUSTERING", version: int = 1
) -> dict[str, Any]:
    wanted = {"topic": topic, "subString": "*", "subVersion": version, "expressionType": "TAG"}
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": model,
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [wanted],
    }
    return {"clientID": client, "producerDataSet": [{"groupName": "wire_pg"}], "consumerDataSet": [consumer]}


def lock(client: str, *queues: int, topic: str = "Wide") -> dict[str, Any]:
    found = [{"topic": topic, "brokerName": "broker-a", "queueId": queue} for queue in queues]
    return {"consumerGroup": "readers", "clientId": client, "mqSet": found}


def pop(name: str, group: str = "poppers", **more: object) -> Case:
    ext = {"consumerGroup": group, "topic": "Popped", "queueId": 0, "maxMsgNums": 1, "invisibleTime": 60_000,
           "pollTime": 0, "bornTime": "{now}", "initMode": 0, "order": "false"}  # fmt: skip
    return ask(name, Request.POP_MESSAGE, **{**ext, **more})


LITE: Final[dict[str, Any]] = {"clientId": "c1", "consumerGroup": "poppers", "topic": "Popped",
    "maxMsgNum": 1, "invisibleTime": 60_000, "pollTime": 0, "bornTime": "{now}"}  # fmt: skip


def lite(name: str, action: str, **more: object) -> Case:
    """A subscription to lite topics."""
    wanted = {"clientId": "c1", "group": "readers", "topic": "Popped", "liteTopicSet": ["a"], **more}
    return ask(name, Request.LITE_SUBSCRIPTION_CTL, {"subscriptionSet": [{"action": action, **wanted}]})


POPPED: Final[dict[str, Any]] = {"consumerGroup": "poppers", "topic": "Popped", "queueId": 0}
SPAN: Final[dict[str, Any]] = {"beginTimestamp": 0, "endTimestamp": "{now}", "maxNum": 9}
Q: Final[dict[str, Any]] = {"consumerGroup": "readers", "topic": "Wide", "queueId": 0}


BATCH: Final = SendHeader(
    "senders", "Wide", 2, BORN_MS, properties=f"UNIQ_KEY\x01{0xB000:032X}\x02", batch=True
).to_ext()
