"""The cost of an epoch of several sets, predicted before it and measured after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeVar

from xloader.core.messages import show_count
from xloader.core.nbytes import show_nbytes
from xloader.errors import OptionError
from xloader.loader.interleaved.composed_run import NUM_HELD, ComposedProgress
from xloader.loader.reports.advice import too_short
from xloader.loader.reports.report import Measurements, Report
from xloader.planning.explain import Explanation
from xloader.recipe.recipe import find
from xloader.show.cost_figures import EpochFigures, Figures, sum_variables

if TYPE_CHECKING:
    from xloader.show.canvas import Picture

T = TypeVar("T")


@dataclass(frozen=True)
class SetShare:
    """The part of one set in an epoch of several sets, on all ranks."""

    weight: Fraction
    num_samples: int
    num_left_out: int
    memory_nbytes: int


@dataclass(frozen=True)
class InterleavedFigures(EpochFigures):
    """The figures that the prediction and the measurement of several sets share.

    They are of one rank and one epoch, and are sums over the sets, except where noted.

    Attributes
    ----------
    num_samples : int
        Samples delivered, without padding.
    num_steps : int
        Batches of each rank.
    num_reads : int
        (variable, chunk) pairs read and decoded.
    read_nbytes : int
        Decoded bytes of these chunks.
    read_amplification : float
        ``num_reads`` divided by the number of distinct pairs needed; 1.00 is each once.
    peak_nbytes : int
        The most bytes in use at a time, as in :class:`Explanation`, with two composed batches.
    mixing, full_mixing : float
        Mean number of distinct regions in a batch, and its value for full shuffles. For each set,
        a batch of its own loader is counted, which has about as many rows as it gives to a step.
    num_dropped_windows : int
        Windows left out by the sets themselves.
    dropped_windows : dict of str to int
        The same by reason.
    is_exact : bool
        Whether the counts are exact.
    shares : dict of str to SetShare
        The part of each set in an epoch.
    variables : dict of str to VariableFigures
        The reads of each variable, by set and variable, such as ``"era5/t2m"``.
    """

    shares: Mapping[str, SetShare]

    def _rows(self) -> list[tuple[str, str]]:
        rows = super()._rows()
        for name, share in self.shares.items():
            text = f"{float(share.weight):.4g} of the rows, {share.num_samples:,} an epoch"
            if share.num_left_out:
                text += f", {show_count(share.num_left_out, 'sample')} left out of each"
            rows.append((name, f"{text}; {show_nbytes(share.memory_nbytes)} of memory"))
        return rows


@dataclass(frozen=True)
class InterleavedExplanation(InterleavedFigures):
    """The predicted cost of an epoch of several sets, computed before any data is read.

    Attributes
    ----------
    sets : dict of str to Explanation
        The prediction for each set's own loader, for sets with rows left in the epoch.
    num_shared_reads : int
        Extra reads because several ranks need the same chunk.
    notes : tuple of str
        Other facts that may surprise the user, each a sentence that begins with the set's name.
    """

    sets: Mapping[str, Explanation] = field(default_factory=dict)
    num_shared_reads: int = 0
    notes: tuple[str, ...] = ()

    def plot(self, name: str | None = None) -> Picture:
        """Draw which chunk of one set is in memory when; see :meth:`Explanation.plot`.

        Each set has chunks and a plan of its own, and so a picture of its own.

        Parameters
        ----------
        name : str, optional
            The set. It may be left out if there is only one.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        OptionError
            If no set is named, and there are several. As :meth:`Explanation.plot` raises it.
        UnknownNameError
            If there is no such set.
        MissingDependencyError
            If matplotlib is not installed.
        """
        return find_set(self.sets, name, "explain().plot").plot()

    def _title(self) -> str:
        return "Explanation of several sets: a prediction, made without reading data"

    def _rows(self) -> list[tuple[str, str]]:
        rows = super()._rows()
        if self.num_shared_reads:
            extra = show_count(self.num_shared_reads, "extra read")
            rows.append(("shared", f"{extra} of chunks that ranks share"))
        return rows + [("note", note) for note in self.notes]


@dataclass(frozen=True)
class InterleavedReport(InterleavedFigures, Measurements):
    """The amounts read and the speed of the epoch under way, or of the last one.

    Attributes
    ----------
    sets : dict of str to Report
        The report of each set's own loader. Its samples are those of the set's own batches, of
        which an epoch may have used only a part so far.
    num_requests, num_retries, num_missing, num_skipped_samples : int
        As in :class:`Report`.
    num_nan : dict of str to int
        Number of NaN values by set and field, such as ``"era5/t2m"``.
    delivered_nbytes : int
        Bytes of the batches delivered.
    seconds : float
        Seconds from the first request for a batch to the last batch.
    wait_seconds : float
        Seconds in which the consumer waited for batches of the sets.
    bottleneck : str
        What limits the speed: ``"consumer"``, or the bottleneck of the set that was waited for
        longest, such as ``"decode"``; ``"unclear"`` in an epoch of less than a second.
    advice : str
        The bottleneck in words, with the name of the set.
    """

    sets: Mapping[str, Report]

    def plot(self, name: str | None = None) -> Picture:
        """Draw the stages of one set's loader over time; see :meth:`Report.plot`.

        Parameters
        ----------
        name : str, optional
            The set. It may be left out if there is only one.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        OptionError
            If no set is named, and there are several. If no batch was delivered.
        UnknownNameError
            If there is no such set.
        MissingDependencyError
            If matplotlib is not installed.
        """
        return find_set(self.sets, name, "report().plot").plot()

    def _title(self) -> str:
        return "Report of several sets"

    def _rows(self) -> list[tuple[str, str]]:
        return [
            *super()._rows(),
            self._delivered_row,
            self._waited_row,
            ("bottleneck", f"{self.bottleneck}. {self.advice}"),
            *self._fault_rows(),
        ]


def find_set(sets: Mapping[str, T], name: str | None, call: str) -> T:
    """One of several sets, by its name.

    `name`: the set; None for the only one.
    """
    names = tuple(sets)
    if name is None and len(names) != 1:
        raise OptionError(
            "each set has a picture of its own",
            given="no name of a set",
            allowed=", ".join(map(repr, names)),
            remedy=f"name one, as in {call}({names[0]!r})" if names else "iterate first",
        )
    chosen = names[0] if name is None else name
    find(chosen, names, "set")
    return sets[chosen]


def summed(sets: Mapping[str, Figures]) -> dict[str, Any]:
    """The figures of several sets that are sums: reads, bytes, regions and dropped windows."""
    figures = list(sets.values())
    variables = {f"{name}/{v}": cost for name, s in sets.items() for v, cost in s.variables.items()}
    dropped: Counter[str] = Counter()
    for cost in figures:
        dropped.update(cost.dropped_windows)
    names = ("mixing", "full_mixing", "num_dropped_windows")
    return {
        **sum_variables(variables),
        **{name: sum(getattr(cost, name) for cost in figures) for name in names},
        "dropped_windows": dict(dropped),
        "is_exact": all(cost.is_exact for cost in figures),
    }


def report_of(
    progress: ComposedProgress, shares: Mapping[str, SetShare], composed_nbytes: int
) -> InterleavedReport:
    """The report of an epoch of several sets."""
    reports = {name: loader.report() for name, loader in progress.loaders.items()}
    names = ("num_requests", "num_retries", "num_missing", "wait_seconds")
    sums = {name: sum(getattr(report, name) for report in reports.values()) for name in names}
    seconds = progress.end - progress.begin if progress.num_steps else 0.0
    num_nan = {f"{n}/{f}": num for n, r in reports.items() for f, num in r.num_nan.items()}
    held = min(progress.num_steps, NUM_HELD) * composed_nbytes
    return InterleavedReport(
        num_samples=progress.num_samples,
        num_steps=progress.num_steps,
        peak_nbytes=held + sum(report.peak_nbytes for report in reports.values()),
        shares=shares,
        sets=reports,
        num_skipped_samples=progress.num_skipped,
        num_nan=num_nan,
        delivered_nbytes=progress.delivered_nbytes,
        seconds=seconds,
        **sums,
        **_worst_wait(reports, seconds),
        **summed(reports),
    )


def _worst_wait(reports: Mapping[str, Report], seconds: float) -> dict[str, Any]:
    """The bottleneck of several sets, and advice on it."""
    if seconds and (caution := too_short(seconds)):
        return {"bottleneck": "unclear", "advice": caution}
    waits = {name: report.wait_seconds for name, report in reports.items()}
    if not waits or sum(waits.values()) < seconds / 10:
        return {"bottleneck": "consumer", "advice": "The training loop is slower than the loader."}
    name = max(waits, key=waits.__getitem__)
    stage, busy = reports[name].bottleneck, reports[name].busy_seconds
    if stage == "consumer" and busy:
        # While one set is waited for, the others have a slow consumer.
        stage = max(busy, key=busy.__getitem__)
    advice = (
        f"The set {name!r} was waited for longest, {waits[name]:.2f} s; "
        f"report().sets[{name!r}] says more."
    )
    return {"bottleneck": stage, "advice": advice}
