"""The form of a result of statistics: which variables, along which dimensions, from which parts.

It holds no values, and can be written as JSON. So partial results can be merged without samples.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.jobs.statistics.moments import LabelledMoments, Moments

STATISTICS: Final = ("count", "mean", "std", "min", "max")
"""The statistics that are always made, in order."""

JOB: Final = "xloader_job"
"""Attribute of statistics: the key of the job, by which the same job knows its result again."""

_VERSION: Final = 1


@dataclass(frozen=True)
class VariableForm:
    """The form of the statistics of one variable."""

    name: str
    dims: tuple[str, ...]
    edges: tuple[tuple[int, ...], ...]
    places: tuple[int, ...]
    leaves: tuple[int, ...]
    has_clock: bool
    has_leads: bool
    attrs: Mapping[str, str]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of elements along the kept dimensions."""
        return tuple(edges[-1] for edges in self.edges)

    def box(self, tree: int) -> tuple[slice, ...]:
        """The kept elements of a tree."""
        grid = tuple(len(edges) - 1 for edges in self.edges)
        index = np.unravel_index(self.places[tree], grid) if grid else ()
        pairs = zip(self.edges, map(int, index), strict=True)
        return tuple(slice(edges[at], edges[at + 1]) for edges, at in pairs)


@dataclass(frozen=True)
class StatsTemplate:
    """The form of a result of statistics."""

    variables: tuple[VariableForm, ...]
    clock: str
    num_rows: int
    num_leads: int
    quantiles: tuple[float, ...]
    attrs: Mapping[str, str]
    fingerprint: Mapping[str, str]
    labels: xr.Dataset = field(compare=False, repr=False, default_factory=xr.Dataset)

    @property
    def stats(self) -> tuple[str, ...]:
        """Names of the statistics, as labels of the dimension ``stat``."""
        return (*STATISTICS, *map(quantile_label, self.quantiles))

    @property
    def num_leaves(self) -> int:
        """Number of pieces of all variables."""
        return sum(sum(form.leaves) for form in self.variables)

    @property
    def nbytes(self) -> int:
        """Bytes of the result."""
        return sum(8 * math.prod(self.shape_of(form)) for form in self.variables)

    def shape_of(self, form: VariableForm) -> tuple[int, ...]:
        """Shape of the statistics of a variable."""
        clock = (self.num_rows,) * form.has_clock
        return (len(self.stats), *clock, *(self.num_leads,) * form.has_leads, *form.sizes)

    def dims_of(self, form: VariableForm) -> tuple[str, ...]:
        """Dimensions of the statistics of a variable."""
        return ("stat", *(self.clock,) * form.has_clock, *("lead",) * form.has_leads, *form.dims)

    def to_json(self) -> str:
        """All but the coordinates, as JSON."""
        parts = {key: value for key, value in self.__dict__.items() if key != "labels"}
        parts["variables"] = [asdict(form) for form in self.variables]
        return json.dumps({"version": _VERSION, **parts}, default=dict)

    @classmethod
    def from_json(cls, text: str, labels: xr.Dataset) -> StatsTemplate:
        """The template that `to_json` wrote."""
        parts = json.loads(text)
        if parts.pop("version") != _VERSION:
            raise ValueError("another version")
        forms = []
        for facts in parts.pop("variables"):
            edges = tuple(map(tuple, facts.pop("edges")))
            facts = {key: tuple(v) if isinstance(v, list) else v for key, v in facts.items()}
            forms.append(VariableForm(edges=edges, **facts))
        parts["quantiles"] = tuple(parts["quantiles"])
        return cls(variables=tuple(forms), labels=labels, **parts)

    def differing(self, other: StatsTemplate) -> list[str]:
        """In what another job differs: its data, samples or options."""
        theirs = other.fingerprint
        return [name for name, digest in self.fingerprint.items() if theirs.get(name) != digest]

    @property
    def key(self) -> str:
        """Text that differs for other data, samples or options."""
        return hashlib.sha256(json.dumps(dict(self.fingerprint)).encode()).hexdigest()[:16]


def quantile_label(quantile: float) -> str:
    """The label of a quantile along ``stat``, such as ``"q0.99"``."""
    return f"q{quantile:.15g}"


class StatsResult:
    """The arrays of a result, into which the statistics of trees are put."""

    def __init__(self, template: StatsTemplate) -> None:
        self._template = template
        self._arrays = []
        for form in template.variables:
            values = np.full(template.shape_of(form), np.nan)
            values[0] = 0.0
            self._arrays.append(values)

    def put(self, variable: int, tree: int, value: LabelledMoments) -> None:
        """Put the statistics of a tree, of the variable of that number, in their place."""
        template, form = self._template, self._template.variables[variable]
        shape = (template.num_rows, *(template.num_leads,) * form.has_leads)
        stats = _stats_of(value, template.quantiles)
        sizes = stats.shape[1 + len(shape) :]
        whole = np.full((len(template.stats), *shape, *sizes), np.nan)
        whole[0] = 0.0
        whole[:, value.rows] = stats
        if not form.has_clock:
            whole = whole[:, 0]
        box: tuple[Any, ...] = (..., *form.box(tree))
        self._arrays[variable][box] = whole

    def dataset(self) -> xr.Dataset:
        """The result."""
        template = self._template
        values = {
            form.name: (template.dims_of(form), array, dict(form.attrs))
            for form, array in zip(template.variables, self._arrays, strict=True)
        }
        coords = {"stat": np.array(template.stats, object), **template.labels.coords}
        return xr.Dataset(values, coords, {**template.attrs, JOB: template.key})


def moments_table(moments: Moments) -> NDArray[np.float64]:
    """The `STATISTICS` of moments, along a new first axis; NaN where there is no value."""
    is_there = moments.count > 0
    return np.stack(
        [
            moments.count.astype(np.float64),
            # Elements whose weights are all 0 have no mean, but a least and a greatest.
            np.where(moments.weight > 0, moments.mean, np.nan),
            moments.std,
            np.where(is_there, moments.min, np.nan),
            np.where(is_there, moments.max, np.nan),
        ]
    )


def _stats_of(value: LabelledMoments, quantiles: tuple[float, ...]) -> NDArray[np.float64]:
    """The statistics along a new axis that comes first."""
    basic = moments_table(value.moments)
    if not quantiles:
        return basic
    ranks = np.array(quantiles)
    rows = [sketch.quantile(ranks) for sketch in value.sketches]
    table = np.array(rows).reshape(*value.moments.shape, len(quantiles))
    return np.concatenate([basic, np.moveaxis(table, -1, 0)])
