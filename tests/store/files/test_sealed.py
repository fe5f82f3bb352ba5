"""The promise of sealed files: one flipped bit of a copy is turned back, more than that is never believed."""

from __future__ import annotations

import json
import random

import pytest

from model.errors import DiskError
from runtime.env import read_file
from store.files.sealed import read_copies, seal, turn_back, unseal, write_copies
from tests.fakes.disk.memory import FaultyDisk

TABLE = json.dumps({"offsetTable": {"T@G": {"0": 41}}, "name": "x" * 300}, indent=1).encode()


def test_a_sealed_object_is_the_object_with_one_member_more() -> None:
    sealed = json.loads(seal(TABLE))
    assert len(sealed.pop("keelmqCrc32")) == 8
    assert sealed == json.loads(TABLE)
    assert unseal(seal(TABLE)) == seal(TABLE)


def test_every_single_flipped_bit_is_turned_back() -> None:
    good = seal(TABLE)
    for bit in range(len(good) * 8):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        assert unseal(bytes(bad)) == good


def test_two_flipped_bits_are_not_believed() -> None:
    good, chance = seal(TABLE), random.Random(3)
    for _ in range(200):
        bad = bytearray(good)
        for bit in chance.sample(range((len(good) - 32) * 8), 2):
            bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DiskError, match="more than one bit"):
            unseal(bytes(bad))


@pytest.mark.parametrize("digits", [b"-1f2e3d4", b"+1f2e3d4", b" 1f2e3d4", b"1f2e_3d4", b"\xff1f2e3d4"])
def test_a_crc_that_is_no_number_is_not_believed_and_the_other_copy_is_read(digits: bytes) -> None:
    good = seal(TABLE)
    at = len(good) - len(b'xxxxxxxx"\n}')
    bad = good[:at] + digits + good[at + 8 :]
    with pytest.raises(DiskError, match="more than one bit"):
        unseal(bad)
    disk = FaultyDisk()
    disk.makedirs("/c")
    write_copies(disk, "/c/t.json", good)
    disk.nodes["/c/t.json"].cache[:] = bad
    assert read_copies(disk, "/c/t.json", unseal) == (good, False)


def test_what_was_never_sealed_is_believed_as_it_stands() -> None:
    assert unseal(TABLE) == TABLE
    assert unseal(b"{}") == b"{}"


def test_no_bit_explains_the_crc_of_another_text() -> None:
    with pytest.raises(ValueError, match="no single"):
        turn_back(b"one text", 0x12345678)


def test_either_copy_serves_and_two_bad_ones_raise() -> None:
    disk = FaultyDisk()
    disk.makedirs("/c")
    write_copies(disk, "/c/t.json", seal(TABLE))
    assert read_copies(disk, "/c/t.json", unseal) == (seal(TABLE), True)
    assert read_file(disk, "/c/t.json.bak") == seal(TABLE)
    disk.nodes["/c/t.json"].cache[5:8] = b"###"
    assert read_copies(disk, "/c/t.json", unseal) == (seal(TABLE), False)
    disk.nodes["/c/t.json.bak"].cache[5:8] = b"###"
    with pytest.raises(DiskError, match="no readable copy"):
        read_copies(disk, "/c/t.json", unseal)
    assert read_copies(disk, "/c/none.json", unseal) == (None, True)


@pytest.mark.parametrize("crc", [-163, 1 << 32])
def test_what_is_no_crc_is_explained_by_no_bit(crc: int) -> None:
    with pytest.raises(ValueError):
        turn_back(b"one text", crc)
