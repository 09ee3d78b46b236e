"""Variables of several sources joined along a dimension: checks that they agree, and joins them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from xloader.core.packing import Packing
from xloader.errors import StackError, UnknownNameError
from xloader.sources.base import Source, Variable
from xloader.sources.chunk_sizes import each, join_sizes

MERGED: Final = "xloader.open([a, b])"
"""Code, for messages, that makes one source of stores with different variables."""


def require_names(sources: Sequence[Source], dim: str) -> None:
    """Check that every source has the dimension, and the same variables as the first."""
    for number, source in enumerate(sources):
        dims = dict.fromkeys(d for v in source.variables.values() for d in v.dims)
        if dim not in dims:
            raise UnknownNameError(
                f"{label_of(sources, number)} has no dimension {dim!r} to join along",
                given=repr(dim),
                allowed=", ".join(map(repr, dims)) or "none: its variables are single numbers",
                remedy=f"pass dim= to join along another, or open it with xarray, use "
                f".expand_dims({dim!r}), and pass the Dataset; or, "
                f"if its variables are different ones, use {MERGED}",
            )
    names = set(sources[0].variables)
    for number, source in enumerate(sources[1:], 1):
        if lone := sorted(names ^ set(source.variables)):
            has, lacks = (0, number) if lone[0] in names else (number, 0)
            shared = sorted(names & set(source.variables))
            raise UnknownNameError(
                f"{label_of(sources, lacks)} has no variable {lone[0]!r}, "
                f"but {label_of(sources, has)} has it",
                given=f"{', '.join(lone)} in only one of them",
                allowed=f"variables in all sources: {', '.join(shared) or 'there are none'}",
                remedy=f"pass variables={shared}, or, to open all variables together, use {MERGED}"
                if shared
                else f"to open different variables together, use {MERGED}",
            )


def join_variable(sources: Sequence[Source], name: str, dim: str) -> Variable:
    """Describe one variable of several sources that are joined along a dimension."""
    first = sources[0].variables[name]
    axis = first.dims.index(dim) if dim in first.dims else None
    variables = [source.variables[name] for source in sources]
    for number, variable in enumerate(variables[1:], 1):
        _require_alike(sources, number, first, variable, axis)
    if axis is None:
        return first
    shape, chunks = list(first.shape), list(first.chunks)
    shape[axis] = sum(variable.shape[axis] for variable in variables)
    chunks[axis] = join_sizes([(v.chunks[axis], v.shape[axis]) for v in variables])
    is_packed_alike = all(_is_alike(variable.packing, first.packing) for variable in variables)
    return replace(
        first,
        shape=tuple(shape),
        chunks=tuple(chunks),
        packing=first.packing if is_packed_alike else None,
        index_nbytes=sum(variable.index_nbytes for variable in variables),
        thinning=max(variable.thinning for variable in variables),
    )


def _require_alike(
    sources: Sequence[Source], number: int, first: Variable, second: Variable, axis: int | None
) -> None:
    """Raise an error if a source's variable does not agree with the first source's."""
    # A variable without the dimension is read from the first source, so other chunks may differ.
    apart: list[tuple[str, object, object]] = [
        ("dimensions", first.dims, second.dims),
        ("dtype", first.dtype, second.dtype),
    ]
    if first.dims == second.dims:
        rest = [a for a in range(len(first.dims)) if a != axis]
        for a in rest:
            size, second_size = first.shape[a], second.shape[a]
            apart.append((f"size along {first.dims[a]!r}", size, second_size))
            if axis is not None and size == second_size:
                first_chunks, second_chunks = (each(v.chunks[a], size) for v in (first, second))
                apart.append((f"chunks along {first.dims[a]!r}", first_chunks, second_chunks))
    remedies = {
        "dtype": "convert one with xarray's astype and pass the Dataset, or open packed "
        "integers with the dtype= of the others",
        "chunks": f"open them with xarray, use .chunk with the same chunks, and pass the "
        f"Datasets, or leave {first.name!r} out with variables=[...]",
    }
    for what, expected, actual in apart:
        if expected != actual:
            raise StackError(
                f"two sources differ in the {what} of {first.name!r}",
                given=f"{expected} in {label_of(sources, 0)}, "
                f"{actual} in {label_of(sources, number)}",
                allowed="the same in all sources, except along the joined dimension",
                remedy=remedies.get(
                    what.split()[0],
                    "regrid or rename with xarray and pass the Datasets, or leave "
                    f"{first.name!r} out with variables=[...]",
                ),
            )


def _is_alike(first: Packing | None, second: Packing | None) -> bool:
    """Whether two packings give the same values for the same stored numbers."""
    if first is None or second is None:
        return first is second
    # 0.1 equals numpy.float64(0.1), but NumPy computes with them in different dtypes.
    return first == second and first.describe() == second.describe()


def listed(names: Sequence[str], most: int) -> str:
    """Names in a row. If there are too many, the last ones are only counted."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def label_of(sources: Sequence[Source], number: int) -> str:
    """Name of a source, with its number if several have the same name."""
    name = sources[number].name
    if sum(source.name == name for source in sources) == 1:
        return name
    return f"{name} (number {number + 1} of {len(sources)})"
