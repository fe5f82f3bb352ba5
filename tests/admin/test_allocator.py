"""The promise to a server's memory: what a burst took goes back to the system."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from admin.host.allocator import MAPPED_BYTES, TRIM_S, Allocator
from tests import ROOT

BURST = """
import re
from admin.host.allocator import TRIM_S, Allocator

def anon():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) >> 10

now = [0.0]
allocator = Allocator(lambda: now[0])
if BEGIN:
    allocator.begin()
large = bytearray(24 << 20)  # its end teaches glibc to map no smaller block apart
large[:] = bytes(len(large))
del large
before = anon()
held = [bytearray(20_000) for _ in range(4000)]
kept = held[::40]
del held
now[0] = TRIM_S
if BEGIN:
    allocator.step()
print(anon() - before)
"""


def left_mib(*, begin: bool) -> int:
    """What 80 MB of small blocks leave, when every fortieth of them stays."""
    script = BURST.replace("BEGIN", str(begin))
    return int(
        subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, check=True).stdout
    )


@pytest.mark.skipif(not Allocator().known, reason="another C library")
def test_what_a_burst_took_goes_back() -> None:
    assert left_mib(begin=False) > 40, "as glibc does it by itself"
    assert left_mib(begin=True) < 16


def test_it_is_asked_once_in_a_while() -> None:
    now, asked = [0.0], []
    library = SimpleNamespace(
        mallopt=lambda *pair: asked.append(pair), malloc_trim=lambda pad: asked.append(pad)
    )
    allocator = Allocator(lambda: now[0], library)
    allocator.begin()
    assert (-3, MAPPED_BYTES) in asked
    del asked[:]
    for now[0] in (1.0, TRIM_S, TRIM_S + 1, 2 * TRIM_S):
        allocator.step()
    assert asked == [0, 0]


def test_another_c_library_is_left_alone() -> None:
    allocator = Allocator(library=SimpleNamespace())
    allocator.begin()
    allocator.step()
    assert not allocator.known
