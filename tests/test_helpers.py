"""Native helpers: the same batches, reads and errors with them, and no thread left behind."""

from __future__ import annotations

import os
import threading
import time
from array import array
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

import xloader
from xloader.compiled.helpers import Helpers, waited_seconds
from xloader.compiled.library import load_library
from xloader.errors import CorruptChunkError, MissingChunkWarning
from xloader.sources.zarr.file_objects import _PENDING, _awaited, _num_there, read_pieces
from xloader.sources.zarr.object_protocol import ObjectPiece

pytestmark = [
    pytest.mark.usefixtures("earlier_engine"),
    pytest.mark.skipif(
        load_library()[0] is None, reason="xloader was installed without a compiler"
    ),
]

SHAPE, CHUNKS = (48, 90, 120), (6, 45, 60)
COMPRESSORS = {"zstd": ZstdCodec(), "blosc": BloscCodec(), "none": None}


def make_store(path, compressors=COMPRESSORS["zstd"], chunks=CHUNKS, shards=None):
    values = np.random.default_rng(0).normal(size=SHAPE).round(2).astype("f4")
    ds = xr.Dataset({n: (("time", "lat", "lon"), values + i) for i, n in enumerate("abc")})
    encoding = {"chunks": chunks, "compressors": compressors}
    if shards is not None:
        encoding["shards"] = shards
    ds.to_zarr(path, zarr_format=3, consolidated=False, encoding=dict.fromkeys("abc", encoding))
    return str(path)


def make_loader(path, threads, **options):
    samples = xloader.open(path).window({"time": 2, "lat": 30, "lon": 30}, stride={"time": 1})
    given = {"batch_size": 16, "memory": "8MiB", "output": "numpy", "shuffle": True, **options}
    return samples.loader(threads=threads, **given)


def batches_of(loader):
    return [[np.array(field) for field in batch] for batch in loader]


@pytest.mark.parametrize(
    "kept",
    [*({"compressors": own} for own in COMPRESSORS.values()), {"shards": (12, 90, 120)}],
    ids=[*COMPRESSORS, "shards"],
)
def test_batches_and_reads_are_the_same_with_helpers(tmp_path, kept):
    path = make_store(tmp_path / "store.zarr", **kept)
    with make_loader(path, 1) as alone, make_loader(path, 7) as helped:
        for _ in range(2):
            for expected, found in zip(batches_of(alone), batches_of(helped), strict=True):
                for one, other in zip(expected, found, strict=True):
                    np.testing.assert_array_equal(other, one)
        assert helped.report().num_reads == alone.report().num_reads == helped.explain().num_reads
        report = helped.report()
        assert (report.num_threads, report.num_helpers) == (4, 3)
        assert "4 threads with 3 helpers" in str(report)
        assert alone.report().num_helpers == 0


def test_a_damaged_chunk_is_named_with_helpers(tmp_path):
    path = make_store(tmp_path / "store.zarr")
    chunk = tmp_path / "store.zarr" / "b" / "c" / "3" / "1" / "0"
    chunk.write_bytes(chunk.read_bytes()[:100])
    with make_loader(path, 7) as loader, pytest.raises(CorruptChunkError) as error:
        batches_of(loader)
    assert "(3, 1, 0)" in str(error.value)
    assert "'b'" in str(error.value)


def test_an_absent_chunk_is_the_fill_value_with_helpers(tmp_path):
    path = make_store(tmp_path / "store.zarr")
    (tmp_path / "store.zarr" / "b" / "c" / "3" / "1" / "0").unlink()
    with pytest.warns(MissingChunkWarning), make_loader(path, 7, on_nan="ignore") as helped:
        found = batches_of(helped)
    with pytest.warns(MissingChunkWarning), make_loader(path, 1, on_nan="ignore") as alone:
        expected = batches_of(alone)
    for one, other in zip(expected, found, strict=True):
        for field, own in zip(one, other, strict=True):
            np.testing.assert_array_equal(own, field)


@pytest.mark.parametrize(
    ("kept", "change"),
    [
        ({"chunks": (16, 90, 120), "compressors": GzipCodec()}, None),
        ({}, lambda samples: samples.map(lambda batch: batch)),
        ({}, lambda samples: samples.loader),
    ],
    ids=["a codec that is not compiled", "a function of the user", "few threads"],
)
def test_no_helpers_where_they_would_not_help(tmp_path, kept, change):
    samples = xloader.open(make_store(tmp_path / "store.zarr", **kept)).window(time=2)
    threads = 7
    if change is not None:
        changed = change(samples)
        samples, threads = (changed, 7) if isinstance(changed, xloader.Samples) else (samples, 4)
    with samples.loader(batch_size=4, memory="64MiB", output="numpy", threads=threads) as loader:
        sum(1 for _ in loader)
        assert loader.report().num_helpers == 0


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted on Linux")
def test_helpers_end_with_the_epoch(tmp_path):
    path = make_store(tmp_path / "store.zarr")

    def count():
        return len(os.listdir("/proc/self/task"))

    def settled():
        """How many threads there are once none ends any more: one that is joined may still be."""
        fewest, until = count(), time.monotonic() + 0.5
        while time.monotonic() < until:
            time.sleep(0.01)
            if count() < fewest:
                fewest, until = count(), time.monotonic() + 0.5
        return fewest

    with make_loader(path, 20) as loader:
        batches_of(loader)
        before = settled()
        batches_of(loader)
        batches = iter(loader)
        next(batches)
        assert count() >= before + 16
        batches.close()
        assert settled() <= before


@pytest.mark.parametrize(
    ("chunks", "window", "stride"),
    [((6, 45, 60), {"time": 2}, {"time": 1}), ((7, 40, 50), {"lat": 20, "lon": 20}, {})],
    ids=["many chunks in a block", "chunks that the edges cut"],
)
def test_batches_are_the_same_where_chunks_are_not_alone_in_their_block(
    tmp_path, chunks, window, stride
):
    samples = xloader.open(make_store(tmp_path / "store.zarr", chunks=chunks))
    samples = samples.window(window, stride=stride)
    given = {"batch_size": 4, "memory": "24MiB", "output": "numpy", "shuffle": True}
    with samples.loader(threads=1, **given) as alone, samples.loader(threads=7, **given) as many:
        for one, other in zip(batches_of(alone), batches_of(many), strict=True):
            for field, own in zip(one, other, strict=True):
                np.testing.assert_array_equal(own, field)


# --- reading files together


def test_the_first_part_that_has_not_arrived_is_named():
    told = array("q", (0, 5, 0, _PENDING, 64, 7, 0, _PENDING))
    assert (_awaited(told), _num_there(told)) == (1, 2)
    told[3] = told[7] = 0
    assert (_awaited(told), _num_there(told)) == (4, 4)


def on_a_helped_thread(work):
    """What a function returns on a thread that has helpers, and how long it waited for them."""
    helpers, found = Helpers(3), []
    assert helpers.start() == 3

    def run():
        helpers.use()
        found.extend([work(), waited_seconds()])
        helpers.leave()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    helpers.close(time.monotonic() + 10)
    helpers.close(time.monotonic() + 10)
    return found


def parts_in(folder, num, nbytes):
    rng = np.random.default_rng(1)
    for number in range(num):
        (folder / str(number)).write_bytes(rng.bytes(nbytes))
    return [ObjectPiece(str(number)) for number in range(num)]


def read(folder, parts, room):
    told = array("q", (-9,)) * (2 * len(parts))
    found, needed = read_pieces(f"{folder}/", parts, np.empty(room, np.uint8), told)
    return [None if data is None else data.tobytes() for data in found], needed


def test_many_files_are_read_by_helpers_too(tmp_path):
    parts = parts_in(tmp_path, 96, 1 << 20)
    parts += [ObjectPiece("7", start, start + 9) for start in (0, 500, 1 << 20)]
    expected = read(tmp_path, parts, 100 << 20)
    found, waited = on_a_helped_thread(lambda: read(tmp_path, parts, 100 << 20))
    assert found == expected
    assert len(found[0]) == 99
    # Reading them takes long enough that helpers are asked.
    assert waited > 0


@pytest.mark.parametrize("number", [0, 1, 40, 95])
@pytest.mark.parametrize("kind", ["absent", "a folder"])
def test_files_that_cannot_be_read_are_told_in_the_same_way(tmp_path, number, kind):
    parts = parts_in(tmp_path, 96, 1 << 19)
    (tmp_path / str(number)).unlink()
    if kind == "a folder":
        (tmp_path / str(number)).mkdir()
    expected = read(tmp_path, parts, 50 << 20)
    assert on_a_helped_thread(lambda: read(tmp_path, parts, 50 << 20))[0] == expected
    assert len(expected[0]) == (96 if kind == "absent" else number)


def test_files_of_giant_sizes_change_nothing_outside_the_buffer(tmp_path):
    parts = parts_in(tmp_path, 96, 1 << 18)
    whole, _ = read(tmp_path, parts, 50 << 20)
    for number in (60, 61, 62):
        os.truncate(tmp_path / str(number), 1 << 43)
    memory = np.full(120 << 20, 7, np.uint8)
    guard, told = 50 << 20, array("q", (-9,)) * (2 * len(parts))
    buffer = memory[guard : 2 * guard]
    (found, needed), _ = on_a_helped_thread(
        lambda: read_pieces(f"{tmp_path}/", parts, buffer, told)
    )
    assert needed == 0
    assert 0 < len(found) <= 60
    assert [data.tobytes() for data in found] == whole[: len(found)]
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


def test_without_room_for_all_the_first_ones_are_right(tmp_path):
    parts = parts_in(tmp_path, 96, 1 << 19)
    whole, _ = read(tmp_path, parts, 50 << 20)
    (found, _), _ = on_a_helped_thread(lambda: read(tmp_path, parts, 10 << 20))
    assert len(found) <= 20
    assert found == whole[: len(found)]
    assert on_a_helped_thread(lambda: read(tmp_path, parts, 1000))[0] == ([], 1 << 19)
