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

_KEPT = {
    "mappedFileSizeConsumeQueue": "the broker does not start: queue files of another size are not read",
    "messageDelayLevel": "messages that wait come after the time that their level has now; with fewer levels"
    " those of a level that is gone do not come until it is there again (a warning of the master tells)",
    "timerPrecisionMs": "by orderly restarts only, and not together with RocketMQ brokers: of messages that"
    " rolled, some may come twice",
    "timerRollWindowSlot": "as timerPrecisionMs",
}
"""What becomes of a store with data when a key changes. The same on every replica of a group, too."""


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
    keys = BrokerConfig.keys()
    kept = [
        "## What stays as it is on a store with data",
        "",
        "| key | default | if it changes |",
        "|---|---|---|",
    ]
    kept += [f"| `{name}` | {_text(keys[name].default)} | {why} |" for name, why in _KEPT.items()]
    return "\n".join([_HEAD, *differs, "", *kept, "", *every])


if __name__ == "__main__":
    print(table(), end="")
