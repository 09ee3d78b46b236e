"""Pictures of samples and batches: which panels are drawn, with which values, labels and scales."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader import Samples
from xloader.errors import (
    MissingDependencyError,
    OptionError,
    SampleIndexError,
    UnknownNameError,
)
from xloader.show import sample_panels
from xloader.show.plot_axes import axis_label
from xloader.testing import CountingStore, is_chunk_key, write_store

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

pytest.importorskip("matplotlib")

TIME = np.arange("2001-01-01", "2001-01-21", dtype="M8[D]").astype("M8[ns]")
CHUNKS = {"t2m": (4, 5, 8), "u": (4, 1, 5, 8), "flow": (20,)}
LAT, LON = np.linspace(60.0, -60.0, 5), np.arange(0.0, 360.0, 45.0)


def weather() -> xr.Dataset:
    rng = np.random.default_rng(3)
    t2m = rng.normal(280, 5, (20, 5, 8)).astype("f4")
    t2m[:, 1, 2] = np.nan
    return xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), t2m, {"units": "K"}),
            "u": (("time", "level", "lat", "lon"), rng.normal(0, 3, (20, 2, 5, 8)).astype("f4")),
            "flow": ("time", np.arange(20.0, dtype="f4"), {"units": "m3 s-1"}),
        },
        {"time": TIME, "level": [500, 850], "lat": LAT, "lon": LON},
    )


@pytest.fixture
def stored() -> Samples:
    return xloader.open(write_store(weather(), CHUNKS))


def forecast(samples: Samples) -> Samples:
    chosen = samples.window(time=4, stride=1)
    return chosen.inputs("t2m", time=slice(0, 3)).targets("t2m", time=3)


def maps_of(figure: Figure) -> list[Axes]:
    """The panels, without the colour scales, row by row."""
    return [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]


def scales_of(figure: Figure) -> list[Axes]:
    return [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]


def image_of(axes: Axes) -> Any:
    (image,) = axes.images
    return image


def test_fields_are_rows_and_steps_are_columns(stored):
    figure = forecast(stored).plot(6)
    panels = maps_of(figure)
    assert [p.get_title() for p in panels] == [f"2001-01-{day}" for day in ("07", "08", "09", 10)]
    rows = [p.get_subplotspec().rowspan.start for p in panels]
    columns = [p.get_subplotspec().colspan.start for p in panels]
    assert (rows, columns) == ([0, 0, 0, 1], [0, 1, 2, 0])
    inputs, targets = forecast(stored)[6]
    for panel, expected in zip(panels, [*inputs[0], targets[0]], strict=True):
        drawn = image_of(panel).get_array()
        assert np.array_equal(np.ma.getmaskarray(drawn), np.isnan(expected))
        assert np.array_equal(drawn.filled(0), np.nan_to_num(expected))
        assert panel.get_facecolor()[:3] == (0.8, 0.8, 0.8)
    assert panels[0].get_ylabel() == "inputs: t2m\nlat (°N)"
    assert panels[3].get_ylabel() == "targets: t2m\nlat (°N)"
    assert panels[3].get_xlabel() == "lon (°E)"
    (scale,) = scales_of(figure)
    assert scale.get_ylabel() == "t2m (K)"
    assert list(scale.get_subplotspec().rowspan) == [0]


def test_a_variable_has_one_colour_scale_in_all_fields_steps_and_samples(stored):
    figure = forecast(stored).plot([0, 9])
    limits = {image_of(panel).get_clim() for panel in maps_of(figure)}
    assert len(limits) == 1
    # Each variable has its colour scale beside its first rows.
    two = stored.isel(level=0).window(time=1).field("a", ["t2m"]).field("b", ["u"]).plot([0, 9])
    assert [scale.get_ylabel() for scale in scales_of(two)] == ["t2m (K)", "u"]
    assert [list(own.get_subplotspec().rowspan) for own in scales_of(two)] == [[0], [1]]
    values = np.concatenate(
        [array.reshape(-1) for i in (0, 9) for array in forecast(stored)[i]], dtype=np.float64
    )
    expected = np.nanpercentile(values, [0.5, 99.5])
    assert np.allclose(limits.pop(), expected)


def test_steps_that_fields_share_stand_below_each_other(stored):
    samples = stored.window(time=4).inputs("t2m", time=slice(0, 3)).targets("t2m", time=slice(2, 4))
    panels = maps_of(samples.plot(0))
    columns = [p.get_subplotspec().colspan.start for p in panels]
    assert columns == [0, 1, 2, 2, 3]
    # A date that stands above is not written again.
    assert [p.get_title()[-2:] for p in panels] == ["01", "02", "03", "", "04"]


@pytest.mark.parametrize("is_descending", [True, False])
def test_north_is_up_whatever_the_order_of_latitudes(is_descending):
    ds = weather() if is_descending else weather().sortby("lat")
    (panel,) = maps_of(ds.xloader.window(time=1).plot(0, channel="t2m"))
    low, high = panel.get_ylim()
    assert (low, high) == (pytest.approx(-75), pytest.approx(75))
    # The first row of the array lies where its latitude is.
    bottom, top = image_of(panel).get_extent()[2:]
    first = bottom + (top - bottom) / 10
    assert first == pytest.approx(ds.lat.values[0])


def test_rows_of_an_image_without_labels_count_from_the_top():
    ds = xr.Dataset({"red": (("n", "y", "x"), np.zeros((3, 4, 6)))})
    (panel,) = maps_of(ds.xloader.window(n=1).plot(0))
    assert panel.get_ylim() == (3.5, -0.5)
    assert panel.get_ylabel() == "red\ny (element)"


def test_a_patch_across_the_date_line_is_drawn_in_one_piece():
    samples = weather().xloader.window(lat=5, lon=4, time=1, wrap="lon", stride={"lon": 2})
    (panel,) = maps_of(samples.plot(60, channel="t2m"))
    assert panel.get_xlim() == (247.5, 427.5)
    assert panel.xaxis.get_major_formatter()(405) == "45"


def test_levels_are_rows_with_scales_of_their_own(stored):
    figure = stored.window(time=2).plot(0, channel="u")
    panels = maps_of(figure)
    assert len(panels) == 4
    names = [panels[0].get_ylabel(), panels[2].get_ylabel()]
    assert names == ["u\nlevel 500\nlat (°N)", "u\nlevel 850\nlat (°N)"]
    assert [s.get_ylabel() for s in scales_of(figure)] == ["u, level 500", "u, level 850"]
    # Winds blow both ways: white is zero.
    low, high = image_of(panels[0]).get_clim()
    assert low == -high
    assert image_of(panels[0]).get_cmap().name == "RdBu_r"


def test_channels_are_chosen_by_name_and_what_is_left_out_is_said(stored):
    samples = stored.window(time=1).inputs("t2m", "u", "flow").targets("flow")
    with_two = samples.plot(0, channel=["u_850", "flow"])
    names = [panel.get_ylabel().splitlines()[0] for panel in maps_of(with_two)[:2]]
    assert names == ["inputs: u_850", "inputs: flow"]
    with pytest.raises(UnknownNameError, match=r"'v'.*t2m.*u_500"):
        samples.plot(0, channel="v")
    wide = xr.Dataset({f"v{i}": (("time", "x"), np.ones((20, 3))) for i in range(6)})
    figure = wide.xloader.window(time=20).inputs(*wide.data_vars).plot(0)
    assert len(maps_of(figure)) == 4
    assert figure.get_supxlabel() == "shown: 4 of 6 channels of inputs (see channel=)"
    long = stored.window(time=20).plot(0, channel="t2m")
    titles = [p.get_title() for p in maps_of(long)]
    assert (len(titles), titles[0], titles[-1]) == (8, "2001-01-01", "2001-01-20")
    assert long.get_supxlabel() == "shown: 8 of 20 steps"


def test_a_field_of_one_dimension_is_a_line(stored):
    figure = stored.window(time=5).plot(1, channel="flow")
    (panel,) = maps_of(figure)
    (line,) = panel.lines
    assert line.get_ydata().tolist() == [5, 6, 7, 8, 9]
    assert panel.get_ylabel() == "flow (m3 s-1)"
    assert [text.get_text() for text in panel.get_xticklabels()] == [
        f"2001-01-{day:02}" for day in range(6, 11)
    ]


def test_single_values_are_written(stored):
    samples = stored.window(time=5).inputs("flow", time=slice(0, 4)).targets("flow", time=4)
    line, value = maps_of(samples.plot(0))
    assert len(line.lines) == 1
    assert [text.get_text() for text in value.texts] == ["targets: flow, flow (m3 s-1): 4"]


def test_rows_of_a_batch_are_its_samples(stored):
    samples = forecast(stored)
    with samples.loader(batch_size=4, memory="64MiB", on_nan="ignore") as loader:
        batch = next(iter(loader))
    one = maps_of(batch.plot())
    assert len(one) == 4
    both = maps_of(batch.plot(rows=[1, -1]))
    assert len(both) == 8
    for row, first in ((1, both[0]), (3, both[4])):
        drawn = image_of(first).get_array().filled(np.nan)
        assert np.array_equal(drawn, batch.inputs[row, 0, 0].numpy(), equal_nan=True)
        assert first.get_ylabel().splitlines()[0] == f"sample {batch.ids[row]} (row {row})"
    for wrong in ({"row": 0, "rows": [1]}, {"rows": []}):
        with pytest.raises(OptionError, match="rows to draw"):
            batch.plot(**wrong)
    for row in (4, -5, 0.5):
        with pytest.raises(SampleIndexError):
            batch.plot(row)


def test_a_picture_reads_each_chunk_of_the_sample_once():
    store = CountingStore(write_store(weather(), CHUNKS))
    samples = forecast(xloader.open(store))
    samples.plot(2)
    chunks = {key: num for key, num in store.reads.items() if is_chunk_key(key) and "t2m" in key}
    assert chunks == {"t2m/c/0/0/0": 1, "t2m/c/1/0/0": 1}


def test_coastlines_are_drawn_on_maps_in_degrees(stored, monkeypatch):
    coast = np.array([[-10.0, 0.0], [20.0, 30.0]])
    monkeypatch.setattr(sample_panels, "find_coastlines", lambda: (coast,))
    (panel,) = maps_of(stored.window(time=1).plot(0, channel="t2m"))
    (lines,) = panel.collections
    # Once for each way to count longitudes.
    assert [path[0].tolist() for path in lines.get_segments()] == [[-370, 0], [-10, 0], [350, 0]]
    ds = xr.Dataset({"red": (("n", "y", "x"), np.zeros((3, 4, 6)))})
    assert not maps_of(ds.xloader.window(n=1).plot(0))[0].collections


def test_coastlines_that_are_not_on_this_machine_are_left_out(monkeypatch):
    monkeypatch.setattr(sample_panels, "find_spec", lambda name: SimpleNamespace())
    for place in (None, Path("missing.shp")):
        monkeypatch.setattr(sample_panels, "_stored_path", lambda place=place: place)
        sample_panels.find_coastlines.cache_clear()
        assert sample_panels.find_coastlines() == ()
    sample_panels.find_coastlines.cache_clear()


def test_without_matplotlib_the_error_names_the_extra(stored, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match="viz"):
        stored.window(time=1).plot(0)


class Events:
    """The events of a stand-in for a notebook's shell."""

    def __init__(self) -> None:
        self.hooks: list[Any] = []

    def register(self, event: str, hook: Any) -> None:
        assert event == "post_execute"
        self.hooks.append(hook)

    def unregister(self, event: str, hook: Any) -> None:
        self.hooks.remove(hook)


class Notebook:
    """A stand-in for IPython, which counts what a cell shows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **attributes: Any) -> None:
        self.events, self.shown = Events(), []
        shell = SimpleNamespace(events=self.events, **attributes)
        module = SimpleNamespace(get_ipython=lambda: shell)
        monkeypatch.setitem(sys.modules, "IPython", module)
        monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=self.display))

    def display(self, picture: Any) -> None:
        with pytest.raises(NotImplementedError):
            picture._ipython_display_()
        self.shown.append(picture)

    def end_of_cell(self) -> list[Any]:
        for hook in list(self.events.hooks):
            hook()
        assert not self.events.hooks
        shown, self.shown = self.shown, []
        return shown


def test_a_notebook_shows_each_picture_once(stored, monkeypatch):
    samples = forecast(stored)
    notebook = Notebook(monkeypatch, kernel=object())
    # A semicolon, or a name for the figure.
    figure = samples.plot()
    assert notebook.end_of_cell() == [figure]
    # The first sample is drawn by default.
    assert maps_of(figure)[0].get_title() == "2001-01-01"
    # At the end of a cell, and in its middle.
    other, last = samples.explain(batch_size=4).plot(), samples.coverage().plot()
    notebook.display(last)
    assert notebook.end_of_cell() == [last, other]
    # In a later cell, only if it is asked for.
    assert notebook.end_of_cell() == []


def test_a_terminal_shows_no_picture(stored, monkeypatch):
    notebook = Notebook(monkeypatch)
    forecast(stored).plot()
    assert notebook.end_of_cell() == []


def test_ipython_shows_a_picture_as_a_figure(stored):
    formatters = pytest.importorskip("IPython.core.formatters")
    figure = forecast(stored).plot()
    assert not figure.is_shown
    formatter = formatters.DisplayFormatter()
    formatter.active_types = ["text/plain", "image/png"]
    data, _ = formatter.format(figure)
    assert data["image/png"].startswith(b"\x89PNG")
    assert figure.is_shown


def test_pictures_leave_backend_and_settings_alone(stored):
    program = (
        "import matplotlib as mpl, xarray as xr, numpy as np, xloader, sys\n"
        "before = dict(dict.items(mpl.rcParams))\n"
        "ds = xr.Dataset({'a': (('t', 'x'), np.ones((4, 3)))})\n"
        "figure = ds.xloader.window(t=2).plot(0)\n"
        "assert figure._repr_png_().startswith(b'\\x89PNG')\n"
        "assert dict(dict.items(mpl.rcParams)) == before\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("arguments", "label"), [(("x", {"units": "km"}), "x (km)"), (("lat", {}, "lat"), "lat (°N)")]
)
def test_axes_are_labelled_with_their_units(arguments: Any, label: str) -> None:
    assert axis_label(*arguments) == label
