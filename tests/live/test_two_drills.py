"""The promise of drills side by side: none keeps another's disks from being mounted anew."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from chaos.live.ground import OWN_DISK
from chaos.live.loop_disk import LoopDisk, unavailable
from chaos.live.noted import LEDGER

pytestmark = pytest.mark.live


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[list[LoopDisk]]:
    """Two disks of one drill, and one of another whose folder has a space in its name."""
    if reason := unavailable():
        pytest.skip(reason)
    with ExitStack() as stack:
        found = []
        for drill, name in (("one", "b0"), ("one", "b1"), ("an other", "b0")):
            folder = tmp_path / drill
            folder.mkdir(exist_ok=True)
            (folder / LEDGER).write_text("{}")
            disk = LoopDisk(folder / "store" / name, folder / f"{name}.img", megabytes=16)
            found.append(stack.enter_context(disk))
        yield found


def test_a_server_holds_its_own_disk_and_no_other_of_any_drill(disks: list[LoopDisk]) -> None:
    own = disks[0]
    script = OWN_DISK.format(own=shlex.quote(str(own.mount.resolve()))) + 'cat "$0"; echo end; read -r line'
    command = ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "/proc/self/mounts"]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        lines = list(iter(server.stdout.readline, "end\n"))
        for other in disks[1:]:
            other.power_off()
            other.power_on()
            assert other.writable
    finally:
        server.communicate("\n", timeout=30)
    known = {str(disk.mount.resolve()).replace(" ", r"\040") for disk in disks}  # other tests have disks, too
    held = [line.split()[1] for line in lines if line.startswith("/dev/loop")]
    assert [one for one in held if one in known] == [str(own.mount.resolve())]
