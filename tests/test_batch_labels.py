"""A batch's labels: those that `samples.to_xarray(batch.ids)` reads, from every door."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import xloader
from xloader import Batch, Samples
from xloader.errors import ChunkWarning, OptionError
from xloader.loader.batches.batch_origin import as_numpy
from xloader.testing import CountingStore, FaultyStore, garble, write_store

pytestmark = pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")


def weather() -> xr.Dataset:
    rng = np.random.default_rng(3)
    return xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), rng.random((20, 4, 6), np.float32), {"units": "K"}),
            "z": (("time", "level", "lat", "lon"), rng.random((20, 2, 4, 6), np.float32)),
            "oro": (("lat", "lon"), rng.random((4, 6), np.float32)),
        },
        {
            "time": pd.date_range("2000-01-01", periods=20),
            "level": [500, 850],
            "lat": np.linspace(60, -60, 4),
            "lon": np.arange(6) * 60.0,
        },
    )


STATIONS = pd.DataFrame(
    {
        "time": pd.to_datetime(["2000-01-05", "2000-01-16", "2000-01-09"]),
        "lat": [18.0, -25.0, 21.0],
        "snow": [0.5, 2.0, 1.0],
        "sky": ["clear", "cloud", "clear"],
    }
)

KINDS: dict[str, Callable[[Samples], Samples]] = {
    "windows in time": lambda s: s.window(time=3, stride=1),
    "patches across the date line": lambda s: s.window(lat=2, lon=3, stride=1, wrap="lon"),
    "padded borders": lambda s: s.window(lat=3, stride=1, pad={"lat": 0.0}),
    "a lead and channels": lambda s: (
        s.window(time=4, stride=2).inputs("t2m", "z", time=slice(0, 2)).targets("t2m", time=3)
    ),
    "a label that drops its dimension": lambda s: s.sel(level=850).window(time=2),
    "normalised and filled": lambda s: (
        s.window(time=2).inputs("t2m").normalize({"t2m": (0.5, 2.0)}).fillna(0)
    ),
    "a slab": lambda s: s.window(time=2).slab("lat", 1, 2),
    "points with labels": lambda s: (
        s.window(time=2, lat=2).inputs("t2m").at_points(STATIONS, method="nearest")
    ),
    "some, drawn by weight": lambda s: (
        s.window(time=2).select([7, 3, 3, 0]).weighted([1.0, 2.0, 3.0, 1.0], num_samples=9)
    ),
    "recorded methods": lambda s: s.window(time=4).mean("lon").diff("time"),
    "without a windowed dimension": lambda s: s.window(time=4).max("time"),
    "transposed": lambda s: s.window(time=2).transpose("lon", ..., "sample"),
    "a function of the batch": lambda s: s.window(time=3).map(
        lambda b: b.isel(lat=slice(None, None, -1)).assign_attrs(made="here")
    ),
    "a function of one sample": lambda s: s.window(time=4).map(
        lambda d: d.sortby("time", ascending=False), per="sample"
    ),
}


def check(batch: Batch, samples: Samples) -> None:
    """The labels and values of a batch are those that the samples have for its ids."""
    wanted = samples.to_xarray(batch.ids)
    made = batch.to_xarray()
    xr.testing.assert_identical(made, wanted)
    for name, field in wanted.items():
        assert made[name].dims == field.dims
        assert made[name].dtype == field.dtype
    assert set(made.indexes) == set(wanted.indexes)
    assert isinstance(batch.coords, xr.Coordinates)
    xr.testing.assert_identical(batch.coords.to_dataset(), wanted.coords.to_dataset())


@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_loaders_and_those_that_are_read_without_a_plan(kind: str) -> None:
    samples = KINDS[kind](weather().xloader)
    with samples.loader(batch_size=3, output="numpy", seed=1, memory="4MiB") as loader:
        batches = list(loader)
    assert sum(map(len, (batch.ids for batch in batches))) == loader.num_samples
    for batch in batches[-3:]:
        check(batch, samples)
    last = len(samples) - 1
    for key in ([last, 0], slice(0, 2), np.array([0, last, 0]), np.arange(last + 1) == last):
        check(samples[key], samples)
        # No loader is needed, so the card names none.
        assert "of these rows" in samples[key]._repr_html_()


CLASHES: list[tuple[str, Callable[[xr.Dataset], Samples]]] = [
    ("sample", lambda ds: ds.rename(t2m="sample").xloader.window(time=2)),
    ("sample", lambda ds: ds.rename(time="sample").xloader.window(sample=2)),
    ("time_label", lambda ds: ds.rename(t2m="time_label").xloader.window(time=2)),
    ("time_label", lambda ds: ds.rename(lat="time_label").xloader.window(time=2)),
    (
        "two_time_label",
        lambda ds: (
            ds.xloader.window(time=3)
            .field("one", "t2m", time=0)
            .field("two", "t2m", time=2)
            .field("two_time_label", "z")
        ),
    ),
    (
        "two_time",
        lambda ds: (
            ds.rename(lon="two_time")
            .xloader.window(time=3)
            .field("one", "t2m", time=slice(0, 2))
            .field("two", "t2m")
        ),
    ),
]
"""A name that a labelled batch adds, and samples in which something else has it."""


@pytest.mark.parametrize(("name", "make"), CLASHES)
def test_names_that_a_labelled_batch_adds_are_refused(
    name: str, make: Callable[[xr.Dataset], Samples]
) -> None:
    samples = make(weather())
    with samples.loader(batch_size=3, output="numpy") as loader:
        batch = next(iter(loader))
    for ask in (
        batch.to_xarray,
        lambda: batch.coords,
        lambda: samples.to_xarray(0),
        lambda: samples.to_xarray([0, 1]),
        lambda: samples.map(lambda ds: ds).shapes,
    ):
        with pytest.raises(OptionError, match=rf"two parts .*'{name}'.*ds.rename\(") as error:
            ask()
        assert f".field(\"my_{name}\", '{name}')" in str(error.value)
    if name in samples.dims and name == "sample":
        with pytest.raises(OptionError, match="called 'sample'"):
            samples.positions([0])


@pytest.mark.parametrize("dim", ["sample", "channel", "time_label"])
def test_a_selected_dimension_with_such_a_name_keeps_its_label(dim: str) -> None:
    ds = weather()[["z"]].rename(level=dim)
    samples = ds.xloader.sel({dim: 850}).window(time=2).inputs("z", time=0).targets("z", time=1)
    batch = samples.to_xarray([0, 1])
    assert batch["sample"].values.tolist() == [0, 1]
    assert batch["channel"].values.tolist() == ["z"]
    assert batch[f"{dim}_label"].values.tolist() == 850
    one = samples.to_xarray(0)
    assert one["time_label" if dim == "time_label" else f"{dim}_label"].values.tolist() == 850
    assert "time" not in one.coords
    np.testing.assert_array_equal(one.targets[0], ds.z[1, 1])


def test_a_lead_has_one_label_after_a_function_of_one_sample() -> None:
    samples = weather().xloader.window(time=3).inputs("t2m", time=0).targets("t2m", time=2)
    found = samples.map(lambda one: one, per="sample").to_xarray([0, 1])
    assert set(found.coords) == set(samples.to_xarray([0, 1]).coords)


def test_a_dimension_like_the_lead_of_a_field_is_no_label_of_it() -> None:
    ds = weather().rename(lon="inputs_time").drop_vars("inputs_time")
    one = ds.xloader.window(time=3).inputs("t2m", time=0).targets("t2m", time=2).to_xarray(1)
    assert one.targets.dims == ("channel", "lat", "inputs_time")
    assert one["inputs_time_label"].values == weather().time.values[3]


def test_ids_in_every_form() -> None:
    samples = weather().xloader.window(time=2)
    wanted = samples.to_xarray([1, 4])
    mask = np.isin(np.arange(10), [1, 4])
    for ids in (np.array([1, 4], np.uint8), (1, 4), slice(1, 5, 3), mask, mask.tolist(), [-9, -6]):
        xr.testing.assert_identical(samples.to_xarray(ids), wanted)
    assert samples.to_xarray(np.int64(4)).sizes == {"time": 2, "lat": 4, "lon": 6, "level": 2}
    assert samples.to_xarray([4]).sizes["sample"] == 1


def test_nothing_is_read_for_labels() -> None:
    store = CountingStore(write_store(weather(), {"t2m": (5, 4, 6)}))
    samples = xloader.open(store).window(time=3).inputs("t2m").mean("lat")
    with samples.loader(batch_size=4, output="numpy") as loader:
        batch, *_ = list(loader)
    read = sum(count for key, count in store.reads.items() if key.startswith("t2m/c/"))
    assert read == 4
    batch.to_xarray()
    assert batch.coords["time_label"].dims == ("sample", "time")
    assert sum(count for key, count in store.reads.items() if key.startswith("t2m/c/")) == read


def flip(batch: xr.Dataset, rng: xloader.Rng) -> xr.Dataset:
    """Shift all maps of a batch by one random number of places, and note it as a label."""
    moved = batch.roll(lon=int(rng.integers(6)[0]), roll_coords=True)
    return moved.assign_coords(draw=("sample", rng.uniform()))


@pytest.mark.parametrize("times", [1, 3])
def test_labels_follow_the_random_numbers_of_the_batch(times: int) -> None:
    ds = weather()[["t2m"]]
    samples = ds.xloader.window(time=1).map(flip, random=True)
    if times > 1:
        samples = samples.weighted(np.ones(20), num_samples=20 * times)
    seen = set()
    with samples.loader(batch_size=4, seed=5, output="numpy") as loader:
        for epoch in range(2):
            for batch in loader:
                frame = batch.to_xarray()
                for row, index in enumerate(batch.ids):
                    wanted = ds.t2m[[index]].sel(lon=frame.lon.values).values
                    np.testing.assert_array_equal(frame.t2m[row], wanted)
                seen.add((epoch, int(frame.lon[0])))
                assert frame.draw.shape == batch.ids.shape
    # Labels of one epoch, or without the seed, would not fit the values of the other.
    assert len({lon for _, lon in seen}) > 1


def test_an_origin_without_random_functions_is_small() -> None:
    samples = weather().xloader.window(time=2).normalize({"t2m": (1.0, 2.0)})
    with samples.loader(batch_size=4, output="numpy") as loader:
        batch = next(iter(loader))
    bare = Batch(tuple(batch), batch.names, batch.ids, batch.is_padding)
    assert len(pickle.dumps(batch)) - len(pickle.dumps(bare)) < 300


@pytest.mark.parametrize("copied", [lambda b: pickle.loads(pickle.dumps(b)), lambda b: b])
def test_a_batch_keeps_its_labels_without_the_loader(copied: Any) -> None:
    samples = weather().xloader.window(time=2)
    with samples.loader(batch_size=4, output="numpy") as loader:
        batch = copied(next(iter(loader)))
    wanted = samples.to_xarray(batch.ids)
    del samples, loader
    gc.collect()
    xr.testing.assert_identical(batch.to_xarray(), wanted)


def test_copies_of_samples_resolve_after_the_first_are_gone() -> None:
    samples = weather().xloader.window(time=2)
    data = pickle.dumps(samples[[3, 1]])
    other = pickle.loads(pickle.dumps(samples))
    del samples
    gc.collect()
    check(pickle.loads(data), other)
    del other
    gc.collect()
    with pytest.raises(OptionError, match="not in this process"):
        pickle.loads(data).to_xarray()


def test_samples_of_equal_looks_are_not_mixed_up() -> None:
    """Two lambdas have one description, and so the samples one fingerprint."""
    plain = weather().xloader.window(time=2)
    made = [
        plain.map(lambda b: b.isel(lat=slice(None, None, -1))),
        plain.map(lambda b: b.isel(lat=slice(None))),
    ]
    assert made[0].recipe.fingerprint == made[1].recipe.fingerprint
    for samples in made:
        check(pickle.loads(pickle.dumps(samples[[3, 1]])), samples)


def test_another_process_says_what_to_do(tmp_path: Path) -> None:
    samples = weather().xloader.window(time=2)
    (tmp_path / "batch.pickle").write_bytes(pickle.dumps(samples[[3, 1]]))
    code = (
        "import pickle, sys, xloader\n"
        "batch = pickle.loads(open(sys.argv[1], 'rb').read())\n"
        "open(sys.argv[1], 'wb').write(pickle.dumps(batch))\n"
        "try: batch.coords\n"
        "except xloader.errors.OptionError as error: print(error)"
    )
    run = [sys.executable, "-c", code, str(tmp_path / "batch.pickle")]
    told = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    assert "samples of this batch are not in this process" in told
    assert "samples.to_xarray(batch.ids)" in told
    # Back in the process with the samples, the batch has its labels again.
    check(pickle.loads((tmp_path / "batch.pickle").read_bytes()), samples)


def test_padded_rows_have_the_labels_of_the_sample_that_they_repeat() -> None:
    samples = weather().xloader.window(time=2).select(range(3))
    options = {"batch_size": 2, "world": xloader.World(0, 2), "output": "numpy", "seed": 4}
    with samples.loader(**options) as loader:
        batches = list(loader)
    assert any(batch.is_padding.any() for batch in batches)
    for batch in batches:
        check(batch, samples)


def test_skipped_rows_have_the_labels_of_the_sample_in_their_place() -> None:
    inner = write_store(weather()[["t2m"]], {"t2m": (4, 4, 6)})
    samples = xloader.open(FaultyStore(inner, {"t2m/c/2/0/0": garble})).window(time=2)
    options = {"batch_size": 5, "on_error": "skip", "output": "numpy"}
    with samples.loader(**options) as loader, pytest.warns(ChunkWarning):
        batches = list(loader)
    assert sum(int(batch.is_padding.sum()) for batch in batches) == 2
    for batch in batches:
        check(batch, samples)


def test_random_numbers_of_batches_that_other_processes_collate(tmp_path: Path) -> None:
    write_store(weather(), {"t2m": (5, 4, 6)}, tmp_path / "a.zarr")
    samples = xloader.open(tmp_path / "a.zarr").window(time=1).inputs("t2m").map(flip, random=True)
    options = {"batch_size": 4, "output": "numpy", "seed": 8, "plan": xloader.PlanRules(lanes=2)}
    with (
        samples.loader(**options) as own,
        samples.loader(**options, processes=2, collate_fn=lambda rows: rows.batch) as others,
    ):
        for _ in range(2):
            for batch, other in zip(own, others, strict=True):
                xr.testing.assert_identical(other.to_xarray(), batch.to_xarray())


def test_with_arrays_keeps_the_labels_where_shapes_are_kept() -> None:
    samples = weather().xloader.window(time=2).inputs("t2m")
    batch = samples[[2, 0]]
    doubled = batch.with_arrays([batch.inputs * 2])
    xr.testing.assert_equal(doubled.to_xarray(), samples.to_xarray([2, 0]).map(lambda a: a * 2))
    cut = batch.with_arrays([batch.inputs[..., 1:]])
    with pytest.raises(OptionError, match=r"not those of its samples.*\(2, 1, 2, 4, 5\).*coords"):
        cut.to_xarray()
    assert cut.coords["lat"].values.tolist() == weather().lat.values.tolist()


def test_batches_made_by_hand_have_no_labels() -> None:
    batch = Batch([np.zeros(2)], ["a"], [0, 1])
    assert batch.origin is None
    for read in (batch.to_xarray, lambda: batch.coords):
        with pytest.raises(OptionError, match="samples of this batch are not known"):
            read()


@pytest.mark.parametrize(
    "fn",
    [
        lambda b: b.assign_coords(peak=("sample", b.t2m.max(["time", "lat", "lon"]).data)),
        lambda b: b.isel(lat=np.argsort(b.t2m.values[0, 0, :, 0])),
    ],
)
def test_labels_made_from_values_are_refused(fn: Any) -> None:
    samples = weather()[["t2m"]].xloader.window(time=2).map(fn)
    batch = samples[[0, 1]]
    with pytest.raises(OptionError, match=r"labels from values.*samples.to_xarray\(batch.ids\)"):
        batch.to_xarray()


def picky(batch: xr.Dataset) -> xr.Dataset:
    if batch.t2m.max() > 1:
        raise ValueError("too warm")
    return batch


def test_functions_that_fail_on_made_up_values_are_named() -> None:
    batch = weather()[["t2m"]].xloader.window(time=2).map(picky)[[0, 1]]
    with pytest.raises(OptionError, match=r"labels of this batch cannot be found.*picky"):
        _ = batch.coords


def test_a_rollout_follows_its_epochs() -> None:
    def samples_of_epoch(epoch: int) -> Samples:
        return weather().xloader.window(time=2 + epoch)

    loader = xloader.Rollout(samples_of_epoch, batch_size=2, output="numpy")
    for epoch in range(2):
        for batch in loader:
            check(batch, samples_of_epoch(epoch))


class _Elsewhere:
    """Looks like an array of CuPy, in the memory of a GPU."""

    device, shape = "cuda:0", (2,)

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def get(self) -> np.ndarray:
        return self.values.copy()

    def __array__(self, *args: Any) -> np.ndarray:
        raise TypeError("implicit copies are not allowed")


def test_arrays_of_a_gpu_are_copied() -> None:
    values = np.arange(2.0)
    found = as_numpy(_Elsewhere(values))
    np.testing.assert_array_equal(found, values)
    assert as_numpy(values) is values
