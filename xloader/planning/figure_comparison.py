"""The prediction for an epoch beside its measurements, as tables."""

from __future__ import annotations

from collections.abc import Callable

from xloader.core.nbytes import show_nbytes
from xloader.planning.cost_figures import Figures
from xloader.planning.figure_tables import TitledTable, list_variables


def comparison_tables(planned: Figures, measured: Figures) -> list[TitledTable]:
    """Tables of the prediction beside the measurements: the epoch, and each variable."""
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
    return [(title, rows), *list_variables(planned.variables, heads, cells)]


_COMPARED: dict[str, Callable[[Figures], str]] = {
    "samples": lambda own: f"{own.num_samples:,}",
    "reads": lambda own: f"{own.num_reads:,}",
    "decoded": lambda own: show_nbytes(own.read_nbytes),
    "reads a chunk": lambda own: f"{own.read_amplification:.3f}",
    "peak memory": lambda own: show_nbytes(own.peak_nbytes),
    "regions a batch": lambda own: f"{own.mixing:.1f}",
    "in a full shuffle": lambda own: f"{own.full_mixing:.1f}",
}
