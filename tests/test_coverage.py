"""Coverage: the counts equal those of reading every sample, and the picture shows them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

import xloader
from tests.pictures import seen_ticks
from xloader import Samples
from xloader.core.subset import Subset
from xloader.core.windows import Windows
from xloader.errors import OptionError, UnknownNameError
from xloader.samples import coverage as position_counts
from xloader.samples.coverage import PositionCounts

SHAPE = {"time": 14, "lat": 6, "lon": 8}


def numbered() -> xr.Dataset:
    """Data whose values are the numbers of its elements, from 1 on."""
    size = int(np.prod(list(SHAPE.values())))
    values = np.arange(1, size + 1, dtype="f8").reshape(tuple(SHAPE.values()))
    time = np.arange(14).astype("M8[D]").astype("M8[ns]")
    time = np.concatenate([time[:6], time[6:] + np.timedelta64(3, "D")])
    labels = {"time": time, "lat": np.linspace(50, -50, 6), "lon": np.arange(8) * 45.0}
    return xr.Dataset({"a": (tuple(SHAPE), values)}, labels)


def some(samples: Samples, share: float = 0.3) -> Samples:
    ids = np.flatnonzero(np.random.default_rng(5).random(len(samples)) < share)
    return samples.select(ids)


KINDS: dict[str, Callable[[Samples], Samples]] = {
    "one dimension": lambda s: s.window(time=3, stride=2),
    "all dimensions": lambda s: s.window(time=3, lat=2, lon=3, stride=1),
    "a gap in time": lambda s: s.window(time=4, stride=1, gaps={"time": "drop"}),
    "dilated": lambda s: s.window(time=3, lon=2, stride=1, dilation={"time": 2, "lon": 3}),
    "a lead": lambda s: (
        s.window(time=5, lat=3, lon=2, stride=1)
        .inputs("a", time=slice(0, 2))
        .targets("a", time=4, lat=slice(1, 2))
    ),
    "unequal leads": lambda s: (
        s.window(time=2, lat=3, lon=2, stride=1)
        .inputs("a", time=0, lat=[2, 0])
        .targets("a", time=["+1", "+2", "+4"])
    ),
    "in another order than stored": lambda s: some(
        s.isel(lat=[5, 0, 3], time=slice(None, None, -1)).window(time=2, lat=2, lon=2)
    ),
    "across the date line": lambda s: s.window(lat=2, lon=5, stride=1, wrap="lon"),
    "padded": lambda s: s.window(lat=3, lon=4, stride=2, pad={"lat": 0.0, "lon": 0.0}),
    "a mask": lambda s: some(s.window(time=3, lat=2, lon=3, stride=1)),
    "a mask of one dimension": lambda s: some(s.window(time=2, stride=1)),
    "a mask of two": lambda s: some(s.window(time=2, lon=3, stride=1)),
    "few samples": lambda s: some(s.window(time=3, lat=2, lon=3, stride=1), 0.01),
    "runs of samples": lambda s: s.window(time=3, lat=2, lon=3, stride=1).select(slice(40, 150)),
    "in another order, some twice": lambda s: s.window(time=3, lat=2, lon=3, stride=2).select(
        [7, 3, 3, 20, 1]
    ),
    "a selection": lambda s: some(s.isel(time=slice(2, 12, 2)).window(time=2, lat=2, lon=2)),
}


def needed(samples: Samples) -> np.ndarray:
    """Whether each sample needs each element, found by reading."""
    found = np.zeros((len(samples), *SHAPE.values()), bool)
    for sample in range(len(samples)):
        values = np.concatenate([array.reshape(-1) for array in samples[sample]])
        found[sample].flat[values[values > 0].astype(int) - 1] = True
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_counts_are_those_of_reading_every_sample(kind):
    samples = KINDS[kind](numbered().xloader)
    coverage = samples.coverage()
    assert coverage.num_samples == len(samples)
    plain = xr.DataArray(needed(samples), dims=("sample", *SHAPE))

    def expected(*dims: str) -> np.ndarray:
        others = [dim for dim in SHAPE if dim not in dims]
        count = plain.any(others).sum("sample").transpose(*dims)
        return count.isel({dim: list(samples.recipe.kept_of(dim)) for dim in dims}).values

    for dim, count in coverage.counts.items():
        assert count.dtype == np.int64
        np.testing.assert_array_equal(count, expected(dim), dim)
        assert count[dim].equals(numbered()[dim][list(samples.recipe.kept_of(dim))])
    dims = samples.recipe.windows.dims
    if len(dims) < 2:
        assert coverage.grid is None
    else:
        np.testing.assert_array_equal(coverage.grid, expected(*dims[-2:]))


def test_a_sample_counts_once_for_an_element_of_several_fields():
    samples = numbered().xloader.window(time=3, stride=3)
    both = samples.inputs("a", time=slice(0, 2)).targets("a", time=slice(1, 3))
    assert both.coverage().counts["time"].values.tolist() == [1] * 12 + [0] * 2
    assert both.coverage("targets").counts["time"].values.tolist() == [0, 1, 1] * 4 + [0] * 2
    with pytest.raises(UnknownNameError):
        both.coverage("target")


@pytest.mark.parametrize("base", ["all", "chosen", "listed"])
def test_weights_count_as_often_as_samples_occur_on_average(base):
    samples = numbered().xloader.window(time=2, lat=2, lon=2)
    if base == "chosen":
        samples = some(samples)
    if base == "listed":
        samples = samples.select([9, 4, 4, 30])
    weights = np.random.default_rng(1).random(len(samples))
    weights[0] = 0
    drawn = samples.weighted(weights * 1e300, num_samples=50)
    coverage = drawn.coverage()
    assert coverage.num_samples == pytest.approx(50)
    expected = np.zeros(SHAPE["time"])
    often = 50 * weights / weights.sum()
    for sample, times in enumerate(often):
        first = int(samples.positions([sample]).time[0])
        expected[first : first + 2] += times
    assert np.allclose(coverage.counts["time"].values, expected)
    plane = np.zeros((6, 8))
    for sample, times in enumerate(often):
        place = samples.positions([sample])
        plane[int(place.lat[0]) :, int(place.lon[0]) :][:2, :2] += times
    assert np.allclose(coverage.grid.values, plane)


def test_an_epoch_of_a_part_of_the_samples_has_their_share_of_the_counts():
    samples = numbered().xloader.window(time=2, lat=2, stride=1)
    part = Samples(replace(samples.recipe, num_taken=13)).coverage()
    whole = samples.coverage()
    assert part.num_samples == 13
    for dim, count in part.counts.items():
        assert np.allclose(count, whole.counts[dim] * (13 / len(samples)))
    assert np.allclose(part.grid, whole.grid * (13 / len(samples)))


def test_sums_in_pieces_are_the_same(monkeypatch):
    windows = Windows(("t", "y", "x"), (9, 5, 7), (1, 1, 1), (1, 1, 1), (1, 1, 1))
    rng = np.random.default_rng(2)
    subsets = [
        Subset(len(windows), np.flatnonzero(rng.random(len(windows)) < 0.4)),
        Subset(len(windows), weights=rng.random(len(windows))),
        Subset(len(windows), rng.permutation(len(windows))[:100]),
    ]
    for subset in subsets:
        whole = PositionCounts.of(windows, subset)
        for size in (8, 40, 100):
            monkeypatch.setattr(position_counts, "_PIECE_SIZE", size)
            parts = PositionCounts.of(windows, subset)
            assert parts.total == pytest.approx(whole.total)
            for one, other in zip(
                [*parts.lines, parts.plane], [*whole.lines, whole.plane], strict=True
            ):
                assert np.allclose(one, other)
            monkeypatch.undo()


def test_no_list_of_samples_is_made(monkeypatch):
    # 10^8 samples and more: nothing may be as long as they are.
    size = (20_000, 100, 100)
    windows = Windows(("t", "y", "x"), size, (1, 1, 1), (1, 1, 1), (1, 1, 1))
    monkeypatch.setattr(Windows, "positions_of", None)
    counts = PositionCounts.of(windows, None)
    assert (counts.total, counts.plane.strides) == (2 * 10**8, (0, 0))
    monkeypatch.setattr(position_counts, "_MOST_PLACES", 9_999)
    with pytest.raises(OptionError, match="too many to count"):
        PositionCounts.of(windows, Subset(len(windows), np.array([5])))


def test_the_text_names_what_no_sample_needs():
    coverage = numbered().xloader.window(time=2, stride=2).select([0, 2, 5]).coverage()
    never = "1970-01-03 to 1970-01-04, 1970-01-10 to 1970-01-13, 1970-01-16 to 1970-01-17"
    assert str(coverage).splitlines() == [
        "Coverage of an epoch by a",
        "  samples  3 an epoch",
        f"  time     14 elements, 8 of them never, the others once. Never: {never}",
    ]
    assert "<table>" in coverage._repr_html_()
    copy = pickle.loads(pickle.dumps(coverage))
    assert copy.to_xarray().identical(coverage.to_xarray())


def test_the_picture_shows_counts_and_what_no_sample_needs():
    pytest.importorskip("matplotlib")
    samples = some(numbered().xloader.window(time=2, lat=2, lon=2), 0.3)
    coverage = samples.coverage()
    *lines, grid, _scale = coverage.plot().axes
    assert [axes.get_xlabel() for axes in lines] == ["time", "lat (°N)", "lon (°E)"]
    stairs = lines[0].patches[0]
    assert stairs.get_data().values.tolist() == coverage.counts["time"].values.tolist()
    # Latitudes descend, and pictures do not.
    stairs = lines[1].patches[0]
    assert stairs.get_data().values.tolist() == coverage.counts["lat"].values[::-1].tolist()
    drawn = grid.images[0].get_array()
    assert np.array_equal(np.ma.getmaskarray(drawn), coverage.grid.values == 0)
    assert np.array_equal(drawn.filled(0), coverage.grid.values)
    gap = numbered().xloader.window(time=2, stride=2).select([0, 2, 5]).coverage().plot().axes[0]
    values, edges, _ = gap.patches[1].get_data()
    assert edges.tolist() == [place - 0.5 for place in range(15)]
    assert (values > 0).tolist() == [0, 0, 1, 1, 0, 0, 1, 1, 1, 1, 0, 0, 1, 1]


def test_the_legend_covers_no_mark_and_ticks_are_whole_samples():
    pytest.importorskip("matplotlib")
    # Only the end is never needed, where the legend once lay; and samples are few.
    samples = numbered().xloader.window(time=2, lat=2).select([0, 1])
    picture = samples.coverage().plot()
    picture.canvas.draw()
    for axes in picture.axes[:2]:
        assert axes.get_legend().get_window_extent().x0 > axes.get_window_extent().x1
        ticks = seen_ticks(axes.yaxis)
        assert ticks
        assert ticks == [f"{int(text)}" for text in ticks]
    assert seen_ticks(picture.axes[-1].yaxis) == ["1"]


def test_a_single_gap_in_a_long_line_is_seen():
    pytest.importorskip("matplotlib")
    series = xr.Dataset({"a": ("time", np.zeros(30_000, "i1"))})
    samples = xloader.open(series).window(time=1)
    coverage = samples.select(np.delete(np.arange(30_000), 12_345)).coverage()
    (axes,) = coverage.plot().axes
    values, edges, _ = axes.patches[1].get_data()
    (part,) = np.flatnonzero(values > 0)
    assert edges[part] <= 12_345 <= edges[part + 1]
