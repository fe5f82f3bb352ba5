"""The promise of the console over HTTPS: a browser checks its certificate, and no cookie goes without."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import aiohttp
import pytest

from admin.commands.console import _https
from admin.console.access import of_key
from remoting.auth import Credentials
from tests.admin.console.served import MadeUp, served, visiting
from tests.tls.site import Site

PASSWORD = "a rather long password"


async def test_a_browser_that_knows_the_authority_logs_in_and_nobody_else_sees_a_page(tmp_path: Path) -> None:
    site = Site(tmp_path)
    https = _https(site.path("server.pem"), site.path("server.key"))
    known = ssl.create_default_context(cafile=site.ca)
    pairs = of_key(Credentials("ann", PASSWORD))
    async with served(MadeUp(), pairs=pairs, https=https) as url:
        assert url.startswith("https://127.0.0.1:")
        async with visiting(url) as stranger:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await stranger.get("")
        async with visiting(url.replace("https:", "http:")) as readable:
            with pytest.raises((aiohttp.ClientError, ConnectionError, asyncio.IncompleteReadError)):
                await readable.get("login")
        async with visiting(url, known) as visitor:
            assert (await visitor.get(""))[0] == 303
            form = {"csrf": await visitor.token("login"), "name": "ann", "password": PASSWORD}
            readable_origin = url.rstrip("/").replace("https:", "http:")
            assert (await visitor.post("login", form, readable_origin))[0] == 403
            status, _, headers = await visitor.post("login", form)
            assert status == 303
            assert "; Secure" in headers["Set-Cookie"]
            status, text = await visitor.get("")
            assert status == 200
            assert "broker-a" in text
