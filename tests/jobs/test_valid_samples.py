"""is_valid and dropna: what isnull would keep, each chunk read once."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import event, given
from hypothesis import strategies as st
from zarr.storage import MemoryStore

import xloader
from tests.cases import Case, cases
from xloader.errors import (
    EmptySamplesError,
    MemoryBudgetError,
    OptionError,
    UnknownNameError,
)
from xloader.jobs.valid import sweep_line, window_counter
from xloader.testing import CountingStore, write_store

SHARES = [1.0, 0.9, 0.5, 0.07, 0.0]


def is_enough(values: np.ndarray, at_least: float) -> bool:
    """Whether a field's values have few enough NaN, by plain counting."""
    return bool(np.count_nonzero(~np.isnan(values)) / values.size >= at_least)


def brute(case: Case, fields: tuple[str, ...], at_least: float) -> list[bool]:
    """Whether each sample is valid, sample by sample."""
    chosen = [name in fields or not fields for name in case.samples.fields]
    return [
        all(
            is_enough(array.astype("f8"), at_least)
            for array, counts in zip(case.sample(index), chosen, strict=True)
            if counts
        )
        for index in range(len(case.samples))
    ]


def least_memory(case: Case, **options: Any) -> int:
    """The smallest sufficient memory, which the error for a single byte names."""
    try:
        case.samples.is_valid(memory=1, **options)
    except MemoryBudgetError as error:
        return error.minimum_nbytes
    return 1


@given(case=cases(has_nan=True), at_least=st.sampled_from(SHARES), data=st.data())
def test_what_isnull_keeps(case: Case, at_least: float, data: st.DataObject) -> None:
    """Any shapes, chunks, windows, fields and subsets; and reads are those that are needed."""
    names = case.samples.fields
    fields = tuple(data.draw(st.lists(st.sampled_from(names), unique=True, max_size=2)))
    # Windows that wrap are read by a loader, which reads chunks again where memory is short.
    least = 1 << 30 if case.spans.wrap else least_memory(case)
    memory = data.draw(st.sampled_from([least, 1 << 30]))
    most_blocks = data.draw(st.sampled_from([1, 3, 4096]))
    with pytest.MonkeyPatch.context() as patch:
        # Few blocks at a time, and few windows packed in one call, as where there are millions.
        patch.setattr(sweep_line, "_MOST_BLOCKS", most_blocks)
        patch.setattr(window_counter, "_PIECE_SIZE", data.draw(st.sampled_from([1, 50, 1 << 20])))
        patch.setattr(sweep_line, "_FEW", data.draw(st.sampled_from([0, 16])))
        case.store.reset()
        mask = case.samples.is_valid(*fields, at_least=at_least, memory=memory, threads=2)
    assert np.asarray(mask).tolist() == brute(case, fields, at_least)
    reads = {k: n for k, n in case.store.reads.items() if k.split("/")[0] in case.dataset.data_vars}
    assert mask.num_reads == sum(reads.values()) == len(reads)
    read = {key.split("/")[0] for key in reads}
    floats = {name for name, array in case.dataset.items() if array.dtype.kind == "f"}
    assert read <= floats or case.spans.wrap
    event(f"{len(read)} variables read")
    # Random cases take longer to make than to check, so that both checks share them.
    if case.chosen.weights is None:
        check_reads_of_an_epoch(case, at_least)


def check_reads_of_an_epoch(case: Case, at_least: float) -> None:
    """The chunks that are read are those of an epoch."""
    floats = [name for name, array in case.dataset.items() if array.dtype.kind == "f"]
    with case.loader(
        memory=1 << 30, world_size=1, lanes=None, batch_size=1, drop_last=False, on_nan="ignore"
    ) as loader:
        case.store.reset()
        for _ in loader:
            pass
        wanted = {key for key in case.store.reads if key.split("/")[0] in floats}
    case.store.reset()
    case.samples.is_valid(at_least=at_least)
    read = {key for key in case.store.reads if key.split("/")[0] in case.dataset.data_vars}
    # Windows that wrap or are padded are read by a loader, with all variables of a field.
    is_by_loader = case.spans.wrap or case.spans.pad
    assert read == wanted or (is_by_loader and read >= wanted)


def with_mask(kind: str) -> tuple[xr.Dataset, CountingStore, xr.DataArray]:
    """A dataset with gaps, its store, and a mask along some of its dimensions."""
    rng = np.random.default_rng(7)
    sizes = {"time": 30, "lat": 12, "lon": 10}
    dims = {"static": ("lon", "lat"), "line": ("lat",), "whole": ("time", "lat", "lon")}[kind]
    sst = rng.random(tuple(sizes.values())).astype("f4")
    sst[rng.random(sst.shape) < 0.1] = np.nan
    ds = xr.Dataset(
        {
            "sst": (tuple(sizes), sst),
            "count": (tuple(sizes), rng.integers(0, 9, sst.shape)),
            "depth": (("lat", "lon"), rng.random((12, 10))),
            "index": ("time", rng.random(30)),
            "sea": (dims, rng.random([sizes[dim] for dim in dims]) < 0.7),
        },
        {"lat": np.linspace(80, -80, 12), "lon": np.arange(10) * 36.0},
    )
    chunks = {
        "sst": (7, 5, 4),
        "count": (6, 6, 6),
        "depth": (5, 5),
        "index": (8,),
        "sea": tuple(4 for _ in dims),
    }
    return ds, CountingStore(write_store(ds, chunks)), ds.sea.load()


@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize("kind", ["static", "line", "whole"])
@pytest.mark.parametrize("windowed", [("time",), ("lat", "time"), ("time", "lat", "lon")])
def test_a_mask_counts_as_where(kind: str, windowed: tuple[str, ...], is_named: bool) -> None:
    """As after ``ds.where(mask)``, in the variables that have all dimensions of the mask."""
    ds, store, sea = with_mask(kind)
    part = {"time": slice(2, None), "lat": slice(None, 10)}
    sizes = dict.fromkeys(windowed, 3)
    samples = xloader.open(store).isel(part).window(sizes, stride=2, dilation={"time": 2})
    samples = samples.inputs("sst", "count", "depth").targets("sst", time=2).field("i", "index")
    masked = ds.copy()
    for name in ("sst", "count", "depth"):
        if set(sea.dims) <= set(ds[name].dims):
            masked[name] = ds[name].astype("f8").where(sea).transpose(*ds[name].dims)
    oracle = xloader.open(masked.isel(part)).window(sizes, stride=2, dilation={"time": 2})
    oracle = oracle.inputs("sst", "count", "depth").targets("sst", time=2).field("i", "index")
    chosen = sea.isel({d: s for d, s in part.items() if d in sea.dims})
    batch = oracle[list(range(len(oracle)))]
    for at_least in (0.3, 0.6, 0.75):
        wanted = np.array(
            [all(is_enough(array[row], at_least) for array in batch) for row in range(len(oracle))]
        )
        store.reset()
        mask = samples.is_valid(at_least=at_least, mask="sea" if is_named else chosen)
        assert np.asarray(mask).tolist() == wanted.tolist()
        # Labels may be read, too, to compare them with those of the mask.
        reads = {key: n for key, n in store.reads.items() if key.split("/")[0] in ds.data_vars}
        assert mask.num_reads == sum(reads.values())
        assert set(reads.values()) == {1}
        assert ("sea" in {key.split("/")[0] for key in store.reads}) == is_named
        only = samples.is_valid("targets", at_least=at_least, mask="sea")
        assert np.asarray(only).tolist() == [is_enough(row, at_least) for row in batch["targets"]]


def test_packed_integers_are_checked_after_decoding() -> None:
    values = np.arange(24.0).reshape(12, 2)
    values[5, 1] = values[8, 0] = np.nan
    ds = xr.Dataset({"t": (("time", "x"), values), "n": (("time", "x"), values * 0 + 1)})
    packing = {"dtype": "int16", "scale_factor": 0.5, "add_offset": 3.0, "_FillValue": -999}
    store = write_store(
        ds.drop_vars("n").assign(n=(("time", "x"), np.ones((12, 2), "i2"))),
        {"t": (5, 2), "n": (5, 2)},
        encoding={"t": packing},
    )
    samples = xloader.open(CountingStore(store)).window(time=2, stride=1)
    wanted = [bool(np.isfinite(values[i : i + 2]).all()) for i in range(11)]
    mask = samples.is_valid()
    assert np.asarray(mask).tolist() == wanted
    # The integers without a fill value are not read.
    assert mask.num_reads == 3
    assert np.asarray(samples.is_valid("n")).all()
    assert samples.is_valid("n").num_reads == 0


def test_dropna_is_select_of_is_valid() -> None:
    _ds, store, _ = with_mask("static")
    samples = xloader.open(store).window(time=2).inputs("sst").targets("depth")
    kept = samples.dropna("inputs", at_least=0.9)
    assert kept == samples.select(samples.is_valid("inputs", at_least=0.9))
    assert "kept by is_valid('inputs', at_least=0.9)" in repr(kept)
    later = samples.dropna(at_least=0.0).field("later", "sst")
    assert "kept by is_valid('inputs', 'targets', at_least=0)" in repr(later)
    assert 0 < len(kept) < len(samples)
    with pytest.raises(EmptySamplesError, match="at_least"):
        samples.dropna()
    # Transforms and slabs do not matter: all ranks of a group keep the same samples.
    filled = samples.fillna(0.0).map(lambda ds: ds * np.nan)
    assert filled.is_valid("inputs", at_least=0.9) == samples.is_valid("inputs", at_least=0.9)
    south = samples.slab("lat", 0, 2)
    assert south.is_valid("inputs", at_least=0.9) == samples.is_valid("inputs", at_least=0.9)
    assert south.dropna("inputs", at_least=0.9).recipe.whole == kept.recipe


def test_a_variable_is_checked_alone_in_each_field_that_has_it() -> None:
    ds, store, _ = with_mask("static")
    opened = xloader.open(store).window(time=2)
    samples = opened.inputs("depth", "sst", time=0).targets("sst", time=1)
    shares = ds.sst.notnull().mean(["lat", "lon"]).values
    at_least = float(np.median(shares))
    starts = np.arange(len(samples)) * 2
    expected = (shares[starts] >= at_least) & (shares[starts + 1] >= at_least)
    assert 0 < expected.sum() < len(expected)
    np.testing.assert_array_equal(samples.is_valid("sst", at_least=at_least), expected)
    # A field of the same name comes first, and has all of its channels checked.
    renamed = opened.field("sst", "depth", "sst")
    assert renamed.is_valid("sst", at_least=0.9) == renamed.is_valid(at_least=0.9)


def test_bad_arguments() -> None:
    _ds, store, sea = with_mask("static")
    samples = xloader.open(store).isel(lat=slice(0, 6)).window(time=2)
    part = sea.isel(lat=slice(0, 6))
    cases: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (OptionError, "share of a sample's values.*1.5.*0 to 1", {"at_least": 1.5}),
        (OptionError, "share", {"at_least": True}),
        (OptionError, "shape of the.*lon: 10, lat: 12.*lat: 6.*sel", {"mask": sea}),
        (OptionError, "shape of the.*level: 3", {"mask": xr.DataArray([True] * 3, dims="level")}),
        (OptionError, "labels of .* along 'lat' are not", {"mask": sea.isel(lat=slice(6, 12))}),
        (OptionError, "not boolean.*float64", {"mask": part * 1.0}),
        (OptionError, "not boolean.*float32", {"mask": "sst"}),
        (OptionError, "no dimensions", {"mask": part.isel(lat=0, lon=0)}),
        (OptionError, "neither the name", {"mask": part.values}),
        (UnknownNameError, "no variable.*'ses'.*'sea'", {"mask": "ses"}),
        (OptionError, "memory", {"memory": "much"}),
        (OptionError, "threads", {"threads": 0}),
        (OptionError, "cache is not a folder", {"cache": True}),
        (MemoryBudgetError, "one chunk at work", {"memory": 100}),
        (MemoryBudgetError, "for the mask", {"memory": 100, "mask": part}),
    ]
    for kind, text, options in cases:
        with pytest.raises(kind, match=f"(?s){text}"):
            samples.is_valid("sst", **options)
    with pytest.raises(UnknownNameError, match=r"no field.*'sts'.*'sst'"):
        samples.is_valid("sts")
    with pytest.raises(OptionError, match="no variable of the fields has together"):
        samples.is_valid("index", mask="sea")
    with pytest.raises(OptionError, match="windows are not set"):
        xloader.open(store).is_valid()
    found = samples.is_valid("sst", mask=part)
    assert samples.is_valid("sst", mask=part.drop_vars("lat")) == found
    assert samples.is_valid("sst", mask=part.assign_coords(lat=part.lat + 1e-8)) == found


@pytest.mark.parametrize("drop", [{"lat": 3}, {}])
def test_a_selected_element_drops_its_dimension(drop: dict[str, int]) -> None:
    ds, store, _ = with_mask("whole")
    samples = xloader.open(store).isel(drop).window(time=3)
    part = ds.isel(drop)
    mask = part.sea.load()
    wanted = part.sst.where(mask).notnull()
    wanted = [bool(wanted[i : i + 3].mean() >= 0.6) for i in range(0, 30, 3)]
    for argument in ("sea", mask):
        found = samples.is_valid("sst", at_least=0.6, mask=argument)
        assert np.asarray(found).tolist() == wanted


@pytest.mark.parametrize("chunks", [(10, 30, 30), (400, 6, 30)])
def test_counts_are_kept_of_windows_under_way_only(chunks: tuple[int, ...]) -> None:
    """Counts of all 1.4 million windows would take 5.6 MB, twice that for the two fields."""
    store = MemoryStore()
    group = zarr.create_group(store)
    group.create_array(
        "a",
        shape=(400, 60, 60),
        chunks=chunks,
        dtype="float32",
        dimension_names=("time", "lat", "lon"),
    )
    samples = xloader.open(store, on_missing="fill").window(time=3, lat=2, lon=2, stride=1)
    samples = samples.inputs("a", time=slice(0, 2)).targets("a", time=2)
    tracemalloc.start()
    try:
        mask = samples.is_valid(memory=7 * 2**20, threads=2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert mask.num_valid == len(mask) == 398 * 59 * 59
    assert peak < 7 * 2**20


def test_counts_along_different_dimensions_are_kept_apart() -> None:
    """Variables along y and along x need y + x counts, though their windows are y times x."""

    def least(size: int) -> int:
        ds = xr.Dataset(
            {
                "band": (("time", "y", "x"), np.zeros((2, size, size), "u1")),
                "b": (("y",), np.zeros(size, "f4")),
                "c": (("x",), np.zeros(size, "f4")),
            }
        )
        store = write_store(ds, {"band": (1, size, size), "b": (10,), "c": (10,)})
        samples = xloader.open(store).window(time=1, y=2, x=2, stride=1)
        with pytest.raises(MemoryBudgetError) as caught:
            samples.field("f", "band", "b", "c").is_valid(memory=1, cache=False)
        return caught.value.minimum_nbytes

    assert least(401) <= 4 * least(101)
