"""The promise of ha.master.ack_policy: OK means as many copies as configured, in every mode."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha.master.ack_policy import AckPolicy, Wait
from model.config import BrokerConfig
from model.ids import PhysicalOffset
from tests.plain import offsets

ENDS = st.lists(st.integers(0, 50), max_size=4)


@pytest.mark.parametrize(
    ("keys", "controllers", "expected"),
    [
        ({}, True, (Wait.ALL, 1, 1)),
        ({}, False, (Wait.COUNT, 1, 1)),
        ({"min_in_sync_replicas": 2}, True, (Wait.ALL, 2, 2)),
        ({"all_ack_in_sync_state_set": False, "in_sync_replicas": 2}, True, (Wait.COUNT, 2, 1)),
        ({"all_ack_in_sync_state_set": False, "min_in_sync_replicas": 3}, True, (Wait.COUNT, 3, 3)),
        ({"majority_ack": True, "total_replicas": 3}, True, (Wait.MAJORITY, 2, 2)),
        ({"majority_ack": True, "total_replicas": 5, "in_sync_replicas": 4}, True, (Wait.MAJORITY, 4, 4)),
        (
            {"majority_ack": True, "total_replicas": 3, "min_in_sync_replicas": 3},
            False,
            (Wait.MAJORITY, 3, 3),
        ),
        ({"broker_role": "ASYNC_MASTER", "min_in_sync_replicas": 2}, True, (Wait.NOBODY, 1, 2)),
    ],
)
def test_the_keys_say_how_many_copies_ok_means_and_how_many_members_a_write_needs(
    keys: dict[str, Any], controllers: bool, expected: tuple[Wait, int, int]
) -> None:
    policy = AckPolicy.of(BrokerConfig(**keys), controllers=controllers)
    assert (policy.wait, policy.copies(2).to_ack, policy.members_to_write(2)) == expected


@given(
    wait=st.sampled_from(list(Wait)),
    count=st.integers(1, 4),
    replicas=st.integers(1, 5),
    copies_min=st.integers(1, 4),
    own=st.integers(0, 50),
    ends=ENDS,
)
def test_what_is_answered_has_its_copies_and_consumers_read_no_more_than_the_slowest_has(
    wait: Wait, count: int, replicas: int, copies_min: int, own: int, ends: list[int]
) -> None:
    policy = AckPolicy(wait, acks_min=count, replicas=replicas, copies_min=copies_min)
    slowest = min([own, *ends])
    readable, replicated = policy.watermarks(
        PhysicalOffset(own), PhysicalOffset(slowest), offsets(ends), policy.copies(1 + len(ends))
    )
    assert readable <= slowest
    if replicated >= 0:
        assert sum(end >= replicated for end in (own, *ends)) >= policy.copies(1 + len(ends)).to_ack
    if wait is not Wait.NOBODY:
        assert policy.copies(1).to_ack >= copies_min


@given(ENDS, st.integers(1, 5))
def test_so_many_logs_reach_what_is_answered_and_no_more_is_asked(ends: list[int], count: int) -> None:
    if not ends:
        return
    own, *others = ends
    policy = AckPolicy(Wait.COUNT, acks_min=count)
    _, at = policy.watermarks(
        PhysicalOffset(own), PhysicalOffset(min(ends)), offsets(others), policy.copies(0)
    )
    if at < 0:
        assert len(ends) < count
    else:
        assert sum(end >= at for end in ends) >= count
        assert sum(end > at for end in ends) < count
