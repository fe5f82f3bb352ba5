"""What is installed, as a CycloneDX 1.6 document: each package of requirements.lock with its hashes.

    python deploy/sbom.py [requirements.lock] > sbom.json

Needs nothing but Python. Licences are those that the installed packages state; of one that is not installed
none is told.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
_PIN: Final = re.compile(r"^([A-Za-z0-9_.-]+)==([^\s;\\]+)\s*(?:;\s*([^\\]*?))?\s*\\?$")
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def read_lock(text: str) -> dict[str, dict[str, Any]]:
    """name -> version, marker and sha256 sums of its distributions."""
    found: dict[str, dict[str, Any]] = {}
    last: dict[str, Any] | None = None
    for line in text.splitlines():
        if pin := _PIN.match(line):
            name = re.sub(r"[-_.]+", "-", pin[1]).lower()
            last = found[name] = {"version": pin[2], "marker": pin[3] or "", "sha256": []}
        elif last is not None:
            last["sha256"] += _HASH.findall(line)
    return found


def component(name: str, version: str, sha256: list[str]) -> dict[str, Any]:
    purl = f"pkg:pypi/{name}@{version}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        **licences(name, version),
        "externalReferences": [
            {"type": "distribution", "url": purl, "hashes": [{"alg": "SHA-256", "content": one}]}
            for one in sha256
        ],
    }


def licences(name: str, version: str) -> dict[str, Any]:
    try:
        told = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return {}
    if told["Version"] != version:
        return {}
    text = told.get("License-Expression") or told.get("License") or ""
    if not text or len(text) > 100 or "\n" in text:
        return {}
    return {"licenses": [{"license": {"name": text}}]}


def document(lock: dict[str, dict[str, Any]]) -> dict[str, Any]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    own = f"pkg:pypi/{project['name']}@{project['version']}"
    components = [component(name, one["version"], one["sha256"]) for name, one in sorted(lock.items())]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": project["name"],
                "version": project["version"],
                "purl": own,
                "licenses": [{"license": {"id": project["license"]}}],
            }
        },
        "components": components,
        "dependencies": [{"ref": own, "dependsOn": [one["bom-ref"] for one in components]}],
    }


def main() -> int:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "requirements.lock"
    print(json.dumps(document(read_lock(path.read_text(encoding="utf-8"))), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
