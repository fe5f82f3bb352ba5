"""The promise to those who have clients of the remoting protocol in other languages, and of 4.9: what they
send and read is what it is at the real broker, a tag chooses, and what failed comes again."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from chaos.worlds import rocketmq
from client.admin import AdminClient
from runtime.os_env import OsEnv
from tests.interop.acl_sides import compiled, java, old_library
from tests.interop.conftest import beside, facts
from tests.interop.mixed import MixedCluster, running

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900), pytest.mark.more]

HERE: Final = Path(__file__).parent
NATIVE, NODE = "0.4.4", "3.12.0"
COUNT: Final = 10
RUN_S: Final = 150.0

Line = Callable[..., list[str]]
"""A driver's command line: verb, NameServer and the verb's words."""


def _run(*command: str, cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        pytest.skip(f"{' '.join(command[:3])} could not: {done.stdout[-300:]}{done.stderr[-300:]}")


def native(scratch: Path) -> Line:
    """The C++ client with its Python face, in an environment of its own."""
    home = rocketmq.home().with_name(f"rocketmq-native-{NATIVE}")
    if not (home / "complete").exists():
        _run(sys.executable, "-m", "venv", str(home))
        _run(str(home / "bin/pip"), "install", "-q", "--no-deps", f"rocketmq=={NATIVE}")
        (home / "complete").write_text(NATIVE)
    return lambda *words: [
        *("env", f"HOME={scratch}", str(home / "bin/python"), str(HERE / "foreign/native.py")),
        *words,
    ]


def node(scratch: Path) -> Line:
    if shutil.which("npm") is None:
        pytest.skip("needs Node and npm on PATH")
    home = rocketmq.home().with_name(f"ali-ons-{NODE}")
    if not (home / "complete").exists():
        home.mkdir(parents=True, exist_ok=True)
        _run("npm", "install", "--no-audit", "--no-fund", "--silent", f"ali-ons@{NODE}", cwd=home)
        (home / "complete").write_text(NODE)
    modules = f"NODE_PATH={home / 'node_modules'}"
    return lambda *words: ["env", modules, f"HOME={scratch}", "node", str(HERE / "foreign/node.cjs"), *words]


@dataclass(frozen=True)
class Side:
    namesrv: str
    scratch: Path

    def topic(self, name: str) -> None:
        async def create() -> None:
            async with AdminClient(OsEnv(), self.namesrv) as admin:
                await admin.create_topic(name, 4, timeout_s=60)

        asyncio.run(create())

    def said(self, line: list[str]) -> str:
        done = subprocess.run(line, capture_output=True, text=True, timeout=RUN_S, env={**os.environ})
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout


@contextmanager
def _side(kind: str, base: Path) -> Iterator[Side]:
    cluster = MixedCluster(base / "c")
    if kind == "real":
        cluster.add_real_controllers(1)
    else:
        cluster.add_keelmq_controllers(1)
    cluster.add_broker(kind)
    (base / "home").mkdir(parents=True)
    with running(cluster):
        cluster.start_brokers()
        cluster.wait("a master", lambda: cluster.is_full(1))
        yield Side(cluster.namesrvs[0], base / "home")


@pytest.fixture(scope="module")
def sides(real_rocketmq: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    """(keelmq, RocketMQ)."""
    with ExitStack() as stack:
        ours, theirs = (
            stack.enter_context(_side(kind, tmp_path_factory.mktemp(kind))) for kind in ("keelmq", "real")
        )
        yield ours, theirs


def _story(side: Side, line: Line, name: str, failing: str) -> dict[str, list[tuple[str, ...]]]:
    """What one client saw: of its sends, of all messages with one that fails first, and of one tag."""
    topic = f"Story{name}"
    side.topic(topic)
    sent = facts(side.said(line("send", side.namesrv, topic, str(COUNT))), "sent")
    everything = side.said(line("read", side.namesrv, topic, str(COUNT), f"{name}_all", "*", failing))
    chosen = side.said(line("read", side.namesrv, topic, str(COUNT // 2), f"{name}_a", "a", "none"))

    def read(said: str) -> list[tuple[str, ...]]:
        found = facts(said, "read")
        return sorted(
            {tuple(one[key] for key in ("key", "tags", "number", "body", "again")) for one in found}
        )

    return {
        "sent": [(one["key"], one["status"]) for one in sent],
        "failed": [(one["key"],) for one in facts(everything, "failed")],
        "everything": read(everything),
        "chosen": read(chosen),
    }


def _same_story(
    sides: tuple[Side, Side], make: Callable[[Path], Line], name: str, failing: str = "none"
) -> None:
    ours, theirs = beside(
        *(lambda side=side: _story(side, make(side.scratch), name, failing) for side in sides)
    )
    assert ours == theirs
    assert len(ours["sent"]) == len({row[0] for row in ours["everything"]}) == COUNT
    assert ours["failed"] == ([] if failing == "none" else [(failing,)])
    assert {row[1] for row in ours["chosen"]} == {"a"}
    assert len(ours["chosen"]) == COUNT // 2


@pytest.mark.covers("Send, read, choose by a tag", client="native Python (rocketmq 0.4.4)", sides="both")
def test_the_native_python_client_sees_the_same(sides: tuple[Side, Side]) -> None:
    """It takes every message for consumed, whatever the listener returns or raises: none comes again."""
    native(sides[0].scratch)
    _same_story(sides, native, "Native")


@pytest.mark.covers(
    "Send, read, choose by a tag, a failure comes again", client="Node (ali-ons 3.12.0)", sides="both"
)
def test_the_node_client_sees_the_same(sides: tuple[Side, Side]) -> None:
    node(sides[0].scratch)
    _same_story(sides, node, "Node", failing="key-3")


@pytest.mark.covers(
    "Send and wait, with a callback, one-way, a batch; a group of two; a failure comes again",
    client="Java 4.9.7",
    sides="both",
)
def test_the_client_of_4_9_sees_the_same(sides: tuple[Side, Side]) -> None:
    library = old_library()
    compiled("ClientDriver", library)

    def story(side: Side) -> list[str]:
        def drive(verb: str, *words: str) -> str:
            return side.said(java(library, "ClientDriver", verb, side.namesrv, *words, home=side.scratch))

        for topic in ("OldGroup", "OldRetry"):
            side.topic(topic)
        for verb in ("sync", "async", "oneway", "batch"):
            drive(verb, "OldGroup", "10")
        read = facts(drive("group", "OldGroup", "40", "old_readers", "150"), "read")
        drive("sync", "OldRetry", "4")
        tries = facts(drive("retry", "OldRetry", "4", "old_retry"), "try")
        found = {" ".join((one["key"], one["number"], one["tags"])) for one in read}
        return sorted(
            found | {f"{one['key']} try {one['reconsume']}" for one in tries if one["reconsume"] < "2"}
        )

    ours, theirs = beside(*(lambda side=side: story(side) for side in sides))
    assert ours == theirs
    assert len([line for line in ours if " try " not in line]) == 40
