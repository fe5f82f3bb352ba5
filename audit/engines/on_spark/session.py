"""How is Spark started for one audit? With what the user's configuration says, and else for a short job."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark import SparkConf, SparkContext

from audit.engines.on_spark.java import Java
from model.installed import IMPORTED_FROM, PACKAGES, PREFIX

SHARED_PACKAGES: Final = ("audit", "model")
"""What a worker imports to run a task."""

PARTITIONS: Final = "spark.sql.shuffle.partitions"
LEAST: Final = "spark.keelmq.leastPartitions"
"""There only where the user's configuration does not say how many partitions a shuffle has."""
TASK_ROWS: Final = 500_000
"""Of a shuffle: about 300 MiB of a task's memory."""
SMALL_TASK_ROWS: Final = 20_000
"""With fewer a task takes longer to start than to run."""

JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
DRIVER_MEMORY: Final = "spark.driver.memory"
LOCAL_DIR: Final = "spark.local.dir"
OPTIONS: Final = {"--driver-memory": DRIVER_MEMORY, "--driver-java-options": JAVA_OPTIONS}
"""Of ``spark-submit``, and the settings that they are."""
LEAN: Final = (
    "-Xms32m -Xmn16m -XX:MinHeapFreeRatio=10 -XX:MaxHeapFreeRatio=20 -Djdk.nio.maxCachedBufferSize=65536"
)
"""A local JVM begins with a 64th of the machine's memory, which its collector fills before it looks for what
is free: of 120 MB then 80 were garbage. The heap may become as large as before. Each of 160 threads keeps a
buffer outside of it, as large as the largest piece that it wrote, unless that has a limit."""
ARENAS: Final = {"MALLOC_ARENA_MAX": "2"}
"""Or the C library keeps memory of its own for each of them."""

SHUFFLE: Final = {
    "spark.shuffle.sort.bypassMergeThreshold": "1000",
    "spark.shuffle.file.buffer": "8k",
    "spark.shuffle.compress": "false",
}
"""Into so many parts rows go to a file each. Of more, and by Spark's own choice of more than 200, all wait in
the heap until they are sorted by part. Each file has its buffers there; the rows are compressed before."""

FORGOTTEN: Final = {
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "500",
}
"""What is known of each task stays in the driver's heap, also without pages that show it: of a ledger of ten
million lines these are thousands."""

LOOPBACK: Final = "127.0.0.1"
GATEWAY: Final = "PYSPARK_GATEWAY_PORT"
"""In the environment of a program that ``spark-submit`` started: the JVM runs, with its configuration."""


def submitted_context(directory: Path, master: str | None, conf: Mapping[str, str]) -> SparkContext:
    """In the JVM of ``spark-submit``, whose master and configuration stand unless an option says otherwise.
    ``directory``: for what workers import."""
    chosen = submitted_settings(master, conf)
    context = SparkContext.getOrCreate(SparkConf().setAll(list(chosen.items())))
    if not (context.master or "").startswith("local"):
        context.addPyFile(str(packages(directory)))
    return context


def submitted_settings(master: str | None, conf: Mapping[str, str]) -> dict[str, str]:
    """What is set over what ``spark-submit`` was given."""
    # What it was given is in its JVM alone, and a SparkConf of before the connection knows nothing of it.
    SparkContext._ensure_initialized()
    told = dict(SparkConf().getAll())
    chosen = settings(master or told.get("spark.master") or "local", "", conf, told.keys())
    chosen.pop(JAVA_OPTIONS, None)  # it has started
    return chosen if master is None else {**chosen, "spark.master": master}


def start_context(master: str, java: Java, conf: Mapping[str, str]) -> SparkContext:
    """Starts fast, listens on loopback only when local, and finds this Python in its workers."""
    elsewhere = set_elsewhere(os.environ)
    chosen = settings(master, java.log_config, conf, elsewhere)
    with _environment(variables(master, java.home, os.environ, elsewhere | conf.keys())):
        context = SparkContext.getOrCreate(SparkConf().setMaster(master).setAll(list(chosen.items())))
    if not master.startswith("local"):
        # A cluster's workers do not have our packages installed; a file of them is shipped with the job.
        context.addPyFile(str(packages(Path(java.home))))
    return context


def variables(
    master: str, java_home: str, environ: Mapping[str, str], told: AbstractSet[str]
) -> dict[str, str]:
    """What Spark's start reads in its environment; what ``environ`` says of it stays, and so does what the
    user's configuration tells."""
    ours = {
        # Without it, workers start the system's python3, which knows none of our packages.
        "PYSPARK_PYTHON": sys.executable,
    }
    if LOCAL_DIR not in told:  # over which the variable would win
        ours["SPARK_LOCAL_DIRS"] = tempfile.gettempdir()
    if master.startswith("local"):
        # Or it asks for the address of the machine's name, and a container without a network has none.
        ours |= {"SPARK_LOCAL_IP": LOOPBACK, **ARENAS}
    return {"JAVA_HOME": java_home} | {name: environ.get(name, value) for name, value in ours.items()}


@contextmanager
def _environment(given: Mapping[str, str]) -> Iterator[None]:
    """``given`` in the environment, which Spark's start alone reads: a program that this process starts later
    may have another Python."""
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def settings(
    master: str, log_config: str, conf: Mapping[str, str], elsewhere: AbstractSet[str]
) -> dict[str, str]:
    """``conf``, and for a short job what neither it nor ``elsewhere`` has."""
    local = master.startswith("local")
    # The simplest collector and the first compiler start fastest.
    options = f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dlog4j2.configurationFile=file:{log_config}"
    if local and DRIVER_MEMORY not in elsewhere and DRIVER_MEMORY not in conf:
        options = f"{LEAN} {options}"  # who gives it memory means it to be used
    ours = {
        "spark.app.name": "keelmq audit",
        # Or a module in the folder an audit is started in would be imported in place of ours.
        "spark.executorEnv.PYTHONSAFEPATH": "1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        PARTITIONS: str(os.cpu_count() or 2) if local else "64",
        JAVA_OPTIONS: options,
    }
    if local:
        ours |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK, **SHUFFLE, **FORGOTTEN}
    if PARTITIONS not in elsewhere and PARTITIONS not in conf:
        ours[LEAST] = ours[PARTITIONS]
    return {name: value for name, value in ours.items() if name not in elsewhere} | dict(conf)


def partitions(least: int, rows: int) -> int:
    """``least``: but for few rows."""
    few = max(1, -(-rows // SMALL_TASK_ROWS))
    return max(min(least, few), -(-rows // TASK_ROWS))


def set_elsewhere(environ: Mapping[str, str]) -> set[str]:
    """Names that the user's spark-defaults.conf or PYSPARK_SUBMIT_ARGS set."""
    home = environ.get("SPARK_HOME", "")
    folder = environ.get("SPARK_CONF_DIR") or (os.path.join(home, "conf") if home else "")
    names: set[str] = set()
    try:
        text = Path(folder, "spark-defaults.conf").read_text() if folder else ""
    except OSError:
        text = ""
    for line in text.splitlines():
        if (words := re.split(r"[\s=:]+", line.strip(), maxsplit=1)) and words[0].startswith("spark."):
            names.add(words[0])
    given = environ.get("PYSPARK_SUBMIT_ARGS", "")
    names |= {name for option, name in OPTIONS.items() if option in given.replace("=", " ").split()}
    return names | set(re.findall(r"(spark\.[\w.]+)=", given))


def packages(directory: Path) -> Path:
    """A zip in ``directory`` of the packages a worker imports."""
    target = directory / "keelmq_audit.zip"
    with zipfile.ZipFile(target, "w") as archive:
        if PREFIX:
            archive.write(PACKAGES / "__init__.py", (PACKAGES / "__init__.py").relative_to(IMPORTED_FROM))
        for package in SHARED_PACKAGES:
            for source in sorted((PACKAGES / package).rglob("*.py")):
                archive.write(source, source.relative_to(IMPORTED_FROM))
    return target
