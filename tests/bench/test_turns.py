"""bench/turns.py has a case for each request code that a server answers, and tells what it measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.turn_cases.fields import FIELD_CHARS
from bench.turn_cases.measure import LIMIT_MS, RUNS, Row
from bench.turns import SERVERS, measure, page, without_case
from broker.service import Broker
from controller.service import Controller
from model.codes import Request
from model.config import BrokerConfig, ControllerConfig, NamesrvConfig
from namesrv.service import NameServer
from runtime.os_env import OsEnv


async def codes_of(name: str, path: Path) -> set[int]:
    """What one answers with the default configuration."""
    env = OsEnv(seed=1)
    if name == "broker":
        config = BrokerConfig.from_mapping({"storePathRootDir": str(path)})
        return set(Broker(env, config).processors.handlers)
    if name == "namesrv":
        return set(NameServer(env, NamesrvConfig()).codes)
    peers = {"controllerDLegerPeers": "n0-127.0.0.1:9878", "controllerDLegerSelfId": "n0"}
    values = {**peers, "controllerStorePath": str(path / "controller")}
    return set(Controller(env, ControllerConfig.from_mapping(values)).codes)


@pytest.mark.parametrize("name", sorted(SERVERS))
async def test_each_code_a_server_answers_has_a_case(name: str, tmp_path: Path) -> None:
    codes, cases = await codes_of(name, tmp_path), SERVERS[name].cases
    assert without_case(codes, cases) == [], "bench/turn_cases/ needs a case for each of these codes"
    assert {int(case.code) for case in cases} == codes, "a case is for a code that nobody answers"


def test_a_code_without_a_case_is_named() -> None:
    cases = [case for case in SERVERS["broker"].cases if case.code != Request.HEART_BEAT]
    assert without_case({int(Request.HEART_BEAT), int(Request.PULL_MESSAGE)}, cases) == ["HEART_BEAT"]


async def test_a_run_tells_the_longest_piece_and_the_answer() -> None:
    told: list[Row] = []
    rows, lacking = await measure(
        "namesrv", {int(Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)}, 0.05, told.append
    )
    assert lacking == []
    assert rows == told
    (row,) = rows
    assert row.answer == "0"
    assert row.answer_bytes > 5000 * len('"topic000000"')
    assert len(row.runs_ms) == RUNS
    assert min(row.runs_ms) <= row.worst_ms <= max(row.runs_ms)


async def test_each_header_field_is_measured_with_2_mb_in_it() -> None:
    codes = {int(Request.GET_ROUTEINFO_BY_TOPIC), int(Request.PUT_KV_CONFIG)}
    rows, _ = await measure("namesrv", codes, 0.001, lambda row: None, fields=True)
    fields = {(row.name, row.what) for row in rows}
    assert {("GET_ROUTEINFO_BY_TOPIC", "topic of 2 MB"), ("PUT_KV_CONFIG", "namespace of 2 MB")} <= fields
    assert len(fields) == len(rows) >= 4
    assert all(row.sent_bytes >= FIELD_CHARS - 100 and row.answer[0].isdigit() for row in rows)


def test_the_page_puts_the_dearest_first_and_counts_what_is_over() -> None:
    def row(code: int, name: str, ms: float, what: str = "x") -> Row:
        return Row(code, name, what, ms, [ms], "", "0", 1, 1, {"broker.tick": 2 * LIMIT_MS})

    rows = [row(11, "PULL", LIMIT_MS + 1, "dear"), row(11, "PULL", 1.0, "cheap"), row(34, "BEAT", LIMIT_MS)]
    where = {"commit": "c", "at": "t", "cores": 2, "python": "3", "load_1min": 0.1}
    text = page({"broker": (rows, ["LOST"])}, where)
    assert "## broker: 2 codes, 1 over 20 ms" in text
    assert text.index("PULL (11)") < text.index("BEAT (34)")
    assert "dear" in text
    assert "cheap" not in text
    assert "Without a case: LOST" in text
    assert f"| `broker.tick` | PULL | {2 * LIMIT_MS} |" in text
