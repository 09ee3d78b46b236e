"""The job of statistics: which chunks are read, and the form of the result."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.footprint import Footprint, Group
from xloader.errors import EmptySamplesError, OptionError
from xloader.jobs.covered_elements import CoveredElements
from xloader.jobs.statistics.chunk_order import ChunkOrder, needed_chunks
from xloader.jobs.statistics.label_pairs import Lead
from xloader.jobs.statistics.stats_form import form_of, template_of
from xloader.jobs.statistics.stats_memory import StatsMemory
from xloader.jobs.statistics.stats_options import Dims, channel_dims, parse_stats_options
from xloader.jobs.statistics.stats_sweep import StatsSweep, VariableJob, lead_pieces
from xloader.jobs.statistics.stats_template import StatsTemplate
from xloader.jobs.whole_windows import group_of, whole_recipe
from xloader.recipe.demands import make_footprint
from xloader.recipe.layout import FieldLayout, make_layouts
from xloader.recipe.recipe import Recipe


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

    @property
    def orders(self) -> list[ChunkOrder]:
        """The pieces of each variable."""
        return [own.order for own in self.jobs]

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
