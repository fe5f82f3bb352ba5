"""docs/client/api.md, made from the docstrings of what applications import.

python -m tests.client.api_page      writes the page anew
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from collections.abc import Iterator
from typing import Any, Final

import keelmq
from tests import ROOT

PAGE: Final = ROOT / "docs/client/api.md"
HEAD: Final = """\
# API of the Python client

What `from keelmq import ...` gives, made from the docstrings by `python -m tests.client.api_page`.
How to use it: [Clients](index.md).
"""
PACKAGES: Final = ("client", "model", "remoting", "runtime")
TITLES: Final = {
    "Producing": (
        "Producer", "SendOptions", "Gather", "Message", "SendResult", "SendStatus", "SendFailed",
        "SendUnknown",
    ),
    "Transactions, requests": ("Decision", "Transaction", "Reply", "NoReply"),
    "Consuming": (
        "PushConsumer", "ConsumeOptions", "average", "average_by_circle", "PopConsumer", "PopOptions", "Sql",
        "PullConsumer", "Pulled", "PullStatus", "Received", "Queue",
    ),
    "Without asyncio": ("BlockingProducer", "BlockingPushConsumer", "BlockingPopConsumer"),
    "Operating": ("AdminClient",),
    "Around them": (
        "Session", "Credentials", "OsEnv", "TlsNetwork", "TlsState", "OpenTelemetry", "MqError",
    ),
}  # fmt: skip


def prose(thing: object, *, own: bool = False) -> str:
    """Its docstring as Markdown. ``own``: none that it inherits."""
    text = (vars(thing).get("__doc__") if own else getattr(thing, "__doc__", None)) or ""
    return re.sub(r"``([^`]+)``", r"`\1`", inspect.cleandoc(text)).strip()


def short(annotation: object) -> str:
    """A type as a reader knows it: without the modules."""
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=\w)", "", str(annotation))


def shown(default: object) -> str:
    """A default value as it stands in code. A function is its name: its address differs from run to run."""
    return getattr(default, "__name__", None) or repr(default)


def signature(function: Any) -> str:
    found = inspect.signature(function)
    parts, keywords = [], False
    for name, part in found.parameters.items():
        if name == "self":
            continue
        if part.kind is part.KEYWORD_ONLY and not keywords:
            parts.append("*")
            keywords = True
        default = "" if part.default is part.empty else f" = {shown(part.default)}"
        parts.append(f"{name}: {short(part.annotation)}{default}")
    answer = short(found.return_annotation)
    return f"({', '.join(parts)})" + ("" if answer == "None" else f" -> {answer}")


def fields_of(kind: Any) -> Iterator[str]:
    for field in dataclasses.fields(kind):
        default = ""
        if field.default is not dataclasses.MISSING:
            default = f" = {shown(field.default)}"
        elif field.default_factory is not dataclasses.MISSING:
            default = f" = {field.default_factory()!r}"
        yield f"    {field.name}: {short(field.type)}{default}"


def methods_of(kind: type) -> Iterator[str]:
    seen: set[str] = set()
    for base in kind.__mro__:
        for name, member in vars(base).items():
            if name.startswith("_") or name in seen:
                continue
            plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            if isinstance(member, property):
                seen.add(name)
                yield f"- `{name}`: {' '.join(prose(member).split())}".rstrip(": ")
            elif inspect.isfunction(plain) and base.__module__.partition(".")[0] in PACKAGES:
                seen.add(name)
                text = " ".join(prose(plain).split())
                start = "await " if inspect.iscoroutinefunction(plain) else ""
                yield f"- `{start}{name}{signature(plain)}`" + (f": {text}" if text else "")


def entry(name: str) -> Iterator[str]:
    thing = getattr(keelmq, name)
    yield f"### {name}\n"
    if inspect.isfunction(thing):
        yield f"`{name}{signature(thing)}`\n"
        yield prose(thing) + "\n"
        return
    if text := prose(thing, own=True):
        yield text + "\n"
    if issubclass(thing, enum.Enum):
        yield ", ".join(f"`{member.name}` ({member.value})" for member in thing) + "\n"
        return
    if dataclasses.is_dataclass(thing):
        yield "\n".join(["```text", *(line[4:] for line in fields_of(thing)), "```\n"])
    elif "__init__" in vars(thing):
        yield f"`{name}{signature(thing.__init__)}`\n"
        if text := prose(thing.__init__):
            yield text + "\n"
    if methods := list(methods_of(thing)):
        yield "\n".join(methods) + "\n"


def page() -> str:
    parts = [HEAD]
    for title, names in TITLES.items():
        parts.append(f"## {title}\n")
        for name in names:
            parts += entry(name)
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
