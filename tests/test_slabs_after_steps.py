"""Slabs of transformed samples are parts of the whole result, or they are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader import Samples
from xloader.errors import OptionError
from xloader.transforms.rng import Rng

pytestmark = pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")

Verb = Callable[[Samples], Samples]

SIZE = 3
IDS = [5, 0, 17]


def by_lat(first: float, dims: str = "lat", *, is_labelled: bool = True) -> xr.DataArray:
    labels = {"lat": 10.0 * np.arange(7)} if is_labelled else {}
    return xr.DataArray(first + np.arange(7.0), labels, dims=dims)


def by_place(first: float) -> xr.DataArray:
    return by_lat(first) * xr.DataArray([1.0, 2.0, 3.0], dims="lon")


@pytest.fixture(params=[True, False], ids=["labels", "no labels"])
def samples(request: pytest.FixtureRequest) -> Samples:
    values = np.random.default_rng(0).normal(size=(20, 7, 3)).astype(np.float32)
    coords = {"lat": 10.0 * np.arange(7)} if request.param else {}
    ds = xr.Dataset({"t": (("time", "lat", "lon"), values), "mask": ("lat", values[0, :, 0])})
    opened = xloader.open(ds.assign_coords(coords).chunk({"time": 4}))
    return opened.window(time=1).inputs("t", "mask")


def slabs(samples: Samples, dim: str = "lat", *, before: Verb, after: Verb) -> list[Samples]:
    return [after(before(samples).slab(dim, rank, SIZE)) for rank in range(SIZE)]


def nothing(samples: Samples) -> Samples:
    return samples


def state_of(samples: Samples) -> dict[str, Any]:
    with samples.loader(batch_size=4, memory="64KiB", output="numpy") as loader:
        return loader.state_dict()


def assert_parts_of(parts: list[Samples], whole: Samples, axis: int) -> None:
    """Check that the parts together equal the whole, and that all have the same state."""
    expected = whole[IDS]
    joined = np.concatenate([part[IDS].inputs for part in parts], axis=axis)
    np.testing.assert_array_equal(joined, expected.inputs)
    first, *others = (state_of(own) for own in (whole, *parts))
    assert all(other == first for other in others)


NORMALIZED: dict[str, Verb] = {
    "numbers": lambda samples: samples.normalize({"t": (1.0, 2.0), "mask": (3.0, 4.0)}),
    "of the slab's dimension": lambda samples: samples.normalize({"t": (by_lat(1), by_lat(2))}),
    "without labels": lambda samples: samples.normalize(
        {name: (by_lat(1, is_labelled=False), by_lat(2)) for name in ("t", "mask")}
    ),
    "of two dimensions": lambda samples: samples.normalize({"t": (by_place(1), by_place(2))}),
    "one of each": lambda samples: samples.normalize({"t": (by_lat(1), 2.0)}),
}


@pytest.mark.parametrize("normalized", NORMALIZED.values(), ids=NORMALIZED)
def test_normalised_before_and_after(samples: Samples, normalized: Verb) -> None:
    whole = normalized(samples)
    assert not np.array_equal(whole[IDS].inputs, samples[IDS].inputs)
    assert_parts_of(slabs(samples, before=normalized, after=nothing), whole, axis=3)
    assert_parts_of(slabs(samples, before=nothing, after=normalized), whole, axis=3)


def filled(samples: Samples) -> Samples:
    return samples.fillna(0.0)


POINTWISE: dict[str, Verb] = {
    "where": lambda samples: samples.where(by_lat(-2) > 0, 5.0),
    "where of some": lambda samples: samples.where(by_lat(-2).to_dataset(name="inputs") > 0),
    "clip": lambda samples: samples.clip(min=0.1 * by_lat(-3), max=2.0),
    "fillna": lambda samples: samples.where(by_lat(-2) > 0).fillna(by_lat(1)),
    "without labels": lambda samples: samples.clip(min=0.1 * by_lat(-3, is_labelled=False)),
    "in another order": lambda samples: samples.where(by_lat(-2)[::-1] > 0),
    "over another": lambda samples: samples.quantile([0.2, 0.5], dim=["lon"]).max("quantile"),
}


@pytest.mark.parametrize("verb", POINTWISE.values(), ids=POINTWISE)
def test_methods_after(samples: Samples, verb: Verb) -> None:
    whole = verb(samples)
    axis = 1 + whole.to_xarray(0).inputs.dims.index("lat")
    assert_parts_of(slabs(samples, before=nothing, after=verb), whole, axis=axis)


LATE: dict[str, Verb] = {
    "map": lambda samples: samples.map(lambda ds: ds - ds.mean("lat")),
    "mean": lambda samples: samples.mean("lat"),
    "mean of all": lambda samples: samples.mean(),
    "after others": lambda samples: samples.normalize({"t": (0, 1)}).round(),
}


@pytest.mark.parametrize("verb", LATE.values(), ids=LATE)
def test_what_may_mix_elements_comes_after(samples: Samples, verb: Verb) -> None:
    with pytest.raises(OptionError, match=r"call \.slab\(\.\.\.\) before"):
        verb(samples).slab("lat", 1, SIZE)


def test_what_comes_after_sees_the_slab_alone(samples: Samples) -> None:
    parts = slabs(samples, before=nothing, after=lambda own: own.mean("lat"))
    whole = samples[IDS].inputs
    for part, rows in zip(parts, (slice(0, 2), slice(2, 4), slice(4, 7)), strict=True):
        expected = whole[:, :, :, rows].mean(axis=3)
        np.testing.assert_allclose(part[IDS].inputs, expected, rtol=1e-5)


def test_an_array_of_the_part_is_taken_as_it_is(samples: Samples) -> None:
    part = by_lat(-3, is_labelled=False)[2:4]
    whole = samples.clip(min=by_lat(-3))[IDS].inputs[:, :, :, 2:4]
    np.testing.assert_array_equal(samples.slab("lat", 1, SIZE).clip(min=part)[IDS].inputs, whole)


def test_statistics_of_a_part_are_refused(samples: Samples) -> None:
    part = by_lat(1)[2:4]
    with pytest.raises(OptionError, match="for a slab too, it covers the whole dimension"):
        samples.slab("lat", 1, SIZE).normalize({"t": (part, part)})


@pytest.fixture
def levels() -> Samples:
    values = np.random.default_rng(0).normal(size=(20, 4, 2, 3)).astype(np.float32)
    z = (("time", "level", "lat", "lon"), values)
    coords = {"level": [200, 500, 850, 1000]}
    ds = xr.Dataset({"z": z, "t": (("time", "lat", "lon"), values[:, 0])}, coords)
    return xloader.open(ds.chunk({"time": 4})).window(time=1)


def test_a_slab_of_channels(levels: Samples) -> None:
    def normalized(own: Samples) -> Samples:
        return own.normalize({"z": ([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0])})

    own = levels.inputs("z")
    parts = slabs(own, "level", before=normalized, after=nothing)
    assert_parts_of(parts, normalized(own), axis=1)
    assert parts[2].channels("inputs") == ("z_850", "z_1000")
    assert_parts_of(slabs(own, "level", before=nothing, after=normalized), normalized(own), axis=1)


def test_chance_is_the_sample_s_on_all_ranks(samples: Samples) -> None:
    def noisy(rank: int) -> Samples:
        def noise(batch: xr.Dataset, rng: Rng) -> xr.Dataset:
            zeros = 0.0 * batch.inputs
            shape = (*zeros.shape[1:3], 2, zeros.sizes["lon"])
            own = zeros[:, :, :, :2] + rng.normal(shape, name=f"noise {rank}")
            return xr.Dataset({"shared": zeros[:, :, :, :2] + rng.normal(shape), "own": own})

        return samples.slab("lat", rank, SIZE).map(noise, random=True)

    first, *others = (noisy(rank) for rank in range(SIZE))
    for other in others:
        np.testing.assert_array_equal(other[IDS].shared, first[IDS].shared)
        assert not np.isclose(other[IDS].own, first[IDS].own).any()
        assert state_of(other) == state_of(first)
