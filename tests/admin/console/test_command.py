"""The promise of ``keelmq console``: beyond loopback nobody gets in without a log-in."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from admin.commands.console import _https, _pairs, _proxies
from admin.console.access import proves
from model.errors import ConfigError
from remoting.auth import Credentials
from tests import ROOT
from tests.admin.console.served import visiting

KEY = Credentials("op", "a rather long secret")


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.0.0.1", "console.example"])
def test_beyond_loopback_it_does_not_start_without_a_log_in(address: str) -> None:
    with pytest.raises(ConfigError, match="--password-file"):
        _pairs(address, "", None, None)
    pairs = _pairs(address, "", None, KEY)
    assert pairs is not None
    assert proves(pairs, "op", "a rather long secret")


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost", "127.0.0.2"])
def test_on_loopback_one_logs_in_where_the_console_has_a_key(address: str, tmp_path: Path) -> None:
    """Whoever else is on the machine does not get the key's rights by a browser."""
    assert _pairs(address, "", None, None) is None
    assert _pairs(address, "", None, KEY) is not None
    people = tmp_path / "people"
    people.write_text("ann:a long password\n")
    people.chmod(0o600)
    pairs = _pairs(address, "", str(people), KEY)
    assert pairs is not None
    assert not proves(pairs, "op", "a rather long secret")
    assert proves(pairs, "ann", "a long password")


def test_behind_a_proxy_one_logs_in_also_on_loopback() -> None:
    """It asks from loopback, with loopback's Host where it passes none on, for whoever is before it."""
    with pytest.raises(ConfigError, match="--password-file"):
        _pairs("127.0.0.1", "127.0.0.1", None, None)
    assert _pairs("127.0.0.1", "127.0.0.1", None, KEY) is not None


def test_proxies_are_named_by_the_addresses_they_come_from() -> None:
    assert not _proxies("")
    some = _proxies("[::1], 10.0.0.9,172.16.0.0/12,fd00::/8")
    for address in ("::1", "10.0.0.9", "::ffff:10.0.0.9", "172.31.255.1", "::ffff:172.16.0.1", "fd00::5"):
        assert some.has(address), address
    for address in ("127.0.0.1", "10.0.0.8", "172.32.0.1", "fe80::1"):
        assert not some.has(address), address
    assert _proxies("::ffff:10.0.0.9").has("10.0.0.9"), "as a socket of both families shows it"
    for wrong in ("here", "10.0.0.0/33", "10.0.0.1/8", "10.0.0.1;10.0.0.2"):
        with pytest.raises(ConfigError, match=f"--proxy {wrong}"):
            _proxies(wrong)


def test_files_for_https_are_looked_at_before_anything_starts(tmp_path: Path) -> None:
    assert _https(None, None) is None
    with pytest.raises(ConfigError, match="go together"):
        _https("cert.pem", None)
    with pytest.raises(ConfigError, match="nowhere"):
        _https(str(tmp_path / "nowhere.pem"), str(tmp_path / "key.pem"))


async def test_what_is_done_in_it_is_said_on_stderr(tmp_path: Path) -> None:
    nobody = "127.0.0.1:1"
    arguments = ["console", "--port", "0", "--namesrv", nobody, "--reports", str(tmp_path), "--drills"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli.main", *arguments),
        cwd=ROOT,
        env={**os.environ, "KEELMQ_LOG": "WARNING", "KEELMQ_LOG_FILE": str(tmp_path / "log")},  # a server's
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().split()[1]
        async with visiting(url) as visitor:
            form = {"csrf": await visitor.token("drills")}
            assert (await visitor.post("drills/stop", form))[0] == 303
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = await process.communicate()
    assert re.search(rb"I console@127\.0\.0\.1:\d+ .*drill stopped by the console\n", errors), errors
