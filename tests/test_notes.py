"""Surprising settings are noted: windows that do not overlap, and epochs without a batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader import Samples
from xloader.errors import EpochWarning
from xloader.loader.reports import explain_notes
from xloader.loader.reports.explain_notes import pinning_in_words
from xloader.testing import write_store

NOTE = 'windows do not overlap: 121 samples; `stride={"time": 1}` gives 721'


def opened() -> Samples:
    return xloader.open(xr.Dataset({"t": (("time", "lat"), np.zeros((726, 9), "f4"))}))


def test_windows_that_do_not_overlap_say_so() -> None:
    samples = opened().window(time=6)
    assert (len(samples), len(opened().window(time=6, stride={"time": 1}))) == (121, 721)
    for text in (repr(samples), str(samples.explain())):
        assert NOTE in text
    assert "windows do not overlap" in samples._repr_html_()
    assert samples.explain().notes == (NOTE,)
    with samples.loader(output="numpy") as loader:
        assert loader.explain().notes == loader.explain("world").notes == (NOTE,)


@pytest.mark.parametrize(
    "asked",
    [{"time": 6, "stride": 6}, {"time": 1}, {"time": 6, "dilation": 2, "stride": 1}, {"time": 726}],
    ids=["a stride", "windows of one", "a dilation", "one window"],
)
def test_where_there_is_no_surprise_nothing_is_said(asked: dict[str, Any]) -> None:
    samples = opened().window(**asked)
    assert samples.explain().notes == ()
    assert "overlap" not in repr(samples)
    # A stride equal to the default gives the same samples as no stride.
    default = opened().window(time=6)
    assert opened().window(time=6, stride={"time": 6}).recipe == default.recipe


def test_more_memory_than_there_is_is_said_in_every_explanation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    samples = opened().window(time=1)
    both = xloader.interleave({"a": (samples, 1.0), "b": (samples, 1.0)})
    note = "memory='3GiB' is more than this machine, or its control group, has: 3.0 GiB"

    def told(memory: str) -> list[tuple[str, ...]]:
        explained = [own.explain(memory=memory) for own in (samples, both)]
        ordered = samples.explain(order=[0], cache="lru", memory=memory)
        with samples.loader(output="numpy", memory=memory, world=xloader.World(0, 2)) as loader:
            return [own.notes for own in (*explained, ordered)] + [loader.explain("world").notes]

    monkeypatch.setattr(explain_notes, "usable_nbytes", lambda: 3 << 30)
    assert not any("memory" in text for notes in told("3GiB") for text in notes)
    monkeypatch.setattr(explain_notes, "usable_nbytes", lambda: (3 << 30) - 1)
    for notes in told("3GiB"):
        assert note in notes
    monkeypatch.setattr(explain_notes, "usable_nbytes", lambda: None)
    assert not any("memory" in text for notes in told("900TB") for text in notes)


def test_patches_and_subsets_are_counted_as_they_are() -> None:
    patches = opened().window(time=1, lat=3, stride={"time": 2})
    denser = opened().window(time=1, lat=3, stride={"time": 2, "lat": 1})
    note, _ = patches.explain().notes
    expected = f'{len(patches):,} samples; `stride={{"lat": 1}}` gives {len(denser):,}'
    assert note == f"windows do not overlap: {expected}"
    (note,) = opened().window(time=6).select(range(9)).explain().notes
    assert note == NOTE.replace("samples", "windows")


def test_a_single_stride_is_for_the_longer_windows() -> None:
    samples = opened().window(time=1, lat=3, stride=2)
    assert samples.recipe == opened().window(time=1, lat=3, stride={"lat": 2}).recipe
    assert len(samples) == 726 * 4
    assert samples.explain().notes == ()
    # Where no window is longer, it can only be meant for all.
    assert len(opened().window(time=1, lat=1, stride=2)) == 363 * 5


@pytest.mark.parametrize(
    ("asked", "unused"),
    [
        ({"time": 1, "stride": 4}, "3 of every 4 elements of time, because its stride is 4"),
        ({"lat": 2, "stride": {"lat": 3}}, "1 of every 3 elements of lat, because its stride is 3"),
        ({"time": 6, "dilation": 2}, "3 of every 6 elements of time, because its stride is 6"),
        ({"lat": 2, "stride": 3, "pad": {"lat": 0.0}}, "1 of every 3 elements of lat"),
    ],
    ids=["single steps", "patches", "a dilation", "padded"],
)
def test_elements_that_no_window_takes_are_noted(asked: dict[str, Any], unused: str) -> None:
    samples = opened().window(**asked)
    assert f"no window takes {unused}" in repr(samples)
    assert any(f"no window takes {unused}" in note for note in samples.explain().notes)
    (dim,) = samples.recipe.require_windows().dims
    assert (samples.coverage().counts[dim] == 0).any()


def few() -> Samples:
    return opened().isel(time=slice(0, 5)).window(time=1)


EMPTY = "0 batches: 5 samples are fewer than one batch of 16, drop_last=True"


def test_an_epoch_without_a_batch_says_so() -> None:
    with few().loader(batch_size=16, drop_last=True, output="numpy") as loader:
        assert len(loader) == 0
        assert loader.explain().notes == (EMPTY,)
        assert EMPTY in str(loader.explain())
        with pytest.warns(EpochWarning, match=f"^{EMPTY}: pass drop_last=False or a smaller"):
            assert list(loader) == []
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert list(loader) == []


def test_on_several_ranks_the_global_batch_counts() -> None:
    samples = few().select(range(3))
    options = {"batch_size": 2, "drop_last": True, "output": "numpy"}
    with samples.loader(world=xloader.World(0, 2), **options) as loader:
        words = "0 batches: 3 samples are fewer than one global batch of 4, 2 on each of 2 ranks"
        with pytest.warns(EpochWarning, match=words):
            assert list(loader) == []


def test_epochs_with_batches_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for options in ({"batch_size": 16}, {"batch_size": 5, "drop_last": True}):
            with few().loader(**options, output="numpy") as loader:
                assert len(list(loader)) == 1
                assert loader.explain().notes == ()
    order = few().explain(np.arange(5), batch_size=16, drop_last=True)
    assert (order.num_steps, order.notes) == (1, ())


def doubled(ds: xr.Dataset) -> xr.Dataset:
    return ds * 2


def own_batch(rows: Any) -> Any:
    return rows


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let this process have so many cores."""
    return lambda num: monkeypatch.setattr(explain_notes, "usable_cores", lambda: num)


def told_of(samples: Samples, **options: Any) -> tuple[str, ...]:
    with samples.loader(**{"batch_size": 32, "output": "numpy", **options}) as loader:
        return loader.explain().notes


def test_worker_processes_are_suggested_for_functions_in_python(
    cores: Callable[[int], None],
) -> None:
    samples = opened().window(time=1)
    cores(2)
    (note,) = told_of(samples.map(doubled))
    assert note.startswith("map(fn) runs under Python's lock")
    assert "processes=2 would run 2 at a time, assuming that" in note
    assert "2 cores" in note
    assert note in str(samples.map(doubled).explain())
    (note,) = told_of(samples, collate_fn=own_batch)
    assert note.startswith("collate_fn runs under")
    (note,) = told_of(samples.map(doubled), collate_fn=own_batch)
    assert note.startswith("map(fn) and collate_fn run under")
    # It says a number that the loader takes.
    for num_cores, options, num in (
        (16, {}, 8),
        (4, {"batch_size": 30}, 2),
        (16, {"batch_size": 30, "plan": xloader.PlanRules(lanes=10)}, 8),
        (
            16,
            {"batch_size": 30, "plan": xloader.PlanRules(lanes=10), "world": xloader.World(0, 2)},
            8,
        ),
    ):
        cores(num_cores)
        note, *more = told_of(samples.map(doubled), **options)
        assert [one[:35] for one in more] == ["samples, reads and memory are those"] * (
            "world" in options
        )
        ahead = "" if num == 2 else f" and prefetch={num - 1}"
        assert f"processes={num}{ahead} would run {num} at a time" in note
        samples.map(doubled).loader(output="numpy", processes=num, **options).close()


def test_worker_processes_are_not_suggested_where_they_cannot_help(
    cores: Callable[[int], None],
) -> None:
    samples = opened().window(time=1)
    cores(16)
    assert told_of(samples) == told_of(samples.normalize({"t": (0.0, 1.0)})) == ()
    assert told_of(samples.map(doubled), processes=2) == ()
    assert told_of(samples.map(doubled), batch_size=11) != ()
    cores(1)
    assert told_of(samples.map(doubled)) == ()


def test_the_doors_say_it_as_well() -> None:
    doors = pytest.importorskip("xloader.torch")
    for door in (doors.data_loader, doors.IterableDataset):
        made = door(few(), 16, drop_last=True)
        assert made.explain().notes == (EMPTY,)
        with pytest.warns(EpochWarning, match=EMPTY):
            assert list(made) == []


@pytest.mark.parametrize(
    ("num_chunks", "options", "is_noted"),
    [
        (4, {}, True),
        # All chunks stay in memory, so batches are those of a full shuffle.
        (4, {"memory": "1GiB"}, False),
        (4, {"shuffle": False}, False),
        (4, {"batch_size": 1}, False),
        (8, {}, False),
    ],
)
def test_data_of_one_region_hide_their_mixing(
    num_chunks: int, options: dict[str, Any], is_noted: bool
) -> None:
    values = np.zeros((16 * num_chunks, 4096), "f4")
    store = write_store(xr.Dataset({"t": (("time", "x"), values)}), {"t": (16, 4096)})
    samples = xloader.open(store).window(time=3, stride={"time": 1})
    options = {"batch_size": 4, "memory": "2MiB", "output": "numpy", **options}
    with samples.loader(**options) as loader:
        expected = loader.explain()
    assert any("mixing tells nothing here" in note for note in expected.notes) == is_noted
    if is_noted:
        assert expected.mixing == expected.full_mixing == 1


def mixed(**dtypes: str) -> xr.Dataset:
    """Some variables along time, and those called oro and lsm, which have none."""
    shapes = {name: (3,) if name in ("oro", "lsm") else (40, 3) for name in dtypes}
    return xr.Dataset(
        {
            name: (("time", "x")[-len(shape) :], np.ones(shape, dtypes[name]))
            for name, shape in shapes.items()
        },
        {"time": xr.date_range("2000-01-01", periods=40)},
    )


def notes_of(samples: Samples, **options: Any) -> tuple[str, ...]:
    """The notes of an explanation, which the repr shows as well."""
    notes = samples.explain(**options).notes
    assert options or all(note in repr(samples) for note in notes)
    return notes


SCALED = {"t": (280.0, 15.0)}


@pytest.mark.parametrize(
    ("dtypes", "fields", "told"),
    [
        ({"t": "f4", "z": "f4"}, {}, "z"),
        ({"t": "f4", "z": "f4"}, {"inputs": "tz", "targets": "t"}, "z of inputs"),
        ({"t": "f4", "z": "f4"}, {"inputs": "tz", "targets": "z"}, "z of inputs and targets"),
        ({"t": "f4", "oro": "f4"}, {"inputs": ("t", "oro")}, "oro of inputs"),
        ({"t": "i2", "n": "i2"}, {"inputs": "tn"}, "n of inputs"),
        # Masks, classes and what is in no field need no statistics.
        ({"t": "f4", "sea": "?", "ice": "i1"}, {"inputs": ("t", "sea", "ice")}, ""),
        ({"t": "f4", "kind": "i8"}, {"inputs": "t", "targets": ("kind",)}, ""),
        ({"t": "f4", "z": "f4"}, {"inputs": "t"}, ""),
    ],
)
def test_what_normalize_leaves_out_is_said(
    dtypes: dict[str, str], fields: dict[str, Any], told: str
) -> None:
    samples = mixed(**dtypes).xloader.window(time=1)
    for name, variables in fields.items():
        samples = samples.field(name, *variables)
    expected = (f"normalize leaves {told} unchanged",) if told else ()
    stats = xr.Dataset({"t_mean": 280.0, "t_std": 15.0})
    for given in (SCALED, stats, {"t": {"mean": 280.0, "std": 15.0}}):
        assert notes_of(samples.normalize(given)) == expected
    assert notes_of(samples.normalize(mean={"t": 280.0}, std={"t": 15.0})) == expected
    # Together, two calls leave out nothing.
    rest = {name: (0.0, 1.0) for name in dtypes if name != "t"}
    if told:
        assert notes_of(samples.normalize(SCALED).normalize(rest)) == ()
    assert notes_of(samples) == ()


def test_forcings_and_shares_need_no_statistics() -> None:
    ds = mixed(t="f4", lsm="f4", flags="f4")
    ds["lsm"].attrs["units"], ds["flags"].attrs["flag_values"] = "(0 - 1)", [0, 1]
    forced = ds.xloader.forcing("sin_day_of_year", double=lambda time: time.dt.day * 2)
    samples = forced.window(time=1).inputs("t", "lsm", "flags", "sin_day_of_year", "double")
    assert notes_of(samples.normalize(SCALED)) == ()
    far = ds.assign_coords(x=[0.0, 40.0, 80.0]).rename(x="lat").xloader.forcing("latitude")
    (note,) = notes_of(far.window(time=1).inputs("t", "latitude").normalize(SCALED))
    assert note == "normalize leaves latitude of inputs unchanged"


def test_what_is_done_twice_or_before_normalize_is_said() -> None:
    samples = mixed(t="f4", z="f4").xloader.window(time=1).inputs("t", "z")
    both = {"t": (280.0, 15.0), "z": (5.0, 2.0)}
    early = "fillna comes before normalize: filled values of {} are normalised too"
    assert notes_of(samples.normalize(both).normalize(SCALED)) == ("normalised twice: t",)
    assert notes_of(samples.fillna(0.0).normalize(both)) == (early.format("t, z"),)
    assert notes_of(samples.fillna({"z": 0.0}).normalize(both)) == (early.format("z"),)
    assert notes_of(samples.normalize(SCALED).fillna(0.0).normalize({"z": (0.0, 1.0)})) == (
        early.format("z"),
    )
    nothing = "the second fillna finds nothing to fill in {}"
    assert notes_of(samples.fillna(0.0).fillna({"t": 1.0})) == (nothing.format("t"),)
    assert notes_of(samples.fillna(0.0).fillna(1.0)) == (nothing.format("all variables"),)
    # The right order, and a fillna for the rest.
    assert notes_of(samples.normalize(both).fillna({"t": -1.0}).fillna(0.0)) == ()
    assert notes_of(samples.normalize(both).fillna({"t": 0.0})) == ()


@pytest.mark.parametrize(("pad", "is_said"), [(0.0, True), ("edge", False), (np.nan, False)])
def test_numbers_beyond_borders_are_normalised_too(pad: Any, is_said: bool) -> None:
    opened = mixed(t="f4").xloader.window(time=1, x=3, stride=1, pad={"x": pad})
    samples = opened.inputs("t").normalize(SCALED)
    told = "pad comes before normalize: the number beyond borders of t is normalised too"
    assert (told in repr(samples)) == (told in samples.explain().notes) == is_said
    assert "pad comes" not in repr(opened.inputs("t"))


CONVERTS = 'device=OnDevice(dtype="float32") of the loader converts floats'


@pytest.mark.parametrize(
    ("dtypes", "told"),
    [
        ({"t": "f4", "oro": "f8"}, "inputs is float64 because of oro"),
        ({"t": "f4", "n": "i4"}, "inputs is float64 because of n"),
        ({"t": "f8", "z": "f8"}, "inputs is float64"),
        ({"t": "f4", "n": "i2"}, ""),
        ({"n": "i4"}, ""),
    ],
)
def test_what_makes_a_field_float64_is_said(dtypes: dict[str, str], told: str) -> None:
    samples = mixed(**dtypes).xloader.window(time=1).inputs(*dtypes)
    notes = (f"{told}: {CONVERTS}",) if told else ()
    assert (samples.dtypes["inputs"] == np.float64) == bool(told)
    assert notes_of(samples) == told_of(samples) == notes
    assert notes_of(samples, order=range(4)) == notes
    assert repr(samples).count("float64") == 2 * bool(told)
    for options in ({}, {"order": range(4)}):
        assert notes_of(samples, device=xloader.OnDevice(dtype="float32"), **options) == ()
    assert told_of(samples, device=xloader.OnDevice(dtype="float32")) == ()


def test_transforms_and_tables_may_make_float64() -> None:
    counts = mixed(n="i4", t="f4").xloader.window(time=1).inputs("n").targets("t")
    assert notes_of(counts.normalize({"n": (0.0, 2.0), "t": (0.0, 2.0)})) == (
        f"inputs is float64: {CONVERTS}",
    )
    assert notes_of(counts.astype("float64")) == (
        f"inputs is float64, targets is float64: {CONVERTS}",
    )
    doubles = mixed(t="f8").xloader.window(time=1)
    assert notes_of(doubles.astype("float32")) == ()
    points = mixed(t="f4").xloader.window(time=1)
    points = points.at_points({"time": points.coords["time"].values[:2], "wave": [0.5, 1.5]})
    assert notes_of(points) == (f"wave is float64: {CONVERTS}",)


def test_the_numbers_of_normalize_are_shown_and_the_fingerprint_stays() -> None:
    samples = mixed(t="f4", z="f4").xloader.window(time=1).inputs("t", "z")
    normal = samples.normalize({"t": (280.0, 15.5), "z": (xr.DataArray([1.0, 2, 3], dims="x"), 2)})
    assert "then         normalize(t (mean 280, std 15.5); z by x)" in repr(normal)
    assert [step.describe() for step in normal.recipe.steps] == [
        "normalize(t, z; bf4bdff3c3ce67dc)"
    ]


@pytest.mark.parametrize(
    ("processes", "is_mapped", "refusal", "words"),
    [
        (2, False, "error 2", "from that of the processes, which could not be pinned (error 2)"),
        (2, False, "", "straight from the memory of the processes"),
        (0, True, "", "copied into pinned memory after the transforms"),
        (0, False, "error 2", "from memory of this process, which could not be pinned (error 2)"),
    ],
)
def test_it_is_told_how_batches_come_into_pinned_memory(
    processes: int, is_mapped: bool, refusal: str, words: str
) -> None:
    assert words in pinning_in_words(processes, is_mapped, refusal)
    assert pinning_in_words(0, False) == ""
