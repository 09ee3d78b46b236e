"""The form and the coordinates of a result of statistics, from samples and options."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import numpy as np
import xarray as xr

from xloader.errors import OptionError
from xloader.jobs.statistics.stats_options import StatsOptions
from xloader.jobs.statistics.stats_sweep import VariableJob
from xloader.jobs.statistics.stats_template import StatsTemplate, VariableForm
from xloader.recipe.recipe import Recipe
from xloader.transforms.statistics_forms import CLOCK_DIM, FINGERPRINT, GRID, OPTIONS, grids_of


def form_of(job: VariableJob) -> VariableForm:
    """The form of the statistics of a variable."""
    order = job.order
    return VariableForm(
        job.stored.name,
        tuple(job.stored.dims[axis] for axis in order.kept),
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


def template_of(
    recipe: Recipe, options: StatsOptions, forms: tuple[VariableForm, ...]
) -> StatsTemplate:
    """The form of a result, with its coordinates."""
    _check_names(recipe, options, forms)
    named = {**json.loads(options.to_json()), "variables": [own.name for own in forms]}
    attrs = {FINGERPRINT: recipe.source.fingerprint, GRID: grids_of(recipe)}
    attrs[OPTIONS] = json.dumps(named)
    if options.by:
        attrs[CLOCK_DIM] = options.time_dim
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


def _check_names(recipe: Recipe, options: StatsOptions, forms: tuple[VariableForm, ...]) -> None:
    """Refuse names in the data that the result needs for its own dimensions."""
    added = {"stat", *filter(None, [options.by]), *(["lead"] if options.leads else [])}
    kept = {dim for own in forms for dim in own.dims}
    coords = {
        str(name)
        for name, own in recipe.source.coordinates(is_indexed=False).coords.items()
        if own.dims and set(map(str, own.dims)) <= kept
    }
    if clash := sorted(added & (kept | coords | {own.name for own in forms})):
        raise OptionError(
            "the statistics have dimensions of their own, whose names the data has, too",
            given=", ".join(map(repr, clash)),
            allowed=f"variables, kept dimensions and their coordinates with other names than "
            f"{', '.join(map(repr, sorted(added)))}",
            remedy=f'rename it: ds.rename({clash[0]}="my_{clash[0]}")',
        )


def _labels_of(recipe: Recipe, options: StatsOptions, kept: set[str]) -> xr.Dataset:
    """The coordinates of the result, but those of ``stat``."""
    # Without indexes, so that the labels of time are not read for nothing.
    source = recipe.source.coordinates(is_indexed=False)
    coords = xr.Dataset()
    for name, own in source.coords.items():
        if not own.dims or not set(map(str, own.dims)) <= kept:
            continue
        places = {dim: np.asarray(recipe.kept_of(str(dim)), np.int64) for dim in own.dims}
        if getattr(source.indexes.get(name), "nlevels", 1) > 1:
            # Its levels are coordinates of their own, and files cannot hold it.
            continue
        chosen = own.variable.isel(places)
        values = np.asarray(chosen.values)
        if values.dtype.kind == "U":
            values = values.astype(object)
        coords = coords.assign_coords({str(name): (own.dims, values, own.attrs)})
    if options.labels is not None:
        labels = options.labels
        coords = coords.assign_coords(
            {options.by: labels.astype(object) if labels.dtype.kind == "U" else labels}
        )
    if options.leads:
        values = np.array([pairs.label for pairs in options.leads])
        coords = coords.assign_coords(lead=values)
    return coords
