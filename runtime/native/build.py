"""How is the compiled path built? ``python runtime/native/build.py`` builds it beside its source.

Needs Cython, setuptools and a C compiler, and says in one line what is missing: then everything runs on the
Python path. The wheel and ``make setup`` call ``build`` (hatch_build.py). Imports nothing of the project.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
CHECKED: Final = (
    "-O1",
    "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
)


def source_hash() -> str:
    """Of the files that are compiled; "" when they are not here."""
    files = sorted([*HERE.glob("*.pyx"), *HERE.glob("*.pxi"), *HERE.glob("*.h")])
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest() if files else ""


def fresh_in(directory: Path) -> Path | None:
    """What was built there for this Python, of this source."""
    import sysconfig

    found = directory / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    return found if found.exists() and source_hash().encode() in found.read_bytes() else None


def build(target: Path = HERE, *, checked: bool = False) -> str:
    """Put the extension into ``target``, built unless that is done; "" or, in one line, why it cannot be.

    ``checked``: each access to memory is checked, for tests that run under libasan.
    """
    import shutil
    import tempfile

    fresh = None if checked else fresh_in(target) or fresh_in(HERE)
    if fresh is not None:
        if fresh.parent != target:
            shutil.copy(fresh, target)
        return ""

    try:
        tools = importlib.import_module("setuptools")  # by name: they may be missing, and have no types
        cythonize = importlib.import_module("Cython.Build").cythonize
        build_ext = importlib.import_module("setuptools.command.build_ext").build_ext
    except ImportError as error:
        return f"no {error.name}"
    scratch = Path(tempfile.mkdtemp(prefix="keelmq-native-"))
    try:
        extension = tools.Extension(
            "_native",
            [str(HERE / "_native.pyx")],
            include_dirs=[str(HERE)],
            define_macros=[("KEELMQ_SOURCE", f'"{source_hash()}"')],
            extra_compile_args=["-w", "-g0", *(CHECKED if checked else ("-O2",))],
            extra_link_args=list(CHECKED[2:]) if checked else [],
        )
        made = cythonize([extension], build_dir=str(scratch / "c"), quiet=True, force=True)
        command = build_ext(tools.Distribution({"name": "keelmq-native", "ext_modules": made}))
        command.build_lib, command.build_temp = str(scratch / "lib"), str(scratch / "o")
        command.ensure_finalized()
        command.run()
        (found,) = (scratch / "lib").glob("_native*")
        shutil.move(found, target / found.name)
    except Exception as error:  # noqa: BLE001  # what compilers fail with has no common base
        return f"{type(error).__name__}: {_short(' '.join(str(error).split()))}"
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return ""


def _short(text: str) -> str:
    """Its two ends: the compiler's name stands first, why it failed last, and all its flags between them."""
    return text if len(text) <= 240 else f"{text[:80]} ... {text[-150:]}"


def main() -> int:
    import argparse

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--into", type=Path, default=HERE, metavar="DIR")
    parser.add_argument("--checked", action="store_true")
    given = parser.parse_args()
    problem = build(given.into, checked=given.checked)
    print(f"not compiled ({problem}): sends take the Python path" if problem else "compiled")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
