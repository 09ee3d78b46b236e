"""An empty picture, the colours of all pictures, and their axes."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
"""Seven colours that colour-blind people can tell apart (Okabe and Ito, 2008)."""

GREY: Final = "0.8"
"""The colour of what has no value."""

_MOST_TICKS: Final = 6
_MARGIN: Final = 0.07
"""Space around pictures and panels, in inches, so that no text touches an edge."""


class Picture(Figure):
    """A figure that belongs to no window. A notebook shows it once in the cell that makes it."""

    is_shown = False
    """Whether a notebook has shown the picture."""

    def _ipython_display_(self) -> None:
        self.is_shown = True
        # IPython then shows the picture as it shows any other figure.
        raise NotImplementedError

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=100)
        return buffer.getvalue()


def new_picture(width: float, height: float) -> Picture:
    """An empty picture of a size in inches. The user's backend and settings stay as they are.

    A notebook shows it after the cell that makes it, as it shows the figures of pyplot, unless the
    cell itself has shown it.
    """
    picture = Picture(
        figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=_MARGIN, h_pad=_MARGIN)
    )
    FigureCanvasAgg(picture)
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    # In a terminal, IPython has no kernel, and could only print the picture's name.
    if hasattr(shell, "kernel"):

        def show(*_: object) -> None:
            shell.events.unregister("post_execute", show)
            if not picture.is_shown:
                import_module("IPython.display").display(picture)

        shell.events.register("post_execute", show)
    return picture


@dataclass(frozen=True, eq=False)
class PlotAxis:
    """One axis of a panel: where its elements lie, and what stands beside it.

    `values`: the place of each element, ascending or descending. `is_degrees`: whether the values
    are degrees of latitude or longitude.
    """

    label: str
    values: NDArray[np.float64]
    texts: tuple[str, ...] | None = None
    is_reversed: bool = False
    is_degrees: bool = False

    @property
    def edges(self) -> NDArray[np.float64]:
        """The borders between the elements, halfway between them; shape (n + 1,)."""
        if len(self.values) < 2:
            return np.concatenate([self.values - 0.5, self.values + 0.5])
        middle = (self.values[1:] + self.values[:-1]) / 2
        first, last = 2 * self.values[0] - middle[0], 2 * self.values[-1] - middle[-1]
        return np.concatenate([[first], middle, [last]])

    def is_like(self, other: PlotAxis) -> bool:
        """Whether two axes have the same label and the same elements."""
        if (self.label, self.texts) != (other.label, other.texts):
            return False
        return np.array_equal(self.values, other.values)

    def put_ticks(self, axis: Any) -> None:
        """Write dates and names beside an axis of matplotlib, where elements have such labels.

        Between labels that are whole numbers there are no ticks.
        """
        if self.texts is None and (self.values == np.round(self.values)).all():
            axis.set_major_locator(_whole_ticks())
        if self.texts is not None:
            num = min(len(self.texts), _MOST_TICKS)
            places = np.unique(np.linspace(0, len(self.texts) - 1, num).round().astype(int))
            axis.set_ticks(self.values[places], [self.texts[place] for place in places])


def count_along(axis: Any) -> None:
    """Mark whole numbers only on an axis of matplotlib that counts things, with commas."""
    axis.set_major_locator(_whole_ticks())
    axis.set_major_formatter(lambda count, _: f"{count:,.0f}")


def name_axes(axes: Axes, up: str, across: str = "") -> None:
    """Name the axes of a panel in small letters, with faint lines behind what is drawn."""
    axes.set_ylabel(up, fontsize=9)
    axes.set_xlabel(across, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(color="0.93")
    axes.set_axisbelow(True)


def legend_beside(axes: Axes, handles: Sequence[Artist] | None = None, **options: Any) -> None:
    """A legend to the right of a panel, where it covers no mark."""
    axes.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(1.005, 1.0), fontsize=8, frameon=False,
        **options,
    )  # fmt: skip


def _whole_ticks() -> MaxNLocator:
    return MaxNLocator(nbins=_MOST_TICKS, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1)
