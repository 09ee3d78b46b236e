"""Parts of a split share no element, and `overlap` counts those that samples share."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import xloader
from xloader import Samples
from xloader.errors import EmptySamplesError, OptionError, UnknownNameError
from xloader.samples.splits import Split
from xloader.testing import CountingStore, write_store

DAYS = np.datetime64("2001-01-01", "ns") + np.arange(120) * np.timedelta64(1, "D")


def numbered(*sizes: int) -> xr.Dataset:
    """Return a variable whose values number its elements, and one that lacks the last dimension."""
    dims = ("time", "lat", "lon")[: len(sizes)]
    coords: dict[str, Any] = {"time": DAYS[: sizes[0]], "lat": np.linspace(80, -80, 9)[: sizes[1]]}
    ds = xr.Dataset({"v": (dims, np.arange(np.prod(sizes)).reshape(sizes))})
    ds["w"] = (dims[:-1], -1 - np.arange(np.prod(sizes[:-1])).reshape(sizes[:-1]))
    return ds.assign_coords({dim: labels for dim, labels in coords.items() if dim in dims})


def elements_of(samples: Samples, ids: Any = None) -> set[float]:
    """Return the values, and so the elements, that samples hold."""
    ids = range(len(samples)) if ids is None else ids
    return {value for i in ids for array in samples[int(i)] for value in array.ravel().tolist()}


@st.composite
def windowed(draw: st.DrawFn) -> Samples:
    ds = numbered(draw(st.integers(11, 14)), draw(st.integers(3, 6)), 3)
    samples = xloader.open(ds).isel(
        time=slice(draw(st.integers(0, 1)), None, draw(st.sampled_from([1, 1, 2])))
    )
    dims = draw(st.sampled_from([("time",), ("time", "lat"), ("lat", "time", "lon")]))
    sizes = {dim: draw(st.integers(1, 2)) for dim in dims}
    stride = {dim: draw(st.integers(1, 2)) for dim in dims}
    dilation = {dim: draw(st.integers(1, 2)) for dim in dims}
    wrap = tuple(dim for dim in dims if dim != "time" and draw(st.booleans()))
    samples = samples.window(sizes, stride=stride, dilation=dilation, gaps="allow", wrap=wrap)
    kind = draw(st.integers(0, 2))
    if kind == 1:
        samples = samples.inputs("v").targets("v", time=f"+{2 * dilation['time']}")
    elif kind == 2:
        samples = samples.field("a", "v", time=0).field("b", "w")
    return samples


@given(windowed(), st.data())
def test_overlap_counts_shared_elements(samples: Samples, data: st.DataObject) -> None:
    ids = st.lists(st.integers(0, len(samples) - 1), min_size=1, max_size=4)
    first, second = (
        samples.select(data.draw(ids)) if data.draw(st.booleans()) else samples for _ in range(2)
    )
    expected = len(elements_of(first) & elements_of(second))
    assert xloader.overlap(first, second) == xloader.overlap(second, first) == expected


def check_parts(samples: Samples, split: Split[Samples]) -> None:
    needed = {name: elements_of(part) for name, part in split.items()}
    names = list(split)
    for number, name in enumerate(names):
        for other in names[:number]:
            assert not needed[name] & needed[other]
            assert xloader.overlap(split[name], split[other]) == 0
    total = sum(len(part) for part in split.values())
    assert total + split.num_crossing + split.num_apart == len(samples)


@given(windowed(), st.data())
def test_parts_share_no_element(samples: Samples, data: st.DataObject) -> None:
    way = data.draw(st.sampled_from(["fractions", "blocks", "two dims", "samples", "coordinate"]))
    windows = samples.recipe.require_windows()
    groups = np.array(data.draw(st.lists(st.integers(0, 4), min_size=40, max_size=40)))
    fractions = {"train": 0.6, "valid": 0.4}
    try:
        if way == "fractions":
            split = samples.split(time={"a": 0.5, "b": 0.3, "c": 0.2})
        elif way == "blocks":
            blocks = {dim: 2 for dim in windows.dims if dim != "lon"}
            split = samples.split(fractions, blocks=blocks, seed=data.draw(st.integers(0, 5)))
        elif way == "two dims":
            split = samples.split(
                {
                    "a": {"lat": slice(80, 50)},
                    "b": {"lat": slice(49, -80), "time": slice("2001-01-03", None)},
                }
            )
        elif way == "samples":
            split = samples.split(fractions, groups=np.resize(groups, len(samples)))
        else:
            ds = numbered(12, 3, 3).assign_coords(year=("time", groups[:12]))
            samples = xloader.open(ds).window(time=2, stride=1)
            split = samples.split(fractions, groups="year")
    except (EmptySamplesError, OptionError):
        # A part without samples, or "lat" without windows.
        return
    check_parts(samples, split)


def test_by_labels_every_whole_window_is_kept() -> None:
    samples = xloader.open(numbered(120, 2)).window(time=5, stride=2)
    split = samples.split(
        time={
            "train": slice(None, "2001-02-28"),
            "valid": slice("2001-03-01", "2001-03-31"),
            "test": slice("2001-04-05", None),
        }
    )
    starts = {
        name: part.positions(np.arange(len(part)))["time"].values for name, part in split.items()
    }
    assert starts["train"].tolist() == list(range(0, 55, 2))
    assert starts["valid"].tolist() == list(range(60, 86, 2))
    assert starts["test"].tolist() == list(range(94, 116, 2))
    assert (split.num_crossing, split.num_apart) == (len(samples) - 28 - 13 - 11, 0)
    check_parts(samples, split)
    assert "train       28 samples" in repr(split)
    with pytest.raises(UnknownNameError, match=r"part of the split.*'tset'.*mean 'test'"):
        split["tset"]


def test_a_split_is_a_value_and_takes_numbers_of_numpy() -> None:
    samples = xloader.open(numbered(120, 2)).window(time=3, stride=1)
    split = samples.split(
        {"train": np.float32(0.5), "valid": np.float64(0.5)},
        blocks={"time": np.int64(8)},
        gap=np.int64(2),
    )
    again = pickle.loads(pickle.dumps(split))
    assert {name: part.recipe for name, part in again.items()} == {
        name: part.recipe for name, part in split.items()
    }
    assert repr(again) == repr(split)
    halves = samples.split(time={"a": np.float32(0.5), "b": 0.5})
    assert [len(part) for part in halves.values()] == [58, 58]


def test_ranks_of_a_slab_make_the_same_parts() -> None:
    samples = xloader.open(write_store(numbered(120, 4)[["v"]], {"v": (5, 2)})).window(time=3)
    parts = [
        samples.slab("lat", rank, 2).split({"a": 0.5, "b": 0.5}, blocks={"time": 6}, seed=1)
        for rank in range(2)
    ]
    for name in ("a", "b"):
        ids = [part[name].positions(np.arange(len(part[name])))["time"].values for part in parts]
        np.testing.assert_array_equal(*ids)


@pytest.mark.parametrize(("gap", "steps"), [("auto", 0), (7, 7), ("2W", 14), ({"time": "1D"}, 1)])
def test_gap(gap: Any, steps: int) -> None:
    samples = xloader.open(numbered(120, 2)).window(time=3, stride=1)
    split = samples.split(time={"train": 0.5, "valid": 0.5}, gap=gap)
    train, valid = (part.positions(np.arange(len(part)))["time"].values for part in split.values())
    assert train.max() + 2 == 59
    assert valid.min() == 60 + steps


def test_a_gap_around_regions() -> None:
    samples = xloader.open(numbered(12, 8, 8)).window(lat=1, lon=1, time=1)
    regions = {
        "a": {"lat": slice(80, 0), "lon": slice(0, 4)},
        "b": {"lat": slice(-1, -80), "lon": slice(4, 8)},
    }
    split = samples.split(regions, gap=2)
    a, b = (part.positions(np.arange(len(part))) for part in split.values())
    apart = [
        max(abs(int(i.lat) - int(j.lat)), abs(int(i.lon) - int(j.lon)))
        for i in (a.isel(sample=n) for n in range(0, a.sizes["sample"], 12))
        for j in (b.isel(sample=n) for n in range(0, b.sizes["sample"], 12))
    ]
    assert min(apart) > 2


def test_random_blocks_read_no_chunk_twice() -> None:
    ds = numbered(120, 4)
    store = CountingStore(write_store(ds[["v"]], {"v": (5, 4)}))
    samples = xloader.open(store).window(time=3, stride=1)
    split = samples.split({"train": 0.7, "valid": 0.3}, blocks={"time": "8D"}, seed=3)
    check_parts(samples, split)
    read: dict[str, set[str]] = {}
    for name, part in split.items():
        store.reset()
        with part.loader(batch_size=4, output="numpy", memory="4MiB") as loader:
            for _ in loader:
                pass
            assert (
                loader.report().num_reads == loader.explain().num_reads
                or not loader.explain().num_reads
            )
        read[name] = {key for key in store.reads if key.startswith("v/c")}
    assert not read["train"] & read["valid"]
    again = samples.split({"train": 0.7, "valid": 0.3}, blocks={"time": "8D"}, seed=3)
    other = samples.split({"train": 0.7, "valid": 0.3}, blocks={"time": "8D"}, seed=4)
    assert again["train"].recipe == split["train"].recipe
    assert other["train"].recipe != split["train"].recipe


BAD: dict[type[Exception], list[tuple[Callable[[Samples], Any], str]]] = {
    OptionError: [
        (lambda s: s.split({}), "one way to tell|needs 1 to 100 names for its parts"),
        (lambda s: s.split(time=0.8), "parts along 'time' have no names.*0.8.*by name"),
        (
            lambda s: s.split(train=slice(None, "2001-02"), valid=slice("2001-03", None)),
            r"keywords of a split are dimensions.*train=, valid=.*\"train\": slice\(None, '2001-02",
        ),
        (
            lambda s: s.split(train={"time": slice(None, "2001-02")}),
            r"keywords of a split are dimensions.*pass split\(\{\"train\": \{'time': slice",
        ),
        (lambda s: s.split({"a": 1.0}, blocks=5), "blocks is no mapping.*5"),
        (lambda s: s.split({"a": 1.0}, blocks={"time": 5}, seed="x"), "seed.*'x'"),
        (
            lambda s: s.split({"a": 1.0}, groups=np.r_[np.nan, np.zeros(len(s) - 1)]),
            "some groups are missing.*1 of 116.*the first at 0",
        ),
        (lambda s: xloader.overlap(s, 5), "overlap compares samples. Given: 5"),
        (lambda s: s.split(), "one way to tell its parts"),
        (
            lambda s: s.split({"a": 1.0}, blocks={"time": 2}, time={"a": 1.0}),
            "one way to tell its parts.*labels or fractions along dimensions, parts with blocks=",
        ),
        (
            lambda s: s.split(time={"a": slice(None, "2001-02"), "b": slice("2001-02", None)}),
            "two parts of a split share elements.*'a' and 'b'.*begin after the last label of 'a'",
        ),
        (lambda s: s.split(time={"a": 0.8, "b": 0.3}), "fractions of a split do not fit"),
        (lambda s: s.split(lat={"a": 0.5, "b": 0.5}), "every sample holds all of .*'lat'"),
        (
            lambda s: (
                xloader.open(numbered(9, 4))
                .window(time=1, lat=1)
                .split(time={"a": 0.5, "b": 0.5}, lat={"a": 0.5, "c": 0.5})
            ),
            "name different parts",
        ),
        (lambda s: s.split({"a": 0.5, "b": 0.5}, blocks={"time": 120}), "none of the blocks"),
        (
            lambda s: s.split({"a": [0], "b": [0]}, groups=np.zeros(len(s), int)),
            "belongs to two parts",
        ),
        (lambda s: s.split({"a": 1.0}, groups=np.zeros(3)), "groups do not fit the samples"),
        (lambda s: s.split(time={"a": 0.5, "b": 0.5}, gap="7h"), "no whole number of steps"),
        (
            lambda s: xloader.overlap(s, xloader.open(numbered(9, 3)).window(time=1)),
            "samples are of different data",
        ),
    ],
    UnknownNameError: [
        (
            lambda s: s.split(tiem={"train": 0.8, "valid": 0.2}),
            "no dimension with this name.*'tiem'.*did you mean 'time'",
        ),
        (lambda s: s.split({"a": [7]}, groups=np.zeros(len(s), int)), "group that does not exist"),
    ],
    EmptySamplesError: [
        (
            lambda s: s.split(time={"a": slice(None, "2001-01-02"), "b": slice("2001-03", None)}),
            "no sample lies in the part 'a'",
        ),
    ],
}


@pytest.mark.parametrize(
    ("error", "act", "message"),
    [(error, act, message) for error, rows in BAD.items() for act, message in rows],
)
def test_bad_input(error: type[Exception], act: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        act(xloader.open(numbered(120, 4)).window(time=5, stride=1))
