"""Make the maps of the guides: `python docs/drawings/maps.py [FOLDER]`.

A batch, and predictions put back onto the grid, each for light and for dark pages.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

import xloader
from xloader.testing import tutorial_store

INKS = {"light": "#24292f", "dark": "#e6edf3"}
SHARE = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")


def draw_batch(weather: xloader.Samples) -> Figure:
    """The first sample of a normalised batch."""
    samples = weather.window(time=3, stride=1).inputs("t2m", time=slice(0, 2))
    samples = samples.targets("t2m", time=2)
    samples = samples.normalize(samples.stats(progress=False))
    with samples.loader(batch_size=16, output="numpy") as loader:
        return next(iter(loader)).plot(rows=[0])


def draw_mosaic(weather: xloader.Samples) -> Figure:
    """The same predictions of overlapping patches, blended in two ways."""
    patches = weather.isel(time=slice(0, 1)).window(
        time=1, lat=13, lon=16, stride={"lat": 8, "lon": 8}, wrap="lon", pad={"lat": "edge"}
    )
    patches = patches.inputs("t2m").targets("t2m")
    figure = Figure(figsize=(8.4, 2.5), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, blend in zip(panels, ("crop", "linear"), strict=True):
        with patches.mosaic(blend=blend) as out:
            values = patches[:].inputs
            # A model that errs by another constant in each window.
            errors = np.random.default_rng(0).normal(0, 5, (len(values), *[1] * (values.ndim - 1)))
            out.write(np.arange(len(values)), values + errors)
        field = out.dataset.t2m.isel(time=0)
        image = axes.pcolormesh(field.lon, field.lat, field, cmap="RdYlBu_r", rasterized=True)
        axes.set(title=f'blend="{blend}"', xticks=range(0, 360, 90), yticks=range(-60, 90, 30))
    figure.colorbar(image, ax=figure.axes, label="t2m (K)", shrink=0.9)
    return figure


def write_maps(folder: Path) -> None:
    """Write both maps in both themes."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        weather = xloader.open(tutorial_store(f"{place}/weather.zarr"))
        for theme, ink in INKS.items():
            with mpl.rc_context({**dict.fromkeys(SHARE, ink), "font.size": 9}):
                for name, draw in {"batch": draw_batch, "mosaic": draw_mosaic}.items():
                    path = folder / f"{name}-{theme}.png"
                    draw(weather).savefig(path, dpi=110, transparent=True)


if __name__ == "__main__":
    default = Path(__file__).parents[1] / "_static" / "guides"
    write_maps(Path(sys.argv[1]) if sys.argv[1:] else default)
