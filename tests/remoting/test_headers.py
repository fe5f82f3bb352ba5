"""The promise of remoting.headers: real requests are understood, and what is missing or wrong is named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.codes import Request, Response, name_of
from model.errors import Refused
from remoting.headers import (
    BrokerHeader,
    EndTransactionHeader,
    OffsetHeader,
    PullAnswer,
    PullHeader,
    QueryMessageHeader,
    QueueHeader,
    SendAnswer,
    SendBackHeader,
    SendHeader,
    need,
    need_int,
    opt_bool,
    opt_int,
)
from tests import GOLDEN
from tests.remoting.support import golden

FRAMES = GOLDEN / "remoting"


def test_sends_of_real_clients_are_read_and_written_alike() -> None:
    v1, v2 = golden("send_v1"), golden("send_v2")
    long = SendHeader.parse(v1.code, v1.ext)
    assert (long.topic, long.queue_id, long.default_topic) == ("cf_send_to_queue_v2", 0, "TBW102")
    assert (long.producer_group, long.broker_name) == ("g_send_to_queue_pgp_v2", "vec-a")
    assert SendHeader.parse(Request.SEND_MESSAGE_V2, long.to_ext()) == long
    for request in (v2, golden("send_v2_oneway"), golden("send_batch"), golden("send_v2_binary_header")):
        header = SendHeader.parse(request.code, request.ext)
        assert header.to_ext() == request.ext
        assert header.batch == (request.code == Request.SEND_BATCH_MESSAGE)
        assert "UNIQ_KEY" in header.properties
    answer = golden("send_v2", "response")
    found = SendAnswer.parse(answer.ext)
    assert (found.queue_id, found.queue_offset, len(found.message_id)) == (1, 0, 32)
    assert found.to_ext().items() <= answer.ext.items()


def test_pulls_of_real_clients_are_read_and_written_alike() -> None:
    request = golden("pull_long_poll_held")
    header = PullHeader.parse(request.ext)
    assert (header.suspend, header.commits, header.has_subscription) == (True, False, True)
    assert (header.queue_offset, header.count_max, header.suspend_timeout_ms) == (1, 32, 20_000)
    assert header.to_ext().items() <= request.ext.items()
    answer = golden("pull_found", "response").ext
    assert PullAnswer.parse(answer).to_ext() == answer


def test_the_other_headers_of_real_clients_are_read() -> None:
    back = SendBackHeader.parse(golden("consumer_send_msg_back").ext)
    assert (back.physical_offset, back.delay_level, back.max_reconsume_times) == (49467, 2, 3)
    assert back.to_ext().items() <= golden("consumer_send_msg_back").ext.items()
    end = EndTransactionHeader.parse(golden("end_transaction_oneway").ext)
    assert (end.physical_offset, end.decision, end.from_check) == (30138, 8, False)
    assert end.to_ext().items() <= golden("end_transaction_oneway").ext.items()
    query, update = golden("query_offset"), golden("update_offset_oneway")
    assert OffsetHeader.parse(query.code, query.ext).commit_offset is None
    assert OffsetHeader.parse(update.code, update.ext).commit_offset == 6
    assert QueueHeader.parse(golden("max_offset").ext) == QueueHeader("cf_pull_offsets_v1", 0)
    register = golden("register_broker").ext
    assert BrokerHeader.parse(register).to_ext().items() <= register.items()
    assert BrokerHeader.parse(golden("broker_heartbeat").ext, with_id=False).broker_id is None
    key = {"topic": "T", "key": "k", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(2**63 - 1)}
    assert QueryMessageHeader.parse({**key, "_UNIQUE_KEY_QUERY": "true"}).unique


@pytest.mark.parametrize("name", ["a", "b", "c", "d", "e", "f", "g", "h"])
def test_a_send_without_a_mandatory_field_is_refused_by_its_name(name: str) -> None:
    ext = dict(golden("send_v2").ext)
    del ext[name]
    with pytest.raises(Refused, match=f"no {name}") as refused:
        SendHeader.parse(Request.SEND_MESSAGE_V2, ext)
    assert refused.value.code == Response.SYSTEM_ERROR


@pytest.mark.parametrize("text", ["", " 1", "1_0", "+1", "--1", "1.0", "٣", "9" * 30, "0x1", "2147483648"])
def test_a_number_that_is_none_or_too_large_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="n"):
        need_int({"n": text}, "n", -(2**31), 2**31 - 1)


@given(st.integers(-(2**63), 2**63 - 1))
def test_every_long_is_read(number: int) -> None:
    assert need_int({"n": str(number)}, "n") == number
    assert opt_int({"n": str(number)}, "n", 0) == number


def test_optional_fields_have_defaults_and_booleans_read_as_java_reads_them() -> None:
    assert (opt_int({}, "n", 7), opt_int({"n": ""}, "n", 7)) == (7, 7)
    assert [opt_bool({"b": t}, "b") for t in ("true", "TRUE", "false", "1", "yes")] == [True, True] + [
        False
    ] * 3
    assert (opt_bool({}, "b", True), opt_bool({}, "b")) == (True, False)
    with pytest.raises(Refused, match="no topic"):
        need({}, "topic")


def test_codes_are_known_by_name() -> None:
    assert (name_of(105), name_of(4711)) == ("GET_ROUTEINFO_BY_TOPIC", "4711")
    assert (Request.POP_MESSAGE, Response.GO_AWAY) == (200050, 1500)
