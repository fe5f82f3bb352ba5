"""A real NameServer and a real broker on a store of the test's choice."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from admin.local.layout import free_base_port
from chaos.worlds import rocketmq

SEGMENT = {"mappedFileSizeCommitLog": 1048576}


@contextmanager
def rocketmq_pair(
    base: Path, store: Path, *, end_with: int = signal.SIGTERM, **settings: object
) -> Iterator[str]:
    """A real NameServer and broker, the broker on ``store``; yields the NameServer's address.

    A broker takes eight seconds to end in order: only where its store is looked at afterwards.
    """
    namesrv_port = free_base_port(20)
    port = namesrv_port + 10
    namesrv = f"127.0.0.1:{namesrv_port}"
    server = rocketmq.namesrv_node(base / "ns", namesrv_port)
    broker = rocketmq.broker_node(
        base / "b", port, namesrv, store, **{**SEGMENT, **rocketmq.QUICK_BROKER, **settings}
    )
    server.start()
    try:
        rocketmq.wait_until("the NameServer", lambda: rocketmq.call(namesrv, 106)[0]["code"] == 0, 60)
        broker.start()
        rocketmq.wait_until("the broker", lambda: "0" in rocketmq.routed_brokers(namesrv), 90)
        yield namesrv
    finally:
        broker.stop(end_with)
        server.stop(signal.SIGKILL)  # nothing of it is looked at, and in order it takes seconds
