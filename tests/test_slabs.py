"""Slabs: the ranks of a group get the same samples, and each reads only its own part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import xloader
from xloader.errors import OptionError, UnknownNameError
from xloader.testing import CountingStore, write_store

pytestmark = pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")


def make_store() -> CountingStore:
    values = np.random.default_rng(0).normal(size=(96, 12, 5)).astype(np.float32)
    ds = xr.Dataset({"t": (("time", "lat", "lon"), values), "mask": (("lat", "lon"), values[0])})
    return CountingStore(write_store(ds, {"t": (6, 3, 5), "mask": (12, 5)}))


def options(**more: Any) -> dict[str, Any]:
    return {"batch_size": 4, "memory": "40KiB", "output": "numpy", **more}


@settings(max_examples=max(settings().max_examples // 2, 5))
@given(
    size=st.integers(1, 5),
    window=st.sampled_from([1, 3]),
    shuffle=st.booleans(),
    world_size=st.integers(1, 2),
)
def test_slabs_side_by_side_are_the_samples(
    size: int, window: int, shuffle: bool, world_size: int
) -> None:
    store = make_store()
    samples = xloader.open(store).window(time=window, stride=1).inputs("t", "mask").fillna(0.0)
    shared = options(shuffle=shuffle, world=xloader.World(world_size - 1, world_size))
    with samples.loader(**shared) as loader:
        whole = list(loader)
    parts = []
    for rank in range(size):
        slab = samples.slab("lat", rank, size)
        with slab.loader(**shared) as loader:
            expected = loader.explain()
            store.reset()
            parts.append(list(loader))
            assert store.num_reads == expected.num_reads
    for batch, *own in zip(whole, *parts, strict=True):
        for part in own:
            assert part.ids.tolist() == batch.ids.tolist()
            assert part.is_padding.tolist() == batch.is_padding.tolist()
        joined = np.concatenate([part.inputs for part in own], axis=3)
        np.testing.assert_array_equal(joined, batch.inputs)


def test_a_slab_reads_its_own_chunks_alone() -> None:
    store = make_store()
    samples = xloader.open(store, variables=["t"]).window(time=1)
    num_reads = []
    for rank in range(4):
        with samples.slab("lat", rank, 4).loader(**options()) as loader:
            store.reset()
            for _ in loader:
                pass
        num_reads.append(store.num_reads)
        assert {key.split("/")[3] for key in store.reads} == {str(rank)}
    assert num_reads == [16] * 4


def test_a_state_of_one_rank_restores_the_group() -> None:
    samples = xloader.open(make_store()).window(time=3, stride=1)
    slabs = [samples.slab("lat", rank, 3) for rank in range(3)]
    with slabs[0].loader(**options()) as loader:
        batches = iter(loader)
        for _ in range(5):
            next(batches)
        state = loader.state_dict()
        rest = [batch.ids.tolist() for batch in batches]
    for own in (*slabs, samples):
        with own.loader(**options(seed=3)) as loader:
            loader.load_state_dict(state)
            assert [batch.ids.tolist() for batch in loader] == rest


@pytest.mark.parametrize(
    ("dim", "rank", "size"),
    [
        *[("time", 0, 2), ("lat", 2, 2), ("lat", -1, 2), ("lat", 0, 13)],
        *[("lat", "0", 2), ("lat", True, 2), ("lat", 0, 2.0), ("lat", None, 2)],
    ],
)
def test_slabs_that_cannot_be(dim: str, rank: Any, size: Any) -> None:
    samples = xloader.open(make_store()).window(time=1)
    with pytest.raises(OptionError, match="cannot be cut into slabs"):
        samples.slab(dim, rank, size)


def test_slabs_of_nothing_known() -> None:
    samples = xloader.open(make_store()).window(time=1)
    with pytest.raises(UnknownNameError, match="height"):
        samples.slab("height", 0, 2)
    with pytest.raises(UnknownNameError, match="lat"):
        samples.slab(["lat"], 0, 2)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="of a slab"):
        samples.slab("lat", 0, 2).slab("lat", 0, 2)
