"""Tables of figures: the variables of an epoch, and what was planned beside what was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from xloader.core.nbytes import show_nbytes
from xloader.planning.variable_figures import VariableFigures

if TYPE_CHECKING:
    from xloader.planning.cost_figures import Figures

TitledTable = tuple[str, list[list[str]]]
"""A title, and rows of cells. The first row holds the headings."""

_MOST_VARIABLES = 12
"""Rows of a table of variables. The others, which have fewer bytes, are only counted."""


def variables_table(variables: Mapping[str, VariableFigures]) -> list[TitledTable]:
    """The reads of each variable; nothing for a single one.

    Parameters
    ----------
    variables : mapping of str to VariableFigures
        The figures of each variable.
    """

    def cells(name: str) -> list[str]:
        own = variables[name]
        return [
            f"{own.num_reads:,}",
            show_nbytes(own.read_nbytes),
            f"{own.read_amplification:.3f}",
        ]

    return _listed(variables, ["variable", "reads", "decoded", "reads a chunk"], cells)


def comparison_tables(planned: Figures, measured: Figures) -> list[TitledTable]:
    """What was planned beside what was measured: the epoch, and each of several variables.

    Parameters
    ----------
    planned, measured : Figures
        The prediction for the whole epoch, and the figures so far.
    """
    title = "planned beside measured"
    if measured.num_steps < planned.num_steps:
        title += (
            f": the plan is for {planned.num_steps:,} batches, "
            f"{measured.num_steps:,} were delivered so far"
        )
    rows = [
        ["", "planned", "measured"],
        *([name, show(planned), show(measured)] for name, show in _COMPARED.items()),
    ]

    def cells(name: str) -> list[str]:
        own, found = planned.variables[name], measured.variables[name]
        return [
            f"{own.num_reads:,}",
            f"{found.num_reads:,}",
            show_nbytes(own.read_nbytes),
            show_nbytes(found.read_nbytes),
        ]

    heads = ["variable", "reads planned", "measured", "decoded planned", "measured"]
    return [(title, rows), *_listed(planned.variables, heads, cells)]


_COMPARED: dict[str, Callable[[Figures], str]] = {
    "samples": lambda own: f"{own.num_samples:,}",
    "reads": lambda own: f"{own.num_reads:,}",
    "decoded": lambda own: show_nbytes(own.read_nbytes),
    "reads a chunk": lambda own: f"{own.read_amplification:.3f}",
    "peak memory": lambda own: show_nbytes(own.peak_nbytes),
    "regions a batch": lambda own: f"{own.mixing:.1f} of {own.full_mixing:.1f}",
}


def _listed(
    variables: Mapping[str, VariableFigures],
    heads: list[str],
    cells: Callable[[str], list[str]],
) -> list[TitledTable]:
    if len(variables) < 2:
        return []
    names = list(variables)
    if len(names) > _MOST_VARIABLES:
        names.sort(key=lambda name: -variables[name].read_nbytes)
    rows = [heads, *([name, *cells(name)] for name in names[:_MOST_VARIABLES])]
    if (more := len(names) - _MOST_VARIABLES) > 0:
        rows.append([f"and {more:,} more", *("" for _ in heads[1:])])
    return [("variables", rows)]
