"""The promise of gate and handler: what a handler reads from a body is what the gate asked a right for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from model.acl.policies import Need
from model.codes import Request
from model.errors import PeerError, Refused
from remoting.acl.needs import NEEDS_MAX, needs
from remoting.codec import Command
from remoting.named import acks_in, consumers_in, groups_in, queues_in, subscriptions_in, text, topics_in
from remoting.request_bodies import request_object

WITH_BODIES = {
    Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    Request.UPDATE_AND_CREATE_TOPIC_LIST,
    Request.HEART_BEAT,
    Request.LOCK_BATCH_MQ,
    Request.UNLOCK_BATCH_MQ,
    Request.BATCH_ACK_MESSAGE,
    Request.QUERY_ASSIGNMENT,
}
NAMES = ("victim", "mine", 7, None)


def applied(code: int, data: Any) -> set[tuple[str, str]]:
    """What the handlers take from a body, as they take it: type and name. Raises PeerError."""
    if code in (
        Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    ):
        return {("Group", str(config["groupName"])) for config in groups_in(code, data)}
    if code == Request.UPDATE_AND_CREATE_TOPIC_LIST:
        return {("Topic", str(config["topicName"])) for config in topics_in(data)}
    if code == Request.HEART_BEAT:
        found = set()
        for consumer in consumers_in(data):
            found.add(("Group", str(consumer["groupName"])))
            found |= {("Topic", str(one["topic"])) for one in subscriptions_in(consumer)}
        return found
    if code in (Request.LOCK_BATCH_MQ, Request.UNLOCK_BATCH_MQ):
        return {("Group", str(data["consumerGroup"]))} | {("Topic", str(q["topic"])) for q in queues_in(data)}
    if code == Request.BATCH_ACK_MESSAGE:
        acks = acks_in(data)
        groups = {("Group", text(ack, "c", "consumerGroup")) for ack in acks}
        return groups | {("Topic", text(ack, "t", "topic")) for ack in acks}
    return {("Group", text(data, "consumerGroup")), ("Topic", text(data, "topic"))}


def texts() -> list[str]:
    """Bodies with decoys: each name in each place, lists that are none, keys twice, in both dialects."""
    found = []
    for one in NAMES:
        for other in NAMES:
            group, decoy = {"groupName": one}, {"groupName": other}
            members: dict[str, Any] = {
                **group,
                "groupConfigList": [decoy],
                "topicConfigList": [{"topicName": one}, {"topicName": other, "groupName": one}],
                "consumerDataSet": [{**group, "subscriptionDataSet": [{"topic": other}]}, decoy],
                "consumerGroup": one,
                "topic": other,
                "mqSet": [{"topic": one, "brokerName": "b", "queueId": 0}, {"topic": other}],
                "acks": [
                    {"c": one, "consumerGroup": other, "t": other, "topic": one},
                    {"c": other, "t": one},
                ],
            }
            found.append(json.dumps(members))
            found.append(json.dumps({**members, "groupConfigList": [], "consumerDataSet": [7], "acks": {}}))
            found.append(json.dumps({**members, "groupConfigList": decoy, "mqSet": [[one]], "acks": [other]}))
    twice = '{"groupName":"mine","groupName":"victim","consumerGroup":"mine","consumerGroup":"victim",'
    twice += '"topic":"t",'
    twice += '"mqSet":[],"mqSet":[{"topic":"T"}],"acks":[],"acks":[{"c":"a","c":"b","t":"t","t":"u"}]'
    found += [twice + "}", twice + ',7:{0:1},{"groupName":"mine"}:1}']  # the second in fastjson's dialect
    return found


@pytest.mark.parametrize("code", sorted(WITH_BODIES))
def test_a_handler_takes_from_a_body_only_what_the_gate_asked_for(code: int) -> None:
    taken = refused = 0
    for body in texts():
        request = Command(code, {"x": "y"}, body.encode())
        try:
            asked = {(need.kind, need.name) for need in needs(request, "c")}
        except Refused:
            refused += 1
            continue
        taken += 1
        assert applied(code, request_object(request)) <= asked, body
    assert taken >= 6
    assert refused >= 6


def test_a_decoy_list_does_not_hide_the_group_that_is_changed() -> None:
    body = b'{"groupName":"victim","consumeEnable":false,"groupConfigList":[{"groupName":"mine"}]}'
    request = Command(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
    assert needs(request, "c") == [Need("Group", "victim", ("Create", "Update"))]
    several = Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    with pytest.raises(PeerError):
        groups_in(several, {"groupConfigList": {"groupName": "mine"}})


def test_a_request_that_names_too_much_is_refused_before_a_right_is_looked_at() -> None:
    many = ";".join(f"t{at}" for at in range(NEEDS_MAX + 1))
    long = "a" * (1 << 20)
    for code, ext in (
        (Request.GET_CONSUME_STATS, {"consumerGroup": "g", "topicList": many}),
        (Request.GET_CONSUME_STATS, {"consumerGroup": "g", "topicList": ";" * NEEDS_MAX * 2}),
        (Request.QUERY_CORRECTION_OFFSET, {"topic": "t", "filterGroups": long}),
    ):
        with pytest.raises(Refused, match=f"at most {NEEDS_MAX}"):
            needs(Command(code, ext), "c")
    subscriptions = [{"topic": f"t{at}"} for at in range(NEEDS_MAX)]
    beat = {"consumerDataSet": [{"groupName": "g", "subscriptionDataSet": subscriptions}]}
    with pytest.raises(Refused, match=f"at most {NEEDS_MAX}"):
        needs(Command(Request.HEART_BEAT, {}, json.dumps(beat).encode()), "c")
