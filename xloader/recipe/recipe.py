"""What the samples are, as frozen data: the source, what is kept of it, windows, fields, steps.

A recipe says everything that fixes the values of the samples and nothing of how they are read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from xloader.core.axis import Axis, Ints
from xloader.core.messages import closest
from xloader.core.retry_policy import RetryPolicy
from xloader.core.subset import Subset
from xloader.core.windows import Windows
from xloader.errors import EmptySamplesError, OptionError, StackError, UnknownNameError
from xloader.sources.base import Source, Variable

Kept = range | tuple[int, ...] | int
"""What is kept of a dimension: increasing stored elements, or one, which drops the dimension."""

Offsets = range | int
"""Positions within a window: a range with a positive step, or one, which drops the dimension."""


class Transform(Protocol):
    """A transform of whole batches, as a recipe knows it."""

    @property
    def is_in_place(self) -> bool:
        """Whether the gathered arrays themselves are changed, names and shapes kept."""
        ...

    def describe(self) -> str:
        """The step as a line of text, the same in every process."""
        ...

    def promote(self, variables: tuple[str, ...], dtype: np.dtype) -> np.dtype:
        """The dtype that a field of ``variables`` needs for this step to work in place."""
        ...

    def changes_units(self, variables: tuple[str, ...]) -> bool:
        """Whether values of a field of ``variables`` are no longer in their units after it."""
        ...


@dataclass(frozen=True)
class Field:
    """A named array of a sample.

    Parameters
    ----------
    name : str
        The field's name.
    variables : tuple of str
        The variables it is made of, in the order of its channels.
    offsets : tuple of (str, range or int)
        Per windowed dimension that is not taken whole, positions within the window. They count
        the window's elements, so ``0 .. window_size - 1`` whatever the dilation.
    has_channels : bool
        Whether the variables are stacked on a leading ``channel`` dimension.
    """

    name: str
    variables: tuple[str, ...]
    offsets: tuple[tuple[str, Offsets], ...] = ()
    has_channels: bool = True

    def __post_init__(self) -> None:
        if not self.has_channels and len(self.variables) != 1:
            raise StackError(
                f"the field {self.name!r} has nothing to tell its variables apart by",
                given=f"{len(self.variables)} variables without channels",
                allowed="one variable, or has_channels=True",
                remedy="make a field for each variable",
            )


@dataclass(frozen=True)
class Slab:
    """What a recipe is one rank's part of, in a group of ranks that share the samples.

    Parameters
    ----------
    whole : Recipe
        The samples that the group shares.
    dim : str
        The dimension that is cut.
    part : range
        The rank's positions in what the whole has selected of it.
    """

    whole: Recipe
    dim: str
    part: range


@dataclass(frozen=True, eq=False)
class Recipe:
    """The frozen data behind :class:`xloader.Samples`.

    Two recipes are equal where everything but the source is, and the sources have the same
    fingerprint.

    Parameters
    ----------
    source : Source
        Where the values come from.
    variables : tuple of str
        The variables on offer, all of the source's by default.
    selection : tuple of (str, range or tuple of int or int)
        Per dimension that is not kept whole, the stored elements that are kept.
    windows : Windows, optional
        The windows over the dimensions as selected.
    fields : tuple of Field
        The fields that were named; see `gathered_fields` for those that count.
    steps : tuple of Transform
        Transforms, in the order they run.
    subset : Subset, optional
        Which windows are samples, and how often; by default, each is one.
    slab : Slab, optional
        What it is cut from, where this is what one rank of a group reads.
    retry_policy : RetryPolicy, optional
        How long reads are waited for, unless a loader is told otherwise. Not compared.
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
        # The caches of cached_property stay behind, which keeps pickles small.
        parts = (self.source, self.variables, self.selection)
        own = (self.windows, self.fields, self.steps, self.subset, self.slab, self.retry_policy)
        return Recipe, (*parts, *own)

    @property
    def _key(self) -> tuple[object, ...]:
        parts = (self.source.fingerprint, self.variables, self.selection)
        return (*parts, self.windows, self.fields, self.steps, self.subset, self.slab)

    @property
    def whole(self) -> Recipe | None:
        """What it is cut from, where it is a slab."""
        return None if self.slab is None else self.slab.whole

    @property
    def planned(self) -> Recipe:
        """What is planned for: the same for all ranks of a group."""
        return self.whole or self

    @property
    def num_ids(self) -> int:
        """Number of sample ids."""
        return len(self.require_windows() if self.subset is None else self.subset)

    def positions_of(self, ids: Ints) -> Ints:
        """Positions, shape ``(len(ids), num_dims)``, of samples."""
        windows = self.require_windows()
        return windows.positions_of(ids if self.subset is None else self.subset.windows_of(ids))

    @cached_property
    def dim_sizes(self) -> Mapping[str, int]:
        """Number of selected elements of each dimension that is left.

        Raises
        ------
        StackError
            If two variables differ in the size of a dimension.
        """
        sizes: dict[str, int] = {}
        owner: dict[str, str] = {}
        for variable in map(self.source.variables.__getitem__, self.variables):
            for dim, size in zip(variable.dims, variable.shape, strict=True):
                if sizes.setdefault(dim, size) != size:
                    raise StackError(
                        f"two variables differ in the size of their dimension {dim!r}",
                        given=f"{owner[dim]!r} with {sizes[dim]}, {variable.name!r} with {size}",
                        allowed="one size for each dimension",
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
        """The fields that are gathered: those named, else one for each windowed variable.

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
                allowed=f"a dimension of one of {list(self.variables)}",
                remedy="window a dimension that the variables have",
            )
        return fields

    @property
    def is_mapped(self) -> bool:
        """Whether some step may change the names and shapes of the fields."""
        return not all(step.is_in_place for step in self.steps)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256, in hex, of all that fixes which samples there are and what they hold."""
        digest = hashlib.sha256(self.source.fingerprint.encode())
        steps = [step.describe() for step in self.steps]
        parts = (self.variables, self.selection, self.windows, self.fields, steps)
        digest.update(repr(parts).encode())
        if self.subset is not None:
            digest.update(self.subset.digest.encode())
        return digest.hexdigest()

    def kept_of(self, dim: str) -> Kept:
        """What is kept of a dimension, in stored elements."""
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

        A dimension of which one element was selected has an axis of size 1 here.
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
            If the recipe has none.
        """
        find(name, self.variables, "variable")
        return self.source.variables[name]

    def dims_of(self, variable: str) -> tuple[str, ...]:
        """Dimensions of a variable that the selection leaves, in stored order."""
        dims = self.variable(variable).dims
        return tuple(dim for dim in dims if not isinstance(self.kept_of(dim), int))

    def channel_dims(self, variable: str) -> tuple[str, ...]:
        """Dimensions that a field flattens into channels: not windowed, not the last two."""
        windowed = self.require_windows().dims
        return tuple(dim for dim in self.dims_of(variable)[:-2] if dim not in windowed)

    def require_windows(self) -> Windows:
        """The windows.

        Raises
        ------
        OptionError
            If there are none yet.
        """
        if self.windows is None:
            raise OptionError(
                "there are no samples without windows",
                allowed=f"windows along some of {list(self.dim_sizes)}",
                remedy="call .window(time=6) with the dimensions and sizes of a sample",
            )
        return self.windows


def find(name: str, known: Iterable[str], kind: str) -> None:
    """Check that a name is there.

    Raises
    ------
    UnknownNameError
        If it is not, with the names that are and the closest of them.
    """
    known = list(known)
    if name not in known:
        raise unknown(name, known, kind)


def unknown(name: object, known: Iterable[str], kind: str) -> UnknownNameError:
    """The error for a name that is not there, with the closest one that is."""
    known = list(known)
    close = closest(name, known)
    return UnknownNameError(
        f"there is no {kind} of that name",
        given=repr(name),
        allowed=", ".join(map(repr, known)) or "none: there are none",
        remedy=f"did you mean {close!r}?" if close else f"pass the name of a {kind} there is",
    )
