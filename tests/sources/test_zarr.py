"""ZarrSource: how each variable is read, how many requests it takes, and absent chunks."""

from __future__ import annotations

import itertools
import os
import pickle
import subprocess
import sys
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.buffer import cpu
from zarr.storage import MemoryStore, WrapperStore

import xloader
from tests.sources import kinds
from xloader.errors import ChunkWarning, MemoryBudgetError, MissingChunkError
from xloader.sources.base import Source
from xloader.sources.open.open_source import open_source
from xloader.sources.zarr_adapter import is_synchronous
from xloader.testing import CountingStore, write_store


def test_one_request_per_read():
    dataset = kinds.numeric(kinds.make_dataset())
    store = CountingStore(write_store(dataset, kinds.CHUNKS))
    source = open_source(store)
    # xarray reads both ends of the time coordinate to find its dtype, and nothing else.
    assert {key.split("/")[0] for key in store.reads} <= {"time"}
    for name, variable in source.variables.items():
        for chunk in np.ndindex(kinds.num_chunks(variable)):
            store.reset()
            kinds.read(source, name, chunk)
            assert store.reads == {source._arrays.get()[name].key(chunk): 1}
            assert not store.metadata_reads


class Masked(WrapperStore[MemoryStore]):
    """A user's store that keeps chunks masked and unmasks them when zarr reads them."""

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        found = await self._store.get(key, prototype, byte_range)
        if found is None or "/c/" not in key:
            return found
        return prototype.buffer.from_bytes(bytes(byte ^ 0xA5 for byte in found.to_bytes()))


@pytest.mark.parametrize("wrap", [Masked, lambda store: CountingStore(Masked(store))])
def test_a_wrapper_that_changes_what_is_read_is_asked(wrap: Any):
    dataset = xr.Dataset({"a": ("x", np.arange(8.0))})
    store = write_store(dataset, {"a": (4,)}, encoding={"a": {"compressors": ()}})
    for key in ("a/c/0", "a/c/1"):
        masked = bytes(byte ^ 0xA5 for byte in store.get_sync(key).to_bytes())
        store._store_dict[key] = cpu.Buffer.from_bytes(masked)
    wrapped = wrap(store)
    # Newer releases of zarr give every wrapper a `get_sync` that bypasses the wrapper.
    assert not is_synchronous(wrapped)
    np.testing.assert_array_equal(kinds.read_all(open_source(wrapped), "a"), np.arange(8.0))


def values_of(source: Source, stored: np.ndarray) -> np.ndarray:
    packing = source.variables["t"].packing
    return stored if packing is None else packing.unpack(stored)


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("zarr-direct-local", "a.zarr/t/c/1/0/0"),
        ("zarr-unknown-chain", "a.zarr/t/c/1/0/0"),
        ("zarr-packed", "a.zarr/t/c/1/0/0"),
        ("zarr-v2", "a.zarr/t/1.0.0"),
        ("zarr-sharded", "a.zarr/t/c/0/0/0"),
    ],
)
def test_absent_chunks_are_filled_counted_and_told(tmp_path: Path, kind: str, key: str):
    opened = kinds.KINDS[kind](tmp_path, kinds.make_dataset())
    chunk = (1, 0, 0)
    (tmp_path / key).unlink()
    path = (tmp_path / key.split("/")[0]).as_posix()
    source = open_source(path)
    out = np.empty((4, 3, 5), source.variables["t"].stored_dtype)
    cut = (slice(0, 4), slice(0, 3), slice(0, 5))
    with pytest.warns(ChunkWarning, match=r"chunk \(1, 0, 0\) of variable 't'") as caught:
        were_there = [kinds.read_into(source, "t", chunk, cut, out) for _ in range(2)]
    assert were_there == [False, False]
    assert len(caught) == 1
    assert source.num_missing == 2
    with xr.open_dataset(path, **kinds.zarr_kwargs()) as dataset:
        expected = dataset["t"][4:8, :3].values
    np.testing.assert_array_equal(values_of(source, out), expected)
    assert kinds.read_into(source, "t", (2, 0, 0), (slice(0, 3), slice(0, 3), slice(0, 5)), out[:3])
    np.testing.assert_array_equal(values_of(source, out[:3]), opened.oracle["t"][8:, :3].values)

    with pytest.raises(MissingChunkError, match="absent") as refused:
        kinds.read_into(open_source(path, on_missing="raise"), "t", chunk, cut, out)
    assert refused.value.key == key.partition("/")[2]
    assert (refused.value.variable, refused.value.chunk) == ("t", chunk)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not kinds.read_into(open_source(path, on_missing="fill"), "t", chunk, cut, out)


@pytest.mark.parametrize(
    ("zarr_format", "dtype", "fill"),
    [
        *((2, dtype, None) for dtype in ("f4", ">i2", "b1")),
        *((3, ">f4", fill) for fill in (np.nan, -np.inf, 3.5)),
    ],
)
def test_an_absent_chunk_has_the_fill_value_or_zero(zarr_format: int, dtype: str, fill: Any):
    store, dims = MemoryStore(), {"attributes": {"_ARRAY_DIMENSIONS": ["x"]}}
    zarr.create_group(store, zarr_format=zarr_format).create_array(
        "a",
        shape=(5,),
        chunks=(2,),
        dtype=dtype,
        fill_value=fill,
        **(dims if zarr_format == 2 else {"dimension_names": ("x",)}),
    )
    source = open_source(store, on_missing="fill")
    assert source.path_of("a").startswith(f"direct: zarr v{zarr_format}")
    expected = np.full(5, fill or 0, dtype[-2:])
    np.testing.assert_array_equal(kinds.read_all(source, "a"), expected, strict=True)


def test_a_store_of_metadata_only_opens_at_once():
    store = MemoryStore()
    group = zarr.create_group(store, zarr_format=3)
    group.create_array("a", shape=(10**9,), chunks=(1000,), dtype="f4", dimension_names=("time",))
    group.create_array(
        "b", shape=(10**6, 1000), chunks=(1, 1000), dtype="f8", dimension_names=("step", "x")
    )
    open_source(store)
    tracemalloc.start()
    source = open_source(store)
    assert not source.coordinates().variables
    assert source.fingerprint
    assert len(pickle.dumps(source)) < 16 * 1024
    _, peak_nbytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_nbytes < 4 * 2**20
    out = np.empty(1000, "f4")
    with pytest.warns(ChunkWarning):
        kinds.read_into(source, "a", (10**6 - 1,), (slice(0, 1000),), out)
    assert (out == 0).all()


def test_chunks_far_larger_than_their_array_are_counted_whole():
    store = MemoryStore()
    group = zarr.create_group(store)
    for name, shape, chunks in [("a", (4, 3), (2**20, 3)), ("b", (5,), (8,)), ("c", (0,), (1,))]:
        dims = [f"{name}{axis}" for axis in range(len(shape))]
        group.create_array(
            name, shape=shape, chunks=chunks, dtype="f8", dimension_names=dims, fill_value=0
        )
    variables = open_source(store).variables
    assert {name: one.thinning for name, one in variables.items()} == {"a": 2**18, "b": 1, "c": 1}
    view = xr.open_zarr(store, chunks=None, consolidated=False)["a"].isel(a1=0)
    assert open_source(view).variables["a"].thinning == 3 * 2**18
    samples = xloader.open(store, variables=["a"]).window(a0=1)
    with pytest.raises(MemoryBudgetError) as caught:
        samples.loader(batch_size=1, output="numpy", memory="16MiB")
    # One decoded chunk takes 24 MiB, although the store holds none of its bytes.
    assert caught.value.minimum_nbytes > 24 * 2**20


def test_packed_integers_decode_to_the_asked_dtype(tmp_path: Path):
    values = np.arange(10) / 4 + 1e6
    dataset = xr.Dataset({"short": ("x", values), "long": ("x", values), "plain": ("x", values)})
    packing = {"scale_factor": 0.25, "add_offset": 1e6, "_FillValue": -1}
    encoding = {"short": {"dtype": "i2", **packing}, "long": {"dtype": "i4", **packing}}
    dataset.to_zarr(tmp_path / "z", zarr_format=3, consolidated=False, encoding=encoding)
    dataset.to_netcdf(tmp_path / "a.nc", encoding=encoding)
    for path, name in itertools.product(["z", "a.nc"], ["short", "long", "plain"]):
        for kwargs, expected in [
            ({}, {"short": "f4", "long": "f8", "plain": "f8"}),
            ({"dtype": "float32"}, {"short": "f4", "long": "f4", "plain": "f8"}),
            ({"dtype": np.float64}, {"short": "f8", "long": "f8", "plain": "f8"}),
            ({"dtype": None}, {"short": "f8", "long": "f8", "plain": "f8"}),
        ]:
            source = open_source(tmp_path / path, **kwargs)
            assert source.variables[name].dtype == expected[name]
            np.testing.assert_array_equal(
                kinds.read_all(source, name), values.astype(expected[name]), strict=True
            )
    with xr.open_dataset(tmp_path / "a.nc") as opened:
        assert open_source(opened).variables["short"].dtype == opened["short"].dtype


FORK = """
import os, signal, sys, warnings
import numpy as np
from xloader.errors import ForkError
from xloader.sources.base import Read
from xloader.sources.open.open_source import open_source

def read(source):
    reads = [Read("t", (0, 0, 0), (slice(0, 1),) * 3)]
    return not source.fetch(reads).decode([np.empty((1, 1, 1), "f4")]).num_missing

# Forking beside threads is the fault under test.
warnings.simplefilter("ignore", DeprecationWarning)
for when in ("before", "after"):
    for path in sys.argv[1:]:
        source = open_source(path)
        source.coordinates()["time"].values
        if when == "after":
            read(source)
        child = os.fork()
        if child == 0:
            # A child that waits for ever is ended.
            signal.alarm(20)
            try:
                os._exit(0 if read(source) else 1)
            except ForkError as error:
                os._exit(42 if "forkserver" in str(error) and "__main__" in str(error) else 2)
            except BaseException:
                os._exit(3)
        _, status = os.waitpid(child, 0)
        assert read(source)
        print(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_handle_is_refused_on_the_wrong_side_of_a_fork(tmp_path: Path):
    for kind in ("zarr-direct-local", "netcdf4"):
        kinds.KINDS[kind](tmp_path, kinds.make_dataset())
    run = subprocess.run(
        [sys.executable, "-c", FORK, tmp_path / "a.zarr", tmp_path / "netcdf4.nc"],
        cwd=Path(__file__).parents[2],
        timeout=100,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    # A folder can be opened again in the child, and a file only before the parent has read it.
    assert run.stdout.split() == ["0", "0", "0", "42"]
