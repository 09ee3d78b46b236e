"""Tables of the variables of an epoch, as text or HTML shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from xloader.core.nbytes import show_nbytes
from xloader.planning.variable_figures import VariableFigures

TitledTable = tuple[str, list[list[str]]]
"""A title, and rows of cells. The first row holds the headings."""

_MOST_VARIABLES = 12
"""Rows of a table of variables. The others, which have fewer bytes, are only counted."""


def variables_table(variables: Mapping[str, VariableFigures]) -> list[TitledTable]:
    """The reads of each variable; nothing for a single one."""

    def cells(name: str) -> list[str]:
        own = variables[name]
        return [
            f"{own.num_reads:,}",
            show_nbytes(own.read_nbytes),
            f"{own.read_amplification:.3f}",
        ]

    return list_variables(variables, ["variable", "reads", "decoded", "reads a chunk"], cells)


def list_variables(
    variables: Mapping[str, VariableFigures],
    heads: list[str],
    cells: Callable[[str], list[str]],
) -> list[TitledTable]:
    """A table with a row for each variable; nothing for a single one."""
    if len(variables) < 2:
        return []
    names = list(variables)
    if len(names) > _MOST_VARIABLES:
        names.sort(key=lambda name: -variables[name].read_nbytes)
    rows = [heads, *([name, *cells(name)] for name in names[:_MOST_VARIABLES])]
    if (more := len(names) - _MOST_VARIABLES) > 0:
        rows.append([f"and {more:,} more", *("" for _ in heads[1:])])
    return [("variables", rows)]
