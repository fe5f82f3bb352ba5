"""A console on loopback whose cluster is made up, with names that would break a page that did not escape."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import aiohttp

from admin.console.access import Entry, Pairs, Proxies
from admin.console.asking import Browsed, Cluster, GroupSeen, Names, TopicSeen, page_of
from admin.console.drills import Drills
from admin.console.service import Console
from admin.handover import HandedOver
from admin.host.serve import bind
from admin.top.look import Heard, Look, Progress
from client.admin import ConsumeStats, QueueStats, SyncState
from client.consumer_groups import Member, Online
from client.finding import Found
from client.message import Queue, Received
from model.topic import TopicConfig
from runtime.os_env import OsEnv
from tests.client.servers import received

HOSTILE: Final = "<img src=x onerror=\"document.title='bad'\">&'"
ADDRESSES: Final = {1: "127.0.0.1:21202", 2: "127.0.0.1:21222", 3: "127.0.0.1:21212"}
STATE: Final = SyncState(
    "broker-a",
    1,
    ADDRESSES[1],
    7,
    3,
    {1: ADDRESSES[1], 2: ADDRESSES[2]},
    {3: ADDRESSES[3]},
    {1: True, 2: True, 3: False},
    {},
    {},
)
QUEUE: Final = Queue("orders", "broker-a", 0)
MESSAGE: Final = replace(
    received({"KEYS": HOSTILE, "TAGS": HOSTILE, HOSTILE: HOSTILE}),
    queue=QUEUE,
    queue_offset=41,
    stored_topic="orders",
    body=f"{HOSTILE}\x1b[31m\n".encode() + b"\xff" + b"a long body " * 40,
    store_timestamp_ms=1_000_000,
)


def told(address: str, role: str) -> Heard:
    numbers = {"putMessageTimesTotal": "100", "msgGetTotalTodayNow": "40", "commitLogMaxOffset": "9000"}
    return Heard(address, {"brokerRole": role, "commitLogDiskRatio": "0.25", "putTps": "7 7 7", **numbers})


class MadeUp(Cluster):
    """``looks``: how many there were. ``handed``: the targets that groups were handed over to."""

    def __init__(self) -> None:
        super().__init__(OsEnv(), ["n:1"], ["c:1"], None)
        self.looks = 0
        self.now = STATE
        self.handed: list[tuple[int, tuple[int, int]]] = []

    async def look(self) -> Look:
        self.looks += 1
        rows = [ConsumeStats(QUEUE, 50, 40, 900_000)]
        groups = {f"{HOSTILE}{number}": rows for number in range(20)}
        return Look(
            1_000_000,
            self.env.monotonic_ms(),
            [Heard("127.0.0.1:21170", {"broker-a": {0: ADDRESSES[1]}}), Heard("n:2", problem=HOSTILE)],
            [Heard("c:1", {"controllerLeaderAddress": "c:1"})],
            {
                ADDRESSES[1]: told(ADDRESSES[1], "master"),
                ADDRESSES[2]: told(ADDRESSES[2], "slave"),
                ADDRESSES[3]: Heard(ADDRESSES[3], problem=HOSTILE),
            },
            {"broker-a": {0: ADDRESSES[1]}},
            {"broker-a": STATE},
            HOSTILE,
            [Progress(ADDRESSES[1], groups), Progress(ADDRESSES[2], problem=HOSTILE)],
        )

    async def topics(self, page: int, wanted: str, whole: bool) -> Names:
        return page_of([f"{HOSTILE}{number}" for number in range(60)], page, wanted)

    async def topic(self, name: str) -> TopicSeen:
        config = TopicConfig(name, 1, 1, 6, attributes={HOSTILE: HOSTILE})
        return TopicSeen([QueueStats(QUEUE, 0, 50, 9)], {HOSTILE: ("h:1", config)}, [HOSTILE])

    async def groups(self, page: int, wanted: str) -> tuple[Names, list[tuple[str, int, int]]]:
        return page_of([HOSTILE], page, wanted), [(HOSTILE, 1, 10)]

    async def group(self, name: str) -> GroupSeen:
        online = Online((Member(HOSTILE, HOSTILE, HOSTILE, 1),), ((HOSTILE, HOSTILE),))
        return GroupSeen(online, [ConsumeStats(QUEUE, 50, 40, 9)], {QUEUE: HOSTILE})

    async def browse(self, topic: str, place: str, offset: int | None) -> Browsed:
        return Browsed(QUEUE, [MESSAGE], 41, 0, 50)

    async def message(self, topic: str, place: str, offset: int) -> Received:
        return MESSAGE

    async def by_key(self, topic: str, key: str) -> Found:
        return Found([MESSAGE], [HOSTILE])

    async def state(self, group: str) -> SyncState:
        return replace(self.now, group=group)

    async def hand_over(self, group: str, target: int, seen: tuple[int, int]) -> HandedOver:
        self.handed.append((target, seen))
        return HandedOver(group, 1, target, 8, 80.0)


@asynccontextmanager
async def served(
    cluster: Cluster,
    *,
    pairs: Pairs | None = None,
    reports: Path | None = None,
    read_only: bool = False,
    every_s: float = 2.0,
    https: ssl.SSLContext | None = None,
    drills: Drills | None = None,
    proxy: str = "",
) -> AsyncIterator[str]:
    """Its address, which ends with /."""
    console = Console(
        cluster,
        bind(0),
        entry=Entry(pairs, Proxies(proxy)),
        reports=reports,
        read_only=read_only,
        every_s=every_s,
        https=https,
        drills=drills,
    )
    await console.start()
    try:
        yield console.url
    finally:
        await console.stop()


class Visitor:
    """A browser without a screen: it keeps cookies, and takes a form's token from its page."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def get(self, path: str, **headers: str) -> tuple[int, str]:
        async with self.session.get(self.url + path, headers=headers, allow_redirects=False) as answer:
            return answer.status, await answer.text()

    async def token(self, path: str) -> str:
        """Of the form on the page at ``path``."""
        _, text = await self.get(path)
        return text.partition('name=csrf value="')[2].partition('"')[0]

    async def post(
        self, path: str, form: Mapping[str, str], origin: str | None = ""
    ) -> tuple[int, str, Mapping[str, str]]:
        """Status, text, headers. ``origin`` "": the console's own; None: no header."""
        headers: dict[str, Any] = {}
        if origin is not None:
            headers["Origin"] = origin or self.url.rstrip("/")
        async with self.session.post(
            self.url + path, data=dict(form), headers=headers, allow_redirects=False
        ) as answer:
            return answer.status, await answer.text(), answer.headers


@asynccontextmanager
async def visiting(url: str, trusts: ssl.SSLContext | None = None) -> AsyncIterator[Visitor]:
    """``trusts``: whose certificates; None: what the system does."""
    connector = aiohttp.TCPConnector(ssl=True if trusts is None else trusts)
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(cookie_jar=jar, connector=connector) as session:
        yield Visitor(session, url)
