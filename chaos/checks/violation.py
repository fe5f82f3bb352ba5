"""What does a check say when a promise was broken?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise: the checker's name and what it saw, for a human."""

    checker: str
    text: str

    def to_json(self) -> dict[str, Any]:
        return {"checker": self.checker, "text": self.text}
