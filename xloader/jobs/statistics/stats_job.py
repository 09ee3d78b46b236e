"""The job of statistics: which chunks are read, their memory, and the form of the result."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.footprint import Footprint, Group
from xloader.errors import EmptySamplesError, MemoryBudgetError, OptionError
from xloader.jobs.chunk_sweep import ChunkValues, group_of, whole_recipe
from xloader.jobs.covered_elements import CoveredElements
from xloader.jobs.statistics.chunk_reduction import (
    ChunkElements,
    ChunkOrder,
    LeadPieces,
    needed_chunks,
)
from xloader.jobs.statistics.stats_options import (
    Dims,
    Lead,
    StatsOptions,
    parse_stats_options,
    selected,
)
from xloader.jobs.statistics.stats_parts import StatsTemplate, VariableForm
from xloader.recipe.demands import make_footprint
from xloader.recipe.layout import FieldLayout, make_layouts
from xloader.recipe.recipe import Recipe
from xloader.sources.base import Variable
from xloader.transforms.statistics_forms import CLOCK_DIM, FINGERPRINT, GRID, OPTIONS, grids_of

_MOMENTS_ITEMSIZE: Final = 48
_SKETCH_NBYTES: Final = 12_000
"""Bytes of the moments of a cell, and of a sketch."""

_WORK_ITEMSIZE: Final = 10
_WEIGHTED_ITEMSIZE: Final = 26
"""Bytes for each element of a chunk at work, beside its values: with and without weights."""

Pieces = Sequence[NDArray[np.bool_]]
"""For each variable, whether each of its pieces is meant."""


@dataclass(frozen=True, eq=False)
class VariableJob:
    """The work on one variable."""

    number: int
    stored: Variable
    group: Group
    order: ChunkOrder
    covered: CoveredElements
    clock: int | None
    leads: LeadPieces | None
    options: StatsOptions

    @property
    def chunk_nbytes(self) -> int:
        """Decoded bytes of its largest chunk; at least 1."""
        (demand,) = self.group.demands
        return max(demand.max_chunk_nbytes, 1)

    @property
    def node_nbytes(self) -> int:
        """Most bytes of the statistics of one place of the kept dimensions."""
        cells = math.prod(self.order.axes[axis].max_read_size for axis in self.order.kept)
        if self.clock is not None and self.options.labels is not None:
            cells *= len(self.options.labels)
        if self.leads is not None:
            cells *= len(self.options.leads)
        return cells * (_MOMENTS_ITEMSIZE + _SKETCH_NBYTES * bool(self.options.quantiles))

    @property
    def leaf_nbytes(self) -> int:
        """Most bytes of the statistics of one piece, which has few labels."""
        if self.clock is None or self.options.labels is None:
            return self.node_nbytes
        num = len(self.options.labels)
        return self.node_nbytes // num * min(num, self.order.axes[self.clock].max_read_size)

    @property
    def tree_nbytes(self) -> int:
        """Most bytes of the subtrees of one place that wait for siblings, and of the whole."""
        num = int(np.diff(self.order.edges).max(initial=1))
        return self.node_nbytes * (min(num, num.bit_length() + 1) + 1)

    @property
    def waiting_nbytes(self) -> int:
        """Most bytes of values that wait for chunks with their later partners."""
        if self.leads is None or not self.order.most_open():
            return 0
        axes = self.order.axes
        cross = math.prod(axis.max_read_size for at, axis in enumerate(axes) if at != self.clock)
        each = self.leads.longest_slab() * cross * (self.stored.dtype.itemsize + 1)
        return each * (self.order.most_open() + 1)

    @property
    def work_nbytes(self) -> int:
        """Bytes that a thread takes for the largest chunk, and for merging its statistics."""
        itemsize, options = self.stored.stored_dtype.itemsize, self.options
        unpacked = 0 if self.stored.packing is None else self.stored.dtype.itemsize
        extra = _WORK_ITEMSIZE if options.weights is None else _WEIGHTED_ITEMSIZE
        if self.leads is not None or self.order.kept or options.quantiles:
            extra += _WEIGHTED_ITEMSIZE
        if options.quantiles and options.weights is not None:
            extra += _WEIGHTED_ITEMSIZE
        num_elements = -(-self.chunk_nbytes // itemsize)
        merging = 2 * self.leaf_nbytes + self.node_nbytes
        return (2 * itemsize + unpacked + extra) * num_elements + merging

    @property
    def form(self) -> VariableForm:
        """The form of its statistics."""
        order, attrs = self.order, self.stored.attrs
        return VariableForm(
            self.stored.name,
            tuple(self.stored.dims[axis] for axis in order.kept),
            tuple(tuple(order.axes[axis].edges.tolist()) for axis in order.kept),
            tuple(order.places.tolist()),
            tuple(np.diff(order.edges).tolist()),
            self.clock is not None and bool(self.options.by),
            self.leads is not None,
            {key: str(attrs[key]) for key in ("units", "long_name") if key in attrs},
        )

    def elements(self, chunk: ChunkValues) -> ChunkElements:
        """The elements of a chunk that count, with their weights and labels."""
        values = chunk.values
        cover = self.covered.of_box(chunk.begins, values.shape)
        if self.stored.packing is not None:
            values = self.stored.packing.unpack(values)
        dims, options = self.stored.dims, self.options
        parts = {
            dim: slice(begin, begin + size)
            for dim, begin, size in zip(dims, chunk.begins, values.shape, strict=True)
        }
        weights = None if options.weights is None else options.weights.along(dims, parts)
        rows = None
        if self.clock is not None and options.rows is not None:
            rows = options.rows[parts[dims[self.clock]]]
        return ChunkElements(values, cover.lines, cover.flags, weights, rows)


def template_of(
    recipe: Recipe, options: StatsOptions, forms: tuple[VariableForm, ...]
) -> StatsTemplate:
    """The form of a result, with its coordinates."""
    named = {**json.loads(options.to_json()), "variables": [form.name for form in forms]}
    attrs = {FINGERPRINT: recipe.source.fingerprint, GRID: grids_of(recipe)}
    attrs[OPTIONS] = json.dumps(named)
    if options.by:
        attrs[CLOCK_DIM] = options.time_dim
    digest = options.weights.digest if options.weights is not None else ""
    samples = replace(recipe, steps=()).fingerprint
    details = [(form.name, form.edges, form.leaves) for form in forms]
    chosen = f"{options.to_json()} {digest} {options.quantiles} {details}"
    return StatsTemplate(
        forms,
        options.by,
        1 if options.labels is None else len(options.labels),
        max(len(options.leads), 1),
        options.quantiles,
        attrs,
        {
            "data": recipe.source.fingerprint,
            "samples": samples,
            "options": hashlib.sha256(chosen.encode()).hexdigest(),
        },
        _labels_of(recipe, options, forms),
    )


def _labels_of(
    recipe: Recipe, options: StatsOptions, forms: tuple[VariableForm, ...]
) -> xr.Dataset:
    """The coordinates of the result, but those of ``stat``."""
    kept = {dim for form in forms for dim in form.dims}
    # Without indexes, so that the labels of time are not read for nothing.
    source = recipe.source.coordinates(is_indexed=False)
    chosen = {
        str(name): coord
        for name, coord in source.coords.items()
        if coord.dims and set(map(str, coord.dims)) <= kept
    }
    added: dict[str, Any] = {}
    if options.labels is not None:
        added[options.by] = _as_objects(options.labels)
    if options.leads:
        added["lead"] = np.array([pairs.label for pairs in options.leads])
    names = {*kept, *chosen, *(form.name for form in forms)}
    if clash := sorted(names & {"stat", *added}):
        raise OptionError(
            "the statistics have dimensions of their own, whose names the data has, too",
            given=", ".join(map(repr, clash)),
            remedy=f'rename it: ds.rename({clash[0]}="my_{clash[0]}")',
        )
    coords = {
        name: (coord.dims, _as_objects(np.asarray(selected(recipe, coord).values)), coord.attrs)
        for name, coord in chosen.items()
        # The levels of an index of several are coordinates of their own; files cannot hold it.
        if getattr(source.indexes.get(name), "nlevels", 1) == 1
    }
    return xr.Dataset(coords={**coords, **added})


def _as_objects(labels: NDArray[Any]) -> NDArray[Any]:
    """Labels that files can hold: texts as objects."""
    return labels.astype(object) if labels.dtype.kind == "U" else labels


_FLUSH_NBYTES: Final = 1 << 26
_FLUSH_NODES: Final = 16
"""Statistics are written when they take so many bytes or nodes."""


class StatsMemory:
    """The memory that the statistics of some variables take.

    `work_nbytes`: most bytes that a thread takes for a chunk, and for merging its statistics.
    """

    def __init__(self, jobs: list[VariableJob]) -> None:
        self._jobs = jobs
        most = max(job.node_nbytes for job in jobs)
        self.flush_nbytes = min(_FLUSH_NBYTES, _FLUSH_NODES * most)
        self.work_nbytes = max(job.work_nbytes for job in jobs)
        self.tree_nbytes = max(job.tree_nbytes for job in jobs)
        self.under_way_nbytes = max(job.tree_nbytes + job.waiting_nbytes for job in jobs)
        self.max_chunk_nbytes = max(job.chunk_nbytes for job in jobs)

    def nodes_nbytes(self, wanted: Pieces) -> int:
        """Bytes of the statistics of some pieces of each variable, merged as far as they go."""
        nbytes = 0
        for job, pieces in zip(self._jobs, wanted, strict=True):
            trees = np.searchsorted(job.order.edges, np.flatnonzero(pieces), side="right")
            nbytes += job.node_nbytes * len(np.unique(trees))
        return nbytes

    def most_read_nbytes(self, memory_nbytes: int, kept_nbytes: int, least_nbytes: int = 0) -> int:
        """Decoded bytes of chunks that may be read at a time."""
        check_memory(memory_nbytes, max(kept_nbytes + self.work_nbytes, least_nbytes))
        return (memory_nbytes - kept_nbytes) * self.max_chunk_nbytes // self.work_nbytes


def check_memory(memory_nbytes: int, least_nbytes: int, num_shares: int = 1) -> None:
    """Refuse a memory that is too small."""
    if least_nbytes > memory_nbytes:
        raise MemoryBudgetError(
            "the memory is too small for the statistics under way, the result and a chunk at work",
            given=f"memory={memory_nbytes} bytes",
            minimum_nbytes=least_nbytes,
            remedy="keep fewer dimensions, labels or quantiles",
            num_sharing=num_shares,
        )


@dataclass(frozen=True, eq=False)
class StatsJob:
    """The chunks that are read for the statistics of a recipe, and the form of the result.

    It pickles as the recipe and the options. Each worker of a cluster finds the chunks once.
    """

    recipe: Recipe
    dim: Dims = None
    by: str | None = None
    quantiles: Iterable[float] = ()
    leads: Lead | Iterable[Lead] = ()
    weights: str | xr.DataArray | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return StatsJob, (self.recipe, *self.options.settings)

    @cached_property
    def _layouts(self) -> tuple[FieldLayout, ...]:
        return () if self.recipe.windows is None else make_layouts(self.recipe)

    @cached_property
    def _names(self) -> list[str]:
        return _variables(self.recipe, self._layouts)

    @cached_property
    def options(self) -> StatsOptions:
        """The options, checked."""
        return parse_stats_options(
            self.recipe, self._names, self.dim, self.by, self.quantiles, self.leads, self.weights
        )

    @cached_property
    def whole(self) -> Recipe:
        """One window over all elements of the variables."""
        return whole_recipe(self.recipe, self._names)

    @cached_property
    def reading(self) -> Footprint:
        """The chunks of the variables."""
        groups = tuple(group_of(self.whole, name) for name in self._names)
        return Footprint(self.whole.require_windows(), groups)

    @cached_property
    def jobs(self) -> list[VariableJob]:
        """The work on each variable."""
        recipe, options = self.recipe, self.options
        needed = None if recipe.windows is None else make_footprint(recipe, self._layouts)
        jobs = []
        for number, (name, group) in enumerate(zip(self._names, self.reading.groups, strict=True)):
            stored, axes = recipe.variable(name), recipe.axes_of(name)
            kept_dims = options.kept_dims(recipe, self._layouts, name)
            kept = tuple(axis for axis, dim in enumerate(stored.dims) if dim in kept_dims)
            time_dim = options.time_dim
            clock = stored.dims.index(time_dim) if time_dim in stored.dims else None
            if clock is not None and clock in kept:
                raise OptionError(
                    f"the statistics of {name!r} keep its dimension of time",
                    given=f"{time_dim!r}, which becomes channels",
                    remedy="leave by and leads out, or pass dim=...",
                )
            pieces = None
            if options.leads and clock is not None:
                pieces = LeadPieces(options.leads, axes[clock])
            chunks = needed_chunks(recipe, needed, name)
            deltas = () if pieces is None else pieces.deltas()
            order = ChunkOrder.of(name, axes, kept, chunks, clock, deltas)
            covered = CoveredElements(recipe, self._layouts, name)
            jobs.append(VariableJob(number, stored, group, order, covered, clock, pieces, options))
        return jobs

    @cached_property
    def forms(self) -> tuple[VariableForm, ...]:
        """The form of the statistics of each variable."""
        return tuple(job.form for job in self.jobs)

    @cached_property
    def template(self) -> StatsTemplate:
        """The form of the result."""
        return template_of(self.recipe, self.options, self.forms)

    @cached_property
    def memory(self) -> StatsMemory:
        """The memory that it takes."""
        return StatsMemory(self.jobs)

    def all_pieces(self) -> Pieces:
        """Per variable, all of its pieces."""
        return [np.ones(job.order.num_pieces, np.bool_) for job in self.jobs]


def _variables(recipe: Recipe, layouts: tuple[FieldLayout, ...]) -> list[str]:
    """The variables whose statistics are made, in the order of the store."""
    if recipe.windows is None:
        taken = {name for name in recipe.variables if recipe.variable(name).dtype.kind in "biuf"}
    else:
        taken = {part.variable for layout in layouts for part in layout.parts}
    names = [name for name in recipe.variables if name in taken]
    empty = [
        name for name in names if not math.prod(len(a.selection) for a in recipe.axes_of(name))
    ]
    if not names or empty:
        raise EmptySamplesError(
            f"the variable {empty[0]!r} has no elements" if empty else "no variable holds numbers",
            given=list(recipe.variables),
            remedy="open other variables, or select more of them",
        )
    return names
