"""Bytes of any kind make no decoder raise what it does not declare (longer: ``python -m tests.fuzz``)."""

from __future__ import annotations

import random
import time
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz import corpus
from tests.fuzz.targets.registry import TARGETS
from tests.fuzz.targets.target import Target, execute

SECONDS = 0.3
EXECUTIONS_MAX = 20_000


@pytest.fixture(params=list(TARGETS.values()), ids=list(TARGETS))
def target(request: pytest.FixtureRequest) -> Target:
    found = request.param
    assert isinstance(found, Target)
    return found


def test_its_seeds_are_decoded_and_what_once_broke_it_is_not_forgotten(target: Target) -> None:
    done = [execute(target, data) for data in corpus.inputs(target)]
    assert True in done, "no seed is well"


def test_changed_inputs_raise_declared_errors_only(target: Target) -> None:
    chance = random.Random(zlib.crc32(target.name.encode()))
    known = corpus.inputs(target)
    until = time.monotonic() + SECONDS
    for _ in range(EXECUTIONS_MAX):
        data = corpus.mutated(chance, known, target.bytes_max)
        try:
            execute(target, data)
        except BaseException as error:
            error.add_note(f"{target.name}: {data.hex()}")
            raise
        if time.monotonic() > until:
            break


@given(st.sampled_from(sorted(TARGETS)), st.binary(max_size=300))
def test_any_bytes_raise_declared_errors_only(name: str, data: bytes) -> None:
    execute(TARGETS[name], data)
