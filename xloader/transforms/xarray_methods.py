"""Methods of :class:`xarray.Dataset` that samples record, and that later run on whole batches."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NoReturn, Self

import xarray as xr

from xloader.errors import OptionError
from xloader.recipe.recipe import Transform
from xloader.transforms.method_arguments import bind_arguments, require_shared_labels, try_on_zeros
from xloader.transforms.method_windows import MethodWindows, open_windows
from xloader.transforms.steps import Method

ELEMENTWISE = (
    *("assign", "astype", "bfill", "clip", "diff", "drop_vars", "expand_dims", "ffill", "isin"),
    *("isnull", "notnull", "pad", "rank", "rename", "roll", "round", "shift", "transpose"),
    "where",
)
"""Methods that work on each element, or along a dimension that their arguments name."""

REDUCING = (
    *("all", "any", "count", "cumprod", "cumsum", "max", "mean", "median", "min", "prod"),
    *("quantile", "squeeze", "std", "sum", "var"),
)
"""Methods that work over dimensions; without ``dim``, over all except ``sample``."""

BY_LABEL = ("differentiate", "integrate", "interp", "interpolate_na", "reindex", "sortby")
"""Methods that work by the labels of dimensions, which all samples must share."""

WINDOWED = ("coarsen", "rolling")
"""Methods that give windows over dimensions; a method of these, such as ``mean``, is recorded."""

RECORDED = (*ELEMENTWISE, *REDUCING, *BY_LABEL, *WINDOWED)
"""All methods that are recorded."""

REFUSED = (
    *("groupby", "groupby_bins", "interp_like", "polyfit", "reindex_like", "resample"),
    *("rolling_exp", "stack", "unstack"),
)
"""Methods that raise an error, as they need an index, give no Dataset, or may lose ``sample``."""


class RecordedMethods:
    """Base class of samples, with a method for each name in the lists above.

    Those of `RECORDED` record a transform. Those of `REFUSED` raise an error.
    """

    all: Callable[..., Self]
    any: Callable[..., Self]
    assign: Callable[..., Self]
    astype: Callable[..., Self]
    bfill: Callable[..., Self]
    clip: Callable[..., Self]
    coarsen: Callable[..., MethodWindows[Self]]
    count: Callable[..., Self]
    cumprod: Callable[..., Self]
    cumsum: Callable[..., Self]
    diff: Callable[..., Self]
    differentiate: Callable[..., Self]
    drop_vars: Callable[..., Self]
    expand_dims: Callable[..., Self]
    ffill: Callable[..., Self]
    integrate: Callable[..., Self]
    interp: Callable[..., Self]
    interpolate_na: Callable[..., Self]
    isin: Callable[..., Self]
    isnull: Callable[..., Self]
    max: Callable[..., Self]
    mean: Callable[..., Self]
    median: Callable[..., Self]
    min: Callable[..., Self]
    notnull: Callable[..., Self]
    pad: Callable[..., Self]
    prod: Callable[..., Self]
    quantile: Callable[..., Self]
    rank: Callable[..., Self]
    reindex: Callable[..., Self]
    rename: Callable[..., Self]
    roll: Callable[..., Self]
    rolling: Callable[..., MethodWindows[Self]]
    round: Callable[..., Self]
    shift: Callable[..., Self]
    sortby: Callable[..., Self]
    squeeze: Callable[..., Self]
    std: Callable[..., Self]
    sum: Callable[..., Self]
    transpose: Callable[..., Self]
    var: Callable[..., Self]
    where: Callable[..., Self]

    def with_step(self, step: Transform) -> Self:
        """Add a transform."""
        raise NotImplementedError

    def _batch_of_zeros(self) -> xr.Dataset:
        """A batch of one sample, made of zeros, after the transforms recorded so far."""
        raise NotImplementedError

    def __dir__(self) -> list[str]:
        # The refused methods only raise an error, so completion leaves them out.
        return sorted({*super().__dir__()} - {*REFUSED})


def make_method(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Method:
    """Record a call of a method of :class:`xarray.Dataset`."""
    bound = bind_arguments(xr.Dataset, name, args, kwargs)
    if name == "squeeze" and bound.arguments.get("axis") is not None:
        raise OptionError(
            "squeeze cannot count axes, as a batch has one more than a sample",
            given=f"axis={bound.arguments['axis']}",
            allowed="dim, or no argument for all dimensions of size 1",
            remedy='name the dimension: squeeze("channel")',
        )
    over_rest = name in REDUCING and bound.arguments.get("dim") in (None, ...)
    if over_rest:
        bound.arguments.pop("dim", None)
    return Method(name, bound.args[1:], bound.kwargs, over_rest)


def _record(name: str, samples: RecordedMethods, *args: Any, **kwargs: Any) -> RecordedMethods:
    return samples.with_step(make_method(name, args, kwargs))


def _record_by_label(
    name: str, samples: RecordedMethods, *args: Any, **kwargs: Any
) -> RecordedMethods:
    step = make_method(name, args, kwargs)
    frame = samples._batch_of_zeros()
    require_shared_labels(step, frame)
    try_on_zeros(step, frame)
    return samples.with_step(step)


def _record_windows(
    name: str, samples: RecordedMethods, *args: Any, **kwargs: Any
) -> MethodWindows[RecordedMethods]:
    return open_windows(name, samples, samples._batch_of_zeros(), args, kwargs)


def _refuse(name: str, samples: RecordedMethods, *args: Any, **kwargs: Any) -> NoReturn:
    raise OptionError(
        f"{name} cannot run on whole batches",
        given=f"{name}()",
        allowed=", ".join(sorted(RECORDED)),
        remedy=f'call it on each sample: .map(lambda ds: ds.{name}(...), per="sample")',
    )


def _attach(name: str, action: Callable[..., Any], note: str) -> None:
    def method(self: RecordedMethods, *args: Any, **kwargs: Any) -> Any:
        return action(name, self, *args, **kwargs)

    text = inspect.getdoc(getattr(xr.Dataset, name)) or f"Call `xarray.Dataset.{name}`."
    first = " ".join(text.split("\n\n")[0].split())
    method.__name__, method.__qualname__ = name, f"RecordedMethods.{name}"
    method.__doc__ = f"{first}\n\n{note}"
    setattr(RecordedMethods, name, method)


for _name in ELEMENTWISE:
    _attach(_name, _record, f"Recorded, and run as `xarray.Dataset.{_name}` on whole batches.")
for _name in REDUCING:
    _attach(
        _name,
        _record,
        f"Recorded, and run as `xarray.Dataset.{_name}` on whole batches: without ``dim``, over "
        "every dimension but ``sample``.",
    )
for _name in BY_LABEL:
    _attach(
        _name,
        _record_by_label,
        f"Recorded, and run as `xarray.Dataset.{_name}` on whole batches, along dimensions whose "
        "labels all samples share.",
    )
for _name in WINDOWED:
    _attach(
        _name,
        _record_windows,
        f"Returns windows, as `xarray.Dataset.{_name}` does. Their methods, such as ``mean``, are "
        "recorded, and run on whole batches.",
    )
for _name in REFUSED:
    _attach(_name, _refuse, 'Refused for batches: use ``map(fn, per="sample")``.')
