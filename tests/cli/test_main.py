"""The promises of cli.main: lazy commands, clear usage errors, the five exit codes."""

import subprocess
import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder

import click
import pytest

from admin.exits import DONE, INTERRUPTED, UNFINISHED, USAGE, run
from admin.group import LazyGroup
from cli.main import COMMANDS, command, main
from keelmq.__main__ import main as entry


def test_help_lists_every_command_without_importing_any() -> None:
    code = "import sys; from cli.main import command; from click.testing import CliRunner\n"
    code += "print(CliRunner().invoke(command(), ['--help']).output)\n"
    code += "print([m for m in sys.modules if m.split('.')[0] in ('pyspark', 'audit', 'chaos', 'broker')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name, (_, text) in COMMANDS.items():
        assert name in done.stdout
        assert text.split()[0] in done.stdout
    assert done.stdout.rstrip().endswith("[]")


def test_every_command_is_where_its_group_says() -> None:
    groups: list[click.Group] = [command()]
    named: list[str] = []
    for group in groups:
        ctx = click.Context(group)
        for name in group.list_commands(ctx):
            found = group.get_command(ctx, name)
            assert found is not None, name
            named.append(name)
            if isinstance(found, click.Group):
                groups.append(found)
    assert {*COMMANDS, "sim", "transfer", "up", "kill-master"} <= set(named)


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["--nonsense"],
        ["cluster", "up", "--brokers", "x"],
        ["drill", "cut-replication", "--dir", "."],
        ["drill", "cut-replication", "--target", "rocketmq"],
        ["drill", "kill-master", "--dir", ".", "--target", "rocketmq"],
        ["drill", "kill-master", "--acks", "5"],
    ],
)
def test_wrong_usage_is_64(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command(), arguments) == USAGE
    assert capsys.readouterr().err


def test_a_config_error_is_one_line_and_64(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command(), ["broker", "--set", "brokernam=x"]) == USAGE
    assert capsys.readouterr().err == "keelmq: unknown key brokernam; did you mean brokerName?\n"


def test_a_command_that_breaks_has_not_ended_with_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    """Python's own exit code for it is 1: an audit whose worker was killed would read as almost clean."""

    @click.command()
    def breaks() -> None:
        raise RuntimeError("a worker was killed")

    assert run(breaks, []) == UNFINISHED
    assert "a worker was killed" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command(), ["--version"]) == DONE
    assert capsys.readouterr().out.startswith("keelmq ")


def test_main_ends_with_the_exit_code() -> None:
    with pytest.raises(SystemExit) as ended:
        main(["nonsense"])
    assert ended.value.code == USAGE


def test_ctrl_c_while_modules_are_imported_is_one_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(MetaPathFinder):
        def find_spec(self, name: str, *_: object) -> None:
            if name == "cli.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "cli.main")
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        entry()
    assert ended.value.code == INTERRUPTED
    assert capsys.readouterr().err == "aborted\n"


def test_a_command_whose_package_is_not_installed_says_what_to_install(
    capsys: pytest.CaptureFixture[str],
) -> None:
    group = LazyGroup("keelmq", {"audit": ("no_such_package:audit", "What it does.")})
    assert run(group, ["audit"]) == UNFINISHED
    assert "needs the package no_such_package" in capsys.readouterr().err
    assert run(group, ["audit", "diff", "--json"]) == UNFINISHED
    capsys.readouterr()
    assert run(group, ["audit", "--help"]) == DONE
    assert "What it does." in (shown := capsys.readouterr().out)
    assert "needs the package no_such_package" in " ".join(shown.split())


def _lazy(group: LazyGroup) -> Iterator[tuple[LazyGroup, str]]:
    for name in group.list_commands(click.Context(group)):
        yield group, name
        inner = group.get_command(click.Context(group), name)
        if isinstance(inner, LazyGroup):
            yield from _lazy(inner)


def test_every_command_is_where_it_is_looked_for() -> None:
    pytest.importorskip("pyspark")
    group = command()
    assert isinstance(group, LazyGroup)
    found = list(_lazy(group))
    assert {name for _, name in found} >= {"drill", "sim", "transfer"}
    for group, name in found:
        assert group.get_command(click.Context(group), name) is not None


def test_a_shell_can_complete_commands() -> None:
    environment = {"_KEELMQ_COMPLETE": "bash_complete", "COMP_WORDS": "keelmq cl", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "cli.main"], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout == "plain,cluster\n"
