"""The promise of docs/operations.md: its files start servers, its commands and figures exist."""

from __future__ import annotations

import re
import shlex

import click
import pytest

from admin.host import log_setup
from admin.host.serve import plan, read_values
from cli.main import command
from model.config import BrokerConfig, ControllerConfig, NamesrvConfig
from model.foreign_keys import REFUSED
from model.settings import parse_properties
from tests import ROOT

PAGE = (ROOT / "docs" / "operations.md").read_text()
FILES = re.findall(r"```properties\n(.*?)```", PAGE, re.S)
SERVERS = ("namesrv", "broker", "controller", "broker")
COMMANDS = re.findall(r"^ +keelmq (.*)$", PAGE, re.M)
KEYS = {*BrokerConfig.keys(), *NamesrvConfig.keys(), *ControllerConfig.keys(), *REFUSED}


@pytest.mark.parametrize(("role", "text"), [*zip(SERVERS, FILES, strict=True)])
def test_its_files_start_servers(role: str, text: str) -> None:
    made = plan(role, parse_properties(text))
    assert made.ignored == ()
    assert f"127.0.0.1:{made.admin_port}/healthz" in PAGE or role != "broker"


def test_the_broker_that_joins_a_group_of_rocketmq_would_start_and_be_reached() -> None:
    page = (ROOT / "docs" / "migration.md").read_text()
    (text,) = re.findall(r"^ +keelmq broker (--set(?:.*\\\n)+.*)$", page, re.M)
    here = {"$C": "10.0.0.1:9878", "$N": "10.0.0.1:9876", "$IP": "10.0.0.7"}
    for name, value in here.items():
        assert name in text
        text = text.replace(name, value)
    given = [part for part in shlex.split(text.replace("\\\n", "")) if part != "--set"]
    assert plan("broker", read_values(None, given)).address == "10.0.0.7:10911"


def test_a_seat_is_given_before_its_new_machine_starts() -> None:
    (how,) = re.findall(r"\*\*Replace a Controller\.\*\*.*?(?=\n### )", PAGE, re.S)
    assert how.index("keelmq controller replace") < how.index("start the new machine")


def test_there_are_commands() -> None:
    assert len(COMMANDS) >= 6


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_takes_the_options_it_is_given(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: click.Command = command()
    arguments = shlex.split(line)
    context = click.Context(found)
    while isinstance(found, click.Group):
        name = arguments.pop(0)
        below = found.get_command(context, name)
        assert below is not None, name
        found = below
    for parameter in found.params:
        if isinstance(parameter.type, click.Path):
            monkeypatch.setattr(parameter.type, "exists", False)  # it is shared by all commands
    found.make_context(found.name, arguments)


def test_every_key_it_sets_is_one() -> None:
    named = set(re.findall(r"`(\w+)=[^`]*`", PAGE)) | set(re.findall(r" -k (\w+) ", PAGE))
    assert len(named) > 8
    assert named - KEYS - {"KEELMQ_LOG", "KEELMQ_LOG_FORMAT", "KEELMQ_COMPILED"} == set()


def test_every_variable_of_logs_is_in_the_table() -> None:
    rows = re.findall(r"^\| `(KEELMQ_LOG\w*)` \|", PAGE, re.M)
    assert rows == [value for value in vars(log_setup).values() if str(value).startswith("KEELMQ_LOG")]


def test_every_reason_it_explains_is_given() -> None:
    rows = re.findall(r"^\| `([^|]*)` \|", PAGE, re.M)
    sources = "".join(
        (ROOT / name).read_text()
        for name in (
            "broker/service.py",
            "ha/slave/follower.py",
            "controller/raft/raft.py",
            "store/flow/upkeep/retention.py",
            "store/files/health.py",
            "runtime/report/lasting.py",
        )
    )
    others = ("KEELMQ_LOG", "keelmq_", "keelmq-", "rocketmq_", "Keelmq", "damaged")
    reasons = [row for row in rows if not row.startswith(others)]
    assert len(reasons) >= 5
    for reason in reasons:
        start = re.split(r"\.\.\.|: N| NAME| at ADDRESS", reason)[0].strip(" :`")
        assert start in sources or not start, reason


def test_links_of_the_operators_pages_lead_somewhere() -> None:
    for page in ("operations.md", "glossary.md"):
        text = (ROOT / "docs" / page).read_text()
        for target in re.findall(r"\]\(([^)#]+)", text):
            assert (ROOT / "docs" / target).is_file(), f"{page}: {target}"
