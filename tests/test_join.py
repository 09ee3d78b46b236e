"""Several sources in one plan: what is read and counted, what is left out, which names result."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import xloader
from xloader.errors import (
    EmptySamplesError,
    MissingChunkError,
    OptionError,
    StoreChangedError,
    UnknownNameError,
    UnsupportedDataError,
    XloaderError,
)
from xloader.testing import CountingStore, write_store

# Budgets are as small as possible, so poor mixing and extra reads are normal here.
pytestmark = pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")

CHUNKS = {"t2m": (8, 6, 4), "rain": (24, 5, 7), "oro": (6, 4)}


def times(count: int, hours: int, first: str = "2000-01-01") -> np.ndarray:
    return np.datetime64(first, "ns") + np.arange(count) * np.timedelta64(hours, "h")


def era5(count: int = 160) -> xr.Dataset:
    values = np.arange(count * 48, dtype="f4").reshape(count, 6, 8)
    coords = {"time": times(count, 6), "lat": np.arange(6.0), "lon": np.arange(8.0)}
    return xr.Dataset({"t2m": (("time", "lat", "lon"), values)}, coords)


def radar(count: int = 960) -> xr.Dataset:
    values = np.arange(count * 35, dtype="f4").reshape(count, 5, 7)
    return xr.Dataset(
        {"rain": (("time", "y", "lon"), values)}, {"time": times(count, 1), "lon": np.arange(7.0)}
    )


def orography() -> xr.Dataset:
    oro = np.arange(48, dtype="f4").reshape(6, 8)
    return xr.Dataset({"oro": (("lat", "lon"), oro)}, {"lat": np.arange(6.0)})


def stores() -> dict[str, CountingStore]:
    every = {"era5": era5(), "radar": radar(), "static": orography()}
    return {
        name: CountingStore(write_store(data, {v: CHUNKS[v] for v in data.data_vars}))
        for name, data in every.items()
    }


# Reads


@given(data=st.data())
def test_laws_of_any_join(data: st.DataObject) -> None:
    """Values equal those of `reindex`, and predicted reads are counted reads, for any labels."""
    labels = st.lists(st.integers(0, 60), min_size=1, max_size=40, unique=True).map(sorted)
    method = data.draw(st.sampled_from([None, "nearest", "ffill"]), label="method")
    tolerance = None if method is None else data.draw(st.sampled_from([None, 0, 2, 9]))
    parts, opened = {}, {}
    for name in "abc"[: data.draw(st.integers(2, 3), label="sources")]:
        own = np.array(data.draw(labels, label=f"labels of {name}"))
        values = 100.0 * own[:, None] + np.arange(3) + ord(name)
        parts[name] = xr.Dataset({"v": (("time", "x"), values)}, {"time": own})
        chunks = data.draw(st.tuples(st.integers(1, len(own)), st.integers(1, 3)))
        opened[name] = CountingStore(write_store(parts[name], {"v": chunks}))
    first = parts["a"].time.values
    found = [
        pd.Index(part.time).get_indexer(first, method=method, tolerance=tolerance)
        for part in parts.values()
    ]
    kept = np.all([elements >= 0 for elements in found], axis=0)
    if not kept.any():
        with pytest.raises(EmptySamplesError):
            xloader.join(opened, method=method, tolerance=tolerance)
        return
    joined = xloader.join(opened, method=method, tolerance=tolerance)
    size = data.draw(st.integers(1, int(kept.sum())), label="window")
    samples = joined.window(time=size, stride=1, gaps="allow")
    expected = [
        part.v.values[elements[kept]] for part, elements in zip(parts.values(), found, strict=True)
    ]
    memory = data.draw(st.sampled_from(["16KiB", "64KiB"]), label="memory")
    with samples.loader(batch_size=3, memory=memory, output="numpy", prefetch=0) as loader:
        plan = loader.explain()
        for store in opened.values():
            store.reset()
        for batch in loader:
            for row, index in enumerate(batch.ids):
                for array, wanted in zip(batch, expected, strict=True):
                    np.testing.assert_array_equal(array[row], wanted[index : index + size])
        assert sum(store.num_reads for store in opened.values()) == plan.num_reads
        assert loader.report().peak_nbytes <= plan.peak_nbytes


def test_repeated_elements_are_read_once_and_take_their_memory() -> None:
    opened = stores()
    samples = xloader.join({"radar": opened["radar"], "era5": opened["era5"]}, method="ffill")
    variable = samples.recipe.source.variables["era5/t2m"]
    assert variable.shape == (960, 6, 8)
    assert variable.chunks == (48, 6, 4)
    with samples.window(time=6).loader(batch_size=4, memory="2MiB", output="numpy") as loader:
        expected = loader.explain()
        assert expected.read_nbytes == 4 * 960 * (48 + 35)
        opened["era5"].reset()
        for _ in loader:
            pass
        assert loader.report().peak_nbytes <= expected.peak_nbytes
    assert opened["era5"].num_reads == 40


def test_a_thinned_source_decodes_only_chunks_with_labels() -> None:
    """Of a source with chunks of two hours, two of three chunks hold no common label."""
    store = CountingStore(write_store(radar(), {"rain": (2, 5, 7)}))
    samples = xloader.join({"era5": era5(), "radar": store}).window(time=1)
    with samples.loader(batch_size=8, memory="1MiB", output="numpy") as loader:
        expected = loader.explain()
        store.reset()
        for _ in loader:
            pass
    assert store.num_reads == 160
    assert expected.num_reads == 160 + 1


def test_variables_that_share_dask_tasks_are_computed_together() -> None:
    calls: list[int] = []

    def counted(block: np.ndarray) -> np.ndarray:
        calls.append(len(block))
        return block

    wide = radar(96).chunk({"time": 24})
    wide["rain"] = wide.rain.copy(data=wide.rain.data.map_blocks(counted, dtype="f4"))
    both = xr.Dataset({"a": wide.rain + 1, "b": wide.rain * 2})
    samples = xloader.join({"era5": era5(16), "radar": both}).window(time=2)
    calls.clear()
    with samples.loader(batch_size=4, memory="1MiB", output="numpy") as loader:
        for _ in loader:
            pass
    assert len(calls) == 4


@pytest.fixture
def paths(tmp_path: Path) -> dict[str, Path]:
    for name, data in {"radar": radar(), "era5": era5()}.items():
        write_store(data, {v: CHUNKS[v] for v in data.data_vars}, tmp_path / name)
    return {name: tmp_path / name for name in ("radar", "era5")}


def test_worker_processes_and_pickles_read_the_same(paths: dict[str, Path]) -> None:
    joined = xloader.join(paths, method="ffill")
    samples = joined.window(time=5).inputs("radar/rain").targets("era5/t2m", time=4)
    options: dict[str, Any] = {"batch_size": 8, "memory": "2MiB", "output": "numpy"}
    with samples.loader(**options, plan=xloader.PlanRules(lanes=2)) as loader:
        wanted = [(b.ids, b.inputs.copy(), b.targets.copy()) for b in loader]
    with pickle.loads(pickle.dumps(samples)).loader(
        **options, plan=xloader.PlanRules(lanes=2), processes=2
    ) as loader:
        for batch, (ids, inputs, targets) in zip(loader, wanted, strict=True):
            np.testing.assert_array_equal(batch.ids, ids)
            np.testing.assert_array_equal(batch.inputs, inputs)
            np.testing.assert_array_equal(batch.targets, targets)


@pytest.mark.parametrize("changed", ["era5", "radar"])
def test_a_store_that_changes_is_an_error(changed: str, paths: dict[str, Path]) -> None:
    """The new chunks have as many bytes and decode, so only a look at the metadata shows them."""
    data = {"era5": ("t2m", era5(), (4, 12, 4)), "radar": ("rain", radar(), (12, 10, 7))}
    samples = xloader.join(paths, method="ffill").window(time=4)
    samples[3]
    variable, dataset, chunks = data[changed]
    write_store(dataset, {variable: chunks}, paths[changed])
    with pytest.raises(StoreChangedError, match=rf"variable '{variable}'.*chunk_grid"):
        samples[3]


def test_a_chunk_that_is_absent_is_an_error(paths: dict[str, Path]) -> None:
    strict = xloader.open(paths["radar"], on_missing="raise")
    samples = xloader.join({"radar": strict, "era5": era5()}, method="ffill").window(time=4)
    (paths["radar"] / "rain/c/2/0/0").unlink()
    samples[3]
    with pytest.raises(MissingChunkError, match="rain"):
        samples[14]


def test_verbs_work_on_joined_samples() -> None:
    holes = radar()
    holes["rain"][100:130] = np.nan
    samples = xloader.join({"radar": holes, "era5": era5()}, method="ffill").window(time=8)
    kept = samples.dropna("radar/rain")
    assert len(kept) == len(samples) - 5
    split = samples.split(time={"train": 0.5, "valid": 0.5})
    assert xloader.overlap(split["train"], split["valid"]) == 0
    scaled = samples.normalize({"radar/rain": (1.0, 2.0), "era5/t2m": (0.0, 4.0)})
    np.testing.assert_array_equal(scaled[0][1], samples[0][1] / 4)
    clipped = samples.map(lambda batch: batch.assign(wet=batch["radar/rain"] > 5))
    assert clipped[0][2].shape == (8, 5, 7)


def test_forcings_of_a_source_and_of_the_join_are_no_reads() -> None:
    opened = stores()
    own = xloader.open(opened["era5"]).forcing("latitude", day=lambda time: time.dt.dayofyear)
    joined = xloader.join({"radar": opened["radar"], "era5": own}, method="ffill")
    samples = joined.forcing(hour=lambda time: time.dt.hour).window(time=2)
    with samples.loader(batch_size=8, memory="1MiB", output="numpy") as loader:
        expected = loader.explain()
        for store in opened.values():
            store.reset()
        for batch in loader:
            hours = 2 * batch.ids[:, None] + [0, 1]
            np.testing.assert_array_equal(batch["hour"], hours % 24)
            np.testing.assert_array_equal(batch["era5/day"], hours // 24 + 1)
        assert sum(store.num_reads for store in opened.values()) == expected.num_reads == 80


def test_a_million_times_pickle_small(tmp_path: Path) -> None:
    """Also where the elements are no range: repeated, and with holes."""
    hours = times(10**6, 1, "1900-01-01")
    kept = np.delete(np.arange(10**6), [5, 77, 500_000])
    for name, some in {"fine": hours, "coarse": hours[::6], "holes": hours[kept]}.items():
        size = len(some)
        data = xr.Dataset({name: ("time", np.zeros(size, "u1"))}, {"time": some})
        write_store(data, {name: (10**5,)}, tmp_path / f"{name}.zarr")
    names = ["holes", "fine", "coarse"]
    samples = xloader.join({n: tmp_path / f"{n}.zarr" for n in names}, method="ffill")
    samples = samples.window(time=24)
    data = pickle.dumps(samples)
    assert len(data) <= 64 * 1024
    copy = pickle.loads(data)
    assert copy.recipe == samples.recipe
    assert len(copy) == len(samples)
    np.testing.assert_array_equal(copy[3][0], samples[3][0])


# What is left out


def test_labels_left_out_are_counted_and_shown() -> None:
    late = radar().isel(time=slice(30, 900))
    samples = xloader.join({"era5": era5(), "radar": late})
    told = "along time, 15 of 160 labels of era5 are left out, because radar has none for them"
    used = "along time, 145 of 870 labels of radar are used"
    assert samples.recipe.source.notes == (f"{told} (first: 2000-01-01T00:00:00)", used)
    assert told in repr(samples)
    assert used in repr(samples)
    windows = samples.window(time=2)
    assert told in repr(windows)
    assert told in str(windows.explain(memory="1MiB"))
    with windows.loader(batch_size=4, output="numpy") as loader:
        assert any(told in note for note in loader.explain().notes)
    again = xloader.join({"a": samples, "b": orography()})
    assert told in repr(again)


def test_labels_left_out_in_the_middle_are_a_gap() -> None:
    holes = radar().isel(time=np.delete(np.arange(960), [60, 66]))
    samples = xloader.join({"era5": era5(), "radar": holes}).window(time=4, stride=1)
    assert samples.recipe.dim_sizes["time"] == 158
    assert "along time" in repr(samples)
    for index in range(len(samples)):
        steps = np.diff(samples.to_xarray(index).time)
        assert set(steps.tolist()) == {6 * 3600 * 10**9}


def test_tolerance_limits_what_is_found() -> None:
    shifted = radar().assign_coords(time=radar().time + np.timedelta64(20, "m"))
    sources = {"era5": era5(), "radar": shifted}
    joined = xloader.join(sources, method="nearest", tolerance="30min")
    assert joined.recipe.dim_sizes["time"] == 160
    with pytest.raises(EmptySamplesError, match=r"no label along 'time' in common.*tolerance"):
        xloader.join(sources, method="nearest", tolerance="10min")
    assert xloader.join(sources, method="ffill").recipe.dim_sizes["time"] == 159


# Names


def test_dims_are_shared_where_their_labels_are_equal() -> None:
    finer = era5(4).assign_coords(lat=np.arange(6) / 2)
    sources = {"a": era5(4), "b": finer, "c": finer.astype("f8"), "d": orography()}
    joined = xloader.join(sources)
    dims = {name: variable.dims for name, variable in joined.recipe.source.variables.items()}
    assert dims == {
        "a/t2m": ("time", "lat", "lon"),
        "b/t2m": ("time", "b/lat", "lon"),
        "c/t2m": ("time", "b/lat", "lon"),
        "d/oro": ("lat", "lon"),
    }


def test_a_grid_that_differs_by_rounding_is_one_grid() -> None:
    grid = np.arange(360 * 4) / 4 + 0.1
    one = xr.Dataset({"a": ("x", np.zeros(1440))}, {"x": grid})
    for other, is_shared in [
        (grid.astype("f4"), True),
        (grid + 1e-12, True),
        (grid + 0.01, False),
        (grid.astype("f4") + np.float32(0.01), False),
    ]:
        both = xloader.join({"n": era5(4), "a": one, "b": one.assign_coords(x=other)})
        assert (both.recipe.source.variables["b/a"].dims == ("x",)) is is_shared
        assert both.coords["x"].dtype == np.float64


@pytest.mark.parametrize(("dim", "turned"), [("lat", "a"), ("step", "b")])
def test_a_grid_in_reverse_order_is_told_and_can_be_turned(dim: str, turned: str) -> None:
    hours = np.arange(0, 24, 6).astype("m8[h]").astype("m8[ns]")
    values = np.random.default_rng(0).random((3, 4, 5))
    ds = xr.Dataset(
        {"t": (("time", "step", "lat"), values)},
        {"time": np.arange(3), "step": hours, "lat": np.linspace(-60, 60, 5)},
    )
    one = {"a": ds, "b": ds.chunk(time=1)}
    one[turned] = one[turned].isel({dim: slice(None, None, -1)})
    joined = xloader.join({**one, "c": one["b"].astype("f4")})
    told = f"along {dim} and b/{dim}, the labels are the same in reverse order"
    advice = f"turn one source, by .isel({dim}=slice(None, None, -1))"
    assert joined.recipe.source.notes == (f"{told}: {advice}",)
    windows = joined.window(time=1)
    assert told in repr(joined)
    assert told in str(windows.explain(memory="1MiB"))
    for other in ("b/t", "c/t"):
        with pytest.raises(OptionError, match=f"cannot share one array.*{told}: turn one source"):
            windows.inputs("a/t", other).shapes  # noqa: B018
    one[turned] = xloader.open(one[turned]).isel({dim: slice(None, None, -1)})
    again = xloader.join(one).window(time=1).inputs("a/t", "b/t")
    assert again.recipe.source.notes == ()
    np.testing.assert_array_equal(again[2][0][:, 0], np.stack([values[2], values[2]]))


def test_labels_in_another_order_are_told_and_other_labels_are_not() -> None:
    one = xr.Dataset({"a": (("x", "level"), np.zeros((4, 3)))}, {"x": range(4), "level": [*"tuv"]})
    for dim, labels, order in [
        ("level", ["u", "v", "t"], "another"),
        ("level", ["v", "u", "t"], "reverse"),
        ("level", ["v", "u", "s"], ""),
        ("level", ["t", "u", "v"], ""),
    ]:
        other = one.assign_coords({dim: labels})
        (*notes,) = xloader.join({"a": one, "b": other}, on="x").recipe.source.notes
        assert [f"in {order} order" in note for note in notes] == [True] * bool(order)
        tree = xr.DataTree.from_dict({"/a": one, "/b": other}).xloader
        assert tree.recipe.source.notes == tuple(notes)
    for some in (one.isel(level=[2, 1]), one.isel(level=[]), one.isel(level=[0, 0, 1])):
        assert xloader.join({"a": one, "b": some}, on="x").recipe.source.notes == ()
    with pytest.raises(OptionError, match=r"differ along 'level'.*sort both .*sortby\('level'\)"):
        xloader.open([one, one.rename(a="b").isel(level=[1, 2, 0])])


def test_labels_to_join_on_may_differ_by_rounding() -> None:
    grid = np.arange(10) * 0.1
    one = xr.Dataset({"v": ("x", np.arange(10.0))}, {"x": grid})
    other = one.isel(x=slice(3, 8)).assign_coords(x=grid[3:8].astype("f4"))
    for sources in ({"a": one, "b": other}, {"b": other, "a": one}):
        samples = xloader.join(sources, on="x").window(x=5)
        assert [field.tolist() for field in samples[0]] == [[3, 4, 5, 6, 7]] * 2
    with pytest.raises(EmptySamplesError, match="no label along 'x' in common"):
        xloader.join({"a": one, "b": one.assign_coords(x=grid + 0.002)}, on="x")


def test_a_field_of_two_grids_is_refused_and_two_fields_are_not() -> None:
    samples = xloader.join({"era5": era5(), "radar": radar()}).window(time=2)
    with pytest.raises(OptionError, match=r"era5/t2m.*radar/rain|radar/rain.*era5/t2m"):
        samples.inputs("era5/t2m", "radar/rain").shapes  # noqa: B018
    both = samples.inputs("era5/t2m").targets("radar/rain")
    assert both.shapes == {"inputs": (1, 2, 6, 8), "targets": (1, 2, 5, 7)}


def test_a_static_source_may_come_first_and_keep_a_time_that_nothing_has() -> None:
    static = orography().assign_coords(time=times(3, 12))
    samples = xloader.join({"static": static, "era5": era5(), "radar": radar()})
    assert samples.recipe.dim_sizes["time"] == 160
    xr.testing.assert_equal(samples.coords["time"], era5().time)


def test_samples_bring_their_selection_options_and_retries() -> None:
    store = write_store(era5(), {"t2m": CHUNKS["t2m"]})
    chosen = xloader.open(store, read_timeout=7, max_retries=1).isel(time=slice(10, 20), lat=2)
    samples = xloader.join({"era5": chosen, "radar": radar()})
    assert samples.recipe.dim_sizes == {"time": 10, "lon": 8, "y": 5, "radar/lon": 7}
    assert samples.recipe.retry_policy.read_timeout == 7
    patient = xloader.open(store, read_timeout=900, max_retries=1)
    policy = xloader.open([patient, orography()], max_retries=6).recipe.retry_policy
    assert (policy.read_timeout, policy.max_retries) == (900, 6)
    some = xloader.open(xr.merge([era5(), era5().rename(t2m="u")]), variables=["u"])
    assert xloader.join({"a": some, "b": orography()}).recipe.variables == ("a/u", "b/oro")


def test_labels_of_several_levels_are_joined() -> None:
    index = pd.MultiIndex.from_product([[1, 2], ["p", "q"]], names=["i", "j"])
    data = xr.Dataset({"v": ("s", np.arange(4.0))}).assign_coords(
        xr.Coordinates.from_pandas_multiindex(index, "s")
    )
    some = data.isel(s=[0, 2, 3])
    samples = xloader.join({"a": data, "b": some + 10}, on="s").window(s=3)
    assert [array.tolist() for array in samples[0]] == [[0, 2, 3], [10, 12, 13]]
    assert samples.coords["j"].values.tolist() == ["p", "p", "q"]
    apart = xloader.join({"time": era5(4), "a": data, "b": some})
    assert {"i", "j", "b/i", "b/j"} <= set(apart.coords)


def test_cftime_labels_are_joined() -> None:
    def data(name: str, start: str, freq: str, count: int) -> xr.Dataset:
        when = xr.date_range(start, periods=count, freq=freq, calendar="noleap", use_cftime=True)
        return xr.Dataset({name: ("time", np.arange(count))}, {"time": when})

    coarse, fine = data("a", "2000-02-27", "D", 5), data("b", "2000-02-26", "6h", 40)
    exact = xloader.join({"x": coarse, "y": fine}).window(time=5)
    assert exact[0][1].tolist() == [4, 8, 12, 16, 20]
    near = xloader.join({"y": fine, "x": coarse}, method="nearest", tolerance="6h").window(time=4)
    assert near[0][1].tolist() == [0, 0, 0, 1]
    with pytest.raises(OptionError, match=r"two kinds.*'noleap'.*datetime64.*convert_calendar"):
        xloader.join({"x": coarse, "y": era5()})


# Lists and trees


def test_a_list_of_other_variables_reads_each_store() -> None:
    opened = stores()
    samples = xloader.open([opened["era5"], opened["static"]]).window(time=2)
    plan = samples.inputs("t2m", "oro").explain(memory="1MiB")
    assert plan.num_reads == 40 + 2
    assert all(path.startswith("direct") for path in plan.paths.values())
    assert xloader.open([era5()]).recipe == xloader.open(era5()).recipe
    assert xloader.open([era5(), orography()], variables="oro").recipe.variables == ("oro",)
    joined = xloader.join({"era5": [era5(), orography()], "radar": radar()})
    assert joined.recipe.variables == ("era5/t2m", "era5/oro", "radar/rain")
    for several in ("oro", "t2m"), ("t2m", "oro"):
        assert xloader.open([era5(), orography()], variables=several).recipe.variables == several
    both = xr.merge([era5(), orography()])
    assert xloader.open([both], variables=["oro", "t2m"]).recipe.variables == ("oro", "t2m")
    # A name that occurs twice does no harm if it is not asked for.
    asked = xloader.open([era5(), era5().assign(u=era5().t2m)], variables=["u"])
    assert asked.recipe.variables == ("u",)


def test_a_tree_offers_variables_by_their_paths() -> None:
    tree = xr.DataTree.from_dict({"/": orography(), "/era5": era5(), "/obs/radar": era5() * 2})
    assert tree.xloader.recipe.variables == ("oro", "era5/t2m", "obs/radar/t2m")
    asked = ("obs/radar/t2m", "oro")
    assert xloader.open(tree, variables=asked).recipe.variables == asked
    assert tree["obs"].xloader.recipe.variables == ("radar/t2m",)
    samples = tree.xloader.window(time=2).inputs("era5/t2m", "obs/radar/t2m")
    np.testing.assert_array_equal(samples[3][0][0] * 2, samples[3][0][1])
    joined = xloader.join({"tree": tree, "radar": radar()}, on="time")
    assert joined.recipe.dim_sizes["time"] == 160


def test_names_of_joined_samples_stay_apart() -> None:
    rain = radar()
    first = xloader.join({"era5": era5(), "radar": rain})
    assert first.recipe.dim_sizes["radar/lon"] == 7
    later = rain.rename(rain="snow").isel(y=slice(2)).assign_coords(lon=np.arange(7.0) + 100)
    both = xloader.join({"radar": later, "all": first})
    assert {"lon": 7, "all/lon": 8, "radar/lon": 7}.items() <= both.recipe.dim_sizes.items()
    np.testing.assert_array_equal(both.coords["lon"], later.lon)
    np.testing.assert_array_equal(both.coords["radar/lon"], rain.lon)
    # A dimension of the same name and labels is the same one, whichever source comes first.
    melt = rain.rename(rain="melt")
    for together in {"all": first, "radar": melt}, {"z": first, "all": era5(), "radar": melt}:
        joined = xloader.join(together)
        assert joined.recipe.source.variables["radar/melt"].dims == ("time", "y", "radar/lon")
    three = xloader.join({"other": both, "more": era5(), "z": first})
    np.testing.assert_array_equal(three.coords["radar/lon"], rain.lon)


def test_a_coordinate_of_the_root_of_a_tree_keeps_its_name() -> None:
    start = orography().assign_coords(time=times(1, 1)[0])
    rain = radar(9).rename(lon="x")
    both = xr.DataTree.from_dict({"/": start, "/radar": rain, "/more": rain + 1}).xloader
    assert both.coords["time"].item() == start.time.item()
    np.testing.assert_array_equal(both.coords["radar/time"], rain.time)
    dims = {name: variable.dims[0] for name, variable in both.recipe.source.variables.items()}
    assert dims == {"oro": "lat", "radar/rain": "radar/time", "more/rain": "radar/time"}


# Bad input


def joined_twice(**coords: Any) -> xloader.Samples:
    """Joined samples, joined with a source of a name that they have used up."""
    first, second = era5(4).assign_coords(run=1), radar(24).assign_coords(run=2)
    return xloader.join(
        {"all": xloader.join({"a": first, "radar": second}), "radar": second.assign_coords(coords)}
    )


def windowed() -> xloader.Samples:
    return xloader.open(era5()).window(time=2)


join: Any = xloader.join
PAIR = {"a": era5(4), "b": radar(4)}

REFUSALS: list[tuple[str, Callable[[], Any]]] = [
    ("on is not the name of a dimension", lambda: join(PAIR, on=("time",))),
    ('no such method.*\'bfill\'.*"nearest" or "ffill"', lambda: join(PAIR, method="bfill")),
    ('tolerance does not fit.*pass method="nearest"', lambda: join(PAIR, tolerance="1h")),
    (
        "cannot be compared: the tolerance is a number.*30min",
        lambda: join(PAIR, method="ffill", tolerance=3),
    ),
    ("cannot be compared", lambda: join(PAIR, method="ffill", tolerance="one")),
    (
        r"occur twice or are missing. Given: 1 labels of b, .*drop_duplicates\('time'\)",
        lambda: join({"a": era5(4), "b": radar(4).isel(time=[0, 1, 1])}),
    ),
    (
        "occur twice or are missing. Given: 1 labels of b, such as NaT",
        lambda: join(
            {
                "a": era5(4),
                "b": radar(2).assign_coords(time=[times(1, 1)[0], np.datetime64("NaT", "ns")]),
            }
        ),
    ),
    (
        r"do not increase. Given: .*T02:00:00, then .*T01:00:00 in b.*sortby\('time'\)",
        lambda: join({"a": era5(4), "b": radar(4).isel(time=[0, 2, 1])}),
    ),
    (
        r"labels along 'lat' in different orders. Given: 0.0 comes before 1.0 in a",
        lambda: join({"a": era5(4), "b": era5(4).isel(lat=slice(None, None, -1))}, on="lat"),
    ),
    (
        "are text, of which none is the nearest",
        lambda: join(
            {n: xr.Dataset({"t": ("s", [1.0])}, {"s": ["a"]}) for n in "ab"},
            on="s",
            method="nearest",
        ),
    ),
    (
        "are of two kinds. Given: datetime64 dates in a, numbers in b",
        lambda: join({"a": era5(4), "b": radar(4).assign_coords(time=range(4))}),
    ),
    (
        r"a source has no labels along 'time'.*Given: b: .*assign_coords\(time=...\)",
        lambda: join({"a": era5(4), "b": radar(4).drop_vars("time")}),
    ),
    (
        "no name for a source.*'a/b'.*text without a /",
        lambda: join({"a/b": era5(4), "b": radar(4)}),
    ),
    (
        "'radar/lon' would stand for two.*a source named 'radar'.*give the source another name",
        lambda: joined_twice(lon=np.arange(7.0) + 50),
    ),
    (
        "'radar/run' would stand for two.*give the source another name",
        lambda: joined_twice(run=3, y=np.arange(5.0)),
    ),
    ("no such method", lambda: join(PAIR, method=np.array(["ffill", "ffill"]))),
    ("too few sources to join. Given: 1: 'a'.*use xloader.open", lambda: join({"a": era5(4)})),
    (
        "the samples 'a' have windows.*last recorded: window.*join first",
        lambda: join({"a": windowed(), "b": radar()}),
    ),
    (
        "the samples 'a' have windows, fields or transforms.*join first",
        lambda: join({"a": windowed().inputs("t2m").fillna(0.0), "b": radar()}),
    ),
    ("nothing to open", lambda: xloader.open([])),
    (
        r"a variable of the name 't2m'.*1 of 2.*2 of 2.*xloader.concat\(\[...\]\).*xloader.join",
        lambda: xloader.open([era5(4), era5(4)]),
    ),
    (
        r"differ along 'lat'. Given: 0.0 and 1 at position 0 in .*xloader.join",
        lambda: xloader.open([era5(4), orography().assign_coords(lat=np.arange(6) + 1)]),
    ),
    (
        "differ along 'lon'. Given: 8 and 3 elements",
        lambda: xloader.open([era5(4), orography().isel(lon=slice(3))]),
    ),
    (
        r"different things of the name 'run'.*drop_vars\('run'\)",
        lambda: xloader.open([era5(4).assign_coords(run=1), orography().assign_coords(run=2)]),
    ),
    (
        r"different things of the name 'time'.*drop_vars\('time'\)",
        lambda: xloader.open([era5(4), orography().assign_coords(time=times(1, 1)[0])]),
    ),
    ("variables= is empty", lambda: xloader.open([era5(4), orography()], variables=[])),
    ("the samples number 1 of 2 have windows", lambda: xloader.open([windowed(), orography()])),
    (
        "already open. Given: group",
        lambda: xloader.open(xr.DataTree.from_dict({"/a": era5(4)}), group="a"),
    ),
]
OTHER_ERRORS: list[tuple[type[XloaderError], str, Callable[[], Any]]] = [
    (
        EmptySamplesError,
        r"no label along 'time' in common. Given: a: 2000-01-01T00:00:00 to .*; b: .*nearest",
        lambda: join({"a": era5(4), "b": radar(9).isel(time=slice(1, 5))}),
    ),
    (
        UnknownNameError,
        r"no source has a dimension 'tine'.*did you mean 'time'\?",
        lambda: join(PAIR, on="tine"),
    ),
    (
        UnsupportedDataError,
        "takes its sources by name. Given: builtins.list",
        lambda: join([era5(4), radar(4)]),
    ),
    (
        UnsupportedDataError,
        "cannot open an object of this kind. Given: builtins.int",
        lambda: join({"a": era5(4), "b": 3}),
    ),
    (
        UnknownNameError,
        "no variable with this name. Given: 'orog'.*did you mean 'oro'",
        lambda: xloader.open([era5(4), orography()], variables=["orog"]),
    ),
    (
        UnsupportedDataError,
        "an open DataTree has no numeric data variable. Given: the groups",
        lambda: xr.DataTree.from_dict({"/a": xr.Dataset({"t": ("x", ["a"])})}).xloader,
    ),
    (
        UnknownNameError,
        "with this path. Given: 'a/t2'. Allowed: 'a/t2m'.*did you mean 'a/t2m'",
        lambda: xloader.open(xr.DataTree.from_dict({"/a": era5(4)}), variables="a/t2"),
    ),
]


@pytest.mark.parametrize(
    ("kind", "told", "attempt"), [*((OptionError, *row) for row in REFUSALS), *OTHER_ERRORS]
)
def test_refusals_say_what_to_do(
    kind: type[XloaderError], told: str, attempt: Callable[[], Any]
) -> None:
    with pytest.raises(kind, match=told) as caught:
        attempt()
    assert caught.value.remedy or caught.value.allowed
    assert caught.value.given is not None


def test_no_credential_is_shown(tmp_path: Path) -> None:
    write_store(era5(), {"t2m": CHUNKS["t2m"]}, tmp_path / "e.zarr")
    url = f"file://{tmp_path}/e.zarr"
    opened = xr.open_zarr(url, consolidated=False)
    opened.encoding["source"] = "https://user:SECRET@host/e.zarr?token=SECRET"
    samples = xloader.join({"a": opened, "b": radar()}).window(time=2)
    tree = xr.DataTree.from_dict({"/a": opened})
    tree.encoding["source"] = "https://user:SECRET@host/e.zarr?token=SECRET"
    for shown in (
        samples,
        samples.explain(memory="1MiB"),
        tree.xloader,
        samples.recipe.source.name,
    ):
        assert "SECRET" not in f"{shown!r} {shown}"
    assert "host/e.zarr" in repr(samples)


# Lists of elements
