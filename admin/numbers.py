"""What is a number on the command line, and in a form of the console?"""

from __future__ import annotations

import math
from typing import Any, Final

import click

WHOLE_MAX: Final = 2**63 - 1
"""No number that is asked for is larger: offsets, times, sizes."""


def whole(text: str, most: int = WHOLE_MAX) -> int | None:
    """``text`` as a number of 0 to ``most``; None when it is none.

    ``isdigit`` alone lets through what ``int`` refuses: digits of other alphabets, more than 4,300 of ours.
    """
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(WHOLE_MAX)):
        return None
    return found if (found := int(text)) <= most else None


class Number(click.FloatRange):
    """A number in a range; ``nan`` is in none, and no wait is as long as ``inf``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value!r} is no number.", param, ctx)
        return found
