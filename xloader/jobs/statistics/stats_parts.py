"""The form of statistics, their result, and partial ones in memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import xarray as xr

from xloader.core.messages import show_count
from xloader.errors import StateError, StatisticsWarning
from xloader.jobs.merge_trees import Leaves, Node, TreeForm
from xloader.jobs.statistics.moments import STATISTICS, LabelledMoments, moments_table
from xloader.jobs.statistics.quantile_sketch import quantile_label


@dataclass(frozen=True)
class VariableForm:
    """The form of the statistics of one variable: kept dimensions, and the leaves of each tree."""

    name: str
    dims: tuple[str, ...]
    edges: tuple[tuple[int, ...], ...]
    places: tuple[int, ...]
    leaves: tuple[int, ...]
    has_clock: bool
    has_leads: bool
    attrs: Mapping[str, str]

    def box(self, tree: int) -> tuple[slice, ...]:
        """The kept elements of a tree."""
        grid = tuple(len(edges) - 1 for edges in self.edges)
        index = np.unravel_index(self.places[tree], grid) if grid else ()
        pairs = zip(self.edges, map(int, index), strict=True)
        return tuple(slice(edges[at], edges[at + 1]) for edges, at in pairs)


class StatsResult:
    """The arrays of a result, into which the statistics of trees are put."""

    def __init__(self, template: StatsTemplate) -> None:
        self._template = template
        self._arrays = []
        for form in template.variables:
            values = np.full(tuple(template.sizes_of(form).values()), np.nan)
            values[0] = 0.0
            self._arrays.append(values)

    def put(self, variable: int, tree: int, value: LabelledMoments) -> None:
        """Put the statistics of a tree, of the variable of that number, in their place."""
        form, quantiles = self._template.variables[variable], self._template.quantiles
        table = moments_table(value.moments)
        if value.sketches is not None:
            rows = [sketch.quantile(np.array(quantiles)) for sketch in value.sketches.flat]
            estimates = np.array(rows).reshape(*value.sketches.shape, len(quantiles))
            table = np.concatenate([table, np.moveaxis(estimates, -1, 0)])
        place: tuple[Any, ...] = (..., *form.box(tree))
        view = self._arrays[variable][place]
        if form.has_clock:
            view[:, value.rows] = table
        else:
            view[...] = table[:, 0]

    def dataset(self) -> xr.Dataset:
        """The result, without the stamp of the job."""
        template = self._template
        values = {
            form.name: (tuple(template.sizes_of(form)), array, dict(form.attrs))
            for form, array in zip(template.variables, self._arrays, strict=True)
        }
        coords = {"stat": np.array(template.stats, object), **template.labels.coords}
        return xr.Dataset(values, coords, dict(template.attrs))


@dataclass(frozen=True)
class StatsTemplate(TreeForm):
    """The form of a result of statistics. It holds no values, and can be written as JSON."""

    name = "stats"
    noun = "statistics"
    mark = "xloader_job"
    version = 3
    nested = MappingProxyType({"variables": VariableForm})
    value_type = LabelledMoments
    result_type = StatsResult
    warning = StatisticsWarning
    smaller = "keep fewer dimensions, labels or quantiles"

    variables: tuple[VariableForm, ...]
    clock: str
    num_rows: int
    num_leads: int
    quantiles: tuple[float, ...]
    attrs: Mapping[str, str]

    @property
    def stats(self) -> tuple[str, ...]:
        """Names of the statistics, as labels of the dimension ``stat``."""
        return (*STATISTICS, *map(quantile_label, self.quantiles))

    @property
    def leaves(self) -> Leaves:
        """For each variable, the number of pieces of each of its trees."""
        return [form.leaves for form in self.variables]

    @property
    def nbytes(self) -> int:
        """Bytes of the result."""
        return sum(8 * math.prod(self.sizes_of(form).values()) for form in self.variables)

    def sizes_of(self, form: VariableForm) -> dict[str, int]:
        """Dimensions of the statistics of a variable, with their sizes."""
        sizes = {"stat": len(self.stats)}
        if form.has_clock:
            sizes[self.clock] = self.num_rows
        if form.has_leads:
            sizes["lead"] = self.num_leads
        return sizes | {dim: edges[-1] for dim, edges in zip(form.dims, form.edges, strict=True)}


@dataclass(frozen=True, eq=False)
class PartialStats:
    """Statistics of a part of the chunks, as :meth:`Samples.stats` with ``part`` returns them.

    :func:`xloader.merge` makes the whole of all parts. They can be pickled and sent.

    Attributes
    ----------
    part : (int, int)
        The number of this part, from 0 on, and the number of parts.
    num_reads : int
        Number of chunks that were read for it.
    template : StatsTemplate
        The form of the whole.
    nodes : mapping
        The statistics; none if they lie in files.
    path : str
        The target beside which the files lie; empty without files.
    """

    part: tuple[int, int]
    num_reads: int
    template: StatsTemplate = field(repr=False)
    nodes: Mapping[tuple[int, int], Mapping[Node, LabelledMoments]] = field(repr=False)
    path: str = ""

    def __str__(self) -> str:
        number, count = self.part
        where = f"; its files lie beside {self.path}" if self.path else ""
        chunks = show_count(self.num_reads, "chunk")
        return f"statistics of part {number} of {count}: {chunks} read{where}"


def merge_parts(parts: Sequence[PartialStats]) -> xr.Dataset:
    """The result of parts in memory."""
    first = parts[0]
    if any(part.path for part in parts):
        raise StateError(
            "these parts were written to files",
            given=", ".join(sorted({part.path for part in parts if part.path})),
            remedy="pass the path instead: xloader.merge(path)",
        )
    for part in parts:
        differing = ", ".join(first.template.differing(part.template))
        given = f"parts with other {differing}" if differing else ""
        if not given and part.part[1] != first.part[1]:
            given = f"parts of {first.part[1]} and of {part.part[1]}"
        if given:
            raise StateError(
                "the parts are of different jobs", given=given, remedy="run all with equal options"
            )
    count, numbers = first.part[1], sorted(part.part[0] for part in parts)
    if numbers != list(range(count)):
        is_missing = set(range(count)) - set(numbers)
        raise StateError(
            "parts are missing" if is_missing else "a part comes twice",
            given=f"parts {numbers} of {count}",
            remedy="run all parts, and pass each of them once",
        )
    nodes = [
        (tree, node, value)
        for part in parts
        for tree, values in part.nodes.items()
        for node, value in values.items()
    ]
    return first.template.merged([(tree, node) for tree, node, _ in nodes], nodes)
