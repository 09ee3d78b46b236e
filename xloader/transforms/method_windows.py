"""Windows over dimensions of samples, as ``rolling`` and ``coarsen`` give them, before a mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import xarray as xr

from xloader.errors import OptionError, printable
from xloader.recipe.names import LABEL
from xloader.recipe.recipe import Transform
from xloader.transforms.method_arguments import bind_arguments, try_on_zeros
from xloader.transforms.steps import Method

OF_WINDOWS = (
    *("all", "any", "argmax", "argmin", "construct", "count", "max", "mean", "median", "min"),
    *("prod", "reduce", "std", "sum", "var"),
)
"""Methods of windows that are recorded. Rolling windows lack ``all`` and ``any``, and blocks of
``coarsen`` lack ``argmax`` and ``argmin``, as in xarray."""


class TakesSteps(Protocol):
    """Samples, as far as they take transforms."""

    def with_step(self, step: Transform) -> Any:
        """The samples with one more transform."""
        ...


S = TypeVar("S", bound=TakesSteps)


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

    all: Callable[..., S]
    any: Callable[..., S]
    argmax: Callable[..., S]
    argmin: Callable[..., S]
    construct: Callable[..., S]
    count: Callable[..., S]
    max: Callable[..., S]
    mean: Callable[..., S]
    median: Callable[..., S]
    min: Callable[..., S]
    prod: Callable[..., S]
    reduce: Callable[..., S]
    std: Callable[..., S]
    sum: Callable[..., S]
    var: Callable[..., S]

    def __init__(self, samples: S, opened: Method, frame: xr.Dataset) -> None:
        self.samples, self.opened, self.frame = samples, opened, frame

    def __repr__(self) -> str:
        text = f"<xloader windows: {self.opened.describe()}; call a method such as .mean()>"
        return printable(text)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"{self.opened.name}(...) has no method {name!r} that can be recorded: call one of "
            f"{', '.join(OF_WINDOWS)}"
        )

    def _record(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> S:
        kind = type(getattr(self.frame, self.opened.name)(*self.opened.args, **self.opened.kwargs))
        if not hasattr(kind, name):
            raise OptionError(
                f"{self.opened.name} has no method {name!r} in xarray",
                given=f"{self.opened.describe()}.{name}()",
                allowed=", ".join(own for own in OF_WINDOWS if hasattr(kind, own)),
                remedy="call one of these",
            )
        bound = bind_arguments(kind, name, args, kwargs)
        step = replace(self.opened, then=Method(name, bound.args[1:], bound.kwargs))
        try_on_zeros(step, self.frame)
        made: S = self.samples.with_step(step)
        return made


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


def _attach(name: str) -> None:
    def method(self: MethodWindows[Any], *args: Any, **kwargs: Any) -> Any:
        return self._record(name, args, kwargs)

    method.__name__, method.__qualname__ = name, f"MethodWindows.{name}"
    method.__doc__ = f"Record ``{name}`` of each window, as xarray's own method does it."
    setattr(MethodWindows, name, method)


for _name in OF_WINDOWS:
    _attach(_name)
