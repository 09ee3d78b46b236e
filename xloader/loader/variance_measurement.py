"""Measures the variance of the means of batches, from the samples of some batches of an epoch.

The plan says which samples the batches have, without reading. Their distinct samples are then read
once, in the order that reads fewest chunks, and their elements are added to the sums of the batches
that have them::

    batches     40: 7 3 9 3      812: 5 9 1 8        drawn, one in each piece of the epoch
    samples     1 3 5 7 8 9                          each read once
    sums        40: x7 + 2 x3 + x9                   of each element, in float64
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.counter_rng import derive_key, draw_below
from xloader.core.footprint import expand_ranges
from xloader.core.messages import unknown
from xloader.core.option_checks import MOST, check_whole
from xloader.core.options import check_epoch
from xloader.core.subset import Subset
from xloader.errors import EmptySamplesError, MemoryBudgetError, UnsupportedDataError
from xloader.loader.batches.row_list import SampleNames
from xloader.loader.loader import Loader
from xloader.loader.preview import num_full_steps, rows_of_steps
from xloader.loader.ranks.rank_plan import RankPlan
from xloader.loader.reports.batch_variance import BatchVariance, VariableVariance, effective_size
from xloader.loader.sweep_loader import make_sweep_loader
from xloader.planning.epoch import Epoch, Remainder
from xloader.recipe.layout import FieldLayout, make_layouts
from xloader.recipe.names import CHANNEL
from xloader.recipe.recipe import Recipe
from xloader.transforms.outputs import Output, make_outputs

_PIECE_SIZE: Final = 1 << 16
"""Elements that are added in one call."""
_MOST_ELEMENTS: Final = 4096
"""Most elements of each sample and variable that are looked at."""
_SUMS_SHARE: Final = 16
"""Of the memory, the share that sums may take."""
_SHARE_BITS: Final = 30
"""Bits of a place within a piece. The product with its width must fit into 64."""


def spread_evenly(total: int, count: int) -> Ints:
    """Choose numbers below a total, one in each of ``count`` equal pieces of it.

    The place within each piece is drawn with a fixed key. Numbers at equal distances could all have
    the same season of the year, or lie in one column of a grid.
    """
    if count >= total:
        return np.arange(total, dtype=np.int64)
    edges = np.arange(count + 1) * total // count
    drawn = draw_below(derive_key(0), np.arange(count), 1 << _SHARE_BITS)
    return edges[:-1] + (np.diff(edges) * drawn >> _SHARE_BITS)


@dataclass(frozen=True, eq=False)
class BatchMembers:
    """The distinct samples of some batches, and the batches that have each of them.

    `ids`: the distinct sample ids, ascending.
    """

    ids: Ints
    begins: Ints
    batches: Ints
    num_batches: int

    @classmethod
    def of(cls, batches: Sequence[Ints]) -> BatchMembers:
        """The members of batches."""
        ids, which = np.unique(np.concatenate(batches), return_inverse=True)
        number = np.repeat(np.arange(len(batches)), [len(batch) for batch in batches])
        by_sample = np.argsort(which, kind="stable")
        begins = np.searchsorted(which[by_sample], np.arange(len(ids) + 1))
        return cls(ids, begins, number[by_sample], len(batches))

    def counts(self, rows: Ints) -> NDArray[np.float64]:
        """How often each batch has some samples, given their numbers in ``ids``.

        The result has shape (num_batches, n).
        """
        counts = np.zeros((self.num_batches, len(rows)))
        columns, places = expand_ranges(self.begins[rows], self.begins[rows + 1])
        np.add.at(counts, (self.batches[places], columns), 1.0)
        return counts


class BatchSums:
    """Sums over batches of elements of their samples, from which the design effect follows.

    Samples may come in any order, each once. All sums are of differences from the first sample, so
    that nothing is lost where the mean is large beside the deviations.
    """

    def __init__(self, num_batches: int, num_elements: int) -> None:
        self._sums = np.zeros((num_batches, num_elements))
        self._squares = np.zeros((num_batches, num_elements))
        self._is_finite = np.ones(num_elements, np.bool_)
        self._first: NDArray[np.float64] | None = None

    @staticmethod
    def element_nbytes(num_batches: int) -> int:
        """Bytes of the sums of one element."""
        return 2 * 8 * num_batches

    def add(self, values: NDArray[Any], rows: Ints, members: BatchMembers) -> None:
        """Add samples to the sums of the batches that have them.

        `values` has shape (n, num_elements).
        """
        step = max(_PIECE_SIZE // max(values.shape[1], 1), 1)
        for begin in range(0, len(values), step):
            piece = values[begin : begin + step].astype(np.float64)
            if not (is_finite := np.isfinite(piece)).all():
                self._is_finite &= is_finite.all(axis=0)
                # Their elements are left out in the end.
                piece[~is_finite] = 0.0
            if self._first is None:
                self._first = piece[0].copy()
            piece -= self._first
            counts = members.counts(rows[begin : begin + step])
            self._sums += counts @ piece
            piece *= piece
            self._squares += counts @ piece

    def design_effect(
        self, batch_size: int, num_epoch_batches: int
    ) -> tuple[VariableVariance, NDArray[np.float64]]:
        """The design effect once all samples were added, and its ratio without each batch.

        With ``K`` of the ``n`` batches of an epoch, each of ``B`` samples, and all sums over
        elements::

            M  = B * sum((mean of batch - mean of means)**2) / (K - 1)      among batches
            W  = sum((sample - mean of its batch)**2)                       within batches
            S2 = ((n - 1) * M + n / K * W) / (n * B - 1)                    of the epoch's samples
            ratio = M / S2

        In a full shuffle, the expected ``M`` is the variance of the samples, ``S2``. The correction
        for the finite number of samples, ``1 - B / (n * B)``, cancels against ``K - 1`` in place of
        ``K``: means of batches without common samples vary among each other by ``S2 / B``. If all
        batches are taken, the ratio is exact for the epoch. The standard error is that of the
        jackknife over batches: how far the ratio of other batches of the epoch lies from this one.
        """
        kept = self._is_finite
        sums = self._sums[:, kept]
        means = sums / batch_size
        within = np.maximum((self._squares[:, kept] - sums * means).sum(axis=1), 0.0)
        between = ((means - means.mean(axis=0)) ** 2).sum(axis=1)
        num = len(means)

        def ratio_of(deviations: Any, rest: Any, count: int) -> Any:
            among = batch_size * deviations / max(count - 1, 1)
            total = (num_epoch_batches - 1) * among + num_epoch_batches / count * rest
            with np.errstate(invalid="ignore", divide="ignore"):
                return np.asarray(among * (num_epoch_batches * batch_size - 1)) / total

        without_each = np.full(num, np.nan)
        if num > 2:
            without_each = ratio_of(
                # The mean of the others is another one.
                np.maximum(between.sum() - num / (num - 1) * between, 0.0),
                within.sum() - within,
                num - 1,
            )
        ratio = float(ratio_of(between.sum(), within.sum(), num))
        error = jackknife_error(without_each)
        worth, num_kept = effective_size(batch_size, ratio), int(kept.sum())
        figures = VariableVariance(ratio, error, worth, num_kept, len(kept) - num_kept)
        return figures, without_each


def jackknife_error(without_each: NDArray[np.float64]) -> float:
    """The standard error of an estimate, from the estimates without each observation."""
    num = len(without_each)
    deviations = without_each - without_each.mean()
    return math.sqrt((num - 1) / num * float((deviations**2).sum()))


def mean_effect(
    effects: Sequence[tuple[VariableVariance, NDArray[np.float64]]],
) -> tuple[float, float]:
    """The mean ratio of several variables, as if each had the same variance; and its error."""
    varying = [effect for effect in effects if math.isfinite(effect[0].ratio)]
    if not varying:
        return math.nan, math.nan
    ratio = float(np.mean([figures.ratio for figures, _ in varying]))
    return ratio, jackknife_error(np.mean([without_each for _, without_each in varying], axis=0))


@dataclass(frozen=True, eq=False)
class DeliveredVariable:
    """The elements of one variable in a delivered field.

    `channels`: the axis of channels, samples included, and the range of channels ``[begin, end)``
    of the variable; None if it is all of the field.
    """

    field: str
    variable: str
    channels: tuple[int, int, int] | None
    num_elements: int

    @property
    def name(self) -> str:
        """The variable, with its field if that has another name."""
        short, long = _names_of(self.field, self.variable)
        return short if self.field == self.variable else long

    def elements(self, array: NDArray[Any], taken: Ints) -> NDArray[Any]:
        """Some elements of each sample of a field."""
        if self.channels is not None:
            axis, begin, end = self.channels
            array = array[(slice(None),) * axis + (slice(begin, end),)]
        elements: NDArray[Any] = array.reshape(len(array), -1)[:, taken]
        return elements


def measure_batch_variance(
    rank_plan: RankPlan,
    epoch: int,
    variable: str | None,
    num_batches: int,
    make: Callable[..., Loader],
) -> BatchVariance:
    """Measure the variance of batch means; see `Loader.batch_variance`.

    `variable`: name of the variable; None for all.
    """
    check_whole("num_batches", num_batches, 2, MOST)
    epoch = check_epoch(epoch)
    recipe = _reading_only(rank_plan.recipe, variable)
    variables = _chosen(_delivered_variables(recipe), variable)
    remainder = rank_plan.remainder(epoch, 0)
    batches, num_epoch_batches = _sampled_batches(rank_plan, remainder, num_batches)
    members = BatchMembers.of(batches)
    taken = _taken_elements(variables, len(batches), rank_plan.options.memory_nbytes)
    sums = [BatchSums(len(batches), len(numbers)) for numbers in taken]
    sums_nbytes = sum(map(len, taken)) * BatchSums.element_nbytes(len(batches))
    with _sweeper(rank_plan, recipe, members.ids, sums_nbytes, make) as loader:
        loader.set_epoch(epoch)
        expected = loader.explain()
        for batch in loader:
            rows = np.searchsorted(members.ids, batch.ids)
            fields = batch.as_dict()
            for series, elements, total in zip(variables, taken, sums, strict=True):
                total.add(series.elements(fields[series.field], elements), rows, members)
        report = loader.report()
    size = len(batches[0])
    effects = [total.design_effect(size, num_epoch_batches) for total in sums]
    ratio, error = mean_effect(effects)
    return BatchVariance(
        ratio=ratio,
        standard_error=error,
        batch_size=size,
        num_batches=len(batches),
        num_epoch_batches=num_epoch_batches,
        epoch=epoch,
        num_samples=len(members.ids),
        sums_nbytes=sums_nbytes,
        num_expected_reads=expected.num_reads,
        variables={
            series.name: figures for series, (figures, _) in zip(variables, effects, strict=True)
        },
        num_reads=report.num_reads,
        read_nbytes=report.read_nbytes,
    )


def _sampled_batches(
    rank_plan: RankPlan, remainder: Epoch | Remainder, num_batches: int
) -> tuple[list[Ints], int]:
    """The sample ids of some full global batches, and the number of all full ones."""
    # The order of ranks is that of the rows of a global batch.
    numbers = [*chain.from_iterable(rank_plan.processes("world"))]
    num_full = num_full_steps(remainder, numbers) if remainder.num_steps else 0
    if num_full < 2:
        raise EmptySamplesError(
            "there are not two full batches whose means can be compared",
            given=f"{num_full} full batches of {rank_plan.options.global_batch} samples in an "
            f"epoch of {rank_plan.num_samples}",
            remedy="pass a smaller batch_size, or more samples",
        )
    steps = spread_evenly(num_full, num_batches)
    return [ids for ids, _ in rows_of_steps(remainder, numbers, steps.tolist())], num_full


def _sweeper(
    rank_plan: RankPlan, recipe: Recipe, ids: Ints, sums_nbytes: int, make: Callable[..., Loader]
) -> Loader:
    """A loader of some samples, each once, in the memory that the sums leave."""
    options = rank_plan.options
    whole = recipe.subset or Subset(len(recipe.require_windows()))
    chosen = whole.select(ids).undrawn
    # A slab is planned as its whole, but what is read here is the slab alone.
    sampled = replace(recipe, subset=chosen, slab=None, num_taken=None)
    left = replace(options, memory=max(options.memory_nbytes - sums_nbytes, 1))
    try:
        return make_sweep_loader(make, sampled, left, SampleNames(recipe, ids))
    except MemoryBudgetError as error:
        raise MemoryBudgetError(
            "the samples of the batches cannot be read in the memory that is left beside sums",
            given=f"memory={options.memory_nbytes}, {sums_nbytes} bytes of sums",
            minimum_nbytes=sums_nbytes + error.minimum_nbytes,
            remedy="pass a smaller num_batches=, or one variable",
        ) from error


def _taken_elements(
    variables: Sequence[DeliveredVariable], num_batches: int, memory_nbytes: int
) -> list[Ints]:
    """Numbers of the elements of each variable that are looked at, evenly over the sample."""
    nbytes = BatchSums.element_nbytes(num_batches) * len(variables)
    most = min(max(memory_nbytes // _SUMS_SHARE // nbytes, 1), _MOST_ELEMENTS)
    return [spread_evenly(variable.num_elements, most) for variable in variables]


def _reading_only(recipe: Recipe, name: str | None) -> Recipe:
    """The recipe with the fields that have a variable, and with no other variable in them."""
    # Functions may take any field. Without a name, or with another, all fields are wanted.
    if name is None or recipe.is_mapped:
        return recipe
    fields = [
        replace(field, variables=(variable,))
        for field in recipe.gathered_fields
        for variable in field.variables
        if name in _names_of(field.name, variable)
    ]
    return replace(recipe, fields=tuple(fields)) if fields else recipe


def _chosen(
    variables: Sequence[DeliveredVariable], name: str | None
) -> Sequence[DeliveredVariable]:
    """The variables with a name, in all fields; all without a name."""
    if name is None:
        return variables
    chosen = [series for series in variables if name in _names_of(series.field, series.variable)]
    if not chosen:
        known = dict.fromkeys(series.variable for series in variables)
        raise unknown(name, known, "variable of the fields")
    return chosen


def _names_of(field: str, variable: str) -> tuple[str, str]:
    """The name of a variable, and that with the name of its field."""
    return variable, f"{field}/{variable}"


def _delivered_variables(recipe: Recipe) -> list[DeliveredVariable]:
    """The variables of all fields that are delivered, with as many channels as each has."""
    layouts = make_layouts(recipe)
    variables: list[DeliveredVariable] = []
    for output in make_outputs(recipe, layouts):
        if output.dtype.kind not in "biuf":
            raise UnsupportedDataError(
                f"the field {output.name!r} does not hold real numbers, so it has no variance",
                given=f"dtype {output.dtype}",
                remedy="pass the name of a variable that holds numbers",
            )
        variables += _channels_of(output, {} if recipe.is_mapped else _spans(layouts, output.name))
    return variables


def _spans(layouts: Sequence[FieldLayout], field: str) -> dict[str, tuple[int, int]]:
    """The channels of each variable of a field that is gathered; none for a field without."""
    layout = next(layout for layout in layouts if layout.name == field)
    return {piece.variable: piece.channels for piece in layout.parts if piece.channels is not None}


def _channels_of(
    output: Output, spans: Mapping[str, tuple[int, int]]
) -> Iterable[DeliveredVariable]:
    """The variables of one field; its channels if functions have made it; else all of it."""
    dims = [dim for dim in output.dims if dim in (CHANNEL, f"{output.name}_{CHANNEL}")]
    if not spans and dims and output.channels is not None:
        spans = {name: (number, number + 1) for number, name in enumerate(output.channels)}
    num_elements = math.prod(output.shape)
    if not spans or not dims:
        return [DeliveredVariable(output.name, output.name, None, num_elements)]
    number = output.dims.index(dims[0])
    per_channel = num_elements // output.shape[number]
    return [
        DeliveredVariable(output.name, name, (1 + number, *span), per_channel * (span[1] - span[0]))
        for name, span in spans.items()
    ]
