"""ComputedSource: variables whose values are computed from labels, chunk by chunk. Nothing is read.

::

    time  (time)  ----\
    lat   (lat)   -----  fn(time, lat, lon)  ->  one chunk of insolation (time, lat, lon)
    lon   (lon)   ----/
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.axis import Axis
from xloader.errors import OptionError, TransformError, UnsupportedDataError, XloaderError
from xloader.sources.arrays import catalog
from xloader.sources.base import Described, Fetched, Outcome, Read, Source, Variable
from xloader.sources.chunk_sizes import shape_of, shift
from xloader.sources.fetched import Deferred
from xloader.sources.stores.per_process import PerProcess

_MOST_AT_ONCE: Final = 1 << 16
"""Most values that are computed in one call, because functions make several arrays in float64."""


@dataclass(frozen=True)
class LabelArgument:
    """An argument of a function: the labels of a coordinate.

    `is_in_radians`: whether the labels are radians, which the function gets in degrees.
    """

    parameter: str
    coordinate: str
    is_in_radians: bool = False


@dataclass(frozen=True)
class Formula:
    """How a variable is computed."""

    fn: Callable[..., Any]
    arguments: tuple[LabelArgument, ...]
    text: str

    def __reduce__(self) -> tuple[object, ...]:
        # By value, so that lambdas and functions of notebooks work in other processes.
        import cloudpickle

        return _formula, (cloudpickle.dumps(self.fn), self.arguments, self.text)


class ComputedSource(Described):
    """A source whose variables are computed from the labels of another source."""

    def __init__(
        self, base: Source, variables: Sequence[Variable], formulas: Mapping[str, Formula]
    ) -> None:
        self._base = base
        self._formulas = dict(formulas)
        self.name = base.name
        self._variables = {variable.name: variable for variable in variables}
        # An axis remembers where chunks of several sizes begin.
        self._axes = {
            v.name: [*map(Axis, v.shape, v.chunks, map(range, v.shape))] for v in variables
        }
        self.fingerprint = catalog.fingerprint(
            self._variables,
            {n: [f.text, list(map(repr, f.arguments))] for n, f in formulas.items()},
        )
        needed = {argument.coordinate for f in formulas.values() for argument in f.arguments}
        read = partial(_read_labels, base, tuple(sorted(needed)))
        self._labels = PerProcess(read, f"the labels of {base.name}", is_forkable=True)

    def read_labels(self) -> None:
        """Read the labels in this process, so that children that are forked have them."""
        self._labels.get()

    def bundle_of(self, variable: str, chunk: tuple[int, ...]) -> Hashable:
        """A bundle of its own for each chunk."""
        return "computed", variable, chunk

    def fetch(self, reads: Sequence[Read]) -> Fetched:
        """Nothing is fetched: chunks are computed when they are decoded; see `Source.fetch`."""
        return Deferred(partial(self._compute, list(reads)))

    def coordinates(self, *, is_indexed: bool = True) -> xr.Dataset:
        """The coordinates, lazily and without data variables."""
        return self._base.coordinates(is_indexed=is_indexed)

    def path_of(self, variable: str) -> str:
        """How a variable is computed, in words: ``"computed from time, lat and lon"``."""
        names = [argument.coordinate for argument in self._formulas[variable].arguments]
        return f"computed from {', '.join(names)}; nothing is read"

    def __reduce__(self) -> tuple[object, ...]:
        return ComputedSource, (self._base, list(self._variables.values()), self._formulas)

    def _compute(self, reads: Sequence[Read], outs: Sequence[NDArray[Any]]) -> Outcome:
        labels = self._labels.get()
        for read, out in zip(reads, outs, strict=True):
            variable, formula = self._variables[read.variable], self._formulas[read.variable]
            spans = list(map(Axis.span_of, self._axes[read.variable], read.chunk))
            begin = tuple(begin for begin, _ in spans)
            shape = tuple(end - begin for begin, end in spans)
            cut = shift(read.cut, begin, shape)
            where = dict(zip(variable.dims, cut, strict=True))
            given = {
                argument.parameter: _taken(labels[argument.coordinate], where, argument)
                for argument in formula.arguments
            }
            assert out.shape == shape_of(read.cut, shape)
            _fill(out, variable, formula, given)
        return Outcome(0, 0)


def compute(
    formula: Formula, variable: Variable, labels: Mapping[str, xr.DataArray]
) -> xr.DataArray:
    """Call the function of a variable once, and check what it returns."""
    try:
        result = formula.fn(**labels)
    except XloaderError:
        raise
    except Exception as problem:
        raise TransformError(
            f"the function of {variable.name!r} raised {type(problem).__name__}: {problem}",
            given=f"{formula.text} of {', '.join(labels)}",
            remedy="try the function on the coordinates of the Dataset",
        ) from problem
    sizes = {dim: size for coord in labels.values() for dim, size in coord.sizes.items()}
    shape = tuple(sizes[dim] for dim in variable.dims)
    if not isinstance(result, xr.DataArray):
        values = _as_array(variable, result)
        if values.ndim > len(shape) or any(
            size not in (1, wanted_size)
            for size, wanted_size in zip(values.shape[::-1], shape[::-1], strict=False)
        ):
            raise _misshapen(variable, f"an array of shape {values.shape}", sizes)
        dims = variable.dims[len(shape) - values.ndim :]
        kept = [dim for dim, size in zip(dims, values.shape, strict=True) if size == sizes[dim]]
        result = xr.DataArray(values.reshape([sizes[dim] for dim in kept]), dims=kept)
    elif {dim: sizes.get(str(dim)) for dim in result.dims} != dict(result.sizes):
        raise _misshapen(variable, f"a DataArray of sizes {dict(result.sizes)}", sizes)
    if result.dtype.kind not in catalog.READABLE_KINDS:
        raise _not_numbers(variable, f"dtype {result.dtype}")
    return result


def _as_array(variable: Variable, result: Any) -> NDArray[Any]:
    try:
        # As xarray does it: what is masked becomes NaN.
        return xr.DataArray(result).to_numpy()
    except (TypeError, ValueError) as problem:
        class_name = f"{type(result).__module__}.{type(result).__qualname__}"
        raise _not_numbers(variable, class_name) from problem


def _not_numbers(variable: Variable, given: str) -> UnsupportedDataError:
    return UnsupportedDataError(
        f"the function of {variable.name!r} returns no numbers",
        given=given,
        remedy="convert the result, for example with .astype(float)",
    )


def _misshapen(variable: Variable, given: str, sizes: Mapping[Any, int]) -> OptionError:
    return OptionError(
        f"the function of {variable.name!r} returns a wrong shape",
        given=given,
        allowed=f"one value for each element of {dict(sizes)}, or fewer dimensions of them",
        remedy="compute with the labels as they come: DataArrays, which xarray matches by name",
    )


def _fill(
    out: NDArray[Any], variable: Variable, formula: Formula, labels: Mapping[str, xr.DataArray]
) -> None:
    """Compute the values of a part of a variable, a piece at a time."""
    if out.size > _MOST_AT_ONCE:
        axis = next(axis for axis, size in enumerate(out.shape) if size > 1)
        num_pieces = min(-(-out.size // _MOST_AT_ONCE), out.shape[axis])
        edges = np.linspace(0, out.shape[axis], num_pieces + 1).astype(int).tolist()
        dim = variable.dims[axis]
        for lo, hi in itertools.pairwise(edges):
            piece_labels = {
                name: array.isel({dim: slice(lo, hi)}) if dim in array.dims else array
                for name, array in labels.items()
            }
            piece = out[(slice(None),) * axis + (slice(lo, hi),)]
            _fill(piece, variable, formula, piece_labels)
        return
    result = compute(formula, variable, labels)
    dims = [dim for dim in variable.dims if dim in result.dims]
    values = result.transpose(*dims).values
    at = tuple(slice(None) if dim in dims else None for dim in variable.dims)
    with np.errstate(over="ignore"):
        out[...] = values[at]


def _taken(labels: xr.DataArray, where: Mapping[str, Any], argument: LabelArgument) -> xr.DataArray:
    taken = labels.isel({dim: where[dim] for dim in labels.dims if dim in where})  # type: ignore[index]
    if argument.is_in_radians:
        return taken.copy(data=np.rad2deg(taken.values))
    return taken


def _read_labels(base: Source, names: tuple[str, ...]) -> dict[str, xr.DataArray]:
    """The labels of some coordinates, without indexes and attributes."""
    coords = base.coordinates(is_indexed=False)
    return {name: plain_labels(coords[name]) for name in names}


def plain_labels(coord: xr.DataArray) -> xr.DataArray:
    """The labels of a coordinate as a DataArray without indexes and attributes. They are read."""
    return xr.DataArray(coord.values, dims=coord.dims)


def _formula(fn: bytes, arguments: tuple[LabelArgument, ...], text: str) -> Formula:
    import cloudpickle

    return Formula(cloudpickle.loads(fn), arguments, text)
