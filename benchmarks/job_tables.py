"""The figures of jobs as Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.chunking import XLOADER, CaseFigures
from benchmarks.measure import MIB
from benchmarks.stats_contest import StatsFigures
from benchmarks.table import NOTHING, make_table


def show_stats(figures: StatsFigures) -> str:
    """Return the figures as a table."""
    heads = ["statistics", "s", "GB/s", "of the loader", "times dask", "peak, MiB"]
    heads.append("reads per chunk")
    return make_table(heads, _stats_rows(figures))


def _stats_rows(figures: StatsFigures) -> Sequence[Sequence[str]]:
    rows = []
    for name, held in figures.to_dict()["kinds"].items():
        ratio, reads = held["times_dask"], held["reads_of_a_chunk"]
        rows.append(
            [
                name,
                f"{held['seconds']:.2f}",
                f"{held['gb_per_second']:.2f}",
                f"{held['of_loader']:.2f}",
                NOTHING if ratio is None else f"{ratio:.1f}",
                f"{held['peak_mib']:.0f}",
                NOTHING if reads is None else f"{reads:.2f}",
            ]
        )
    return [
        *rows,
        *([name, f"not measured: {why}", *[NOTHING] * 5] for name, why in figures.left_out.items()),
    ]


def show_epochs(cases: Sequence[CaseFigures]) -> str:
    """Return the epochs before and after as a table; predicted figures are in brackets."""
    heads = ["samples", "chunks", "memory, MiB", "reads per chunk", "mixing, of a full one", "GB/s"]
    rows = []
    for case in cases:
        for figures in (case.before, case.after):
            held, said = figures.to_dict(), figures.predicted
            pairs = [
                (held["amplification"], said["read_amplification"], ".2f"),
                (held["mixing_share"], said["mixing_share"], ".0%"),
                (held["gb_per_second"], said["gb_per_s"], ".2f"),
            ]
            rows.append(
                [
                    case.layout.title,
                    " x ".join(map(str, figures.chunks)),
                    f"{figures.memory_nbytes / MIB:.0f}",
                    *(f"{found:{form}} ({_show(told, form)})" for found, told, form in pairs),
                ]
            )
    return make_table(heads, rows)


def _show(value: float | None, form: str) -> str:
    return "does not fit" if value is None else format(value, form)


def show_copies(cases: Sequence[CaseFigures]) -> str:
    """Return the cost of writing the stores anew as a table."""
    heads = [
        "samples",
        "data",
        "chunks",
        "way",
        "s",
        "GB/s",
        "times dask",
        "peak, MiB (given)",
        "reads per chunk",
    ]
    rows = []
    for case in cases:
        for copy in case.copies:
            told = copy.to_dict()
            for name, held in told["ways"].items():
                ratio = held["times_dask"]
                given = f" ({told['memory_mib']:.0f})" if name == XLOADER else ""
                rows.append(
                    [
                        case.layout.title,
                        f"{copy.store.nbytes / 1e9:.2f} GB",
                        " x ".join(map(str, copy.chunks.values())),
                        name,
                        f"{held['seconds']:.1f}",
                        f"{held['gb_per_second']:.2f}",
                        NOTHING if ratio is None else f"{ratio:.1f}",
                        f"{held['peak_mib']:.0f}{given}",
                        f"{held['reads_of_a_chunk']:.2f}",
                    ]
                )
            for name, why in copy.left_out.items():
                rows.append([case.layout.title, "", "", name, why, *[NOTHING] * 4])
    return make_table(heads, rows)
