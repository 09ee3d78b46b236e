"""Composed selections equal xarray's own, on a coordinate that identifies every element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import xloader
from xloader.errors import EmptySamplesError, LongitudeWarning, OptionError, UnknownNameError
from xloader.testing import write_store

SIZE = 12


def _dataset(size: int = SIZE) -> xr.Dataset:
    values = np.arange(2.0 * size).reshape(size, 2)
    return xr.Dataset(
        {"t": (("x", "y"), values)}, coords={"x": np.arange(size) * 0.5, "name": ("y", ["a", "b"])}
    )


def _elements(samples: xloader.Samples, dim: str = "x") -> list[int] | int:
    kept = samples.recipe.kept_of(dim)
    return kept if isinstance(kept, int) else list(kept)


@st.composite
def chains(draw: st.DrawFn) -> list[Any]:
    """Draw indexers of one dimension, each valid for the result of the ones before."""
    left = SIZE
    chain: list[Any] = []
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, left - 1))
        kind = draw(st.sampled_from(["slice", "list", "mask", "backward bounds"]))
        if kind == "slice":
            indexer: Any = slice(
                begin, draw(st.integers(begin + 1, SIZE + 3)), draw(st.integers(1, 4))
            )
        elif kind == "backward bounds":
            indexer = slice(begin - left, None, draw(st.integers(1, 3)))
        else:
            chosen = sorted(draw(st.sets(st.integers(0, left - 1), min_size=1)))
            mask = np.zeros(left, bool)
            mask[chosen] = True
            indexer = chosen if kind == "list" else mask
        chain.append(indexer)
        left = len(np.arange(left)[indexer])
    return chain


@given(chains())
def test_isel_composes_as_in_xarray(chain: list[Any]) -> None:
    samples, expected = _dataset().xloader, _dataset().assign(at=("x", np.arange(SIZE)))
    for indexer in chain:
        samples, expected = samples.isel(x=indexer), expected.isel(x=indexer)
    assert _elements(samples) == expected["at"].values.tolist()
    assert samples.sizes["x"] == expected.sizes["x"]


@given(st.integers(-2, 14), st.integers(-2, 14), st.integers(0, 5))
def test_sel_of_a_selection_as_in_xarray(low: int, high: int, skipped: int) -> None:
    ds = _dataset().assign(at=("x", np.arange(SIZE))).isel(x=slice(skipped, None, 2))
    expected = ds.sel(x=slice(low / 2, high / 2))["at"].values.tolist()
    samples = _dataset().xloader.isel(x=slice(skipped, None, 2))
    if expected:
        assert _elements(samples.sel(x=slice(low / 2, high / 2))) == expected
    else:
        with pytest.raises(EmptySamplesError, match=r"no label of the dimension 'x' is selected"):
            samples.sel(x=slice(low / 2, high / 2))


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        pytest.param(lambda s: s.sel(x=1.5), 3, id="one label drops the dimension"),
        pytest.param(lambda s: s.sel(x=1.7, method="nearest"), 3, id="nearest"),
        pytest.param(lambda s: s.sel(x=1.7, method="pad", tolerance=0.3), 3, id="pad"),
        pytest.param(lambda s: s.sel(x=[0.0, 1.0, 2.0]), [0, 2, 4], id="labels"),
        pytest.param(lambda s: s.sel({"x": slice(5, None)}), [10, 11], id="open slice"),
        pytest.param(lambda s: s.isel(x=-1), 11, id="from the end"),
        pytest.param(lambda s: s.isel(x=[1, 2, 7]).sel(x=slice(1, 4)), [2, 7], id="label in list"),
        pytest.param(lambda s: s.isel(x=xr.DataArray([1, 4], dims="x")), [1, 4], id="DataArray"),
        pytest.param(lambda s: s.isel(x=[5, 1, 6]).isel(x=[2, 1]), [6, 1], id="order in order"),
        pytest.param(lambda s: s.isel(x=slice(7, 4, -1)), [7, 6, 5], id="a slice backwards"),
        pytest.param(lambda s: s.sel(x=[3.0, 1.0]), [6, 2], id="labels in another order"),
    ],
)
def test_kinds_of_indexers(select: Any, expected: Any) -> None:
    assert _elements(select(_dataset().xloader)) == expected


def test_an_order_that_comes_back_to_a_chunk_is_refused() -> None:
    """Each chunk is one block, so its elements follow each other; chunks may change places."""
    samples = xloader.open(write_store(_dataset().drop_vars("name"), {"t": (4, 2)}))
    assert _elements(samples.isel(x=[9, 8, 1, 3, 0])) == [9, 8, 1, 3, 0]
    with pytest.raises(OptionError, match=r"come back to a chunk.*Given: \[9, 1, 8\].*in .map"):
        samples.isel(x=[9, 1, 8])


def test_sel_without_labels_counts_positions() -> None:
    samples = _dataset().xloader.sel(y=1)
    assert samples.recipe.kept_of("y") == 1
    assert samples.dims == ("x",)


REFUSALS: dict[type[Exception], list[tuple[Any, str]]] = {
    OptionError: [
        (lambda s: s.isel(x=12), r"lies outside the dimension 'x'. Given: 12.*\[-12, 12\)"),
        (lambda s: s.isel(x=np.array([2**64 - 1], "u8")), "lies outside the dimension 'x'"),
        (lambda s: s.isel(x=[3, 3]), r"have one twice.*Given: \[3, 3\].*map"),
        (lambda s: s.isel(x=slice(0, 4, 0)), "slice along 'x' is not made of positions"),
        (lambda s: s.isel(x="1"), "selection along 'x' is not made of positions.*use .sel"),
        (lambda s: s.isel(x=1.0), "selection along 'x' is not made of positions"),
        (lambda s: s.sel(x=[3.0, 1.0, 3.0]), "have one twice"),
        (lambda s: s.sel(x=1, method="closest"), "xarray cannot choose"),
        (lambda s: s.sel(y=1, method="nearest"), "no labels, so method= cannot be used"),
        (
            lambda s: s.sel(x=xr.DataArray([1.0], dims="p")),
            "labels have dimensions that would replace 'x'",
        ),
    ],
    EmptySamplesError: [
        (lambda s: s.isel(x=slice(4, 4)), "nothing is selected"),
        (lambda s: s.isel(x=[]), "nothing is selected"),
        (lambda s: s.sel(x=slice(3, 1)), "ends of a slice in this order"),
    ],
    UnknownNameError: [
        (lambda s: s.isel(x=0).isel(x=0), "no dimension with this name"),
        (lambda s: s.sel(x=0.3), "has no such label. Given: 0.3.*0.0 to 5.5"),
    ],
}


@pytest.mark.parametrize(
    ("error", "act", "message"),
    [(error, act, message) for error, rows in REFUSALS.items() for act, message in rows],
)
def test_bad_selections(error: type[Exception], act: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        act(_dataset().xloader)


@pytest.mark.parametrize(
    "between",
    [
        pytest.param(slice(0.7, 2.0), id="bounds that are no labels"),
        pytest.param(slice(2.0, 0.0), id="bounds in another order than the labels"),
    ],
)
def test_a_slice_of_labels_needs_a_sorted_index(between: slice) -> None:
    unsorted = _dataset().isel(x=[3, 0, 1, 2, 4])
    with pytest.raises(
        OptionError, match=r"labels of the dimension 'x' are not sorted.*ds.sortby\('x'\)"
    ):
        unsorted.xloader.sel(x=between)
    assert _elements(unsorted.xloader.sel(x=slice(0.0, 1.0))) == [1, 2, 3]


@pytest.mark.parametrize("label", [[0, 1], np.array([1])])
@pytest.mark.parametrize("verb", ["sel", "ids"])
def test_labels_that_occur_twice_are_asked_for_one_by_one(verb: str, label: Any) -> None:
    samples = _dataset(4).assign_coords(x=[0, 1, 1, 2]).xloader
    choose = samples.sel if verb == "sel" else samples.window(x=1).ids
    with pytest.raises(OptionError, match=r"'x' occur more than once.*Given: .*one label"):
        choose(x=label)
    with pytest.raises(OptionError, match=r"'x' occur more than once.*method='nearest'"):
        choose(x=1, method="nearest")
    with pytest.raises(OptionError, match="cannot choose"):
        choose(x=slice(0, 1), method="nearest")
    assert _elements(samples.sel(x=1)) == samples.window(x=1).ids(x=1).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("labels", "units", "asked", "num_lost"),
    [
        (np.arange(60) * 6.0, "", slice(-10, 30), 1),
        (np.arange(60) * 6.0, "degrees_east", slice(300, 400), 7),
        (np.arange(60) * 6.0 - 180, "", slice(150, 200), 4),
        (np.arange(354.0, -1, -6), "", slice(30, -10), 1),
        (np.arange(100, 300, 6), "degrees_east", slice(-100, 150), 7),
    ],
    ids=["west", "east", "from -180", "falling", "a part of the globe"],
)
def test_a_slice_across_the_seam_warns(
    labels: Any, units: str, asked: slice, num_lost: int
) -> None:
    ds = xr.Dataset(
        {"t": ("lon", np.zeros(len(labels)))}, {"lon": ("lon", labels, {"units": units})}
    )
    with pytest.warns(LongitudeWarning, match=f" {num_lost} labels are left out") as caught:
        kept = ds.xloader.sel(lon=asked)
    assert caught[0].filename == __file__
    expected = ds.sel(lon=asked)
    assert kept.sizes["lon"] == expected.sizes["lon"]
    begin = min(asked.start, asked.stop)
    whole = ds.assign_coords(lon=(ds["lon"] - begin) % 360 + begin).sortby("lon")
    whole = whole.sel(lon=slice(begin, max(asked.start, asked.stop)))
    assert whole.sizes["lon"] == expected.sizes["lon"] + num_lost


@pytest.mark.parametrize(
    ("labels", "units", "asked"),
    [
        (np.arange(60) * 6.0, "", slice(0, 30)),
        (np.arange(60) * 6.0, "", slice(None, 30)),
        (np.arange(60) * 6.0, "", slice(-3, 400)),
        (np.linspace(-87, 87, 30), "degrees_north", slice(-100, 100)),
        (np.arange(0, 90.0, 6), "degrees_east", slice(-10, 30)),
        (np.arange(300.0, 1000, 100), "hPa", slice(500, 2000)),
        (np.arange(360), "", slice(-10, 100)),
    ],
    ids=["within", "open", "all", "latitudes", "nothing there", "pressures", "steps"],
)
def test_other_slices_do_not(labels: Any, units: str, asked: slice) -> None:
    ds = xr.Dataset({"t": ("x", np.zeros(len(labels)))}, {"x": ("x", labels, {"units": units})})
    assert ds.xloader.sel(x=asked).sizes["x"] == ds.sel(x=asked).sizes["x"]
