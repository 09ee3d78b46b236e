"""The paired differences of all orders to the full shuffle, as a table and as a curve."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning.orders import FULL, SIZES, WAYS, Way
from benchmarks.learning.runs import Run


@dataclass(frozen=True)
class Row:
    """The results of one order.

    Parameters
    ----------
    way : Way
        The order.
    num_seeds : int
        Seeds for which both this order and the full shuffle were trained.
    loss : float
        Mean validation loss over these seeds.
    difference, error : float
        Mean of the paired differences to the full shuffle in percent of the full shuffle's mean
        loss, and its standard error. NaN for the full shuffle; the error also for a single seed.
    num_reads : float
        Chunks that an epoch reads.
    is_counted : bool
        Whether the reads were counted, and were those predicted.
    read_amplification, mixing, share, wide_share, seconds : float
        Means over the runs. The shares are of a full shuffle's mixing: for batches, and for ten
        batches that follow each other.
    """

    way: Way
    num_seeds: int
    loss: float
    difference: float
    error: float
    num_reads: float
    is_counted: bool
    read_amplification: float
    mixing: float
    share: float
    wide_share: float
    seconds: float


def make_rows(runs: list[Run], case: str) -> list[Row]:
    """One row for each order of a case that shares seeds with the full shuffle."""
    found: dict[str, dict[int, Run]] = {}
    for one in runs:
        if one.case == case:
            found.setdefault(one.way, {})[one.seed] = one
    full = found.get(FULL.name, {})
    rows = []
    for way in WAYS:
        own = found.get(way.name, {})
        seeds = sorted(own.keys() & full.keys())
        if not seeds:
            continue
        chosen = [own[seed] for seed in seeds]
        shares = [
            (one.mixing / one.full_mixing, one.wide_mixing / one.wide_full_mixing) for one in chosen
        ]
        losses = np.array([one.loss for one in chosen])
        base = np.array([full[seed].loss for seed in seeds])
        change = 100 * (losses - base) / base.mean()
        is_full = way == FULL
        means = {
            name: float(np.mean([getattr(one, name) for one in chosen]))
            for name in ("num_reads", "read_amplification", "mixing", "seconds")
        }
        rows.append(
            Row(
                way=way,
                num_seeds=len(seeds),
                loss=float(losses.mean()),
                difference=math.nan if is_full else float(change.mean()),
                error=standard_error(change) if not is_full else math.nan,
                is_counted=way.kind == "plan"
                and all(one.num_reads == one.num_predicted for one in chosen),
                share=float(np.mean(shares, axis=0)[0]),
                wide_share=float(
                    np.mean([one.wide_mixing / one.wide_full_mixing for one in chosen])
                ),
                **means,
            )
        )
    return rows


def standard_error(values: np.ndarray) -> float:
    """Standard error of a mean; NaN for a single value."""
    if len(values) < 2:
        return math.nan
    return float(values.std(ddof=1) / math.sqrt(len(values)))


def format_rows(rows: list[Row]) -> str:
    """A Markdown table."""
    head = "order | loss | against full | seeds | reads | a chunk | mixing | of full | of ten | s"
    lines = [f"| {head} |", "|---" * (head.count("|") + 1) + "|"]
    for row in rows:
        change = "" if row.way == FULL else f"{row.difference:+.2f} ± {row.error:.2f} %"
        lines.append(
            f"| {row.way.name} | {row.loss:.4f} | {change} | {row.num_seeds} "
            f"| {row.num_reads:,.0f}{'' if row.is_counted else ' *'} "
            f"| {row.read_amplification:.2f} | {row.mixing:.1f} | {100 * row.share:.0f} % "
            f"| {100 * row.wide_share:.0f} % | {row.seconds:.1f} |"
        )
    return "\n".join(lines)


def draw(rows_of: dict[str, list[Row]], path: Path) -> None:
    """Draw loss and mixing against memory, a column of panels for each case."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * len(rows_of), 6.4), layout="constrained")
    panels = figure.subplots(2, len(rows_of), squeeze=False, sharex="col")
    for column, (title, rows) in enumerate(rows_of.items()):
        upper, lower = panels[:, column]
        _draw_column(upper, lower, rows)
        upper.set(title=title, ylabel="loss against a full shuffle, %")
        lower.set(xlabel="memory, in tiles", ylabel="regions, of a full shuffle's", ylim=(0, None))
        lower.set_xlim(SIZES[0] / 1.2, SIZES[-1] * 2.5)
        lower.set_xscale("log", base=2)
        ticks = [*SIZES, 2 * SIZES[-1]]
        lower.set_xticks(ticks, [str(tick) for tick in ticks])
        for panel in (upper, lower):
            panel.legend(fontsize="small")
    figure.savefig(path, dpi=150)


def _draw_column(upper: Any, lower: Any, rows: list[Row]) -> None:
    """Draw the rows of a case: differences above, and the regions of batches below."""
    for kind, label, colour in (("plan", "even pace", "C0"), ("buffer", "shuffle buffer", "C1")):
        own = [row for row in rows if row.way.kind == kind and row.way.max_amplification < 2]
        sizes = [row.way.held_tiles for row in own]
        differences, errors = [row.difference for row in own], [row.error for row in own]
        upper.errorbar(sizes, differences, errors, fmt="o-", capsize=3, color=colour, label=label)
        shares, wide = [row.share for row in own], [row.wide_share for row in own]
        lower.plot(sizes, shares, "o-", color=colour, label=f"{label}, a batch")
        lower.plot(sizes, wide, "o--", color=colour, mfc="none", label=f"{label}, ten batches")
    for kind, label, colour in (
        ("tiles", "chunks in turn", "0.4"),
        ("ascending", "sequential", "0.7"),
    ):
        for row in rows:
            if row.way.kind == kind:
                upper.axhline(row.difference, color=colour, linestyle=":", label=label)
    upper.axhline(0, color="black", linewidth=0.8)
    lower.axhline(1, color="black", linewidth=0.8)
