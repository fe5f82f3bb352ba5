"""With which exit code does a command end? The same five everywhere.

0 done or clean, 1 warnings, 2 a check failed (loss, divergence, violation), 3 could not finish, 64 wrong
usage.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Final

import click

from admin.terminal import printable
from model.errors import ConfigError, MqError

DONE: Final = 0
WARNINGS: Final = 1
FAILED: Final = 2
UNFINISHED: Final = 3
USAGE: Final = 64
INTERRUPTED: Final = 130


def run(command: click.Command, arguments: Sequence[str], name: str = "keelmq") -> int:
    """Run ``command`` and return its exit code; what went wrong is one line on stderr, never a traceback for
    errors the user can mend."""
    try:
        code = command.main(list(arguments), prog_name=name, standalone_mode=False)
    except click.UsageError as error:
        _say_usage(error, name)
        return USAGE
    except click.Abort:
        print("aborted", file=sys.stderr)
        return INTERRUPTED
    except click.ClickException as error:
        error.show()
        return UNFINISHED
    except ConfigError as error:
        print(f"{name}: {_one_line(str(error))}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except (MqError, OSError) as error:
        print(f"{name}: {_one_line(advised(str(error) or type(error).__name__))}", file=sys.stderr)
        return UNFINISHED
    except Exception:  # noqa: BLE001 - ours to mend; Python ends with 1, which scripts take for warnings
        traceback.print_exc()
        return UNFINISHED
    return code if isinstance(code, int) else DONE


_ADVICE: Final = {
    "username cannot be null.": "give --access-key and --secret-key, or --credentials",
    "No accessKey is configured": "give --access-key and --secret-key, or --credentials",
    "ended before the answer": "does that port speak TLS alone? Then give --tls-ca",
}


def advised(text: str) -> str:
    """What a server or the client says, with the names of the options that mend it."""
    text = text.replace("set tls.client.certPath and .keyPath", "give --tls-cert and --tls-key")
    found = [todo for said, todo in _ADVICE.items() if said in text and "the TLS connection" not in text]
    return f"{text} ({'; '.join(found)})" if found else text


def _one_line(text: str) -> str:
    """What RocketMQ's servers say may have several."""
    return printable(" ".join(part for line in text.splitlines() if (part := line.strip())))


def _say_usage(error: click.UsageError, name: str) -> None:
    """One line with where help is; a group without a command shows its help (click 8.2 and later)."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return
    path = error.ctx.command_path if error.ctx is not None else name
    text = " ".join(error.format_message().split())
    print(f"{path}: {text} (see {path} --help)", file=sys.stderr)
