"""Which defaults differ from RocketMQ's: the table in ``docs/defaults.md`` is made here.

python -m model.defaults > docs/defaults.md
"""

from model.config import BrokerConfig, ControllerConfig, NamesrvConfig
from model.config.tls import TlsConfig
from model.settings import Config

_HEAD = """# Defaults

Keys are RocketMQ's own. Where the default differs from the original's, the original's stands beside it. Made
from `model/config/` by `python -m model.defaults`. The keys under `tls` stand in a server's own file, or in
the file that its `tls.config.file` names; with none of them a process has no TLS.
"""


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if value != "" else "(empty)"


def table() -> str:
    """The whole page, as Markdown."""
    servers: list[tuple[str, type[Config]]] = [
        ("broker", BrokerConfig),
        ("namesrv", NamesrvConfig),
        ("controller", ControllerConfig),
        ("tls", TlsConfig),
    ]
    differs = [
        "## What differs from RocketMQ",
        "",
        "| server | key | here | RocketMQ | meaning |",
        "|---|---|---|---|---|",
    ]
    every = []
    for server, config in servers:
        every += [f"## {server}", "", "| key | default | meaning |", "|---|---|---|"]
        for name, field in config.keys().items():
            meaning = field.metadata["help"]
            every.append(f"| `{name}` | {_text(field.default)} | {meaning} |")
            if field.metadata["was"] is not None:
                was = _text(field.metadata["was"])
                differs.append(f"| {server} | `{name}` | {_text(field.default)} | {was} | {meaning} |")
        every.append("")
    return "\n".join([_HEAD, *differs, "", *every])


if __name__ == "__main__":
    print(table(), end="")
