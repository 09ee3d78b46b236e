"""The results as Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.growth import LEAST_SHARE, Growth
from benchmarks.measure import MIB, Speed
from benchmarks.results import Result
from benchmarks.rivals import sequential, shuffled

NOTHING = "-"


def show_ratios(results: Sequence[Result]) -> str:
    """Return a table of xloader's speed relative to others, one row per layout.

    More than 1 means that xloader is faster.
    """
    heads = ["layout", "reference", "fastest sequential", *shuffled.WAYS, "targets"]
    return make_table(heads, map(_ratios, results))


def _ratios(result: Result) -> list[str]:
    figures = result.figures
    fastest = result.fastest_sequential
    in_turn = NOTHING if fastest is None else f"{figures['sequential']:.2f} x {fastest[0]}"
    limit = f"{figures['reference']:.2f}" if "reference" in figures else NOTHING
    others = []
    for name in shuffled.WAYS:
        there = result.shuffled.get(name, NOTHING)
        others.append(there if isinstance(there, str) else f"{figures[name]:.0f} x")
    return [result.layout.title, limit, in_turn, *others, _show_verdicts(result)]


def _show_verdicts(result: Result) -> str:
    verdicts = result.verdicts
    told = [str(verdict) for verdict in verdicts if verdict.is_held is not True]
    num_held = sum(verdict.is_held is True for verdict in verdicts)
    return "; ".join([f"{num_held} of {len(verdicts)} held", *told])


def show_figures(results: Sequence[Result]) -> str:
    """Return a table of xloader's costs, one row per layout."""
    heads = [
        "layout",
        "delivered, GB/s",
        "decoded, GB/s",
        "samples/s",
        "reads",
        "amplification",
        "mixing (full)",
        "plan, s",
        "first batch, s",
        "peak of allowed, MiB",
        "CPU s/GB",
        "new pages",
    ]
    return make_table(heads, map(_figures, results))


def _figures(result: Result) -> list[str]:
    best = result.best
    return [
        result.layout.title,
        f"{result.delivered.gb_per_second:.2f}",
        f"{result.decoded.gb_per_second:.2f}",
        f"{result.figures['samples/s']:,.0f}",
        f"{best.num_reads:,}",
        f"{best.amplification:.3f}",
        f"{best.mixing:.1f} ({best.full_mixing:.1f})",
        f"{result.plan.seconds:.3f}",
        f"{result.first.first_seconds:.2f}",
        _show_memory(result),
        f"{result.cpu_seconds_per_gb:.2f}",
        f"{result.fault_share:.1%}",
    ]


def _show_memory(result: Result) -> str:
    return f"{result.peak_nbytes / MIB:.0f} of {result.allowed_nbytes / MIB:.0f}"


def show_sequential(results: Sequence[Result]) -> str:
    """Return a table of sequential reading by others, with xloader's shuffled speed beside it."""
    heads = ["store", *sequential.WAYS, "xloader, shuffled"]
    rows = []
    for result in results:
        if result.sequential:
            speeds = [show_speed(result.sequential[name]) for name in sequential.WAYS]
            rows.append([result.layout.title, *speeds, show_speed(result.decoded)])
    return make_table(heads, rows)


def show_speed(speed: Speed | str) -> str:
    """Return GB/s as text, or the reason why there are none."""
    return speed if isinstance(speed, str) else f"{speed.gb_per_second:.2f}"


def show_growth(grown: Sequence[Growth]) -> str:
    """Return a table of the figures by data size, and whether speed stays the same."""
    heads = ["layout", "data", "tiles", "plan, s", "peak of allowed, MiB", "GB/s", "targets"]
    rows = []
    for growth in grown:
        for result in growth.results:
            rows.append(
                [
                    result.layout.title,
                    f"{result.layout.store.nbytes / 1e9:.2f} GB",
                    f"{result.plan.num_tiles:,}",
                    f"{result.plan.seconds:.3f}",
                    _show_memory(result),
                    f"{result.delivered.gb_per_second:.2f}",
                    _show_verdicts(result),
                ]
            )
        said = "held" if growth.is_held else "missed"
        rows[-1][-1] += f"; {said}: {growth.share:.2f} of the smallest's GB/s, of {LEAST_SHARE:g}"
    return make_table(heads, rows)


def make_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
