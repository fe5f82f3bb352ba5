"""The write path of one broker over a store in memory: the fast path, and the ordinary way of a send."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from broker.context import BrokerContext
from broker.requests.fast_path import FastPath
from broker.requests.send import SendProcessor
from broker.state.current_role import CurrentRole
from broker.state.pending_acks import PendingAcks
from broker.state.role_state import RoleState
from broker.state.stats import Stats
from broker.tables.groups import Groups
from broker.tables.topics import Topics
from model.config import BrokerConfig
from model.errors import Refused
from model.ids import BrokerId, Epoch
from model.topic import TopicConfig
from remoting import codec
from remoting.service import Connection
from runtime import native
from runtime.os_env import OsEnv
from tests.fakes.broker.store import FakeConnection, FakeStore

HAS_COMPILED = native.module() is not None
WAYS = [False, True] if HAS_COMPILED else [False]
"""``compiled`` of a Side: of the fast paths there are here."""


class FixedEnv(OsEnv):
    """The same wall clock and the same chance for both ways."""

    def __init__(self) -> None:
        super().__init__(seed=7)

    def now_ms(self) -> int:
        return 1_700_000_000_000


class Side:
    """One broker's write path over a store in memory. ``compiled``: which fast path; None: ``usual``."""

    usual: bool | None = None
    """None: as a broker takes it here."""

    def __init__(self, *, segment_bytes: int = 1 << 20, compiled: bool | None = None, **keys: str) -> None:
        config = BrokerConfig.from_mapping(
            {"mappedFileSizeCommitLog": str(segment_bytes), "brokerIP1": "127.0.0.2", **keys}
        )
        self.env = FixedEnv()
        self.store = FakeStore(self.env.now_ms(), segment_bytes)
        self.topics = Topics(config, self.env.now_ms)
        self.topics.boot(None)
        self.topics.put(TopicConfig("T", 4, 4), TopicConfig("ReadOnly", 4, 4, 4), TopicConfig("U", 2, 2))
        role = CurrentRole()
        role.set(RoleState("master", BrokerId(0), Epoch(1)))
        self.replicated: int | None = None
        self.pending_acks = PendingAcks(
            self.env,
            config,
            replicated=lambda: self.store.log.end if self.replicated is None else self.replicated,
            flushed=lambda: self.store.log.end,
            sync_to=self.store.sync_to,
        )
        self.context = BrokerContext(
            self.env,
            config,
            cast(Any, self.store),
            cast(Any, SimpleNamespace(refuse=lambda: None)),
            role,
            self.topics,
            Groups(config, self.env.now_ms),
            cast(Any, None),
            self.pending_acks,
            stats=Stats(),
        )
        self.sender = SendProcessor(self.context)
        self.refusing = False
        self.hot = FastPath(
            config,
            cast(Any, self.store),
            self.topics,
            self.pending_acks,
            self.context.stats,
            lambda: self.refusing,
        )
        compiled = self.usual if compiled is None else compiled
        if compiled is False:
            self.hot.compiled = None
        assert compiled is not True or self.hot.compiled is not None, "there is no compiled path"
        self.connection = FakeConnection()

    def ordinary(self, frames: list[bytes]) -> None:
        """Each frame to the processor, answers as the server would write them."""

        async def each() -> None:
            for frame in frames:
                request = codec.decode(frame)
                try:
                    answer = await self.sender.send(cast(Connection, self.connection), request)
                except Refused as refused:
                    answer = request.reply(refused.code, remark=refused.remark)
                if answer is not None and not request.is_oneway:
                    answer.opaque = request.opaque
                    self.connection.write(codec.encode(answer))

        asyncio.run(each())

    def fast(self, data: bytes) -> list[bytes]:
        consumed, slow = self.hot.process(cast(Connection, self.connection), bytearray(data), 0, len(data))
        assert consumed == len(data)
        return slow
