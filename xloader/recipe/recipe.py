"""The recipe of samples, as frozen data: source, selection, windows, fields, transforms and subset.

A recipe fixes the value of every sample. It does not say how the values are read: that is the
job of the plan and the loader.
"""

from __future__ import annotations

import dataclasses
import hashlib
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Protocol
from weakref import WeakValueDictionary

import numpy as np

from xloader.core.axis import Axis, Ints
from xloader.core.messages import unknown
from xloader.core.point_table import LabelColumn
from xloader.core.retry_policy import RetryPolicy
from xloader.core.subset import Subset
from xloader.core.windows import Windows
from xloader.errors import EmptySamplesError, OptionError
from xloader.sources.base import Source, Variable

_known: WeakValueDictionary[int, Recipe] = WeakValueDictionary()
"""The recipes of this process that have a token, as long as they live."""


def recall(token: str) -> Recipe | None:
    """Find a recipe by its token; None if this process holds none."""
    # The list of references is made in one step, as other threads may make recipes meanwhile.
    for reference in _known.valuerefs():
        recipe = reference()
        if recipe is not None and recipe.token == token:
            return recipe
    return None


Kept = range | tuple[int, ...] | int
"""The stored elements kept of a dimension, or a single one, which drops it."""

Offsets = range | tuple[int, ...] | int
"""Positions within a window: equally spaced ones, others, or a single one, which drops it."""


class Transform(Protocol):
    """The interface that a recipe needs of a transform of whole batches."""

    is_in_place: ClassVar[bool] = False
    """Whether the gathered arrays themselves are changed, with names and shapes kept."""

    def describe(self) -> str:
        """Describe the transform in one line of text, which is the same in every process."""

    def promote(self, variables: tuple[str, ...], dtype: np.dtype) -> np.dtype:
        """The dtype that a field of ``variables`` needs so that the transform can work in place."""
        return dtype

    def changes_units(self, variables: tuple[str, ...]) -> bool:
        """Whether the transform changes the units of a field of ``variables``."""
        return False


@dataclass(frozen=True)
class Field:
    """A named array of a sample."""

    name: str
    variables: tuple[str, ...]
    offsets: tuple[tuple[str, Offsets], ...] = ()
    has_channels: bool = True

    def __post_init__(self) -> None:
        if not self.has_channels and len(self.variables) != 1:
            raise OptionError(
                f"without channels, the field {self.name!r} must have exactly one variable",
                given=f"{len(self.variables)} variables",
                remedy="make a field for each variable, or pass has_channels=True",
            )


@dataclass(frozen=True)
class Slab:
    """The cut that makes a recipe the slab of one rank among those that share the samples."""

    whole: Recipe
    dim: str
    part: range


@dataclass(frozen=True, eq=False)
class Recipe:
    """The frozen data behind :class:`xloader.Samples`.

    Two recipes are equal if their sources have the same fingerprint and everything else but
    ``retry_policy`` is equal.

    Parameters
    ----------
    source : Source
        The data set that the values are read from.
    variables : tuple of str
        The variables that fields may use; all of the source's by default.
    selection : tuple of (str, range or tuple of int or int)
        The stored elements that are kept, for each dimension that is not kept whole.
    windows : Windows, optional
        The windows over the selected dimensions.
    fields : tuple of Field
        The fields that the user has named. `gathered_fields` gives the fields that are read.
    steps : tuple of Transform
        The transforms, in the order in which they run.
    subset : Subset, optional
        The windows that are samples, and how often each occurs; by default, every window once.
    slab : Slab, optional
        The samples that this recipe is cut from, if it is the slab of one rank.
    retry_policy : RetryPolicy, optional
        The time that reads may take and the number of retries, unless a loader sets its own. It
        is not compared.
    num_taken : int, optional
        Samples that an epoch takes, if that is fewer than there are. Successive epochs then take
        successive parts of one pass over the samples; see `xloader.planning.epoch`.

    Raises
    ------
    UnknownNameError
        If the source lacks one of ``variables``.
    """

    source: Source
    variables: tuple[str, ...] = ()
    selection: tuple[tuple[str, Kept], ...] = ()
    windows: Windows | None = None
    fields: tuple[Field, ...] = ()
    steps: tuple[Transform, ...] = ()
    subset: Subset | None = None
    slab: Slab | None = None
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy, compare=False)
    num_taken: int | None = None

    def __post_init__(self) -> None:
        if not self.variables:
            object.__setattr__(self, "variables", tuple(self.source.variables))
        for name in self.variables:
            find(name, self.source.variables, "variable")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recipe) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __reduce__(self) -> tuple[object, ...]:
        # The values cached by cached_property are left out, which keeps pickles small.
        values = tuple(getattr(self, part.name) for part in dataclasses.fields(self))
        # A copy has the same token, so that batches of one are known to be of the other.
        return Recipe, values, {"_token": self.token} if "_token" in self.__dict__ else None

    def __setstate__(self, state: dict[str, str]) -> None:
        self.__dict__.update(state)
        _known[id(self)] = self

    @property
    def _key(self) -> tuple[object, ...]:
        compared = (part.name for part in dataclasses.fields(self)[1:] if part.compare)
        return (self.source.fingerprint, *(getattr(self, name) for name in compared))

    @property
    def whole(self) -> Recipe | None:
        """The recipe that this one is cut from if it is a slab, else ``None``."""
        return None if self.slab is None else self.slab.whole

    @property
    def planned(self) -> Recipe:
        """The recipe that plans are made for: the same on every rank of a group."""
        return self.whole or self

    @property
    def num_ids(self) -> int:
        """Number of sample ids."""
        return len(self.require_windows() if self.subset is None else self.subset)

    @property
    def label_columns(self) -> tuple[LabelColumn, ...]:
        """The columns of a table of points that are fields of the samples."""
        points = None if self.subset is None else self.subset.points
        return () if points is None else points.columns

    def positions_of(self, ids: Ints) -> Ints:
        """Positions of samples along the windowed dimensions.

        Parameters
        ----------
        ids : numpy.ndarray of int64, shape (n,)
            Sample ids.

        Returns
        -------
        numpy.ndarray of int64, shape (n, num_dims)
            The position of each sample's window, counted in windows.
        """
        windows = self.require_windows()
        return windows.positions_of(ids if self.subset is None else self.subset.windows_of(ids))

    def firsts_of(self, ids: Ints) -> Ints:
        """Offsets, within the selection, of the first elements of samples.

        Parameters
        ----------
        ids : numpy.ndarray of int64, shape (n,)
            Sample ids.

        Returns
        -------
        numpy.ndarray of int64, shape (n, num_dims)
            The offset of each sample's window along the windowed dimensions, in elements.
        """
        return self.require_windows().firsts_of(self.positions_of(ids))

    @cached_property
    def dim_sizes(self) -> Mapping[str, int]:
        """Number of selected elements of each dimension, without the dropped dimensions.

        Raises
        ------
        OptionError
            If two variables differ in the size of a dimension.
        """
        sizes: dict[str, int] = {}
        owner: dict[str, str] = {}
        for variable in map(self.source.variables.__getitem__, self.variables):
            for dim, size in zip(variable.dims, variable.shape, strict=True):
                if sizes.setdefault(dim, size) != size:
                    raise OptionError(
                        f"two variables differ in the size of their dimension {dim!r}",
                        given=f"{owner[dim]!r} with {sizes[dim]}, {variable.name!r} with {size}",
                        remedy="open only variables that share a grid, with variables=[...]",
                    )
                owner.setdefault(dim, variable.name)
        for dim, kept in self.selection:
            if isinstance(kept, int):
                sizes.pop(dim, None)
            elif dim in sizes:
                sizes[dim] = len(kept)
        return sizes

    @cached_property
    def gathered_fields(self) -> tuple[Field, ...]:
        """The fields that are gathered: the named ones or, without any, one per windowed variable.

        Raises
        ------
        OptionError
            If there are no windows yet.
        EmptySamplesError
            If no field was named and no numeric variable has a windowed dimension.
        """
        windows = self.require_windows()
        if self.fields:
            return self.fields
        fields = tuple(
            Field(name, (name,), has_channels=False)
            for name in self.variables
            if self.source.variables[name].dtype.kind in "biuf"
            and set(self.source.variables[name].dims) & set(windows.dims)
        )
        if not fields:
            raise EmptySamplesError(
                "no numeric variable has a windowed dimension",
                given=f"windows along {', '.join(map(repr, windows.dims))}",
                remedy="pass a dimension of the variables to .window(...)",
            )
        return fields

    @property
    def is_mapped(self) -> bool:
        """Whether a transform may change the names and shapes of the fields."""
        return not all(step.is_in_place for step in self.steps)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256, in hex, of everything that fixes which samples there are and their values."""
        digest = hashlib.sha256(self.source.fingerprint.encode())
        steps = [step.describe() for step in self.steps]
        parts = (self.variables, self.selection, self.windows, self.fields, steps)
        digest.update(repr(parts).encode())
        if self.subset is not None:
            digest.update(self.subset.digest.encode())
        if self.num_taken is not None:
            digest.update(repr(self.num_taken).encode())
        return digest.hexdigest()

    @property
    def token(self) -> str:
        """The name of this recipe and of its copies in other processes; see `recall`."""
        if "_token" not in self.__dict__:
            # Two threads may ask at once, and must get the same.
            self.__dict__.setdefault("_token", uuid.uuid4().hex)
            _known[id(self)] = self
        return str(self.__dict__["_token"])

    def kept_of(self, dim: str) -> Kept:
        """The stored elements that are kept of a dimension.

        Raises
        ------
        UnknownNameError
            If no variable has the dimension.
        """
        for name, kept in self.selection:
            if name == dim:
                return kept
        for name in self.variables:
            variable = self.source.variables[name]
            if dim in variable.dims:
                return range(variable.shape[variable.dims.index(dim)])
        raise unknown(dim, self.dim_sizes, "dimension")

    def axes_of(self, variable: str) -> tuple[Axis, ...]:
        """One axis for each stored dimension of a variable.

        A dimension that the selection drops has an axis of size 1.
        """
        stored = self.variable(variable)
        kept = [self.kept_of(dim) for dim in stored.dims]
        return tuple(
            Axis(size, chunks, range(keep, keep + 1) if isinstance(keep, int) else keep)
            for size, chunks, keep in zip(stored.shape, stored.chunks, kept, strict=True)
        )

    def variable(self, name: str) -> Variable:
        """The stored variable of that name.

        Raises
        ------
        UnknownNameError
            If the recipe has no such variable.
        """
        find(name, self.variables, "variable")
        return self.source.variables[name]

    def dims_of(self, variable: str) -> tuple[str, ...]:
        """The dimensions of a variable that the selection does not drop, in stored order."""
        dims = self.variable(variable).dims
        return tuple(dim for dim in dims if not isinstance(self.kept_of(dim), int))

    def channel_dims(self, variable: str) -> tuple[str, ...]:
        """The dimensions that a field flattens into channels: neither windowed nor the last two."""
        windowed = self.require_windows().dims
        return tuple(dim for dim in self.dims_of(variable)[:-2] if dim not in windowed)

    def require_windows(self) -> Windows:
        """The windows of the recipe.

        Raises
        ------
        OptionError
            If there are no windows yet.
        """
        if self.windows is None:
            raise OptionError(
                "the windows are not set",
                remedy=f"call .window(...) with sizes along some of {list(self.dim_sizes)}",
            )
        return self.windows


def find(name: str, known: Iterable[str], noun: str) -> None:
    """Check that a name is known."""
    known = list(known)
    if name not in known:
        raise unknown(name, known, noun)
