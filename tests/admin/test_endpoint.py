"""The promises of admin.host.endpoint: health, status and metrics of one server, read from its own words."""

import asyncio
import json
import os
import re
from typing import Any

import aiohttp
import pytest

from admin.host.endpoint import Endpoint
from admin.host.serve import bind
from runtime.report.lasting import Dead
from runtime.version import version
from tests.admin.statuses import BROKER, NAMESRV, Server

SLAVE: dict[str, Any] = {
    **BROKER,
    "role": "slave",
    "acting": True,
    "writable": "the disk is full: 99 % used",
    "life": {"following": {"state": "needs_reseed", "master": "h:1", "reason": "gone"}},
}


def fetch(role: str, server: Server, path: str, dead: Dead | None = None) -> tuple[int, str]:
    async def work() -> tuple[int, str]:
        link = bind(0)
        port = link.getsockname()[1]
        endpoint = Endpoint(role, server, link, dead=dead)
        await endpoint.start()
        try:
            url = f"http://127.0.0.1:{port}{path}"
            async with aiohttp.ClientSession() as http, http.get(url) as response:
                return response.status, await response.text()
        finally:
            await endpoint.stop()

    return asyncio.run(work())


def test_healthz_says_ok_or_why_not() -> None:
    assert fetch("broker", Server(BROKER), "/healthz") == (200, "ok\n")
    assert fetch("broker", Server(BROKER, "disk full"), "/healthz") == (503, "disk full\n")


def test_readyz_asks_for_more_where_a_server_does() -> None:
    class Behind(Server):
        def ready(self) -> str | None:
            return self.health() or "not in the SyncStateSet yet"

    assert fetch("namesrv", Server(NAMESRV), "/readyz") == (200, "ready\n")
    assert fetch("namesrv", Server(NAMESRV, "no leader"), "/readyz") == (503, "no leader\n")
    assert fetch("broker", Behind(BROKER), "/healthz") == (200, "ok\n")
    assert fetch("broker", Behind(BROKER), "/readyz") == (503, "not in the SyncStateSet yet\n")
    dead = Dead()
    dead.why["it"] = "gone"
    assert fetch("broker", Server(BROKER), "/readyz", dead)[0] == 503


def test_a_task_that_died_is_told_behind_what_the_server_says_itself() -> None:
    dead = Dead()
    assert fetch("broker", Server(BROKER), "/healthz", dead) == (200, "ok\n")
    dead.why["broker a.master.transactions"] = "too large"
    told = "the task broker a.master.transactions died: too large\n"
    assert fetch("broker", Server(BROKER), "/healthz", dead) == (503, told)
    assert fetch("broker", Server(BROKER, "disk full"), "/healthz", dead) == (503, "disk full\n")
    _, text = fetch("broker", Server(BROKER), "/metrics", dead)
    assert {"keelmq_healthy 0.0", "keelmq_dead_tasks 1.0"} <= set(text.splitlines())


def test_status_is_the_servers_own_with_its_role() -> None:
    code, text = fetch("broker", Server(BROKER), "/status")
    assert code == 200
    assert json.loads(text) == {"serverRole": "broker", "pid": os.getpid(), **BROKER}


@pytest.mark.parametrize(
    "line",
    [
        'keelmq_broker_role{role="master"} 1.0',
        'keelmq_broker_role{role="slave"} 0.0',
        "keelmq_broker_epoch 7.0",
        "keelmq_broker_commitlog_confirmed_bytes 900.0",
        "keelmq_broker_in_sync_replicas 3.0",
        "keelmq_broker_messages_put_total 10.0",
        "keelmq_broker_messages_put_fast_total 9.0",
        'keelmq_broker_send_path{path="Python"} 1.0',
        'keelmq_broker_send_path{path="compiled"} 0.0',
        f'keelmq_build_info{{version="{version()}"}} 1.0',
        'keelmq_broker_slave_lag_bytes{id="1"} 100.0',
        'keelmq_events_total{kind="promoted"} 600.0',
        'keelmq_events_total{kind="demoted"} 0.0',
        "keelmq_broker_writable 1.0",
        "keelmq_broker_damaged_ranges 2.0",
        "keelmq_broker_compare_undecided_ranges 3.0",
        "keelmq_broker_scrub_findings_total 8.0",
        "keelmq_broker_acting 0.0",
        "keelmq_broker_parked_answers 5.0",
        "keelmq_broker_connections 6.0",
        "keelmq_broker_ha_links_turned_away_total 4.0",
        'keelmq_broker_slave_state{state="needs_reseed"} 0.0',
        "keelmq_healthy 1.0",
    ],
)
def test_a_brokers_metrics(line: str) -> None:
    _, text = fetch("broker", Server(BROKER), "/metrics")
    assert line in text.splitlines()


@pytest.mark.parametrize(
    "line",
    [
        'keelmq_namesrv_brokers{group="broker-a"} 2.0',
        "keelmq_namesrv_topics 12.0",
        "keelmq_namesrv_connections 9.0",
        "keelmq_controller_is_leader 1.0",
        "keelmq_controller_term 3.0",
        "keelmq_controller_commit_index 44.0",
        "keelmq_controller_tick_age_seconds 0.25",
        "keelmq_controller_tick_late_max_seconds 1.5",
        "keelmq_controller_applied_index 41.0",
        "keelmq_controller_lag_entries 3.0",
        "keelmq_controller_unmoved_seconds 0.0",
        "keelmq_controller_journal_entries 12.0",
        "keelmq_controller_journal_bytes 3456.0",
        "keelmq_controller_compaction_failing 1.0",
        'keelmq_controller_peer_lag_entries{peer="n2"} 44.0',
        'keelmq_controller_peer_answer_age_seconds{peer="n1"} 0.02',
        'keelmq_group_has_master{group="broker-a"} 0.0',
        'keelmq_group_alive_brokers{group="broker-a"} 1.0',
        'keelmq_group_unclean_elections_total{group="broker-a"} 2.0',
    ],
)
def test_a_nameservers_metrics_hold_its_controllers(line: str) -> None:
    _, text = fetch("namesrv", Server(NAMESRV), "/metrics")
    assert line in text.splitlines()


@pytest.mark.parametrize(
    "line",
    [
        "keelmq_broker_writable 0.0",
        "keelmq_broker_acting 1.0",
        'keelmq_broker_slave_state{state="needs_reseed"} 1.0',
        'keelmq_broker_slave_state{state="following"} 0.0',
    ],
)
def test_the_metrics_of_a_slave_in_trouble(line: str) -> None:
    _, text = fetch("broker", Server(SLAVE), "/metrics")
    assert line in text.splitlines()


def test_what_is_not_known_of_raft_is_not_shown() -> None:
    _, text = fetch("namesrv", Server(NAMESRV), "/metrics")
    assert "keelmq_controller_append_age_seconds" not in text  # the leader hears no leader
    assert 'answer_age_seconds{peer="n2"}' not in text


def test_a_taken_port_is_an_os_error_that_names_it() -> None:
    with bind(0) as first:
        first.listen()
        port = first.getsockname()[1]
        with pytest.raises(OSError, match=str(port)):
            bind(port)


def test_it_listens_on_loopback_unless_another_address_is_named() -> None:
    for host, found in ((None, "127.0.0.1"), ("0.0.0.0", "0.0.0.0"), ("127.0.0.2", "127.0.0.2")):
        with bind(0) if host is None else bind(0, host) as link:
            assert link.getsockname()[0] == found


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.name.invalid"])
def test_an_address_this_machine_does_not_have_is_named(host: str) -> None:
    with pytest.raises(OSError, match=re.escape(f"{host}:9801: ")) as told:
        bind(9801, host)
    assert "Unknown error" not in str(told.value)


@pytest.mark.parametrize(("host", "status"), [("localhost:1", 200), ("[::1]", 200), ("evil.example", 403)])
def test_on_loopback_a_name_of_somebody_elses_dns_is_refused_and_no_answer_names_a_library(
    host: str, status: int
) -> None:
    async def work() -> None:
        link = bind(0, "127.0.0.1")
        endpoint = Endpoint("broker", Server(BROKER), link)
        port = link.getsockname()[1]
        await endpoint.start()
        try:
            async with (
                aiohttp.ClientSession() as http,
                http.get(f"http://127.0.0.1:{port}/healthz", headers={"Host": host}) as response,
            ):
                assert (response.status, response.headers["Server"]) == (status, "keelmq")
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"no request\r\n\r\n")
            assert b"aiohttp" not in await reader.read()
            writer.close()
        finally:
            await endpoint.stop()

    asyncio.run(work())
