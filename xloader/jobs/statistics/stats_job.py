"""The job of statistics: which chunks are read, in which memory, and the form of the result."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Final

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.footprint import Footprint, Group
from xloader.errors import EmptySamplesError, MemoryBudgetError, OptionError
from xloader.jobs.covered_elements import CoveredElements
from xloader.jobs.progress_bar import ProgressBar
from xloader.jobs.statistics.chunk_order import ChunkOrder, needed_chunks
from xloader.jobs.statistics.label_pairs import Lead
from xloader.jobs.statistics.stats_form import form_of, template_of
from xloader.jobs.statistics.stats_options import Dims, channel_dims, parse_stats_options
from xloader.jobs.statistics.stats_parts import StatsParts
from xloader.jobs.statistics.stats_sweep import (
    StatsSweep,
    VariableJob,
    chunks_of,
    lead_pieces,
    waiting_nbytes,
)
from xloader.jobs.statistics.stats_template import StatsResult
from xloader.jobs.whole_windows import group_of, whole_recipe
from xloader.recipe.demands import make_footprint
from xloader.recipe.layout import FieldLayout, make_layouts
from xloader.recipe.recipe import Recipe

_FLUSH_SECONDS: Final = 10.0
_FLUSH_NBYTES: Final = 1 << 26
_FLUSH_NODES: Final = 16
"""Statistics are written after so much time, or when they take so many bytes or nodes."""

_WRITE_RATIO: Final = 3
"""How many times its bytes a result takes while it is written."""

_WORK_ITEMSIZE: Final = 10
_WEIGHTED_ITEMSIZE: Final = 26
"""Bytes for each element of a chunk at work, beside its values: with and without weights."""


class StatsJob:
    """The chunks that are read for the statistics of a recipe, and the form of the result.

    Parameters
    ----------
    recipe : Recipe
        The samples.
    dim, by, quantiles, leads, weights
        As for `Samples.stats`.
    """

    def __init__(
        self,
        recipe: Recipe,
        dim: Dims,
        by: str | None,
        quantiles: Iterable[float],
        leads: Lead | Iterable[Lead],
        weights: str | xr.DataArray | None,
    ) -> None:
        self.recipe = recipe
        layouts = () if recipe.windows is None else make_layouts(recipe)
        names = _variables(recipe, layouts)
        options = parse_stats_options(
            recipe, names, dim=dim, by=by, quantiles=quantiles, leads=leads, weights=weights
        )
        self.options = options
        self._whole = whole_recipe(recipe, names)
        groups = [group_of(self._whole, name) for name in names]
        self._reading = Footprint(self._whole.require_windows(), tuple(groups))
        needed = None if recipe.windows is None else make_footprint(recipe, layouts)
        self.jobs = [
            self._job(number, name, group, needed, layouts)
            for number, (name, group) in enumerate(zip(names, groups, strict=True))
        ]
        self.template = template_of(recipe, options, tuple(map(form_of, self.jobs)))

    def _job(
        self,
        number: int,
        name: str,
        group: Group,
        needed: Footprint | None,
        layouts: tuple[FieldLayout, ...],
    ) -> VariableJob:
        """The work on one variable."""
        recipe, options = self.recipe, self.options
        stored, axes = recipe.variable(name), recipe.axes_of(name)
        kept_dims = options.kept_dims(recipe, channel_dims(recipe, layouts, name), name)
        kept = tuple(axis for axis, own in enumerate(stored.dims) if own in kept_dims)
        time_dim = options.time_dim
        clock = stored.dims.index(time_dim) if time_dim in stored.dims else None
        if clock is not None and clock in kept:
            raise OptionError(
                f"the statistics of {name!r} keep its dimension of time",
                given=f"{time_dim!r}, which becomes channels",
                allowed="by and leads where the time is not kept",
                remedy="pass dim=...",
            )
        pieces = lead_pieces(options.leads, axes, clock)
        chunks = needed_chunks(recipe, needed, name)
        deltas = () if pieces is None else pieces.deltas()
        order = ChunkOrder.of(name, axes, kept, chunks, clock, deltas)
        covered = CoveredElements(recipe, layouts, name)
        return VariableJob(number, stored, group, order, covered, clock, pieces, options)

    def all_pieces(self) -> list[NDArray[np.bool_]]:
        """Per variable, all of its pieces."""
        return [np.ones(own.order.num_pieces, np.bool_) for own in self.jobs]

    def sweep(
        self,
        memory_nbytes: int,
        num_threads: int,
        result: StatsResult | None = None,
        wanted: list[NDArray[np.bool_]] | None = None,
        *,
        is_written: bool = False,
    ) -> StatsSweep:
        """The sweep within a memory.

        Parameters
        ----------
        memory_nbytes : int
            The memory.
        num_threads : int
            Number of threads.
        result : StatsResult, optional
            The result, if it is made at once.
        wanted : list of numpy.ndarray of bool, optional
            The pieces whose statistics are kept in memory. Without these and a result, they are
            written now and then.
        is_written : bool
            Whether the result is written afterwards.

        Raises
        ------
        MemoryBudgetError
            If the memory is too small.
        """
        work = max(map(self._work_nbytes, self.jobs))
        done, finished = None, None
        if result is not None:
            kept, finished = self.template.nbytes, result.put
        elif wanted is not None:
            kept = sum(map(_nodes_nbytes, self.jobs, wanted))
        else:
            done = self._flush_nbytes
            kept = min(2 * done, sum(map(_nodes_nbytes, self.jobs, self.all_pieces())))
        kept += max(own.tree_nbytes + waiting_nbytes(own) for own in self.jobs)
        least = kept + work
        if is_written:
            least = max(least, _WRITE_RATIO * self.template.nbytes)
        if least > memory_nbytes:
            raise MemoryBudgetError(
                "the memory is too small for the statistics under way, the result and one chunk "
                "at work",
                given=f"memory={memory_nbytes} bytes",
                minimum_nbytes=least,
                remedy="keep fewer dimensions, labels or quantiles",
            )
        most_nbytes = (memory_nbytes - kept) * self._reading.max_chunk_nbytes // work
        return StatsSweep(
            self._whole, self._reading, self.jobs, most_nbytes, num_threads, finished, done
        )

    @property
    def _flush_nbytes(self) -> int:
        """Statistics are written when they take so many bytes."""
        return min(_FLUSH_NBYTES, _FLUSH_NODES * max(own.node_nbytes for own in self.jobs))

    def _work_nbytes(self, job: VariableJob) -> int:
        """Bytes that a thread takes for the largest chunk, and for merging its statistics."""
        own = job.stored.stored_dtype.itemsize
        unpacked = 0 if job.stored.packing is None else job.stored.dtype.itemsize
        extra = _WORK_ITEMSIZE if self.options.weights is None else _WEIGHTED_ITEMSIZE
        if job.leads is not None or job.order.kept or self.options.quantiles:
            extra += _WEIGHTED_ITEMSIZE
        if self.options.quantiles and self.options.weights is not None:
            extra += _WEIGHTED_ITEMSIZE
        (demand,) = job.group.demands
        num_elements = -(-demand.max_chunk_nbytes // own)
        return (2 * own + unpacked + extra) * num_elements + 2 * job.leaf_nbytes + job.node_nbytes

    def run(
        self,
        sweep: StatsSweep,
        wanted: list[NDArray[np.bool_]],
        progress: bool | None,
        parts: StatsParts | None = None,
    ) -> None:
        """Read the chunks of some pieces, and write what is done now and then."""
        total = sum(
            len(chunks_of(own.order, pieces)) for own, pieces in zip(self.jobs, wanted, strict=True)
        )
        flushed = time.monotonic()

        def flush(*, is_last: bool = False) -> None:
            nonlocal flushed
            if parts is None:
                return
            is_late = time.monotonic() - flushed > _FLUSH_SECONDS
            if is_late or is_last or sweep.nbytes > self._flush_nbytes:
                parts.add(sweep.drain())
                flushed = time.monotonic()

        with ProgressBar("Statistics", total, progress) as bar:
            try:
                sweep.run(wanted, bar.advance, flush)
            finally:
                # Also after an error: what has been computed need not be computed again.
                flush(is_last=True)


def _nodes_nbytes(job: VariableJob, pieces: NDArray[np.bool_]) -> int:
    """Bytes of the statistics of some pieces, merged as far as they go."""
    trees = np.searchsorted(job.order.edges, np.flatnonzero(pieces), side="right")
    return len(np.unique(trees)) * job.node_nbytes


def _variables(recipe: Recipe, layouts: tuple[FieldLayout, ...]) -> list[str]:
    """The variables whose statistics are made, in the order of the store."""
    if recipe.windows is None:
        found = {name for name in recipe.variables if recipe.variable(name).dtype.kind in "biuf"}
    else:
        found = {part.variable for own in layouts for part in own.parts}
    names = [name for name in recipe.variables if name in found]
    empty = [
        name for name in names if not math.prod(len(a.selection) for a in recipe.axes_of(name))
    ]
    if not names or empty:
        raise EmptySamplesError(
            f"the variable {empty[0]!r} has no elements" if empty else "no variable holds numbers",
            given=list(recipe.variables),
            allowed="variables of bool, integers or floats with at least one element",
            remedy="open other variables, or select more of them",
        )
    return names
