"""A broker of each kind, asked a table of requests."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any, Final

from chaos.worlds import rocketmq
from tests import GOLDEN
from tests.broker.helpers import running
from tests.interop.answers.asked import Seen, ask_all
from tests.interop.answers.wire_cases import CASES
from tests.interop.real_pair import rocketmq_pair

FILE: Final = GOLDEN / "wire_answers.json"
"""What RocketMQ answered."""
LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
SETTINGS: Final[dict[str, Any]] = {
    "recallMessageEnable": "true",
    "timerWheelEnable": "true",
    "enablePropertyFilter": "true",
}


async def ask_ours(directory: Path) -> dict[str, Seen]:
    own = {"brokerName": "broker-a", "messageDelayLevel": LEVELS, "maxMessageSize": 4 << 20}
    async with running(directory, **own, **SETTINGS) as broker:
        return await ask_all(f"127.0.0.1:{broker.port}", CASES)


def ask_real(directory: Path) -> dict[str, Seen]:
    with rocketmq_pair(directory, directory / "store", end_with=signal.SIGKILL, **SETTINGS) as namesrv:
        return asyncio.run(ask_all(rocketmq.routed_brokers(namesrv)["0"], CASES))


def recorded() -> dict[str, Seen]:
    found: dict[str, Seen] = json.loads(FILE.read_text())
    return found


def record(seen: dict[str, Seen]) -> None:
    lines = (f"{json.dumps(name)}: {json.dumps(one, ensure_ascii=False)}" for name, one in seen.items())
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
