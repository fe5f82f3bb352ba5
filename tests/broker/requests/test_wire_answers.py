"""The promise of each request code, held to what a real broker answered (``make interop`` asks it again)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker.state import effort
from tests.interop.answers.sides import ask_ours, recorded
from tests.interop.answers.wire_cases import CASES, DIFFERS


async def test_a_broker_answers_as_the_real_one_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine a turn would be over before all that a pull by SQL92 may get was looked at.
    monkeypatch.setattr(effort, "TURN_MS", 60_000.0)
    theirs = recorded()
    ours = json.loads(json.dumps(await ask_ours(tmp_path)))
    assert list(ours) == list(theirs) == [case.name for case in CASES]
    other = {name: (one, theirs[name]) for name, one in ours.items() if one != theirs[name]}
    assert {name: pair for name, pair in other.items() if name not in DIFFERS} == {}
    assert set(DIFFERS) == set(other), "no difference any more"
