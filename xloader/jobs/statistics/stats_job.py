"""The job of statistics: which chunks are read, their memory, and the form of the result."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.footprint import Footprint, Group
from xloader.errors import EmptySamplesError, MemoryBudgetError, OptionError
from xloader.jobs.chunk_sweep import group_of, whole_recipe
from xloader.jobs.covered_elements import CoveredElements
from xloader.jobs.statistics.chunk_reduction import ChunkOrder, LeadPieces, needed_chunks
from xloader.jobs.statistics.label_pairs import Lead
from xloader.jobs.statistics.stats_options import (
    Dims,
    StatsOptions,
    channel_dims,
    parse_stats_options,
)
from xloader.jobs.statistics.stats_sweep import StatsSweep, VariableJob, waiting_nbytes
from xloader.jobs.statistics.stats_template import StatsTemplate, VariableForm
from xloader.recipe.demands import make_footprint
from xloader.recipe.layout import FieldLayout, make_layouts
from xloader.recipe.recipe import Recipe
from xloader.transforms.statistics_forms import CLOCK_DIM, FINGERPRINT, GRID, OPTIONS, grids_of


def form_of(job: VariableJob) -> VariableForm:
    """The form of the statistics of a variable."""
    order, stored = job.order, job.stored.attrs
    attrs = {key: str(stored[key]) for key in ("units", "long_name") if key in stored}
    return VariableForm(
        job.stored.name,
        tuple(job.stored.dims[axis] for axis in order.kept),
        tuple(tuple(order.axes[axis].edges.tolist()) for axis in order.kept),
        tuple(order.places.tolist()),
        tuple(np.diff(order.edges).tolist()),
        job.clock is not None and bool(job.options.by),
        job.leads is not None,
        attrs,
    )


def template_of(
    recipe: Recipe, options: StatsOptions, forms: tuple[VariableForm, ...]
) -> StatsTemplate:
    """The form of a result, with its coordinates."""
    _check_names(recipe, options, forms)
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
        _labels_of(recipe, options, {dim for form in forms for dim in form.dims}),
    )


def _check_names(recipe: Recipe, options: StatsOptions, forms: tuple[VariableForm, ...]) -> None:
    """Refuse names in the data that the result needs for its own dimensions."""
    added = {"stat", *filter(None, [options.by]), *(["lead"] if options.leads else [])}
    kept = {dim for form in forms for dim in form.dims}
    coords = {
        str(name)
        for name, coord in recipe.source.coordinates(is_indexed=False).coords.items()
        if coord.dims and set(map(str, coord.dims)) <= kept
    }
    if clash := sorted(added & (kept | coords | {form.name for form in forms})):
        raise OptionError(
            "the statistics have dimensions of their own, whose names the data has, too",
            given=", ".join(map(repr, clash)),
            remedy=f'rename it: ds.rename({clash[0]}="my_{clash[0]}")',
        )


def _labels_of(recipe: Recipe, options: StatsOptions, kept: set[str]) -> xr.Dataset:
    """The coordinates of the result, but those of ``stat``."""
    # Without indexes, so that the labels of time are not read for nothing.
    source = recipe.source.coordinates(is_indexed=False)
    coords = xr.Dataset()
    for name, coord in source.coords.items():
        if not coord.dims or not set(map(str, coord.dims)) <= kept:
            continue
        places = {dim: np.asarray(recipe.kept_of(str(dim)), np.int64) for dim in coord.dims}
        if getattr(source.indexes.get(name), "nlevels", 1) > 1:
            # Its levels are coordinates of their own, and files cannot hold it.
            continue
        chosen = coord.variable.isel(places)
        values = np.asarray(chosen.values)
        if values.dtype.kind == "U":
            values = values.astype(object)
        coords = coords.assign_coords({str(name): (coord.dims, values, coord.attrs)})
    if options.labels is not None:
        labels = options.labels
        coords = coords.assign_coords(
            {options.by: labels.astype(object) if labels.dtype.kind == "U" else labels}
        )
    if options.leads:
        values = np.array([pairs.label for pairs in options.leads])
        coords = coords.assign_coords(lead=values)
    return coords


_FLUSH_NBYTES: Final = 1 << 26
_FLUSH_NODES: Final = 16
"""Statistics are written when they take so many bytes or nodes."""

_WORK_ITEMSIZE: Final = 10
_WEIGHTED_ITEMSIZE: Final = 26
"""Bytes for each element of a chunk at work, beside its values: with and without weights."""


class StatsMemory:
    """The memory that the statistics of some variables take.

    `work_nbytes`: most bytes that a thread takes for a chunk, and for merging its statistics.
    """

    def __init__(self, jobs: list[VariableJob]) -> None:
        self._jobs = jobs
        most = max(job.node_nbytes for job in jobs)
        self.flush_nbytes = min(_FLUSH_NBYTES, _FLUSH_NODES * most)
        self.work_nbytes = max(map(_work_nbytes, jobs))
        self.tree_nbytes = max(job.tree_nbytes for job in jobs)
        self.under_way_nbytes = max(job.tree_nbytes + waiting_nbytes(job) for job in jobs)
        self.max_chunk_nbytes = max(job.chunk_nbytes for job in jobs)

    def nodes_nbytes(self, wanted: Sequence[NDArray[np.bool_]]) -> int:
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
    if least_nbytes <= memory_nbytes:
        return
    raise MemoryBudgetError(
        "the memory is too small for the statistics under way, the result and one chunk at work",
        given=f"memory={memory_nbytes} bytes",
        minimum_nbytes=least_nbytes,
        remedy="keep fewer dimensions, labels or quantiles",
        num_sharing=num_shares,
    )


def _work_nbytes(job: VariableJob) -> int:
    """Bytes that a thread takes for the largest chunk, and for merging its statistics."""
    itemsize, options = job.stored.stored_dtype.itemsize, job.options
    unpacked = 0 if job.stored.packing is None else job.stored.dtype.itemsize
    extra = _WORK_ITEMSIZE if options.weights is None else _WEIGHTED_ITEMSIZE
    if job.leads is not None or job.order.kept or options.quantiles:
        extra += _WEIGHTED_ITEMSIZE
    if options.quantiles and options.weights is not None:
        extra += _WEIGHTED_ITEMSIZE
    num_elements = -(-job.chunk_nbytes // itemsize)
    return (2 * itemsize + unpacked + extra) * num_elements + 2 * job.leaf_nbytes + job.node_nbytes


class StatsJob:
    """The chunks that are read for the statistics of a recipe, and the form of the result."""

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
        covered = CoveredElements(recipe, layouts, name)
        return VariableJob(number, stored, group, order, covered, clock, pieces, options)

    def all_pieces(self) -> list[NDArray[np.bool_]]:
        """Per variable, all of its pieces."""
        return [np.ones(job.order.num_pieces, np.bool_) for job in self.jobs]

    @property
    def orders(self) -> list[ChunkOrder]:
        """The pieces of each variable."""
        return [job.order for job in self.jobs]

    @cached_property
    def template(self) -> StatsTemplate:
        """The form of the result."""
        return template_of(self.recipe, self.options, tuple(map(form_of, self.jobs)))

    @cached_property
    def memory(self) -> StatsMemory:
        """The memory that it takes."""
        return StatsMemory(self.jobs)

    def sweep(
        self,
        jobs: list[VariableJob],
        most_nbytes: int,
        num_threads: int,
        most_done_nbytes: int | None = None,
    ) -> StatsSweep:
        """The sweep of some variables."""
        return StatsSweep(
            self._whole, self._reading, jobs, most_nbytes, num_threads, most_done_nbytes
        )


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
