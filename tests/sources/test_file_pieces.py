"""Pieces of files, read by one compiled call: sizes that lie reach nothing outside the buffer."""

from __future__ import annotations

import os
from array import array

import numpy as np
import pytest

from xloader.compiled.library import load_library
from xloader.sources.zarr.object_readers import (
    ObjectPiece,
    read_pieces,
)

pytestmark = pytest.mark.skipif(
    load_library()[0] is None, reason="xloader was installed without a compiler"
)


def parts_in(folder, num, nbytes):
    rng = np.random.default_rng(1)
    for number in range(num):
        (folder / str(number)).write_bytes(rng.bytes(nbytes))
    return [ObjectPiece(str(number)) for number in range(num)]


def read(folder, parts, room):
    told = array("q", (-9,)) * (2 * len(parts))
    found, needed = read_pieces(f"{folder}/", parts, np.empty(room, np.uint8), told)
    return [None if data is None else data.tobytes() for data in found], needed


def contents(folder, num):
    return [(folder / str(number)).read_bytes() for number in range(num)]


def test_files_of_giant_sizes_change_nothing_outside_the_buffer(tmp_path):
    parts = parts_in(tmp_path, 96, 1 << 16)
    whole = contents(tmp_path, 96)
    for number in (60, 61, 62):
        os.truncate(tmp_path / str(number), 1 << 43)
    memory = np.full(24 << 20, 7, np.uint8)
    guard, told = 8 << 20, array("q", (-9,)) * (2 * len(parts))
    buffer = memory[guard : 2 * guard]
    found, needed = read_pieces(f"{tmp_path}/", parts, buffer, told)
    assert needed == 0
    assert [data.tobytes() for data in found] == whole[:60]
    assert (memory[:guard] == 7).all()
    assert (memory[2 * guard :] == 7).all()


@pytest.mark.parametrize("size", [2**62, 2**63 - 1])
def test_sums_of_sizes_do_not_wrap(tmp_path, size):
    # Its size is not known before it is read: some file systems tell 0 for files with contents.
    (tmp_path / "0").write_bytes(b"")
    (tmp_path / "1").write_bytes(b"ab")
    parts = [ObjectPiece("1"), *[ObjectPiece("0", 5, size)] * 4]
    assert read(tmp_path, parts, 1000) == ([b"ab"], 0)
    assert read(tmp_path, parts[1:], 1000) == ([], -2)
    parts = [ObjectPiece("1", start, size) for start in (0, 1, 2, size - 1)] * 2
    assert read(tmp_path, parts, 1000) == ([b"ab", b"b", b"", b""] * 2, 0)


def test_larger_files_than_there_can_be_are_not_read(tmp_path):
    parts_in(tmp_path, 3, 100)
    parts = [ObjectPiece("0", most_nbytes=100), ObjectPiece("1", most_nbytes=99)]
    found, needed = read(tmp_path, parts, 1000)
    assert ([len(data) for data in found], needed) == ([100], 0)
    assert read(tmp_path, parts[1:], 1000) == ([], -2)
