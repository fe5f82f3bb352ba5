"""Where do a server's log lines go, which of them, and in which form? The environment says it.

    KEELMQ_LOG=INFO                       the level; with INFO,controller.raft=DEBUG one logger has its own;
                                          keelmq=DEBUG: all of ours, and none of the libraries'
    KEELMQ_LOG_FORMAT=text                or json: an object a line
    KEELMQ_LOG_FILE=/var/log/keelmq.log   in place of stderr; then also:
    KEELMQ_LOG_FILE_BYTES=100000000       a new file when one would be longer, 0 = never for that
    KEELMQ_LOG_FILE_HOURS=24              and at each whole multiple of so many hours (UTC), 0 = never
    KEELMQ_LOG_FILES=7                    so many older ones stay: FILE.1 is the newest

While a server runs, SIGUSR1 has all loggers say everything (DEBUG), SIGUSR2 as the environment says it again.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from admin.host.logs import JsonFormatter, LineFormatter, loggers
from admin.numbers import whole
from model.errors import ConfigError
from model.installed import NAME, module_name

LEVEL: Final = "KEELMQ_LOG"
FORMAT: Final = "KEELMQ_LOG_FORMAT"
FILE: Final = "KEELMQ_LOG_FILE"
FILE_BYTES: Final = "KEELMQ_LOG_FILE_BYTES"
FILE_HOURS: Final = "KEELMQ_LOG_FILE_HOURS"
FILES: Final = "KEELMQ_LOG_FILES"
LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

log = logging.getLogger("keelmq")


@dataclass(frozen=True, slots=True)
class LogOptions:
    """``levels``: of single loggers, by their names in this process. ``period_s`` and ``size_bytes`` 0: no
    new file for that."""

    level: str = "INFO"
    levels: Mapping[str, str] = field(default_factory=dict)
    as_json: bool = False
    file: str = ""
    size_bytes: int = 100_000_000
    period_s: int = 24 * 3600
    kept: int = 7

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> LogOptions:
        """Raises ConfigError that names the variable."""
        level, levels = "INFO", dict[str, str]()
        for part in filter(None, (part.strip() for part in environment.get(LEVEL, "").split(","))):
            name, separator, wanted = part.rpartition("=")
            if wanted.upper() not in LEVELS or (separator and not name):
                raise ConfigError(f"{LEVEL}: {part!r} is no level: {', '.join(LEVELS)}, or LOGGER=LEVEL")
            if separator:
                levels[name] = wanted.upper()
            else:
                level = wanted.upper()
        form = environment.get(FORMAT, "text")
        if form not in ("text", "json"):
            raise ConfigError(f"{FORMAT}={form}: text or json")
        return cls(
            level,
            _by_logger(levels),
            form == "json",
            environment.get(FILE, ""),
            _number(environment, FILE_BYTES, 100_000_000),
            _number(environment, FILE_HOURS, 24) * 3600,
            _number(environment, FILES, 7),
        )


def _by_logger(levels: Mapping[str, str]) -> dict[str, str]:
    """What is said of one logger goes before what is said of all."""
    found = dict[str, str]()
    for name in sorted(levels, key=lambda one: one != NAME):
        found |= dict.fromkeys(loggers(name), levels[name])
    return found


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "")
    if not text:
        return default
    found = whole(text, 10**15)
    if found is None:
        raise ConfigError(f"{name}={text[:60]}: a number of 0 or more")
    return found


class RotatingFile(logging.handlers.RotatingFileHandler):
    """A file, and a new one by size and by time. A restart in the same period goes on in the file."""

    def __init__(self, options: LogOptions) -> None:
        """Raises OSError."""
        path = Path(options.file)
        self._period_s = options.period_s
        self._begun = self._period(path.stat().st_mtime) if path.exists() else None
        super().__init__(path, maxBytes=options.size_bytes, backupCount=options.kept, encoding="utf-8")

    def shouldRollover(self, record: logging.LogRecord) -> bool:
        now, begun = self._period(record.created), self._begun
        self._begun = now
        if begun is not None and now > begun and os.path.getsize(self.baseFilename):
            return True
        return bool(super().shouldRollover(record))

    def doRollover(self) -> None:
        if self.backupCount == 0:  # the standard library would go on in the same file
            Path(self.baseFilename).write_bytes(b"")
            return
        super().doRollover()

    def _period(self, at_s: float) -> int:
        return int(at_s // self._period_s) if self._period_s else 0


def set_up(server: str, environment: Mapping[str, str] | None = None) -> LogOptions:
    """Log as the environment says, from now on. ``server``: which one this is. Raises ConfigError."""
    options = LogOptions.of(os.environ if environment is None else environment)
    try:
        handler = RotatingFile(options) if options.file else logging.StreamHandler(sys.stderr)
    except OSError as error:
        raise ConfigError(f"{FILE}={options.file}: {error.strerror or error}") from None
    handler.setFormatter(JsonFormatter(server) if options.as_json else LineFormatter(server))
    logging.basicConfig(handlers=[handler])
    apply_levels(options)
    return options


def set_up_command(name: str, acts: str, environment: Mapping[str, str] | None = None) -> None:
    """``set_up`` of a command that is no server: to stderr, for two processes cannot rotate one file. What
    people did, of the logger ``acts``, is said at any level, unless the environment names that logger. Raises
    ConfigError."""
    held = dict(os.environ if environment is None else environment)
    held.pop(FILE, None)
    options = set_up(name, held)
    logger = module_name(acts)
    named = any(f"{logger}.".startswith(f"{one}.") for one in options.levels)
    if not named and logging.getLogger(logger).getEffectiveLevel() > logging.INFO:
        logging.getLogger(logger).setLevel(logging.INFO)


def apply_levels(options: LogOptions) -> None:
    logging.getLogger().setLevel(options.level)
    for name, level in options.levels.items():
        logging.getLogger(name).setLevel(level)


def on_signal(number: int, options: LogOptions) -> None:
    """SIGUSR1: everything. SIGUSR2: as it was."""
    if number == signal.SIGUSR1:
        logging.getLogger().setLevel(logging.DEBUG)
        for name in options.levels:
            logging.getLogger(name).setLevel(logging.NOTSET)
        log.info("everything is logged (SIGUSR1); SIGUSR2 ends it")
    else:
        apply_levels(options)
        log.info("logging at %s again (SIGUSR2)", options.level)
