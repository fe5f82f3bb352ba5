"""The promise to whoever installs: every package has one version, and the hashes of its files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib

from deploy.sbom import document, read_lock
from tests import ROOT

LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
SERVER = (ROOT / "requirements-server.lock").read_text(encoding="utf-8")
"""What the image installs."""
AUDIT = (ROOT / "requirements-audit.lock").read_text(encoding="utf-8")
"""What the image for audits installs."""
OTLP = (ROOT / "requirements-otlp.lock").read_text(encoding="utf-8")
"""What the image for servers that push their metrics installs."""
BUILD = (ROOT / "requirements-build.lock").read_text(encoding="utf-8")
"""What builds it."""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_each_package_of_each_extra_is_locked_with_hashes() -> None:
    """After a change of pyproject.toml or constraints.txt: ``make lock``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [
        project["optional-dependencies"][name]
        for name in ("audit", "backup", "clock", "console", "otlp", "proxy", "spans", "tls", "dev")
    ]
    asked = [*project["dependencies"], *(text for extra in extras for text in extra)]
    names = {canonical(re.split(r"[^A-Za-z0-9_.-]", text)[0]) for text in asked}
    locked = read_lock(LOCK)
    assert names <= locked.keys()
    assert all(one["sha256"] for one in locked.values())
    for text, *extras in ((SERVER, "tls"), (AUDIT, "audit", "tls"), (OTLP, "otlp", "tls")):
        part = read_lock(text)
        needed = [project["dependencies"], *(project["optional-dependencies"][name] for name in extras)]
        names = {canonical(re.split(r"[^A-Za-z0-9_.-]", one)[0]) for some in needed for one in some}
        assert names <= part.keys()
        for name, one in part.items():
            assert locked[name]["version"] == one["version"]
            assert locked[name]["sha256"] == one["sha256"]


def test_whatever_extras_an_image_has_no_package_comes_without_its_hash() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    installs = re.findall(r"pip install [^;&|]*", text)
    assert "python -m venv --without-pip /opt/keelmq " in text, "what installs is no part of the image"
    assert len(installs) == 3
    for command in installs:
        # What was built here is the one thing without a hash, and nothing comes along with it.
        assert "--require-hashes -r" in command or "--no-index --no-deps /dist/" in command
    copied = re.findall(r"requirements-\w+\.lock", re.findall(r"COPY pyproject.toml .*", text)[0])
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert set(copied) == {f"requirements-{name}.lock" for name in ("server", "audit", "otlp", "build")}
    assert all(f"!{name}" in ignored for name in copied)
    compose = (ROOT / "compose.yaml").read_text(encoding="utf-8")
    for extras in re.findall(r'EXTRAS: "(.*)"', compose) + re.findall(r"EXTRAS='(.*?)'", text):
        for name in extras.strip("[]").split(",") if extras else ():
            assert f"requirements-{name}.lock" in copied, "it is there to be built from"


def test_the_image_is_built_from_the_sdist_too() -> None:
    """Whoever has the sdist alone has all that the image is made of, and Docker leaves none of it out."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = re.findall(r"^COPY (?!--from=)(.*) \S+$", text, re.M)
    copied = {name for line in lines for name in line.split()}
    assert {"requirements-server.lock", "hatch_build.py", "broker"} <= copied
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
    always = {"pyproject.toml", "README.md", "LICENSE", "NOTICE"}  # hatchling's own choice
    held = set(build["targets"]["sdist"]["only-include"])
    assert copied <= held | always, "pyproject.toml: sdist only-include"
    assert {"Dockerfile", ".dockerignore"} <= held
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert copied <= {line.removeprefix("!") for line in ignored if line.startswith("!")}
    assert all((ROOT / name).exists() for name in held)


def test_what_builds_it_is_locked_with_hashes_and_nothing_else_builds_it() -> None:
    """After a change of ``build-system.requires``: ``make lock``."""
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    built_by = read_lock(BUILD)
    assert {canonical(re.split(r"[^A-Za-z0-9_.-]", text)[0]) for text in asked} <= built_by.keys()
    assert all(one["sha256"] for one in built_by.values())
    locked = read_lock(LOCK)
    for name, one in built_by.items():
        assert locked.get(name, one)["version"] == one["version"]
        assert locked.get(name, one)["sha256"] == one["sha256"]
    for file in ("Dockerfile", "Makefile"):
        text = (ROOT / file).read_text(encoding="utf-8").replace("\\\n", " ")
        builds = [
            line
            for line in text.splitlines()
            if re.search(r"pip (install|wheel) .*(-e |[ \"]\.($|[\[;]))", line)
        ]
        assert builds, file
        assert all("--no-build-isolation" in line for line in builds), builds
        assert "requirements-build.lock" in text


def test_the_lock_and_the_constraints_name_the_same_versions() -> None:
    locked = read_lock(BUILD) | read_lock(LOCK)
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        name, _, version = line.partition("==")
        if version and canonical(name) in locked:
            assert locked[canonical(name)]["version"] == version, name


def test_the_lock_names_no_place_to_install_from() -> None:
    for text in (LOCK, SERVER, AUDIT, OTLP, BUILD):
        assert "://" not in text
        assert "--index" not in text
        assert "--find-links" not in text


def test_the_bill_of_materials_names_every_package_once_with_its_hashes() -> None:
    made = subprocess.run(
        [sys.executable, "deploy/sbom.py"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    found = json.loads(made.stdout)
    assert found == document(read_lock(LOCK))
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    purls = [one["purl"] for one in found["components"]]
    assert len(set(purls)) == len(purls) == len(read_lock(LOCK))
    assert set(found["dependencies"][0]["dependsOn"]) == set(purls)
    for one in found["components"]:
        sums = [hash_["content"] for place in one["externalReferences"] for hash_ in place["hashes"]]
        assert sums
        assert all(re.fullmatch("[0-9a-f]{64}", sum_) for sum_ in sums)
