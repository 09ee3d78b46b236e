"""The job of statistics: which chunks are read, their memory, and the form of the result."""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.errors import OptionError
from xloader.jobs.chunk_sweep import ChunkOrder, ChunkValues
from xloader.jobs.statistics.chunk_reduction import ChunkElements, LeadPieces, reduce_elements
from xloader.jobs.statistics.moments import LabelledMoments
from xloader.jobs.statistics.stats_options import (
    Dims,
    Lead,
    StatsOptions,
    parse_stats_options,
    selected,
)
from xloader.jobs.statistics.stats_parts import StatsTemplate, VariableForm
from xloader.jobs.swept_job import Reducer, SweptJob, SweptVariable
from xloader.recipe.recipe import Recipe
from xloader.transforms.statistics_forms import CLOCK_DIM, FINGERPRINT, GRID, OPTIONS, grids_of

_MOMENTS_ITEMSIZE: Final = 48
_SKETCH_NBYTES: Final = 12_000
"""Bytes of the moments of a cell, and of a sketch."""

_WORK_ITEMSIZE: Final = 10
_WEIGHTED_ITEMSIZE: Final = 26
"""Bytes for each element of a chunk at work, beside its values: with and without weights."""


@dataclass(frozen=True, eq=False)
class VariableJob(SweptVariable):
    """The statistics of one variable."""

    clock: int | None
    leads: LeadPieces | None
    options: StatsOptions

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

    def reducer(self) -> Reducer:
        """Statistics of chunks; with leads, of pairs of which the second chunk is there."""
        waiting: dict[int, ChunkElements] = {}
        lock = threading.Lock()

        def reduce(
            chunk: ChunkValues, at: int, wanted: NDArray[np.bool_]
        ) -> Iterator[tuple[int, LabelledMoments]]:
            elements, order = self.elements(chunk), self.order
            has_sketches = bool(self.options.quantiles)
            for piece in filter(wanted.__getitem__, order.pieces_of(at)):
                if self.leads is None or self.clock is None:
                    yield (
                        piece,
                        reduce_elements(
                            elements, order.kept, self.clock, has_sketches=has_sketches
                        ),
                    )
                    continue
                ends = [int(order.first[piece]), int(order.second[piece])]
                begin, end = order.blocks(np.array(ends))[:, self.clock].tolist()
                earlier = later = elements
                if ends[0] != ends[1]:
                    side = ends.index(at)
                    with lock:
                        partner = waiting.pop(piece, None)
                    if partner is None:
                        slab = self.leads.slab(elements, self.clock, (begin, end), side)
                        with lock:
                            partner = waiting.pop(piece, None)
                            if partner is None:
                                waiting[piece] = slab
                                continue
                    earlier, later = (elements, partner) if side == 0 else (partner, elements)
                yield (
                    piece,
                    self.leads.reduce(
                        earlier,
                        later,
                        self.clock,
                        (begin, end),
                        order.kept,
                        has_sketches=has_sketches,
                    ),
                )

        return reduce


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


@dataclass(frozen=True, eq=False)
class StatsJob(SweptJob):
    """The chunks that are read for the statistics of a recipe, and the form of the result."""

    form_type = StatsTemplate

    dim: Dims = None
    by: str | None = None
    quantiles: Iterable[float] = ()
    leads: Lead | Iterable[Lead] = ()
    weights: str | xr.DataArray | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return StatsJob, (self.recipe, *self.options.settings)

    @cached_property
    def options(self) -> StatsOptions:
        """The options, checked."""
        return parse_stats_options(
            self.recipe, self.names, self.dim, self.by, self.quantiles, self.leads, self.weights
        )

    @cached_property
    def jobs(self) -> list[VariableJob]:
        """The work on each variable."""
        recipe, options = self.recipe, self.options
        jobs = []
        for variable, chunks in self.needed():
            stored = variable[1]
            name, axes = stored.name, recipe.axes_of(stored.name)
            kept_dims = options.kept_dims(recipe, self.layouts, name)
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
            deltas = () if pieces is None else pieces.deltas()
            order = ChunkOrder.of(name, axes, kept, chunks, clock, deltas)
            jobs.append(VariableJob(*variable, order, clock, pieces, options))
        return jobs

    @cached_property
    def template(self) -> StatsTemplate:
        """The form of the result."""
        recipe, options, forms = self.recipe, self.options, tuple(job.form for job in self.jobs)
        named = {**json.loads(options.to_json()), "variables": [form.name for form in forms]}
        attrs = {FINGERPRINT: recipe.source.fingerprint, GRID: grids_of(recipe)}
        attrs[OPTIONS] = json.dumps(named)
        if options.by:
            attrs[CLOCK_DIM] = options.time_dim
        digest = options.weights.digest if options.weights is not None else ""
        details = [(form.name, form.edges, form.leaves) for form in forms]
        chosen = f"{options.to_json()} {digest} {options.quantiles} {details}"
        return StatsTemplate(
            forms,
            options.by,
            1 if options.labels is None else len(options.labels),
            max(len(options.leads), 1),
            options.quantiles,
            attrs,
            fingerprint=self.digests(hashlib.sha256(chosen.encode()).hexdigest()),
            labels=_labels_of(recipe, options, forms),
        )
