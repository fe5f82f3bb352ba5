"""The promise of client.consuming.pop.calls: a batch of acknowledgements names each message once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from client.consuming.pop.calls import Popped, batches
from client.consuming.pop.options import PopOptions
from client.message import Received
from model.pop import ExtraInfo
from tests.client.servers import received

PLACES = st.lists(
    st.tuples(
        st.sampled_from(["0", "1"]),  # retry
        st.integers(0, 2),  # queue
        st.sampled_from([0, 10]),  # start of the pop
        st.integers(0, 31),  # behind it
        st.sampled_from([1000, 2000]),  # pop time
    ),
    min_size=1,
    max_size=64,
    unique=True,
)


def popped(kind: str, queue_id: int, start: int, diff: int, pop_time_ms: int) -> Popped:
    message: Received = received({})
    object.__setattr__(message, "queue_offset", start + diff)
    info = ExtraInfo(start, pop_time_ms, 60_000, 3, kind, "broker-a", queue_id, start + diff)
    return Popped(message, "T", "broker-a", info, 0.0)


@given(PLACES)
def test_a_batch_names_each_message_once(places: list[tuple[str, int, int, int, int]]) -> None:
    rows = batches("g", [popped(*place) for place in places])
    named = [(row.kind, row.queue_id, row.start, diff, row.pop_time_ms) for row in rows for diff in row.diffs]
    assert sorted(named) == sorted(places)
    pops = [(row.kind, row.queue_id, row.start, row.pop_time_ms) for row in rows]
    assert len(pops) == len(set(pops)), "one entry for each pop"


def test_later_failures_wait_longer_and_the_last_wait_is_for_all_others() -> None:
    options = PopOptions(retry_after_s=(1, 5))
    assert [options.retry_after_ms(n) for n in (1, 2, 3, 99)] == [1000, 5000, 5000, 5000]
