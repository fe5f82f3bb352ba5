"""A cluster whose brokers' clocks are set."""

from __future__ import annotations

from typing import Final

from model.codes import Request, Response
from tests.sim.kept import Kept
from tests.sim.world import SEND

TOPIC: Final = "Waits"


class Skewed(Kept):
    """Brokers whose clocks are set."""

    def set_ahead(self, name: str, by_ms: int) -> None:
        node = self.cluster.nodes[name]
        node.skew_ms += by_ms
        if node.running:
            self.broker(name).env.skew_ms = node.skew_ms  # type: ignore[attr-defined]

    async def send(self, body: bytes, properties: str = "") -> None:
        text = f"UNIQ_KEY\x01{body.decode()}\x02{properties}"
        answer = await self.ask(Request.SEND_MESSAGE, {**SEND, "topic": TOPIC, "properties": text}, body)
        assert answer.code == Response.SUCCESS, answer.remark
