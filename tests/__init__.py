"""The tests mirror the packages; ``golden/`` holds bytes of the real RocketMQ."""

import tarfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
GOLDEN: Final = ROOT / "tests" / "golden"


def unpack_archive(archive: Path, into: Path) -> None:
    """Unpack a golden archive; the safe filter is there from Python 3.11.4 on and asked for from 3.12 on."""
    with tarfile.open(archive) as opened:
        if hasattr(tarfile, "data_filter"):
            opened.extractall(into, filter="data")
        else:
            opened.extractall(into)
