"""Methods of :class:`xarray.Dataset` that samples record, and that later run on whole batches."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NoReturn, Self

import xarray as xr

from xloader.errors import OptionError
from xloader.recipe.names import SAMPLE
from xloader.recipe.recipe import Transform
from xloader.transforms.steps import Method

ELEMENTWISE = (
    *("assign", "astype", "clip", "diff", "drop_vars", "expand_dims", "isin", "isnull"),
    *("notnull", "rename", "roll", "round", "shift", "transpose", "where"),
)
"""Methods that work on each element, or along a dimension that their arguments name."""

REDUCING = (
    *("all", "any", "count", "cumprod", "cumsum", "max", "mean", "median", "min", "prod"),
    *("quantile", "std", "sum", "var"),
)
"""Methods that work over dimensions; without ``dim``, over all except ``sample``."""

REFUSED = (
    *("coarsen", "differentiate", "groupby", "groupby_bins", "integrate", "interp"),
    *("interp_like", "interpolate_na", "polyfit", "reindex", "reindex_like", "resample"),
    *("rolling", "rolling_exp", "sortby", "squeeze", "stack", "unstack"),
)
"""Methods that raise an error, as they need an index, give no Dataset, or may lose ``sample``."""


class RecordedMethods:
    """Base class of samples, with a method for each name in the lists above.

    Those of `ELEMENTWISE` and `REDUCING` record a transform. Those of `REFUSED` raise an error.
    """

    all: Callable[..., Self]
    any: Callable[..., Self]
    assign: Callable[..., Self]
    astype: Callable[..., Self]
    clip: Callable[..., Self]
    count: Callable[..., Self]
    cumprod: Callable[..., Self]
    cumsum: Callable[..., Self]
    diff: Callable[..., Self]
    drop_vars: Callable[..., Self]
    expand_dims: Callable[..., Self]
    isin: Callable[..., Self]
    isnull: Callable[..., Self]
    max: Callable[..., Self]
    mean: Callable[..., Self]
    median: Callable[..., Self]
    min: Callable[..., Self]
    notnull: Callable[..., Self]
    prod: Callable[..., Self]
    quantile: Callable[..., Self]
    rename: Callable[..., Self]
    roll: Callable[..., Self]
    round: Callable[..., Self]
    shift: Callable[..., Self]
    std: Callable[..., Self]
    sum: Callable[..., Self]
    transpose: Callable[..., Self]
    var: Callable[..., Self]
    where: Callable[..., Self]

    def with_step(self, step: Transform) -> Self:
        """Add a transform.

        Parameters
        ----------
        step : Transform
            The transform, which runs after those recorded before.

        Returns
        -------
        Self
            New samples.
        """
        raise NotImplementedError

    def __dir__(self) -> list[str]:
        # The refused methods only raise an error, so completion leaves them out.
        return sorted({*super().__dir__()} - {*REFUSED})


def make_method(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Method:
    """Record a call of a method of :class:`xarray.Dataset`.

    Parameters
    ----------
    name : str
        One of `ELEMENTWISE` or `REDUCING`, or any other method that keeps ``sample``.
    args : tuple
        Its positional arguments.
    kwargs : dict
        Its keyword arguments.

    Returns
    -------
    Method
        The transform.

    Raises
    ------
    OptionError
        If xarray's method does not take these arguments, or they name ``sample``.
    """
    function = getattr(xr.Dataset, name)
    signature = inspect.signature(function)
    try:
        bound = signature.bind(None, *args, **kwargs)
    except TypeError as error:
        raise OptionError(
            f"xarray.Dataset.{name} does not take these arguments: {error}",
            given=f"{args}, {kwargs}",
            allowed=f"{name}{signature}",
            remedy=f"pass the arguments that xarray.Dataset.{name} takes",
        ) from error
    given = [*args, *kwargs.values()]
    if name != "transpose" and (SAMPLE in kwargs or any(map(_speaks_of_sample, given))):
        raise OptionError(
            f"{name} would work across the samples of a batch, which differ from batch to batch",
            given=f"{args}, {kwargs}",
            allowed=f"any dimension except {SAMPLE!r}",
            remedy="name dimensions of a single sample",
        )
    over_rest = name in REDUCING and bound.arguments.get("dim") in (None, ...)
    if over_rest:
        bound.arguments.pop("dim", None)
    return Method(name, bound.args[1:], bound.kwargs, over_rest)


def _speaks_of_sample(value: object) -> bool:
    if isinstance(value, list | tuple | set | frozenset | dict):
        # One by one: an array in the collection has no single truth value.
        return any(isinstance(part, str) and part == SAMPLE for part in value)
    return isinstance(value, str) and value == SAMPLE


def _record(name: str, samples: RecordedMethods, *args: Any, **kwargs: Any) -> RecordedMethods:
    return samples.with_step(make_method(name, args, kwargs))


def _refuse(name: str, samples: RecordedMethods, *args: Any, **kwargs: Any) -> NoReturn:
    raise OptionError(
        f"{name} cannot run on whole batches",
        given=f"{name}()",
        allowed=", ".join(sorted(ELEMENTWISE + REDUCING)),
        remedy=f'call it on each sample: .map(lambda ds: ds.{name}(...), per="sample")',
    )


def _attach(name: str, action: Callable[..., Any], note: str) -> None:
    def method(self: RecordedMethods, *args: Any, **kwargs: Any) -> Any:
        return action(name, self, *args, **kwargs)

    text = inspect.getdoc(getattr(xr.Dataset, name)) or name
    method.__name__, method.__qualname__ = name, f"RecordedMethods.{name}"
    method.__doc__ = f"{text.splitlines()[0]}\n\n{note}"
    setattr(RecordedMethods, name, method)


for _name in ELEMENTWISE:
    _attach(_name, _record, f"Recorded, and run as xarray.Dataset.{_name} on whole batches.")
for _name in REDUCING:
    _attach(
        _name,
        _record,
        f"Recorded, and run as xarray.Dataset.{_name} on whole batches: without ``dim``, over "
        "every dimension but ``sample``.",
    )
for _name in REFUSED:
    _attach(_name, _refuse, 'Refused for batches: use ``map(fn, per="sample")``.')
