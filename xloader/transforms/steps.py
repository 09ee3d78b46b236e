"""The transforms that run on a batch as an xarray Dataset: user functions and recorded methods.

Transforms run in the order in which they were recorded. In-place ones (normalize, fillna) change
the gathered arrays. From the first other one on, the batch is an xarray Dataset (see
`transforms.batch_datasets`) until it is delivered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, cast

import numpy as np
import xarray as xr

from xloader.errors import OptionError
from xloader.recipe.names import LABEL, SAMPLE
from xloader.recipe.recipe import Transform
from xloader.transforms.batch_datasets import is_same_coord, show_labels
from xloader.transforms.rng import Rng

_CYCLES: Final = "xloader.forcings.cycles"
FIRST_MODULES: Final = {
    "cos_day_of_year": _CYCLES,
    "cos_local_time": _CYCLES,
    "cos_longitude": _CYCLES,
    "insolation": "xloader.forcings.solar_radiation",
    "latitude": _CYCLES,
    "sin_day_of_year": _CYCLES,
    "sin_local_time": _CYCLES,
    "sin_longitude": _CYCLES,
    "Stacked": "xloader.xbatcher.to_samples",
}
"""Modules that states and caches name, of functions of ours that samples can have."""


def unstack_samples(frame: xr.Dataset) -> tuple[list[xr.Dataset], frozenset[Hashable]]:
    """Split a batch into a Dataset for each sample."""
    rows = [frame.isel({SAMPLE: row}) for row in range(frame.sizes[SAMPLE])]
    samples = [show_labels(row).assign_coords({SAMPLE: row.variables[SAMPLE]}) for row in rows]
    windowed = {
        name for sample in samples[:1] for name in sample.coords if name not in frame.coords
    }
    return samples, frozenset(windowed)


def stack_samples(samples: list[xr.Dataset], windowed: frozenset[Hashable]) -> xr.Dataset:
    """Combine samples to a batch: the reverse of :func:`unstack_samples`.

    A function may have changed the samples in between. A coordinate that all samples share stays
    as it is. One that differs between samples, or is in ``windowed``, is stacked like a field; if
    it is an index or a scalar, its name becomes ``<name>_label``.
    """
    first = samples[0]
    names = dict.fromkeys(name for sample in samples for name in sample.data_vars)
    fields = {name: _stacked(samples, name) for name in names}
    for name, field in fields.items():
        if field is None:
            sizes = [sample[name].sizes if name in sample else None for sample in samples]
            raise OptionError(
                f"after a transform, samples differ in the dimensions or sizes of {str(name)!r}",
                given=sorted({str(size if size is None else dict(size)) for size in sizes}),
                remedy="pad or cut the samples to one size in the function",
            )
    coords: dict[Hashable, xr.Variable | None] = {}
    for name in first.coords:
        label = first.variables[name]
        if name == SAMPLE:
            continue
        variants = [sample.variables.get(name) for sample in samples]
        is_shared = all(
            variant is not None and is_same_coord(label, variant) for variant in variants
        )
        if is_shared and name not in windowed:
            coords[name] = label
        else:
            hidden = f"{name}{LABEL}" if label.dims in ((), (name,)) else name
            coords[hidden] = _stacked(samples, name)
    kept = {name: coord for name, coord in coords.items() if coord is not None}
    return xr.Dataset(fields, kept)


def _stacked(samples: list[xr.Dataset], name: Hashable) -> xr.Variable | None:
    """Stack a variable of all samples along ``sample``; ``None`` if they differ in shape."""
    first = samples[0].variables.get(name)
    arrays = []
    for sample in samples:
        variable = sample.variables.get(name)
        if first is None or variable is None or variable.sizes != first.sizes:
            return None
        arrays.append(variable.transpose(*first.dims).to_numpy())
    assert first is not None
    return xr.Variable((SAMPLE, *first.dims), np.stack(arrays), first.attrs)


class _DatasetStep(Transform):
    """A transform of Datasets. Functions are pickled by value, so that lambdas work, too."""

    def __reduce__(self) -> tuple[object, ...]:
        import cloudpickle

        return _unpickle, (type(self), cloudpickle.dumps(self.__dict__))


def _unpickle(step_class: type[Any], state: bytes) -> Any:
    import cloudpickle

    return step_class(**cloudpickle.loads(state))


@dataclass(frozen=True)
class Map(_DatasetStep):
    """The transform that calls a user's function.

    `random`: whether the function takes an :class:`xloader.Rng` as second argument.
    """

    fn: Callable[..., xr.Dataset]
    per: Literal["batch", "sample"] = "batch"
    random: bool = False

    def describe(self) -> str:
        """The function's name and partial arguments, as text. Its body is not looked at."""
        random = ", random=True" if self.random else ""
        return f"map({text_of(self.fn)}, per={self.per!r}{random})"

    def apply(self, frame: xr.Dataset, rng: Rng | None = None) -> xr.Dataset:
        """Call the function on a batch. Fields keep their order; new ones come last."""
        # Listed beforehand, as the function may change the Dataset that it is given.
        names = list(frame.data_vars)
        if self.per == "batch":
            result = self._call(frame, rng)
        else:
            samples, windowed = unstack_samples(frame)
            rngs = [None] * len(samples) if rng is None else rng.split()
            called = [
                self._call(sample, sample_rng)
                for sample, sample_rng in zip(samples, rngs, strict=True)
            ]
            result = stack_samples(called, windowed)
        kept = [name for name in names if name in result.data_vars]
        order = [*kept, *(name for name in result.data_vars if name not in kept)]
        if order == list(result.data_vars):
            return result
        return result[order].assign_coords(result.coords)

    def _call(self, frame: xr.Dataset, rng: Rng | None) -> xr.Dataset:
        result = self.fn(frame) if rng is None else self.fn(frame, rng)
        if not isinstance(result, xr.Dataset):
            raise OptionError(
                f"the function {_name_of(self.fn)} did not return a Dataset",
                given=type(result).__name__,
                remedy='return ds.assign(name=array), or array.to_dataset(name="name")',
            )
        return result


@dataclass(frozen=True)
class Method(_DatasetStep):
    """The transform that calls a method of :class:`xarray.Dataset`."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    over_rest: bool = False
    then: Method | None = None

    def describe(self) -> str:
        """The call, as text."""
        given = [text_of(value) for value in self.args]
        given += [f"{key}={text_of(value)}" for key, value in self.kwargs.items()]
        then = "" if self.then is None else f".{self.then.describe()}"
        return f"{self.name}({', '.join(given)}){then}"

    def apply(self, frame: xr.Dataset) -> xr.Dataset:
        """Call the method on a batch."""
        kwargs = dict(self.kwargs)
        if self.over_rest:
            dims = {dim for variable in frame.data_vars.values() for dim in variable.dims}
            kwargs["dim"] = [dim for dim in frame.dims if dim in dims - {SAMPLE}]
            if self.name == "squeeze":
                kwargs["dim"] = [dim for dim in kwargs["dim"] if frame.sizes[dim] == 1]
        result = getattr(frame, self.name)(*self.args, **kwargs)
        if self.then is not None:
            result = getattr(result, self.then.name)(*self.then.args, **self.then.kwargs)
        return cast("xr.Dataset", result)


def text_of(value: object) -> str:
    """A value as text that is the same in every process, without memory addresses."""
    if isinstance(value, np.ndarray | xr.DataArray | xr.Dataset | xr.Variable):
        plain = value.tolist() if isinstance(value, np.ndarray) else value.to_dict()
        digest = hashlib.sha256(repr(plain).encode()).hexdigest()[:16]
        return f"{type(value).__name__}({digest})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{text_of(k)}: {text_of(v)}' for k, v in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"({', '.join(map(text_of, value))})"
    if isinstance(value, set | frozenset):
        # The order of a set of strings differs between processes.
        return f"{{{', '.join(sorted(map(text_of, value)))}}}"
    if isinstance(value, partial):
        return f"partial{text_of([value.func, value.args, value.keywords])}"
    return _name_of(value) if callable(value) else repr(value)


def _name_of(fn: Callable[..., Any]) -> str:
    name = getattr(fn, "__qualname__", "")
    return f"{module_of(fn)}.{name}" if name else type(fn).__qualname__


def module_of(fn: Callable[..., Any]) -> str:
    """The module by which fingerprints name a function: for ours, wherever it is now, the first."""
    module = str(getattr(fn, "__module__", ""))
    if module.partition(".")[0] != __name__.partition(".")[0]:
        return module
    return FIRST_MODULES.get(getattr(fn, "__qualname__", "").partition("(")[0], module)
