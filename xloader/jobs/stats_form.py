"""The form and the coordinates of a result of statistics, from samples and options."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from xloader.jobs.stats_options import StatsOptions
from xloader.jobs.stats_sweep import VariableJob
from xloader.jobs.stats_template import StatsTemplate, VariableForm
from xloader.recipe.recipe import Recipe


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
