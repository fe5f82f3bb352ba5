"""With which command is a drill repeated? For its page: as it was, or as near as its result says."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

STAGING: Final = "staging"
KEPT: Final[Mapping[str, str]] = {
    "rate": "--rate",
    "size_bytes": "--size",
    "queues": "--queues",
    "seed": "--seed",
}
"""Members of a result without a plan, and the options that they were."""


def again(result: Mapping[str, Any], file: str) -> str:
    """Raises KeyError, TypeError for what is no result. ``file``: where it lies."""
    if result.get("target") == STAGING:
        return staging(result)
    if "plan" in result:
        return f"keelmq drill replay {shlex.quote(file)}"
    drills: Sequence[Any] = result["drills"]
    words = ["keelmq", "drill", str(result["scenario"])]
    words += ["--target", str(result["target"])] if result.get("target", "keelmq") != "keelmq" else []
    words += ["--campaign"] if result.get("campaign") else []
    words += ["--repeat", str(len(drills))] if len(drills) > 1 else []
    for name, option in KEPT.items():
        words += [option, f"{result[name]:g}"] if name in result else []
    for setting in result.get("settings") or ():
        words += ["--set", str(setting)]
    return shlex.join(words)


def staging(result: Mapping[str, Any]) -> str:
    """HOSTS.toml is not in it: it is the operator's."""
    _, _, kind = str(result["scenario"]).partition("/")
    strikes = sum(step["fault"] == kind for step in result["plan"]["steps"])
    return f"keelmq drill staging HOSTS.toml --kind {kind} --strikes {strikes} --seed {result['seed']}"
