"""What does a running demo look like: a live panel on a terminal, plain lines anywhere else?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

PLAIN_EVERY_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Sight:
    """The cluster at one moment. ``behind``: acknowledged messages the consumers have not got yet."""

    at_s: float
    phase: str
    master: str
    epoch: int
    in_sync: tuple[str, ...]
    brokers: tuple[tuple[str, str, int | None], ...]  # name, role, end of its log in bytes
    per_second: int
    acked: int
    unanswered: int
    behind: int
    confirmed: int


class Screen(Protocol):
    """Shows the last sight, and says what happened."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def show(self, sight: Sight) -> None: ...
    def say(self, text: str) -> None: ...
    def note(self, text: str) -> None:
        """Progress that is worth a line only where lines are replaced."""


class PlainScreen:
    """One line for each event, and one every few seconds: for logs and pipes."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._shown_s = -PLAIN_EVERY_S
        self._at_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to put back."""

    def show(self, sight: Sight) -> None:
        self._at_s = sight.at_s
        if sight.at_s - self._shown_s < PLAIN_EVERY_S:
            return
        self._shown_s = sight.at_s
        self._write(
            f"{sight.at_s:6.1f} s  {sight.phase}: master {sight.master}, epoch {sight.epoch}, "
            f"in sync {len(sight.in_sync)}, {sight.per_second} acks/s, {sight.acked} acked, "
            f"consumers {sight.behind} behind"
        )

    def say(self, text: str) -> None:
        self._write(f"{self._at_s:6.1f} s  {text}")

    def note(self, text: str) -> None:
        """Left out: every line stays."""


class RichScreen:
    """A panel that is redrawn in place; events scroll above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._sight: Sight | None = None
        self._at_s = 0.0
        self._note = ""

    def __enter__(self) -> Self:
        self._sight = None
        self._live = Live(self._draw(), console=self._console, refresh_per_second=5, transient=True)
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def show(self, sight: Sight) -> None:
        self._sight, self._at_s = sight, sight.at_s
        self._redraw()

    def say(self, text: str) -> None:
        self._console.print(Text.assemble((f"{self._at_s:6.1f} s  ", "dim"), text))
        self._note = text
        self._redraw()

    def note(self, text: str) -> None:
        self._note = text
        self._redraw()

    def _redraw(self) -> None:
        if self._live is not None:
            self._live.update(self._draw())

    def _draw(self) -> Group:
        sight = self._sight
        if sight is None:
            return Group(Text(self._note or "starting", style="dim"))
        table = Table(box=None, padding=(0, 2), show_header=True, header_style="dim")
        for name in ("master", "epoch", "in sync", "acks/s", "acked", "unanswered", "lag"):
            table.add_column(name)
        lost = sight.master == "none"
        table.add_row(
            Text(sight.master, style="bold red" if lost else "bold green"),
            str(sight.epoch),
            f"{len(sight.in_sync)} of {len(sight.brokers)}",
            f"{sight.per_second:,}",
            f"{sight.acked:,}",
            str(sight.unanswered),
            f"{sight.behind:,}",
        )
        brokers = Table(box=None, padding=(0, 2), show_header=False)
        longest = max((end or 0 for _, _, end in sight.brokers), default=0)
        for name, role, end in sight.brokers:
            style = {"master": "green", "slave": "cyan"}.get(role, "red")
            lag = (
                ""
                if end is None
                else f"{(longest - end) / 1024:,.1f} KiB behind"
                if longest > end
                else "level"
            )
            brokers.add_row(name, Text(role, style=style), lag)
        return Group(Text(f"{sight.at_s:6.1f} s  {sight.phase}", style="bold"), table, brokers)
