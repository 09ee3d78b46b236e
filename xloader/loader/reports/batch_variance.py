"""The variance of the means of batches, as `Loader.batch_variance` found it: text, card, JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from xloader.core.messages import show_count
from xloader.core.nbytes import show_nbytes
from xloader.show.cost_figures import FIGURE_WORDS, FigureTable, TitledTable

_HEADS: Final = ("variable", "ratio", "standard error", "effective batch", "looked at", "left out")

_RATIO: Final = (
    "the variance of the means of batches, divided by that of a full shuffle: 1 if batches are as "
    "good as drawn at random, about the batch size if the samples of a batch are alike"
)
_EFFECTIVE: Final = (
    "the number of samples, drawn at random, whose mean varies as much as that of a batch"
)
_WORDS: Final[Mapping[str, str]] = {
    "ratio": _RATIO,
    "standard error": (
        "how far the ratio of other batches of this epoch lies from this one; epochs may differ by "
        "more"
    ),
    "effective batch": _EFFECTIVE,
    "reads": FIGURE_WORDS["reads"],
    "looked at": "elements of each sample that were looked at, evenly over the sample",
    "left out": "elements that were left out, as they are NaN or infinite in some sample",
}
"""By heading, what is meant, for cards."""


@dataclass(frozen=True)
class VariableVariance:
    """The variance of batch means of one variable in one field; see `BatchVariance`.

    Attributes
    ----------
    ratio : float
        Variance of the means of batches, divided by that of a full shuffle. NaN if the variable is
        the same in all samples, or no element is finite.
    standard_error : float
        Standard error of the ratio; NaN for fewer than three batches.
    effective_batch_size : float
        Number of samples, drawn at random, whose mean varies as much as that of a batch.
    num_elements : int
        Elements of each sample that were looked at, evenly taken, and are finite in all samples.
    num_left_out : int
        Elements that were looked at too, but left out: they are NaN or infinite in some sample.
    """

    ratio: float
    standard_error: float
    effective_batch_size: float
    num_elements: int
    num_left_out: int

    def cells(self) -> list[str]:
        """The texts of a row: one for each heading of a table after the name."""
        figures = ((self.ratio, 2), (self.standard_error, 2), (self.effective_batch_size, 1))
        shown = [f"{num:.{digits}f}" if math.isfinite(num) else "-" for num, digits in figures]
        if self.num_elements and not math.isfinite(self.ratio):
            shown[0] = "constant"
        return [*shown, f"{self.num_elements:,}", f"{self.num_left_out:,}"]


@dataclass(frozen=True)
class BatchVariance(FigureTable):
    """How much the means of batches vary, against a full shuffle; `Loader.batch_variance` makes it.

    ``print(found)`` shows a table. The ratio is the *design effect* of cluster sampling, with
    batches as clusters (Kish, *Survey Sampling*, 1965): 1 for a full shuffle, and about the batch
    size if all samples of a batch are alike. It may be below 1: an even pace spreads the samples of
    a batch better than chance does.

    Attributes
    ----------
    ratio : float
        Variance of the means of batches, divided by that of a full shuffle; of several variables
        the mean of their ratios. NaN if no variable varies.
    standard_error : float
        Standard error of the ratio, by the jackknife over batches: how far the ratio of other
        batches of this epoch lies from this one. Epochs may differ by more. NaN for fewer than
        three batches.
    effective_batch_size : float
        ``batch_size / ratio``: the number of samples, drawn at random, whose mean varies as much
        as that of a batch.
    batch_size : int
        Samples of a global batch.
    num_batches : int
        Batches that were looked at, spread over the whole epoch.
    num_epoch_batches : int
        Full global batches of the epoch. A last batch that is not full does not count.
    epoch : int
        Number of the epoch.
    num_samples : int
        Distinct samples of these batches, each read once.
    num_reads : int
        (variable, chunk) pairs that were read and decoded for them.
    num_expected_reads : int
        The same as predicted before the first one was read.
    read_nbytes : int
        Decoded bytes of these chunks.
    sums_nbytes : int
        Memory of the sums, a part of the loader's ``memory``.
    variables : dict of str to VariableVariance
        The figures of each variable. Its name is ``"t2m"`` where it is its own field, and
        ``"inputs/t2m"`` in a field of several.

    Examples
    --------
    Days of a season in chunks, in order and shuffled:

    >>> import numpy as np, xarray as xr, xloader
    >>> season = np.sin(np.arange(512) / 512 * 2 * np.pi)
    >>> ds = xr.Dataset({"t2m": (("time", "x"), np.stack([season, 2 * season], 1))})
    >>> samples = xloader.open(ds).window(time=1)
    >>> for shuffle in (False, True):
    ...     with samples.loader(batch_size=8, shuffle=shuffle, output="numpy") as loader:
    ...         print(round(loader.batch_variance("t2m").ratio, 1))
    8.1
    ...
    """

    _derived = ("effective_batch_size",)
    _hints = _WORDS
    ratio: float
    standard_error: float
    batch_size: int
    num_batches: int
    num_epoch_batches: int
    epoch: int
    num_samples: int
    num_reads: int
    num_expected_reads: int
    read_nbytes: int
    sums_nbytes: int
    variables: Mapping[str, VariableVariance]

    @property
    def effective_batch_size(self) -> float:
        """Number of samples, drawn at random, whose mean varies as much as that of a batch."""
        return effective_size(self.batch_size, self.ratio)

    def _rows(self) -> list[tuple[str, str]]:
        batches = f"{self.num_batches:,} of {self.num_epoch_batches:,} of epoch {self.epoch:,}"
        reads = show_count(self.num_reads, "chunk")
        if self.num_reads != self.num_expected_reads:
            reads += f" ({self.num_expected_reads:,} expected)"
        reads += f", {show_nbytes(self.read_nbytes)} decoded"
        ratio, size = self._found_in_words()
        return [
            ("ratio", ratio),
            ("effective batch", size),
            ("batches", f"{batches}, {show_count(self.batch_size, 'sample')} each"),
            ("reads", f"{reads}, for {show_count(self.num_samples, 'sample')}"),
            ("memory", f"{show_nbytes(self.sums_nbytes)} of sums"),
        ]

    def _found_in_words(self) -> tuple[str, str]:
        """The ratio, and the effective size."""
        if not math.isfinite(self.ratio):
            return "none: no variable varies", "none"
        error = f" +- {self.standard_error:.2f}" if math.isfinite(self.standard_error) else ""
        mean = f", mean of {len(self.variables)} variables" if len(self.variables) > 1 else ""
        words = f"{self.ratio:.2f}{error} times the variance of a full shuffle's batch means{mean}"
        if not self.ratio:
            return words, "no limit: the means of batches are equal"
        worth = show_count(round(self.effective_batch_size, 1), "sample")
        return words, f"{worth} drawn at random are worth as much as a batch of {self.batch_size:,}"

    def _sections(self) -> list[TitledTable]:
        rows = [[name, *variance.cells()] for name, variance in self.variables.items()]
        return [("variables", [list(_HEADS), *rows])]


def effective_size(batch_size: int, ratio: float) -> float:
    """The effective size of a batch, given the ratio of variances; infinite for a ratio of 0."""
    return batch_size / ratio if ratio else math.inf
