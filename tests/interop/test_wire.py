"""The promise of each request code: RocketMQ's broker and ours answer the same requests the same.

python -m tests.interop.test_wire      writes tests/golden/wire_answers.json anew, by the original
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path

import pytest

from tests.interop.answers.asked import Seen
from tests.interop.answers.sides import ask_ours, ask_real, record, recorded
from tests.interop.answers.wire_cases import CASES, DIFFERS

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300), pytest.mark.more]

Both = tuple[dict[str, Seen], dict[str, Seen]]


@pytest.fixture(scope="module")
def both(real_rocketmq: Path, tmp_path_factory: pytest.TempPathFactory) -> Both:
    """What (keelmq, RocketMQ) answered to each case, as JSON keeps it."""
    theirs = ask_real(tmp_path_factory.mktemp("real"))
    ours = asyncio.run(ask_ours(tmp_path_factory.mktemp("ours")))
    found: Both = json.loads(json.dumps((ours, theirs)))
    return found


@pytest.mark.covers("On the wire", client="requests", sides="both", cases="wire")
@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_both_answer_the_same(both: Both, name: str) -> None:
    ours, theirs = (side[name] for side in both)
    if name in DIFFERS:
        assert ours != theirs, "no difference any more"
        return  # such an answer may say how long something took
    assert ours == theirs
    assert recorded()[name] == theirs, "python -m tests.interop.test_wire"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        record(ask_real(Path(directory)))
    sys.exit(0)
