"""The general case: each header field of each request, one at a time, with two megabytes in it.

What a field means is not asked: nobody has to think of it first.
"""

from __future__ import annotations

from typing import Any, Final

from bench.turn_cases.measure import Ask, Case

FIELD_CHARS: Final = 1_300_000
"""Two megabytes of JSON: a header has 2 MiB at most."""
_UNIT: Final = "a,b;c d||e\x01f\x02g@h:1^"
TEXT: Final = _UNIT * (FIELD_CHARS // len(_UNIT))
"""All that anything is split at."""


async def field_cases(cases: list[Case], site: Any) -> list[Case]:
    """A case for each field that one of ``cases`` has; the other fields are as there."""
    found: list[Case] = []
    seen: set[tuple[int, str]] = set()
    for case in cases:
        for name in (await _asked(case, site, 0)).ext:
            if (int(case.code), name) not in seen:
                seen.add((int(case.code), name))
                found.append(_with_long(case, name))
    return found


def _with_long(case: Case, name: str) -> Case:
    async def make(site: Any, run: int) -> Ask:
        ask = await _asked(case, site, run)
        return Ask({**ask.ext, name: TEXT}, ask.body)

    return Case(case.code, f"{name} of 2 MB", make)


async def _asked(case: Case, site: Any, run: int) -> Ask:
    made = case.make(site, run)
    return made if isinstance(made, Ask) else await made
