"""The promise of numbers that are typed in: what is none is told in one line, whatever its digits are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import click
import pytest

from admin.commands.bench import bench
from admin.commands.cluster import cluster
from admin.commands.messaging.consumer import moment_ms
from admin.exits import USAGE, run
from admin.numbers import WHOLE_MAX, Number, whole
from cli.main import command
from tests import ROOT

MANY = "9" * 5000
"""More digits than Python's ``int`` reads."""


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("007", 7), (str(WHOLE_MAX), WHOLE_MAX)])
def test_a_number_is_read(text: str, number: int) -> None:
    assert whole(text) == number


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", "1 ", "1_0", "x", "\u00b2", "\u0664", str(WHOLE_MAX + 1), MANY]
)
def test_what_is_no_number_is_none(text: str) -> None:
    assert whole(text) is None


def test_a_number_above_the_most_is_none() -> None:
    assert (whole("5", 5), whole("6", 5)) == (5, None)


@pytest.mark.parametrize("size", ["\u00b2", "1-\u00b2", MANY, f"1-{MANY}", "1-", "-1"])
def test_a_size_that_is_none_is_one_line(size: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(bench, ["send", "T", f"--size={size}", "--namesrv", "127.0.0.1:1"]) == USAGE
    error = capsys.readouterr().err
    assert "expected bytes" in error
    assert error.count("\n") == 1
    assert len(error) < 300


@pytest.mark.parametrize("text", [f"{MANY}m", "\u00b2m", MANY])
def test_a_time_that_is_none_is_wrong_usage(text: str) -> None:
    with pytest.raises(click.UsageError, match=r"is no time"):
        moment_ms(text)


def test_the_command_line_and_the_console_read_numbers_in_one_way() -> None:
    """``isdigit`` and ``int`` differ; ``whole`` does not."""
    files = [path for top in ("admin", "cli", "chaos/drills") for path in (ROOT / top).rglob("*.py")]
    own = [
        str(path.relative_to(ROOT))
        for path in files
        if re.search(r"\.is(digit|decimal|numeric)\(", path.read_text())
    ]
    assert own == ["admin/numbers.py"]


def _options(of: click.Command, context: click.Context) -> Iterator[tuple[str, Any]]:
    for parameter in of.params:
        yield f"{context.command_path} {parameter.name}", parameter.type
    if isinstance(of, click.Group):
        for name in of.list_commands(context):
            found = of.get_command(context, name)
            assert found is not None, "it is listed"
            yield from _options(found, click.Context(found, context, name))


def test_no_option_is_a_number_that_may_be_nan_or_endless() -> None:
    top = command()
    seen = list(_options(top, click.Context(top, info_name="keelmq")))
    assert sum(isinstance(kind, Number) for _, kind in seen) > 10
    loose = (click.types.FloatParamType, click.FloatRange)
    assert [name for name, kind in seen if isinstance(kind, loose) and not isinstance(kind, Number)] == []


@pytest.mark.parametrize("timeout", ["nan", "inf", "-5"])
def test_a_cluster_is_waited_for_only_as_long_as_a_wait_can_be(
    timeout: str, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(cluster, ["up", "--dir", str(tmp_path), f"--timeout={timeout}"]) == USAGE
    assert "--timeout" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
