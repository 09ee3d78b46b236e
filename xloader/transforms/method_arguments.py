"""Checks of recorded methods of :class:`xarray.Dataset`, made when they are recorded."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import numpy as np
import xarray as xr

from xloader.errors import OptionError
from xloader.recipe.names import LABEL, SAMPLE
from xloader.recipe.recipe import unknown
from xloader.transforms.steps import Method


def bind_arguments(
    owner: type, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> inspect.BoundArguments:
    """Match the arguments of a method of xarray with its parameters, and check them."""
    signature = inspect.signature(getattr(owner, name))
    try:
        bound = signature.bind(None, *args, **kwargs)
    except TypeError as error:
        raise OptionError(
            f"xarray.{owner.__name__}.{name} does not take these arguments: {error}",
            given=f"{args}, {kwargs}",
            allowed=f"{name}{signature}",
            remedy=f"pass the arguments that xarray.{owner.__name__}.{name} takes",
        ) from error
    given = [*args, *kwargs.values()]
    if name != "transpose" and (SAMPLE in kwargs or any(map(_speaks_of_sample, given))):
        raise OptionError(
            f"{name} would work across the samples of a batch, which differ from batch to batch",
            given=f"{args}, {kwargs}",
            allowed=f"any dimension except {SAMPLE!r}",
            remedy="name dimensions of a single sample",
        )
    return bound


def _speaks_of_sample(value: object) -> bool:
    if isinstance(value, xr.DataArray | xr.Dataset | xr.Variable):
        return SAMPLE in value.dims
    if isinstance(value, list | tuple | set | frozenset | dict):
        # One by one: an array in the collection has no single truth value.
        return any(isinstance(part, str) and part == SAMPLE for part in value)
    return isinstance(value, str) and value == SAMPLE


def require_shared_labels(step: Method, frame: xr.Dataset) -> None:
    """Check that a method works by labels that all samples share.

    Along windowed dimensions, each sample has its own labels. A batch has no index for them, and
    xarray would count positions there.
    """
    for name in _names_by_label(step):
        if not isinstance(name, str):
            raise OptionError(
                f"{step.name} takes names here",
                given=type(name).__name__,
                allowed=f"names of {[str(dim) for dim in frame.indexes]}",
                remedy=_per_sample(step),
            )
        if name in frame.indexes:
            continue
        is_windowed = name + LABEL in frame.coords
        if not is_windowed and name not in frame.dims:
            raise unknown(name, [str(dim) for dim in frame.dims if dim != SAMPLE], "dimension")
        raise OptionError(
            f"{step.name} needs labels along {name!r} that all samples share, and these "
            "differ from sample to sample"
            if is_windowed
            else f"{step.name} needs labels along {name!r}, which has none",
            given=step.describe(),
            allowed=f"dimensions with shared labels: {[str(dim) for dim in frame.indexes]}",
            remedy=_per_sample(step) if is_windowed else "open a Dataset that has labels there",
        )


def _names_by_label(step: Method) -> list[Any]:
    """Names of the dimensions, or of other things, by whose labels a method works."""
    method = inspect.signature(getattr(xr.Dataset, step.name))
    given = method.bind(None, *step.args, **step.kwargs).arguments
    if step.name in ("interp", "reindex"):
        first, more = ("coords", "coords_kwargs")
        if step.name == "reindex":
            first, more = ("indexers", "indexers_kwargs")
        return [*(given.get(first) or {}), *(given.get(more) or {})]
    if step.name == "interpolate_na":
        by = given.get("use_coordinate", True)
        return [] if by is False else [given.get("dim") if by is True else by]
    names = given["variables" if step.name == "sortby" else "coord"]
    return list(names) if isinstance(names, list | tuple) else [names]


def _per_sample(step: Method) -> str:
    return f'call it on each sample: .map(lambda ds: ds.{step.name}(...), per="sample")'


def try_on_zeros(step: Method, frame: xr.Dataset) -> None:
    """Check a method by calling it on zeros."""
    try:
        with np.errstate(all="ignore"):
            step.apply(frame)
    except Exception as error:
        text = str(error).splitlines()
        raise OptionError(
            f"{step.name} failed on a sample of zeros: {text[0] if text else type(error).__name__}",
            given=step.describe(),
            allowed=f"arguments that xarray takes for {dict(_sizes(frame))}",
            remedy="correct the arguments: to try them, call the method on samples.to_xarray(0)",
        ) from error


def _sizes(frame: xr.Dataset) -> Iterable[tuple[str, int]]:
    return ((str(dim), size) for dim, size in frame.sizes.items() if dim != SAMPLE)
