"""Methods of :class:`xarray.Dataset` that samples record, and that later run on whole batches."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Generic, NoReturn, Self, TypeVar

import numpy as np
import xarray as xr

from xloader.core.messages import unknown
from xloader.errors import OptionError, printable
from xloader.recipe.names import LABEL, SAMPLE
from xloader.recipe.recipe import Transform
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
        ) from error
    given = [*args, *kwargs.values()]
    if name != "transpose" and (SAMPLE in kwargs or any(map(_speaks_of_sample, given))):
        raise OptionError(
            f"{name} would work across the samples of a batch, which differ from batch to batch",
            given=f"{args}, {kwargs}",
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
        word = "coords" if step.name == "interp" else "indexers"
        return [*(given.get(word) or {}), *(given.get(f"{word}_kwargs") or {})]
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
            remedy="correct the arguments: to try them, call the method on samples.to_xarray(0)",
        ) from error


OF_WINDOWS = (
    *("all", "any", "argmax", "argmin", "construct", "count", "max", "mean", "median", "min"),
    *("prod", "reduce", "std", "sum", "var"),
)
"""Methods of windows that are recorded. Rolling windows lack ``all`` and ``any``, and blocks of
``coarsen`` lack ``argmax`` and ``argmin``, as in xarray."""


S = TypeVar("S", bound="RecordedMethods")


class MethodWindows(Generic[S]):
    """Windows that ``samples.rolling(...)`` or ``samples.coarsen(...)`` gives.

    Each method returns samples, with ``rolling(...).mean()`` recorded, for example. It runs as
    xarray's own on whole batches, along dimensions of a sample, never along ``sample``.

    Parameters
    ----------
    samples : Samples
        The samples.
    opened : Method
        The call of ``rolling`` or ``coarsen``.
    frame : xarray.Dataset
        A batch of one sample of zeros, on which calls are tried when they are recorded.

    Examples
    --------
    >>> import numpy as np, xloader
    >>> series = xr.Dataset({"rain": ("time", np.arange(8.0))})
    >>> samples = series.xloader.window(time=4)
    >>> samples.rolling(time=2).sum()[1][0].tolist()
    [nan, 9.0, 11.0, 13.0]
    >>> samples.coarsen(time=2).mean()[1][0].tolist()
    [4.5, 6.5]
    """

    def __init__(self, samples: S, opened: Method, frame: xr.Dataset) -> None:
        self.samples, self.opened, self.frame = samples, opened, frame

    def __repr__(self) -> str:
        text = f"<xloader windows: {self.opened.describe()}; call a method such as .mean()>"
        return printable(text)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *OF_WINDOWS]

    def __getattr__(self, name: str) -> Callable[..., S]:
        if name not in OF_WINDOWS:
            raise AttributeError(
                f"{self.opened.name}(...) has no method {name!r} that can be recorded: call one of "
                f"{', '.join(OF_WINDOWS)}"
            )
        return partial(self._record, name)

    def _record(self, name: str, *args: Any, **kwargs: Any) -> S:
        windows_class = type(
            getattr(self.frame, self.opened.name)(*self.opened.args, **self.opened.kwargs)
        )
        if not hasattr(windows_class, name):
            raise OptionError(
                f"{self.opened.name} has no method {name!r} in xarray",
                given=f"{self.opened.describe()}.{name}()",
                allowed=", ".join(
                    method for method in OF_WINDOWS if hasattr(windows_class, method)
                ),
            )
        bound = bind_arguments(windows_class, name, args, kwargs)
        step = replace(self.opened, then=Method(name, bound.args[1:], bound.kwargs))
        try_on_zeros(step, self.frame)
        return self.samples._with_step(step)


def open_windows(
    name: str, samples: S, frame: xr.Dataset, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> MethodWindows[S]:
    """Call ``rolling`` or ``coarsen`` of samples."""
    bound = bind_arguments(xr.Dataset, name, args, kwargs)
    if (functions := bound.arguments.get("coord_func")) is not None:
        if not isinstance(functions, Mapping):
            functions = dict.fromkeys(frame.dims, functions)
        # Labels that differ from sample to sample have another name in a batch.
        bound.arguments["coord_func"] = {
            key if key in frame.coords else f"{key}{LABEL}": value
            for key, value in functions.items()
        }
    opened = Method(name, bound.args[1:], bound.kwargs)
    try_on_zeros(opened, frame)
    return MethodWindows(samples, opened, frame)


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

    def _with_step(self, step: Transform) -> Self:
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
            remedy='name the dimension: squeeze("channel")',
        )
    over_rest = name in REDUCING and bound.arguments.get("dim") in (None, ...)
    if over_rest:
        bound.arguments.pop("dim", None)
    return Method(name, bound.args[1:], bound.kwargs, over_rest)


def _record(name: str, samples: RecordedMethods, *args: Any, **kwargs: Any) -> RecordedMethods:
    return samples._with_step(make_method(name, args, kwargs))


def _record_by_label(
    name: str, samples: RecordedMethods, *args: Any, **kwargs: Any
) -> RecordedMethods:
    step = make_method(name, args, kwargs)
    frame = samples._batch_of_zeros()
    require_shared_labels(step, frame)
    try_on_zeros(step, frame)
    return samples._with_step(step)


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


_RUN = "Recorded, and run as `xarray.Dataset.{}` on whole batches"
_WINDOWS = (
    "Returns windows, as `xarray.Dataset.{}` does. Their methods, such as ``mean``, are recorded, "
    "and run on whole batches."
)
for _names, _action, _note in (
    (ELEMENTWISE, _record, f"{_RUN}."),
    (REDUCING, _record, f"{_RUN}: without ``dim``, over every dimension but ``sample``."),
    (BY_LABEL, _record_by_label, f"{_RUN}, along dimensions whose labels all samples share."),
    (WINDOWED, _record_windows, _WINDOWS),
    (REFUSED, _refuse, 'Refused for batches: use ``map(fn, per="sample")``.'),
):
    for _name in _names:
        _attach(_name, _action, _note.format(_name))
