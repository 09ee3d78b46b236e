"""A PNG of four maps: truth, forecast and errors of one held-out sample."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from xloader.show.canvas import PlotAxis, new_picture
from xloader.show.map_plots import draw_map

_DPI = 150


@dataclass(frozen=True)
class Panels:
    """The content of the picture: maps of one variable of one sample."""

    title: str
    units: str
    truth: NDArray[np.float32]
    forecast: NDArray[np.float32]
    persistence: NDArray[np.float32]
    weights: NDArray[np.float64]
    rows: PlotAxis
    columns: PlotAxis

    def rmse(self, guess: NDArray[np.float32]) -> float:
        """Weighted RMSE of a map against the truth, in the maps' units."""
        square = np.where(self.weights > 0, np.square(guess - self.truth, dtype=np.float64), 0.0)
        return float(np.sqrt((square * self.weights).sum() / self.weights.sum()))


def draw(panels: Panels, path: Path) -> None:
    """Draw four maps and write them as a PNG.

    ::

        truth       forecast               one colour scale
        forecast    persistence
          error       error                one colour scale, white at 0
    """
    with mpl.rc_context({"font.size": 9, "axes.titlesize": 10, "axes.titleweight": "bold"}):
        figure = new_picture(11, 6.6)
        axes = figure.subplots(2, 2, sharex=True, sharey=True)
        figure.suptitle(panels.title, fontsize=12)
        _draw_states(figure, axes[0], panels)
        _draw_errors(figure, axes[1], panels)
        for axis in axes[1]:
            axis.set_xlabel(panels.columns.label)
        for axis in axes[:, 0]:
            axis.set_ylabel(panels.rows.label)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=_DPI, format="png")


def _draw_states(figure: Figure, axes: NDArray[np.object_], panels: Panels) -> None:
    """Draw truth and forecast on one colour scale."""
    both = np.stack([panels.truth, panels.forecast])
    low, high = np.nanpercentile(both, [0.5, 99.5])
    levels = np.linspace(low, high, 13)
    for axis, values, title in zip(axes, both, ("Truth", "Forecast"), strict=True):
        ends = float(low), float(high)
        mesh = draw_map(axis, panels.columns, panels.rows, values, "viridis", *ends)
        if high > low and not np.isnan(values).any():
            axis.contour(
                panels.columns.values,
                panels.rows.values,
                values,
                levels,
                colors="white",
                linewidths=0.4,
            )
        axis.set_title(title)
    figure.colorbar(mesh, ax=list(axes), extend="both", label=panels.units, aspect=22, pad=0.01)


def _draw_errors(figure: Figure, axes: NDArray[np.object_], panels: Panels) -> None:
    """Draw the errors of forecast and persistence on one colour scale."""
    guesses = {
        "Forecast minus truth": panels.forecast,
        "Persistence minus truth": panels.persistence,
    }
    edge = float(np.nanpercentile(np.abs(panels.persistence - panels.truth), 99.5)) or 1.0
    for axis, (title, guess) in zip(axes, guesses.items(), strict=True):
        error = guess - panels.truth
        mesh = draw_map(axis, panels.columns, panels.rows, error, "RdBu_r", -edge, edge)
        axis.set_title(f"{title}: RMSE {panels.rmse(guess):.3g} {panels.units}".rstrip())
    figure.colorbar(mesh, ax=list(axes), extend="both", label=panels.units, aspect=22, pad=0.01)
