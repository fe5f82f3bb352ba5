"""A slave written by hand, byte for byte."""

from __future__ import annotations

import asyncio

from ha.wire.codec import MasterHandshake, MasterReader, Transfer, encode_slave_handshake
from tests.fakes.ha.fed import Fed
from tests.fakes.ha.frames import slave_handshake
from tests.fakes.ha.group import Node


class RawSlave:
    """A slave written by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.frames: list[MasterHandshake | Transfer] = []
        self._parser = Fed(MasterReader())

    @classmethod
    async def connect(cls, node: Node) -> RawSlave:
        return cls(*await asyncio.open_connection("127.0.0.1", node.config.ha_port))

    async def greet(self, broker_id: int = 2, **flags: bool) -> None:
        flags = {"from_last_file": False, "learner": False} | flags
        self.writer.write(encode_slave_handshake(slave_handshake(broker_id, **flags)))
        await self.next()

    async def next(self) -> MasterHandshake | Transfer:
        """The next frame that is not a heartbeat of an epoch already told."""
        async with asyncio.timeout(5):
            while not self.frames:
                data = await self.reader.read(65536)
                if not data:
                    raise ConnectionResetError("the master hung up")
                self.frames += self._parser.feed(data)
        return self.frames.pop(0)

    async def transfer(self) -> Transfer:
        frame = await self.next()
        assert isinstance(frame, Transfer)
        return frame

    async def hung_up(self) -> bool:
        """Whether the master ends the connection."""
        try:
            async with asyncio.timeout(5):
                while await self.reader.read(65536):
                    pass
        except ConnectionError:
            return True
        return True

    def close(self) -> None:
        self.writer.close()
