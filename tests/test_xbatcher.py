"""xbatcher's interface over planned reads, and its generators as samples, equal xbatcher itself."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tracemalloc
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given
from hypothesis import strategies as st

import xloader
from xloader import xbatcher as ours
from xloader.errors import (
    BatchGeneratorWarning,
    ChunkWarning,
    EmptySamplesError,
    MemoryBudgetError,
    OptionError,
    SampleIndexError,
    UnknownNameError,
    UnsupportedDataError,
)
from xloader.testing import CountingStore, write_store


@pytest.fixture(scope="module")
def real() -> Any:
    return pytest.importorskip("xbatcher", reason="xbatcher is not there to compare with")


@pytest.fixture(autouse=True)
def _silence_xbatcher() -> Iterator[None]:
    with warnings.catch_warnings():
        # xarray warns that defaults used by xbatcher will change.
        warnings.filterwarnings("ignore", category=FutureWarning)
        yield


def assert_same(actual: Any, expected: Any) -> None:
    """Compare values, labels, attributes, dtypes, and the order of dimensions and variables."""
    assert type(actual) is type(expected)
    expected = expected.compute()
    xr.testing.assert_identical(actual, expected)
    if isinstance(actual, xr.DataArray):
        assert (actual.dims, actual.dtype) == (expected.dims, expected.dtype)
        return
    assert list(actual.data_vars) == list(expected.data_vars)
    for name, variable in expected.variables.items():
        assert actual.variables[name].dims == variable.dims
        assert actual.variables[name].dtype == variable.dtype


@dataclass(frozen=True)
class Asked:
    """An object to iterate over, its store, and the arguments of a generator."""

    obj: xr.Dataset | xr.DataArray
    store: CountingStore
    arguments: dict[str, Any]

    def __repr__(self) -> str:
        return f"{type(self.obj).__name__} {dict(self.obj.sizes)}, {self.arguments}"


@st.composite
def asked(draw: st.DrawFn) -> Asked:
    dims = draw(st.permutations(["time", "y", "x"]))[: draw(st.integers(1, 3))]
    sizes = {dim: draw(st.integers(2, 9)) for dim in dims}
    ds, chunks, first = xr.Dataset(attrs={"title": "made up"}), {}, 0.0
    for number in range(draw(st.integers(1, 3))):
        own = draw(st.permutations(dims))
        own = own[: draw(st.integers(1, len(dims)))] if number else own
        shape = [sizes[dim] for dim in own]
        values = first + np.arange(np.prod(shape)).reshape(shape)
        first = values.max() + 1
        dtype = draw(st.sampled_from(["float32", "float64", "int32"]))
        ds[f"v{number}"] = (own, values.astype(dtype), {"number": number})
        chunks[f"v{number}"] = tuple(draw(st.integers(1, size)) for size in shape)
    labelled = draw(st.sets(st.sampled_from(dims)))
    ds = ds.assign_coords({dim: np.arange(sizes[dim]) * 1.5 for dim in sorted(labelled)})
    if draw(st.booleans()):
        own = dims[: draw(st.integers(1, len(dims)))]
        shape = [sizes[dim] for dim in own]
        # Few different values, so that several patches may have the same ones.
        ds = ds.assign_coords(lat=(own, np.arange(np.prod(shape)).reshape(shape) // 6 * 1.0))
    if draw(st.booleans()):
        ds["constant"] = 4.0
    store = CountingStore(write_store(ds, chunks))
    kind = draw(st.sampled_from(["lazy", "dask", "memory"]))
    obj: Any = xr.open_zarr(store, consolidated=False, chunks={} if kind == "dask" else None)
    obj = obj.load() if kind == "memory" else obj
    obj = obj["v0"] if draw(st.booleans()) else obj
    dims = list(obj.dims)
    inputs = draw(st.permutations(dims))[: draw(st.integers(1, len(dims)))]
    input_dims = {dim: draw(st.integers(1, sizes[dim])) for dim in inputs}
    batch_dims = {dim: draw(st.integers(1, sizes[dim])) for dim in dims if draw(st.booleans())}
    overlap = {
        dim: draw(st.integers(0, size - 1))
        for dim, size in {**batch_dims, **input_dims}.items()
        if draw(st.booleans())
    }
    arguments: dict[str, Any] = {
        "input_dims": input_dims,
        "input_overlap": overlap,
        "batch_dims": batch_dims,
        "concat_input_dims": draw(st.booleans()),
    }
    return Asked(obj, store, arguments)


def quietly(module: Any, obj: Any, **arguments: Any) -> Any:
    with warnings.catch_warnings():
        # Both libraries warn of idle dimensions; another test covers this.
        warnings.simplefilter("ignore", UserWarning)
        return module.BatchGenerator(obj, **arguments)


@given(asked())
def test_batches_equal_those_of_xbatcher(real, asked):
    theirs = quietly(real, asked.obj, **asked.arguments)
    generator = quietly(ours, asked.obj, **asked.arguments)
    assert len(generator) == len(theirs)
    expected = [batch_of(theirs, number) for number in range(len(theirs))]
    for number, batch in enumerate(expected):
        if batch is not None:
            assert_same(generator[number], batch)
    if all(batch is not None for batch in expected):
        # The second loop starts from the state that the first one leaves.
        for _ in range(2):
            for actual, batch in zip(generator, expected, strict=True):
                assert_same(actual, batch)


def batch_of(theirs: Any, number: int) -> Any:
    """Return a batch of xbatcher, or None if xbatcher cannot make it."""
    try:
        return theirs[number]
    except ValueError as error:
        # xbatcher fails on a batch without patches, with a text that depends on the Python version,
        # and on joined DataArrays of dask.
        texts = ("empty sequence", "argument is empty", "Array is ambiguous")
        assert any(text in str(error) for text in texts)  # noqa: PT017
        return None


@given(asked())
def test_samples_equal_the_batches_of_a_generator(real, asked):
    theirs = quietly(real, asked.obj, **asked.arguments)
    try:
        samples = xloader.from_xbatcher(theirs)
    except OptionError as error:
        assert asked.arguments["concat_input_dims"]
        assert "differ in size" in str(error) or "by their labels" in str(error)  # noqa: PT017
        return
    assert len(samples) == len(theirs)
    for number in range(len(theirs)):
        batch = batch_of(theirs, number)
        if batch is not None:
            arrays = batch.values() if isinstance(batch, xr.Dataset) else [batch]
            for actual, expected in zip(samples[number], arrays, strict=True):
                np.testing.assert_array_equal(actual, expected.to_numpy(), strict=True)
    assert samples.to_xarray(0).sizes.get("stacked", 1) >= 1


# The example of xbatcher's documentation


def demo_store() -> CountingStore:
    ds = xr.Dataset(
        {
            "tasmax": (
                ("time", "lat", "lon"),
                np.random.default_rng(0).random((60, 18, 18)).astype("float32"),
            )
        },
        {
            "time": np.datetime64("2014-01-01", "ns") + np.arange(60) * np.timedelta64(1, "D"),
            "lat": np.linspace(-90, 90, 18),
            "lon": np.linspace(0, 358, 18),
        },
    )
    return CountingStore(write_store(ds, {"tasmax": (10, 9, 9)}))


def opened() -> xr.Dataset:
    return xr.open_zarr(demo_store(), consolidated=False, chunks=None)


def test_the_documented_accessor():
    run = """
import warnings; warnings.simplefilter("error")
import numpy as np, xarray as xr
from xloader import xbatcher
da = xr.DataArray(np.arange(20.0).reshape(10, 2), name="foo", dims=["time", "x"])
for obj in (da, da.to_dataset()):
    assert type(obj.batch.generator({"time": 5})) is xbatcher.BatchGenerator
    assert len(list(obj.batch.generator({"time": 5}))) == 2
assert xr.Dataset({"batch": 3}).batch == 3
assert da.assign_coords(batch=4).batch == 4
"""
    subprocess.run([sys.executable, "-c", run], check=True)


@pytest.mark.parametrize(
    "order", [("xbatcher", "xloader.xbatcher"), ("xloader.xbatcher", "xbatcher")]
)
@pytest.mark.usefixtures("real")
def test_xbatcher_keeps_its_accessor(order):
    run = f"""
import warnings; warnings.simplefilter("error")
import numpy as np, xarray as xr
import {order[0]}
import {order[1]}
import xbatcher
generator = xr.DataArray(np.arange(4), dims="x").batch.generator({{"x": 2}})
assert type(generator) is xbatcher.BatchGenerator
"""
    subprocess.run([sys.executable, "-c", run], check=True)


# Reads


@pytest.mark.parametrize(
    "arguments",
    [
        {"input_dims": {"time": 6}, "input_overlap": {"time": 5}},
        {"input_dims": {"time": 6, "y": 8, "x": 9}, "input_overlap": {"x": 4, "y": 2}},
        {"input_dims": {"time": 4}, "batch_dims": {"x": 12}, "concat_input_dims": True},
        {
            "input_dims": {"time": 6, "x": 9},
            "batch_dims": {"time": 16, "x": 18},
            "input_overlap": {"time": 4},
            "concat_input_dims": True,
        },
        {
            "input_dims": {"time": 8, "x": 9},
            "batch_dims": {"time": 16, "x": 18},
            "concat_input_dims": True,
        },
    ],
    ids=["steps", "patches", "joined", "uneven", "boxes"],
)
def test_a_loop_reads_each_chunk_once(arguments):
    shape = (32, 24, 36)
    rng = np.random.default_rng(0)
    ds = xr.Dataset(
        {name: (("time", "y", "x"), rng.random(shape, np.float32)) for name in ("a", "b")},
        {"lat": (("y", "x"), rng.random(shape[1:]))},
    )
    store = CountingStore(write_store(ds, {"a": (16, 12, 12), "b": (8, 24, 36)}))
    generator = ours.BatchGenerator(
        xr.open_zarr(store, consolidated=False, chunks=None), **arguments, memory="8MiB"
    )
    # Making the generator reads nothing.
    assert store.num_reads == 0
    batches = list(generator)
    assert len(store.reads) == 12 + 4 + 1
    assert set(store.reads.values()) == {1}
    for _ in generator:
        pass
    # If the memory holds all decoded chunks, they stay.
    assert set(store.reads.values()) == {1}
    for number, batch in enumerate(batches):
        assert_same(batch, generator[number])


def test_batches_asked_for_one_by_one_share_chunks():
    ds = xr.Dataset({"a": (("time", "x"), np.arange(4000.0, dtype="f4").reshape(40, 100))})
    store = CountingStore(write_store(ds, {"a": (10, 100)}))
    da = xr.open_zarr(store, consolidated=False, chunks=None)["a"]
    order = np.random.default_rng(0).permutation(36).tolist()
    for memory, most in (("8MiB", 1), ("12KiB", 36), ("1KiB", 36)):
        generator = ours.BatchGenerator(da, {"time": 5}, {"time": 4}, memory=memory)
        store.reset()
        for number in order:
            np.testing.assert_array_equal(generator[number], ds["a"][number : number + 5])
        assert store.num_reads == 4 if most == 1 else store.num_reads > 4
        assert max(store.reads.values()) <= most


def test_a_loop_keeps_to_its_memory():
    rng = np.random.default_rng(0)
    ds = xr.Dataset({"a": (("time", "x"), rng.random((400, 1000), np.float32))})
    store = CountingStore(write_store(ds, {"a": (10, 1000)}))
    da = xr.open_zarr(store, consolidated=False, chunks=None)["a"]
    generator = ours.BatchGenerator(da, {"time": 5}, memory="640KiB", threads=1)
    for _ in range(2):
        for number, batch in enumerate(generator):
            np.testing.assert_array_equal(batch, ds["a"][5 * number : 5 * number + 5])
    # The memory is too small for all 1.6 MB, so each of the two loops reads each chunk.
    assert set(store.reads.values()) == {2}
    with pytest.raises(MemoryBudgetError, match="memory=1024 bytes"):
        next(iter(ours.BatchGenerator(da, {"time": 5}, memory="1KiB")))


def test_loops_within_loops_and_loops_left_early():
    da = opened()["tasmax"]
    # With so little memory a loop holds only a few inputs.
    generator = ours.BatchGenerator(da, {"time": 6}, memory="64KiB")
    firsts = da[::6, 0, 0].values.tolist()
    expected = [(a, b) for a in firsts for b in firsts]
    for _ in range(2):
        pairs = [(a[0, 0].item(), b[0, 0].item()) for a in generator for b in generator]
        assert pairs == expected
    next(iter(generator))
    assert len(list(generator)) == 10


def test_parts_of_a_loop_share_the_memory():
    generator = ours.BatchGenerator(opened(), {"time": 10}, memory="1MiB")
    for batch, number in zip(generator.iterate(range(2, 5), 2), range(2, 5), strict=True):
        assert_same(batch, generator[number])
    with pytest.raises(MemoryBudgetError, match=f"memory={2**20 // 100} bytes"):
        next(generator.iterate(range(2, 5), num_shares=100))


def test_nothing_is_held_for_each_batch():
    store = zarr.storage.MemoryStore()
    group = zarr.open_group(store)
    group.create_array(
        "v", shape=(10**9,), chunks=(10**6,), dtype="int8", fill_value=7, dimension_names=["x"]
    )
    # The dtype is an integer, so the fill value is an ordinary value and not missing.
    da = xr.open_zarr(store, consolidated=False, chunks=None, mask_and_scale=False)["v"]
    tracemalloc.start()
    generator = ours.BatchGenerator(da, {"x": 3}, input_overlap={"x": 2})
    size = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(generator) == 10**9 - 2
    assert size < 2**20
    with pytest.warns(ChunkWarning, match="absent"):
        assert generator[10**8].values.tolist() == [7, 7, 7]


def test_lazy_batches_are_left_lazy(real):
    ds = xr.open_zarr(demo_store(), consolidated=False, chunks={})
    for concat in (False, True):
        arguments = {"input_dims": {"time": 10}, "concat_input_dims": concat}
        theirs = real.BatchGenerator(ds, **arguments, preload_batch=False)
        generator = ours.BatchGenerator(ds, **arguments, preload_batch=False)
        for actual, expected in zip(generator, theirs, strict=True):
            assert actual["tasmax"].chunks
            assert_same(actual.compute(), expected)


def test_variables_that_hold_no_numbers_are_there_as_well(real):
    ds = opened().assign(
        day=("time", np.arange(60).astype("datetime64[D]").astype("datetime64[ns]")),
        name=("lat", np.array([f"row {n}" for n in range(18)], object)),
        mask=(("lat", "lon"), np.eye(18, dtype=bool)),
    )
    for concat in (False, True):
        arguments = {"input_dims": {"time": 10, "lat": 9}, "concat_input_dims": concat}
        theirs = real.BatchGenerator(ds, **arguments)
        for actual, expected in zip(ours.BatchGenerator(ds, **arguments), theirs, strict=True):
            assert_same(actual, expected)


def test_a_generator_pickles_without_what_it_has_read(tmp_path):
    ds = xr.Dataset({"a": ("x", np.arange(10**6, dtype=np.float32))})
    write_store(ds, {"a": (10**5,)}, tmp_path / "a.zarr")
    da = xr.open_zarr(tmp_path / "a.zarr", consolidated=False, chunks=None)["a"]
    generator = ours.BatchGenerator(da, {"x": 4}, memory="8MiB", threads=1)
    next(iter(generator))
    dumped = pickle.dumps(generator)
    assert len(dumped) < 10_000
    copied = pickle.loads(dumped)
    assert (copied.memory, copied.threads, len(copied)) == ("8MiB", 1, 250_000)
    xr.testing.assert_identical(copied[3], generator[3])


# Batches that are kept


@pytest.mark.parametrize("preload", [True, False])
def test_batches_are_kept_and_found(preload):
    def mark(batch):
        marked = batch.load().chunk(-1)
        marked.attrs["foo"] = "bar"
        return marked

    cache: dict[str, Any] = {}
    arguments = {"cache": cache, "preload_batch": preload}
    ds = opened()
    generator = ours.BatchGenerator(ds, {"time": 20, "lat": 18}, cache_preprocess=mark, **arguments)
    made = generator[1]
    assert made.attrs == {"foo": "bar"}
    assert "1/zarr.json" in cache
    again = ours.BatchGenerator(xr.zeros_like(ds.load()), {"time": 20, "lat": 18}, **arguments)
    xr.testing.assert_identical(again[1].compute(), made.compute())
    assert bool(again[1].chunks) is not preload
    # A batch that is not in the cache is made and stored, without change.
    assert again[0].attrs == {}
    assert (again[0]["tasmax"] == 0).all()
    assert [batch.attrs.get("foo") for batch in again] == [None, "bar", None]


# Errors


def test_errors_say_what_is_meant():
    ds = opened()
    with pytest.raises(OptionError, match=r"do not fit along 'time'.*61 elements"):
        ours.BatchGenerator(ds, {"time": 61})
    with pytest.raises(OptionError, match="overlap by 10"):
        ours.BatchGenerator(ds, {"time": 10}, {"time": 10})
    with pytest.raises(UnknownNameError, match="'lattitude'"):
        ours.BatchGenerator(ds, {"lattitude": 10})
    with pytest.raises(OptionError, match="not a whole number"):
        ours.BatchGenerator(ds, {"time": 2.5})
    with pytest.raises(OptionError, match="not even one whole batch"):
        ours.BatchGenerator(ds, {"time": 10}, batch_dims={"time": 61}, concat_input_dims=True)
    with pytest.raises(OptionError, match="needs an xarray object"):
        ours.BatchGenerator("demo.zarr", {"time": 10})
    generator = ours.BatchGenerator(ds, {"time": 10})
    with pytest.raises(SampleIndexError, match=r"Given: 6.*\[-6, 6\)"):
        generator[6]
    assert_same(generator[-6], generator[0])
    with pytest.raises(SampleIndexError, match="Given: -7"):
        generator[-7]
    with pytest.raises(NotImplementedError, match="one whole number"):
        generator[[1, 2]]
    short = ours.BatchGenerator(ds, {"time": 40}, batch_dims={"time": 30}, concat_input_dims=True)
    with pytest.raises(EmptySamplesError, match="batch 1 has no patch"):
        short[1]
    with pytest.warns(BatchGeneratorWarning, match=r"has no effect along \['time'\]"):
        ours.BatchGenerator(ds, {"time": 10}, batch_dims={"time": 20})
    with pytest.raises(OptionError, match="nothing to read"):
        _ = ours.BatchGenerator(ds.load(), {"time": 10}).samples


def test_what_cannot_be_samples_is_refused():
    ds = opened()
    with pytest.raises(OptionError, match="not a generator of xbatcher"):
        xloader.from_xbatcher([1, 2])
    joined = {"concat_input_dims": True}
    uneven = ours.BatchGenerator(ds, {"time": 10}, {"time": 9}, {"time": 20}, **joined)
    with pytest.raises(OptionError, match=r"differ in size.*'time': \(20, 51\)"):
        xloader.from_xbatcher(uneven)
    with pytest.raises(OptionError, match="by their labels"):
        xloader.from_xbatcher(ours.BatchGenerator(ds["tasmax"], {"time": 10}, **joined))
    changed = ours.BatchGenerator(ds, {"time": 10}, cache={}, cache_preprocess=lambda batch: batch)
    with pytest.raises(OptionError, match="cache_preprocess"):
        xloader.from_xbatcher(changed)
    with pytest.raises(OptionError, match="one batch is the whole object"):
        xloader.from_xbatcher(ours.BatchGenerator(ds, {}))
    named = ds.assign(name=("time", np.array(["a"] * 60)))
    with pytest.raises(UnsupportedDataError, match="name"):
        xloader.from_xbatcher(ours.BatchGenerator(named, {"time": 10}))


def test_samples_of_a_generator_are_shuffled_and_read_once():
    store = demo_store()
    ds = xr.open_zarr(store, consolidated=False, chunks=None)
    generator = ours.BatchGenerator(ds, {"time": 10, "lat": 9}, {"time": 5})
    samples = xloader.from_xbatcher(generator)
    assert samples.shapes == {"tasmax": (10, 9, 18)}
    with samples.loader(batch_size=4, output="numpy") as loader:
        batches = list(loader)
    ids = np.concatenate([batch.ids for batch in batches])
    assert sorted(ids.tolist()) == list(range(len(generator)))
    assert ids.tolist() != sorted(ids.tolist())
    assert {n for key, n in store.reads.items() if key.startswith("tasmax/")} == {1}
    for number, array in zip(batches[0].ids.tolist(), batches[0].tasmax, strict=True):
        np.testing.assert_array_equal(array, generator[number]["tasmax"])


def test_labels_of_samples():
    ds = opened()
    plain = xloader.from_xbatcher(ours.BatchGenerator(ds, {"time": 10, "lat": 9})).to_xarray(3)
    xr.testing.assert_identical(plain, ds.isel(time=slice(10, 20), lat=slice(9, 18)).load())
    stacked = xloader.from_xbatcher(ours.BatchGenerator(ds, {"time": 10})).to_xarray(1)
    batch = ours.BatchGenerator(ds, {"time": 10})[1]
    assert stacked["tasmax"].dims == ("stacked", "time")
    for name in ("lat", "lon"):
        np.testing.assert_array_equal(stacked[name], batch[name])
    np.testing.assert_array_equal(stacked["time"], batch["time"])


def test_recipes_tell_patches_apart_that_have_the_same_windows():
    ds = opened()
    one = ours.BatchGenerator(ds, {"time": 4}, batch_dims={"time": 4}, concat_input_dims=True)
    two = ours.BatchGenerator(ds, {"time": 2}, batch_dims={"time": 4}, concat_input_dims=True)
    first, second = (xloader.from_xbatcher(generator).recipe for generator in (one, two))
    assert first.windows == second.windows
    assert first.fingerprint != second.fingerprint
    assert first.fingerprint == xloader.from_xbatcher(one).recipe.fingerprint
