"""Statistics of the elements that samples need: checks the arguments, sweeps, merges and writes."""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.footprint import Footprint
from xloader.core.merge_tree import Node
from xloader.core.nbytes import parse_nbytes
from xloader.core.option_checks import MOST_THREADS, check_whole, is_whole
from xloader.core.options import usable_cores
from xloader.core.windows import Windows
from xloader.errors import EmptySamplesError, MemoryBudgetError, OptionError
from xloader.jobs.chunk_order import ChunkOrder, needed_chunks
from xloader.jobs.covered_elements import CoveredElements
from xloader.jobs.labelled_moments import LabelledMoments
from xloader.jobs.progress_bar import ProgressBar
from xloader.jobs.stats_merge import merge_stored, target_path, write_target
from xloader.jobs.stats_options import (
    Dims,
    Lead,
    StatsOptions,
    channel_dims,
    parse_stats_options,
)
from xloader.jobs.stats_parts import StatsParts, open_stats_parts
from xloader.jobs.stats_sweep import (
    StatsSweep,
    VariableJob,
    chunks_of,
    lead_pieces,
    waiting_nbytes,
)
from xloader.jobs.stats_template import StatsResult, StatsTemplate, VariableForm
from xloader.recipe.demands import make_footprint
from xloader.recipe.layout import FieldLayout, layout_of, make_layouts
from xloader.recipe.recipe import Field, Recipe

_FLUSH_SECONDS: Final = 10.0
_FLUSH_NBYTES: Final = 1 << 26
"""Statistics are written after so much time, or when they take so many bytes."""

_MOMENTS_ITEMSIZE: Final = 48
_SKETCH_NBYTES: Final = 12_000
_WORK_ITEMSIZE: Final = 10
_WEIGHTED_ITEMSIZE: Final = 26
"""Bytes for each element of a chunk at work, beside its values: with and without weights."""


@dataclass(frozen=True, eq=False)
class PartialStats:
    """Statistics of a part of the chunks, as `Samples.stats` with ``part`` returns them.

    :func:`xloader.merge` makes the whole of all parts. It can be pickled.

    Attributes
    ----------
    part : (int, int)
        The number of this part, from 0 on, and the number of parts.
    num_reads : int
        Number of chunks that were read for it.
    path : str
        The target beside which its files lie; empty if it holds the statistics itself.
    """

    part: tuple[int, int]
    num_reads: int
    path: str = ""
    template: StatsTemplate = field(default=None, repr=False)  # type: ignore[assignment]
    nodes: dict[tuple[int, int], dict[Node, LabelledMoments]] = field(
        default_factory=dict, repr=False
    )

    def __str__(self) -> str:
        number, count = self.part
        where = f"; its files lie beside {self.path}" if self.path else ""
        return f"statistics of part {number} of {count}: {self.num_reads} chunks read{where}"


def compute_stats(
    recipe: Recipe,
    *,
    dim: Dims = None,
    by: str | None = None,
    quantiles: Iterable[float] = (),
    leads: Lead | Iterable[Lead] = (),
    weights: str | xr.DataArray | None = None,
    memory: int | str = "2GiB",
    threads: int | None = None,
    progress: bool | None = None,
    path: str | os.PathLike[str] | None = None,
    part: tuple[int, int] | None = None,
    overwrite: bool = False,
) -> xr.Dataset | PartialStats:
    """Compute the statistics of the elements that samples need; see `Samples.stats`."""
    num_threads = (
        usable_cores() if threads is None else check_whole("threads", threads, 1, MOST_THREADS)
    )
    memory_nbytes = parse_nbytes(memory)
    own_part = (0, 1) if part is None else _check_part(part)
    target = None if path is None else target_path(path, overwrite=overwrite)
    # All ranks of a group must get the same numbers, so the whole of a slab counts.
    job = _StatsJob(recipe.planned, dim, by, quantiles, leads, weights)
    if target is not None and any("/" in own.name for own in job.template.variables):
        raise OptionError(
            "statistics of joined data cannot be written to one group",
            given=", ".join(own.name for own in job.template.variables if "/" in own.name),
            allowed="variables without a '/' in their names",
            remedy="leave path out, and write the variables of each group as you like",
        )
    if target is None:
        result = StatsResult(job.template) if part is None else None
        sweep = job.sweep(memory_nbytes, num_threads, result)
        wanted = [_share(own, own_part) for own in job.all_pieces()]
        job.run(sweep, wanted, progress)
        if result is not None:
            return result.dataset()
        return PartialStats(own_part, sweep.num_reads, "", job.template, sweep.drain())
    parts = open_stats_parts(target, job.template, overwrite=overwrite)
    sweep = job.sweep(memory_nbytes, num_threads)
    wanted = [
        _share(own, own_part) & is_missing
        for own, is_missing in zip(job.all_pieces(), _missing(job, parts), strict=True)
    ]
    job.run(sweep, wanted, progress, parts)
    if part is not None:
        return PartialStats(own_part, sweep.num_reads, str(target))
    return write_target(target, merge_stored(target), overwrite=overwrite)


def _check_part(part: Any) -> tuple[int, int]:
    is_pair = isinstance(part, Sequence) and len(part) == 2 and all(map(is_whole, part))
    if not is_pair or not 0 <= part[0] < part[1]:
        raise OptionError(
            "part is not a number and a count",
            given=repr(part),
            allowed="(i, n) with i from 0 to n - 1",
            remedy="pass part=(0, 8) to part=(7, 8) in eight processes",
        )
    return int(part[0]), int(part[1])


def _share(pieces: NDArray[np.bool_], part: tuple[int, int]) -> NDArray[np.bool_]:
    """The pieces that one part of the job computes."""
    number, count = part
    own = np.zeros_like(pieces)
    size = len(pieces)
    own[size * number // count : size * (number + 1) // count] = True
    return own & pieces


def _missing(job: _StatsJob, parts: StatsParts) -> list[NDArray[np.bool_]]:
    """Per variable, the pieces that no file holds."""
    found = job.all_pieces()
    for own in parts.nodes():
        variable, tree = own.tree
        order = job.jobs[variable].order
        begin, end = order.edges[tree : tree + 2].tolist()
        level, index = own.node
        found[variable][begin + (index << level) : min(begin + ((index + 1) << level), end)] = False
    return found


class _StatsJob:
    """What is read for the statistics of a recipe, and the form of the result."""

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
        self._whole = _whole_recipe(recipe, names)
        groups = [
            make_footprint(
                self._whole,
                (layout_of(self._whole, Field(name, (name,), has_channels=False)),),
            ).groups[0]
            for name in names
        ]
        self._reading = Footprint(self._whole.require_windows(), tuple(groups))
        needed = None if recipe.windows is None else make_footprint(recipe, layouts)
        self.jobs: list[VariableJob] = []
        forms = []
        for number, (name, group) in enumerate(zip(names, groups, strict=True)):
            stored, axes = recipe.variable(name), recipe.axes_of(name)
            kept_dims = options.kept_dims(recipe, channel_dims(recipe, layouts, name), name)
            kept = tuple(axis for axis, own in enumerate(stored.dims) if own in kept_dims)
            time_dim = options.time_dim
            clock = stored.dims.index(time_dim) if time_dim in stored.dims else None
            if clock is not None and clock in kept:
                raise OptionError(
                    f"the statistics of {name!r} keep its dimension of time",
                    given=f"{time_dim!r} becomes channels",
                    allowed="by and leads where the time is not kept",
                    remedy=f"pass dim={[own for own in stored.dims if own == time_dim]}",
                )
            pieces = lead_pieces(options.leads, axes, clock)
            chunks = needed_chunks(recipe, needed, name)
            deltas = () if pieces is None else pieces.deltas()
            order = ChunkOrder.of(name, axes, kept, chunks, clock, deltas)
            covered = CoveredElements(recipe, layouts, name)
            self.jobs.append(
                VariableJob(number, stored, group, order, covered, clock, pieces, options)
            )
            forms.append(_form_of(self.jobs[-1], kept_dims))
        self.template = _template_of(recipe, options, tuple(forms))

    def all_pieces(self) -> list[NDArray[np.bool_]]:
        """Per variable, all of its pieces."""
        return [np.ones(own.order.num_pieces, np.bool_) for own in self.jobs]

    def sweep(
        self, memory_nbytes: int, num_threads: int, result: StatsResult | None = None
    ) -> StatsSweep:
        """The sweep within a memory.

        Raises
        ------
        MemoryBudgetError
            If the memory is too small.
        """
        ratio = max(self._work_ratio(own) for own in self.jobs)
        kept = self.template.nbytes if result is not None else 0
        kept += max(self._tree_nbytes(own, num_threads) + waiting_nbytes(own) for own in self.jobs)
        least = kept + math.ceil(self._reading.max_chunk_nbytes * ratio)
        if least > memory_nbytes:
            raise MemoryBudgetError(
                "the memory is too small for the statistics under way, the result and one chunk "
                "at work",
                given=f"memory={memory_nbytes} bytes",
                minimum_nbytes=least,
                remedy="keep fewer dimensions, labels or quantiles",
            )
        most_nbytes = max(int((memory_nbytes - kept) / ratio), 1)
        finished = None if result is None else result.put
        return StatsSweep(self._whole, self._reading, self.jobs, most_nbytes, num_threads, finished)

    def _work_ratio(self, job: VariableJob) -> float:
        """Bytes at work for each decoded byte of a chunk."""
        own = job.stored.stored_dtype.itemsize
        unpacked = 0 if job.stored.packing is None else job.stored.dtype.itemsize
        extra = _WORK_ITEMSIZE if self.options.weights is None else _WEIGHTED_ITEMSIZE
        if job.leads is not None or job.order.kept or self.options.quantiles:
            extra += _WEIGHTED_ITEMSIZE
        return (2 * own + unpacked + extra) / own

    def _tree_nbytes(self, job: VariableJob, num_threads: int) -> int:
        """Bytes of the subtrees of one place of the kept dimensions, while they are merged."""
        cells = math.prod(job.order.axes[axis].max_read_size for axis in job.order.kept)
        if job.clock is not None:
            cells *= self.template.num_rows
        cells *= max(len(self.options.leads), 1) if job.leads is not None else 1
        each = _MOMENTS_ITEMSIZE + _SKETCH_NBYTES * bool(self.options.quantiles)
        num_nodes = min(job.order.most_leaves, job.order.most_leaves.bit_length() + 1 + num_threads)
        return cells * each * (num_nodes + 2)

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
            is_due = time.monotonic() - flushed > _FLUSH_SECONDS or sweep.nbytes > _FLUSH_NBYTES
            if is_due or is_last:
                parts.add(sweep.drain())
                flushed = time.monotonic()

        with ProgressBar("Statistics", total, progress) as bar:
            try:
                sweep.run(wanted, bar.advance, flush)
            finally:
                # Also after an error: what has been computed need not be computed again.
                flush(is_last=True)


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


def _whole_recipe(recipe: Recipe, names: list[str]) -> Recipe:
    """The recipe with one window over everything, so that each chunk is a block of its own."""
    dims = tuple(dict.fromkeys(dim for name in names for dim in recipe.dims_of(name)))
    sizes = tuple(recipe.dim_sizes[dim] for dim in dims)
    windows = Windows(dims, sizes, sizes, sizes, (1,) * len(sizes))
    return replace(
        recipe, windows=windows, fields=(), steps=(), subset=None, slab=None, num_taken=None
    )


def _form_of(job: VariableJob, kept_dims: tuple[str, ...]) -> VariableForm:
    order = job.order
    return VariableForm(
        job.stored.name,
        kept_dims,
        tuple(tuple(order.axes[axis].edges.tolist()) for axis in order.kept),
        tuple(order.places.tolist()),
        tuple(np.diff(order.edges).tolist()),
        job.clock is not None and bool(job.options.by),
        job.leads is not None,
        {
            key: str(job.stored.attrs[key])
            for key in ("units", "long_name")
            if key in job.stored.attrs
        },
    )


def _template_of(
    recipe: Recipe, options: StatsOptions, forms: tuple[VariableForm, ...]
) -> StatsTemplate:
    attrs = {
        "xloader_fingerprint": recipe.source.fingerprint,
        "xloader_stats": options.to_json(),
    }
    if options.by:
        attrs["xloader_clock_dim"] = options.time_dim
    digest = options.weights.digest if options.weights is not None else ""
    samples = replace(recipe, steps=()).fingerprint
    details = [(own.name, own.edges, own.leaves) for own in forms]
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
        _labels_of(recipe, options, {dim for own in forms for dim in own.dims}),
    )


def _labels_of(recipe: Recipe, options: StatsOptions, kept: set[str]) -> xr.Dataset:
    """The coordinates of the result, but those of ``stat``."""
    source = recipe.source.coordinates()
    names = [
        name for name, own in source.coords.items() if own.dims and set(map(str, own.dims)) <= kept
    ]
    coords = xr.Dataset(coords={name: source.coords[name] for name in names})
    places: dict[Any, Any] = {
        dim: np.asarray(recipe.kept_of(str(dim)), np.int64) for dim in coords.dims
    }
    coords = coords.isel(places).load()
    several = [dim for dim in coords.dims if getattr(coords.indexes.get(dim), "nlevels", 1) > 1]
    coords = coords.reset_index(several) if several else coords
    texts = {
        name: own.astype(object)
        for name, own in coords.coords.items()
        if not isinstance(own.dtype, np.dtype) or own.dtype.kind == "U"
    }
    coords = coords.assign_coords(texts)
    for own in coords.variables.values():
        own.encoding = {}
    if options.labels is not None:
        labels = options.labels
        coords = coords.assign_coords(
            {options.by: labels.astype(object) if labels.dtype.kind == "U" else labels}
        )
    if options.leads:
        values = np.array([pairs.label for pairs in options.leads])
        coords = coords.assign_coords(lead=values)
    return coords
