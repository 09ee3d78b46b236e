"""Concatenated sources equal xr.concat, chunk by chunk, and refusals say why."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from tests.sources import kinds
from xloader import Samples
from xloader.errors import (
    MissingChunkError,
    OptionError,
    SourceNotFoundError,
    UnknownNameError,
    UnsupportedDataError,
)
from xloader.recipe.recipe import Recipe
from xloader.samples.join import concat
from xloader.sources.base import Read, Source
from xloader.sources.combined.concat_source import ConcatSource, concat_sources
from xloader.sources.open.open_source import open_source
from xloader.testing import CountingStore, LatencyStore, write_store


def year(first: int, size: int) -> xr.Dataset:
    """Days from day ``first`` on; every value tells its day and place."""
    days = np.arange(first, first + size)
    t2m = (days[:, None] * 10.0 + np.arange(3)).astype("f4")
    return xr.Dataset(
        {"t2m": (("time", "lat"), t2m, {"units": "K"}), "oro": ("lat", np.arange(3.0) + first)},
        coords={
            "time": np.datetime64("2000-01-01", "ns") + days * np.timedelta64(1, "D"),
            "lat": [60.0, 0.0, -60.0],
            "model": first,
        },
    )


def joined(parts: Sequence[xr.Dataset], dim: str = "time") -> xr.Dataset:
    return xr.concat(
        parts, dim, data_vars="minimal", coords="minimal", compat="override", join="override"
    )


# Values


@given(
    sizes=st.lists(st.integers(0, 7), min_size=1, max_size=4).filter(sum),
    chunks=st.lists(st.integers(1, 8), min_size=4, max_size=4),
    is_one_chunk=st.booleans(),
    data=st.data(),
)
def test_any_parts_any_window(
    sizes: list[int], chunks: list[int], is_one_chunk: bool, data: st.DataObject
) -> None:
    parts, first = [], 0
    for size, chunk in zip(sizes, chunks, strict=False):
        part = year(first, size)
        part["t2m"].encoding["preferred_chunks"] = {
            "time": chunks[0] if is_one_chunk else chunk,
            "lat": 2,
        }
        parts.append(part)
        first += size
    whole = joined(parts)
    window = data.draw(st.integers(1, sum(sizes)), label="window")
    stride = data.draw(st.integers(1, 3), label="stride")
    samples = concat(parts).window(time=window, stride=stride).inputs("t2m")
    source = samples.recipe.source
    variable = source.variables["t2m"]
    expected_sizes = [
        min(edge + chunk, size) - edge
        for size, chunk in zip(sizes, [chunks[0]] * 4 if is_one_chunk else chunks, strict=False)
        for edge in range(0, size, chunk)
    ]
    spans = [kinds.span(variable, 0, index) for index in range(kinds.num_chunks(variable)[0])]
    assert [stop - start for start, stop in spans] == expected_sizes
    np.testing.assert_array_equal(kinds.read_all(source, "t2m"), whole["t2m"])
    for index in range(len(samples)):
        expected = whole["t2m"].isel(time=slice(index * stride, index * stride + window))
        np.testing.assert_array_equal(samples[index][0][0], expected)


def test_an_epoch_reads_each_chunk_of_each_part_once(tmp_path: Path) -> None:
    stores = []
    for first, size in [(0, 10), (10, 9), (19, 14)]:
        stores.append(CountingStore(write_store(year(first, size), {"t2m": (4, 3)})))
    samples = concat(stores)
    reads = {key for store in stores for key in store.reads}
    assert {key.partition("/")[0] for key in reads} <= {"time", "lat"}, "opening read data"
    whole = joined([year(0, 10), year(10, 9), year(19, 14)])
    windowed = samples.window(time=3, stride=1).inputs("t2m")
    seen = {}
    with windowed.loader(batch_size=4, shuffle=True, seed=1, output="numpy") as loader:
        predicted = loader.explain().num_reads
        for batch in loader:
            seen.update(zip(batch.ids.tolist(), batch.inputs[:, 0], strict=True))
    assert sorted(seen) == list(range(31))
    for index, values in seen.items():
        np.testing.assert_array_equal(values, whole["t2m"][index : index + 3])
    keys = [sorted(k for k in store.reads if k.startswith("t2m/")) for store in stores]
    assert keys == [[f"t2m/c/{i}/0" for i in range(n)] for n in (3, 3, 4)]
    assert {n for s in stores for k, n in s.reads.items() if k.startswith("t2m/")} == {1}
    assert predicted == 10


def test_a_static_variable_and_attributes_are_the_first_ones() -> None:
    second = year(5, 4).assign_attrs(a=1)
    second["t2m"].attrs["units"] = "degC"
    source = concat([year(0, 5), second]).recipe.source
    assert source.variables["t2m"].attrs == {"units": "K"}
    np.testing.assert_array_equal(kinds.read_all(source, "oro"), [0.0, 1.0, 2.0])
    assert source.coordinates()["model"].item() == 0


def test_decreasing_labels_go_on_decreasing() -> None:
    north, south = year(0, 4).isel(lat=[0, 1]), year(0, 4).isel(lat=[2])
    samples = concat([north, south], "lat", variables="t2m").window(lat=3).inputs("t2m")
    np.testing.assert_array_equal(samples[0][0][0], year(0, 4)["t2m"])
    with pytest.raises(OptionError, match="not in the order of their labels along 'lat'"):
        concat([south, north], "lat")


def test_sources_without_labels_are_taken_as_they_come() -> None:
    parts = [year(first, 4).drop_vars("time") for first in (4, 0)]
    samples = concat(parts).window(time=2).inputs("t2m")
    assert samples[0][0][0, 0, 0] == 40.0
    assert "time" not in samples.coords


def _rounded(first: int, dtype: str, off: float = 0.0) -> xr.Dataset:
    return year(first, 4).assign_coords(lat=np.array([0.1, 0.2 + off, 0.3]).astype(dtype))


def test_a_grid_that_differs_by_rounding_is_one_grid() -> None:
    samples = concat([_rounded(0, "f8"), _rounded(4, "f4"), _rounded(8, "f8")])
    assert len(samples.window(time=2, stride=1)) == 11
    assert samples.coords["lat"].values.tolist() == [0.1, 0.2, 0.3]


def test_text_labels_have_no_order() -> None:
    parts = [
        xr.Dataset({"a": ("member", np.arange(2.0))}, {"member": names})
        for names in (["r2", "r10"], ["r1", "r3"])
    ]
    samples = concat(parts, "member")
    assert samples.coords["member"].values.tolist() == ["r2", "r10", "r1", "r3"]
    with pytest.raises(OptionError, match=r"'member' occurs twice. Given: 'r2' in .*number 1 of 2"):
        concat([parts[0], parts[0]], "member")


# Packed values


def packed(
    scale: float, values: Sequence[int], dtype: str = "i2", *, absent: str = "", waits: bool = False
) -> Any:
    """A source of packed integers in chunks of two, of which -1 is missing."""
    stored = np.array(values).astype(dtype)
    attrs = {"scale_factor": scale, "add_offset": 1.0, "_FillValue": np.array(-1).astype(dtype)[()]}
    store = write_store(xr.Dataset({"a": ("time", stored, attrs)}), {"a": (2,)})
    store._store_dict.pop(absent, None)
    return open_source(LatencyStore(store, 0.0) if waits else store, on_missing="fill")


def test_one_packing_stays_packed() -> None:
    source = concat_sources([packed(0.5, [1, 2, 3]), packed(0.5, [4, 5])], "time")
    assert source.variables["a"].packing is not None
    assert source.variables["a"].stored_dtype == np.int16
    out = np.empty(1, "i2")
    kinds.read_into(source, "a", (2,), (slice(1, 2),), out)
    assert out.tolist() == [5]
    samples = Samples(Recipe(source)).window(time=5)
    np.testing.assert_array_equal(samples[0][0], [1.5, 2.0, 2.5, 3.0, 3.5])
    assert "unpacked" not in source.path_of("a")


@pytest.mark.parametrize("dtype", ["i2", "u1"])
def test_packings_that_differ_are_undone_as_read(dtype: str) -> None:
    parts = [packed(0.5, [1, -1, 0], absent="a/c/1"), packed(2.0, [2, -1], dtype, waits=True)]
    source = concat_sources(parts, "time")
    variable = source.variables["a"]
    assert variable.packing is None
    assert variable.stored_dtype == np.float32
    assert source.is_waiting("a")
    expected = [1.5, np.nan, 1.0, 5.0, np.nan]
    np.testing.assert_array_equal(kinds.read_all(source, "a"), expected)
    assert source.path_of("a").endswith("unpacked while reading because their packings differ")
    out = np.full(7, 77, "f4")
    fetched = source.fetch([Read("a", (chunk,), (slice(None),)) for chunk in (2, 0, 1)])
    outcome = fetched.decode([out[4:6], out[0:2], out[3:4]])
    np.testing.assert_array_equal(out, [1.5, np.nan, 77, 1.0, 5.0, np.nan, 77])
    assert (outcome.num_missing, outcome.num_requests) == (1, 3)
    samples = Samples(Recipe(source)).window(time=1).inputs("a")
    options = {"batch_size": 5, "output": "numpy", "on_nan": "ignore"}
    with samples.loader(shuffle=False, **options) as loader:
        np.testing.assert_array_equal(next(iter(loader)).inputs[:, 0, 0], expected)


def test_equal_factors_of_other_types_are_not_one_packing() -> None:
    # NumPy multiplies float32 by a float in float32, and by a numpy.float64 in float64.
    parts = [packed(0.1, range(40)) for _ in range(2)]
    packings, own = [], []
    for part, scale in zip(parts, (0.1, np.float64(0.1)), strict=True):
        changes = {"scale": scale, "offset": None, "wide_dtype": np.dtype("f4")}
        packings.append(replace(part.variables["a"].packing, **changes))
        part._variables = {"a": replace(part.variables["a"], packing=packings[-1])}
        own.append(packings[-1].unpack(np.arange(40, dtype="i2")))
    assert packings[0] == packings[1]
    assert own[0].tolist() != own[1].tolist()
    source = concat_sources(parts, "time")
    np.testing.assert_array_equal(kinds.read_all(source, "a"), np.concatenate(own))


# Requests to the parts


def test_bundles_are_those_of_a_part() -> None:
    parts = [
        write_store(year(first, 8), {"t2m": (2, 3)}, encoding={"t2m": {"shards": (4, 3)}})
        for first in (0, 8)
    ]
    own = open_source(parts[0])
    source = concat_sources([own, open_source(parts[1])], "time")
    chunks = [(i, 0) for i in range(8)]
    bundles = [source.bundle_of("t2m", chunk) for chunk in chunks]
    for (i, one), (j, other) in itertools.combinations(enumerate(bundles), 2):
        is_together = own.bundle_of("t2m", (i % 4, 0)) == own.bundle_of("t2m", (j % 4, 0))
        assert (one == other) == (i // 4 == j // 4 and is_together)


def test_a_lost_chunk_is_named_with_its_file(tmp_path: Path) -> None:
    paths = [tmp_path / "a.zarr", tmp_path / "b.zarr"]
    for number, path in enumerate(paths):
        write_store(year(6 * number, 6), {"t2m": (2, 3)}, path)
    (paths[1] / "t2m" / "c" / "1" / "0").unlink()
    samples = concat(paths, on_missing="raise").window(time=1)
    np.testing.assert_array_equal(samples[7][0], year(7, 1)["t2m"])
    with pytest.raises(MissingChunkError, match=r"chunk \(1, 0\), key 't2m/c/1/0' in .*b.zarr"):
        samples[8]


def test_many_parts_pickle_small(tmp_path: Path) -> None:
    parts: list[Source] = []
    for number in range(12):
        path = tmp_path / f"{number}.zarr"
        write_store(year(7 * number, 7), {"t2m": (2, 3)}, path)
        parts.append(open_source(path))
    source = concat_sources(parts, "time")
    data = pickle.dumps(source)
    assert len(data) < 5 * 1024
    copy = pickle.loads(data)
    assert copy.variables == source.variables
    assert copy.fingerprint == source.fingerprint
    np.testing.assert_array_equal(kinds.read_all(copy, "t2m"), year(0, 84)["t2m"])
    assert copy.coordinates().sizes["time"] == 84


def test_pickles_that_hold_data_are_not_compressed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xloader.sources.combined.concat_source._MOST_COMPRESSED_NBYTES", 10)
    source = concat_sources([open_source(year(0, 5)), open_source(year(5, 5))], "time")
    make, arguments = source.__reduce__()
    assert make is ConcatSource
    np.testing.assert_array_equal(kinds.read_all(make(*arguments), "t2m"), year(0, 10)["t2m"])


def test_fingerprint_tells_order_and_dim() -> None:
    a, b = (open_source(year(first, size)) for first, size in [(0, 4), (4, 5)])
    prints = [
        ConcatSource((a, b), "time").fingerprint,
        ConcatSource((b, a), "time").fingerprint,
        ConcatSource((a, a), "lat").fingerprint,
        ConcatSource((a, a), "time").fingerprint,
    ]
    assert len(set(prints)) == 4
    assert ConcatSource((a, b), "time").fingerprint == prints[0]


# Coordinates


def test_coordinates_along_the_dim_that_all_have_are_joined(tmp_path: Path) -> None:
    parts = []
    for first in (0, 5):
        part = year(first, 5)
        swath = part["t2m"].values + 0.5
        part = part.assign_coords(
            week=("time", np.arange(first, first + 5) // 7), swath=(("time", "lat"), swath)
        )
        parts.append(part)
    expected = joined(parts).coords.to_dataset()
    lone = [parts[0].assign_coords(lone=("time", np.arange(5))), parts[1]]
    xr.testing.assert_identical(concat(lone).coords.to_dataset().drop_attrs(), expected)
    paths = [tmp_path / "a.nc", tmp_path / "b.nc"]
    for part, path in zip(parts, paths, strict=True):
        part.to_netcdf(path)
    coordinates = concat(paths).coords
    assert coordinates["swath"].chunks is not None, "read although nobody asked"
    xr.testing.assert_identical(coordinates.to_dataset().drop_attrs(), expected)
    one = concat(paths).window(time=2, stride=1).inputs("t2m", time=1).to_xarray(4)
    assert one["swath"].values.tolist() == [50.5, 51.5, 52.5]


# xloader.concat


def test_a_pattern_stands_for_what_matches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (2, 0, 1):
        write_store(year(5 * number, 5), {"t2m": (2, 3)}, tmp_path / f"y{number}.zarr")
    monkeypatch.chdir(tmp_path)
    for pattern in ("y*.zarr", [str(tmp_path / "y[01].zarr"), Path("y2.zarr")], Path("y?.zarr")):
        samples = concat(pattern)
        assert samples.sizes["time"] == 15
        np.testing.assert_array_equal(
            samples.window(time=15).inputs("t2m")[0][0][0], year(0, 15)["t2m"]
        )
    with pytest.raises(
        SourceNotFoundError, match=r"no file or folder matches this pattern. Given: z\*"
    ):
        concat("z*")
    (tmp_path / "y[0].zarr").symlink_to(tmp_path / "y1.zarr")
    assert concat(["y[0].zarr"]).coords["time"][0] == year(5, 1)["time"][0]


def test_a_single_source_is_itself() -> None:
    samples = concat(year(0, 6)).window(time=2, stride=1)
    assert samples.recipe.source.path_of("t2m") == "block by block through xarray: numpy"
    assert samples.to_xarray(3).identical(year(0, 6).xloader.window(time=2, stride=1).to_xarray(3))


def test_variables_may_come_from_an_iterator() -> None:
    names = iter(["t2m"])
    assert concat((year(4 * n, 4) for n in range(3)), variables=names).recipe.variables == ("t2m",)


def test_options_go_to_every_source(tmp_path: Path) -> None:
    paths = [tmp_path / "a.zarr", tmp_path / "b.zarr"]
    encoding = {"t2m": {"dtype": "i2", "scale_factor": 0.125, "_FillValue": -9}}
    for number, path in enumerate(paths):
        write_store(year(6 * number, 6), {"t2m": (2, 3)}, path, encoding=encoding)
    assert concat(paths, variables="t2m", dtype="float64").window(time=2).dtypes == {
        "t2m": np.float64
    }
    packed = concat(paths, variables="t2m", mask_and_scale=False)
    assert packed.window(time=2).dtypes == {"t2m": np.int16}
    with pytest.raises(OptionError, match="cannot be used with a Dataset that is already open"):
        concat([*paths, year(12, 6)], decode_times=True)


def _of_dtype(first: int, dtype: str) -> xr.Dataset:
    return year(first, 4)[["t2m"]].astype(dtype)


def _calendar(first: int, calendar: str) -> xr.Dataset:
    return year(first, 4).convert_calendar(calendar, use_cftime=True)


REFUSALS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "no source": (lambda: concat([]), OptionError, "nothing to join. Given: no source"),
    "no list": (lambda: concat(3), UnsupportedDataError, r"Given: builtins.int.*pass a list"),
    "a dim that none has": (
        lambda: concat([year(0, 4), year(4, 4)], "tine"),
        UnknownNameError,
        "number 1 of 2.* has no dimension 'tine'.*Allowed: 'time', 'lat'",
    ),
    "a dim that one lacks": (
        lambda: concat([year(0, 4), year(4, 1).squeeze("time")]),
        UnknownNameError,
        r"2 of 2.* has no dimension 'time'.*expand_dims.*different ones.*open\(\[a, b\]\)",
    ),
    "a variable that one lacks": (
        lambda: concat([year(0, 4), year(4, 4).drop_vars("oro")]),
        UnknownNameError,
        r"2 of 2\) has no variable 'oro', but .*1 of 2.*variables=\['t2m'\].*open\(\[a, b\]\)",
    ),
    "a variable that the first lacks": (
        lambda: concat([year(0, 4).drop_vars("oro"), year(4, 4)]),
        UnknownNameError,
        r"number 1 of 2\) has no variable 'oro', but .*2 of 2",
    ),
    "nothing in common": (
        lambda: concat([year(0, 4)[["t2m"]], year(0, 4)[["oro"]].expand_dims(time=4)]),
        UnknownNameError,
        r"has no variable 'oro'.*to open different variables together, use .*open\(\[a, b\]\)",
    ),
    "another size": (
        lambda: concat([year(0, 4), year(4, 4).isel(lat=[0, 1])]),
        OptionError,
        r"labels along 'lat' differ.*Given: 3 and 2 labels in .*1 of 2\) and .*2 of 2\)",
    ),
    "another size without labels": (
        lambda: concat([y.drop_vars("lat") for y in (year(0, 4), year(4, 4).isel(lat=[0, 1]))]),
        OptionError,
        r"differ in the size along 'lat' of 't2m'.*Given: 3 in .*1 of 2\), 2 in .*2 of 2\)",
    ),
    "another size of a static": (
        lambda: concat([year(0, 4)[["t2m"]], year(4, 4)[["t2m"]].transpose()]),
        OptionError,
        r"differ in the dimensions of 't2m'.*\('time', 'lat'\) in .*\('lat', 'time'\)",
    ),
    "other chunks": (
        lambda: concat([year(0, 4).chunk({"lat": 3}), year(4, 4).chunk({"lat": 2})]),
        OptionError,
        r"differ in the chunks along 'lat' of 't2m'.*\(3,\) in .*\(2, 1\) in .*use .chunk",
    ),
    "another dtype": (
        lambda: concat([_of_dtype(0, "f4"), _of_dtype(4, "f8")]),
        OptionError,
        "differ in the dtype of 't2m'.*float32 in .*float64 in .*astype.*dtype=",
    ),
    "other labels of another dim": (
        lambda: concat([year(0, 4), year(4, 4).assign_coords(lat=[60, 1, -60])]),
        OptionError,
        r"labels along 'lat' differ.*0.0 and 1.* at position 1 in .*1 of 2\) and .*2 of 2\)",
    ),
    "other labels but for rounding": (
        lambda: concat([_rounded(0, "f8"), _rounded(4, "f4", 0.01)]),
        OptionError,
        r"labels along 'lat' differ.*0.2 and 0.209.* at position 1 in .*regrid them",
    ),
    "the same labels in reverse": (
        lambda: concat([year(0, 4), year(4, 4).isel(lat=slice(None, None, -1))]),
        OptionError,
        r"labels along 'lat' differ.*same in reverse order: turn one source, by .isel\(lat=slice",
    ),
    "labels in one only": (
        lambda: concat([year(0, 4), year(4, 4).drop_vars("time")]),
        OptionError,
        r"only some sources have labels along 'time'.*labels in .*1 of 2\), none in .*2 of 2\)",
    ),
    # This is said first, although their chunks differ too.
    "overlap": (
        lambda: concat([year(0, 5).chunk({"lat": 2}), year(4, 4).chunk({"lat": 1})]),
        OptionError,
        r"two sources overlap along 'time'.*\(2000-01-01.* to 2000-01-05.*\(2000-01-05.*leave one",
    ),
    "out of order": (
        lambda: concat([year(4, 4), year(0, 4), year(8, 1)]),
        OptionError,
        r"not in the order.*Allowed: .*number 2 of 3\), .*1 of 3\), .*3 of 3\). .*in this order",
    ),
    "single steps out of order": (
        lambda: concat([year(4, 1), year(0, 1), year(8, 1)]),
        OptionError,
        r"not in the order.*Allowed: .*number 2 of 3\), .*1 of 3\), .*3 of 3\)",
    ),
    "turning within": (
        lambda: concat([year(0, 4), year(4, 4).isel(time=[0, 2, 1, 3])]),
        OptionError,
        r"number 2 of 2\) neither increase nor decrease. Given: 2000-01-05.*, 2000-01-07.*sortby",
    ),
    "up and down": (
        lambda: concat([year(0, 4), year(4, 4).isel(time=slice(None, None, -1))]),
        OptionError,
        "increase in one source and decrease in another",
    ),
    "calendars": (
        lambda: concat([_calendar(0, "noleap"), _calendar(4, "standard")]),
        OptionError,
        "two kinds. Given: cftime dates of the calendar 'noleap' in .*'standard'.*convert_calendar",
    ),
    "cftime and datetime64": (
        lambda: concat([year(0, 4), _calendar(4, "noleap")]),
        OptionError,
        "two kinds. Given: datetime64 dates in .*, cftime dates of the calendar 'noleap' in",
    ),
    "numbers and dates": (
        lambda: concat([year(0, 4), year(4, 4).assign_coords(time=np.arange(4))]),
        OptionError,
        "two kinds. Given: datetime64 dates in .*, numbers in .*the same kind of labels",
    ),
}


@pytest.mark.parametrize(("make", "kind", "words"), REFUSALS.values(), ids=REFUSALS)
def test_refusals_say_which_and_how(make: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        make()


def test_dates_of_one_calendar_join() -> None:
    samples = concat([_calendar(0, "noleap"), _calendar(4, "noleap")])
    assert samples.coords.indexes["time"].calendar == "noleap"
    assert samples.sizes["time"] == 8
