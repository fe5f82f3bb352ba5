"""The promise of a client that is closed while it dials: it ends at once, whatever its loop says."""

from __future__ import annotations

import asyncio

import pytest

from remoting.service import RemotingClient
from remoting.transport import endpoint
from runtime.os_env import OsEnv
from tests.remoting.support import serving
from tests.tls.site import LOOPS, run_on


@pytest.mark.parametrize("loop", LOOPS)
def test_a_dial_that_is_given_up_when_it_has_just_succeeded_leaves_nothing(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvloop closes the transport of such a dial without a word to its protocol."""
    monkeypatch.setattr(endpoint, "CLOSING_S", 60.0)

    async def work() -> None:
        async with serving() as (_, address):
            client = RemotingClient(OsEnv(seed=1), "client")
            dial = asyncio.ensure_future(client.connection(address))
            while not client._endpoint.connections:  # noqa: ASYNC110
                await asyncio.sleep(0)
            await client.close()
            assert not client._endpoint.connections
            with pytest.raises(ConnectionError, match="was dropped"):
                await dial

    run_on(loop, work)
