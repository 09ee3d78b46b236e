"""Loaders over every kind of source give xarray's values with the predicted reads.

Other tests try the same laws on random datasets in plain Zarr. Here one dataset is stored in every
way.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.storage import MemoryStore

import xloader
from tests.sources import kinds, lazy_kinds
from tests.sources.concat_kinds import concat_kind
from xloader import Samples
from xloader.errors import MemoryBudgetError
from xloader.sources.open.open_source import open_source
from xloader.testing import SourceRecorder, write_store

pytestmark = [
    pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning"),
    pytest.mark.filterwarnings("ignore::xloader.errors.NanWarning"),
    pytest.mark.filterwarnings("ignore::xloader.errors.EpochWarning"),
]

KINDS = {**kinds.KINDS, "concat": concat_kind}
VIEWS = ["steps", "labels", "transposed and selected", "rechunked and selected", "where"]
EXPRESSIONS = {**lazy_kinds.VIEWS, **lazy_kinds.CHUNKED, **lazy_kinds.OTHERS}


Kept = tuple[SourceRecorder, xr.Dataset]


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """Return a source of one kind and its values in memory; each is made once for all examples."""
    name = request.param
    if name in KINDS:
        opened = KINDS[name](tmp_path_factory.mktemp("kept"), kinds.make_dataset())
        return SourceRecorder(opened.source), opened.oracle
    whole = lazy_kinds.make_dataset()
    how = "dask" if "chunked" in name else "lazy"
    view = EXPRESSIONS[name](lazy_kinds.opened(lazy_kinds.make_store(whole), how))
    return SourceRecorder(open_source(view)), view.compute()


@st.composite
def jobs(draw: st.DrawFn, samples: Samples, oracle: xr.Dataset) -> tuple[Samples, Any]:
    """Draw samples of the variable ``t``, and the part of it that belongs to each id."""
    array = oracle["t"]
    for dim, size in array.sizes.items():
        if draw(st.integers(0, 3)) == 0:
            chosen = slice(draw(st.integers(0, (size - 1) // 2)), None, draw(st.integers(1, 3)))
            samples, array = samples.isel({dim: chosen}), array.isel({dim: chosen})
    dims = list(draw(st.permutations(array.dims)))[: draw(st.integers(1, array.ndim))]
    sizes = {dim: draw(st.integers(1, min(3, array.sizes[dim]))) for dim in dims}
    strides = {dim: draw(st.integers(1, 3)) for dim in dims}
    samples = samples.window(sizes, stride=strides).field("f", "t")
    counts = [(array.sizes[dim] - sizes[dim]) // strides[dim] + 1 for dim in dims]
    windows = np.arange(len(samples))
    if draw(st.booleans()):
        picked = st.lists(st.integers(0, len(samples) - 1), min_size=1, max_size=20)
        windows = np.array(draw(picked))
        samples = samples.select(windows)
    if draw(st.booleans()):
        samples = samples.weighted(np.arange(1, len(samples) + 1), draw(st.integers(1, 30)))

    def part_of(index: int) -> xr.DataArray:
        place = np.unravel_index(windows[index], counts)
        begins = {dim: int(at) * strides[dim] for dim, at in zip(dims, place, strict=True)}
        return array.isel({dim: slice(b, b + sizes[dim]) for dim, b in begins.items()})

    return samples, part_of


@pytest.mark.parametrize("kept", [*sorted(KINDS), *VIEWS], indirect=True)
@settings(max_examples=4)
@given(data=st.data())
def test_samples_are_xarrays_and_reads_as_predicted(kept: Kept, data: st.DataObject) -> None:
    source, oracle = kept
    samples, part_of = data.draw(jobs(xloader.open(source), oracle), label="job")
    subset = samples.recipe.subset
    most_ranks = min(3, len(samples) if subset is None else subset.num_samples)
    world_size = data.draw(st.integers(1, most_ranks), label="world_size")
    options: dict[str, Any] = {
        "batch_size": data.draw(st.integers(1, 5), label="batch_size"),
        "shuffle": data.draw(st.booleans(), label="shuffle"),
        "drop_last": data.draw(st.booleans(), label="drop_last"),
        "output": "numpy",
    }
    with pytest.raises(MemoryBudgetError) as refused:
        samples.loader(**options, world=xloader.World(0, world_size), memory=1)
    memory = refused.value.minimum_nbytes + data.draw(st.sampled_from([0, 0, 500, 10**6]))
    for rank in range(world_size):
        with samples.loader(
            **options, world=xloader.World(rank, world_size), memory=memory
        ) as loader:
            for _ in range(2):
                expected = loader.explain()
                source.reset()
                for batch in loader:
                    for index, row in zip(batch.ids, batch["f"], strict=True):
                        part = part_of(int(index)).to_numpy().astype(row.dtype)
                        np.testing.assert_array_equal(row.reshape(part.shape), part)
                report = loader.report()
                assert source.num_reads == expected.num_reads == report.num_reads
                assert expected.num_samples == report.num_samples
                assert report.peak_nbytes <= expected.peak_nbytes <= memory
                assert source.peak_in_flight_nbytes <= memory


@pytest.mark.parametrize(
    "kept", ["zarr-sharded", "zarr-packed", "dask", "netcdf4", "concat"], indirect=True
)
def test_loaders_of_one_source_do_not_disturb_each_other(kept: Kept) -> None:
    source, oracle = kept
    samples = xloader.open(source).window(time=2, stride=1).field("f", "t")

    def total(seed: int) -> float:
        with samples.loader(batch_size=3, seed=seed, output="numpy", threads=2) as loader:
            return sum(
                float(np.nansum(batch["f"], dtype="f8")) for _ in range(2) for batch in loader
            )

    parts = (oracle["t"].isel(time=slice(i, i + 2)) for i in range(len(samples)))
    wanted = 2 * sum(float(np.nansum(part, dtype="f8")) for part in parts)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(total, range(8))) == pytest.approx([wanted] * 8)
    with (
        samples.loader(batch_size=3, output="numpy") as one,
        samples.loader(batch_size=3, output="numpy", seed=1) as other,
    ):
        ids = [(a.ids, b.ids) for a, b in zip(one, other, strict=True)]
    for side in zip(*ids, strict=True):
        assert sorted(np.concatenate(side)) == list(range(len(samples)))


def test_indexes_of_shards_are_part_of_the_budget() -> None:
    values = xr.Dataset({"a": ("time", np.arange(4096.0))})
    fixed = {}
    for name, sharding in {"plain": {}, "sharded": {"shards": (1024,)}}.items():
        store = write_store(values, {"a": (8,)}, encoding={"a": sharding} if sharding else None)
        loader = xloader.open(store).window(time=1).loader(batch_size=4, output="numpy")
        fixed[name] = loader.plan.budget.fixed_nbytes
        loader.close()
    # The index holds an offset and a size for each chunk, in 8 bytes each.
    assert fixed["sharded"] - fixed["plain"] == 4096 // 8 * 16


def test_views_have_room_for_the_chunks_that_they_thin_out() -> None:
    """The budget has room for a whole decoded chunk, although a view keeps 1 % of its elements."""
    store = MemoryStore()
    group = zarr.create_group(store, zarr_format=3)
    group.create_array(
        "a", shape=(40, 1000), chunks=(20, 1000), dtype="f4", dimension_names=("time", "x")
    )[:] = 1
    with xr.open_zarr(store, chunks=None, consolidated=False) as whole:
        for samples in (
            whole.isel(x=slice(None, None, 100)).xloader,
            xloader.open(store).isel(x=slice(None, None, 100)),
        ):
            with pytest.raises(MemoryBudgetError) as refused:
                samples.window(time=1).loader(batch_size=1, memory="100kB", output="numpy")
            assert refused.value.minimum_nbytes >= 2 * 20 * 1000 * 4
