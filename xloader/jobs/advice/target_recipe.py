"""The samples of a store that is not written yet: the same ones, in other chunks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Never

import xarray as xr

from xloader.errors import UnsupportedDataError
from xloader.jobs.advice.chunk_shapes import ChunkedDim, ChunkedPart, ChunkedVariable
from xloader.recipe.recipe import Kept, Recipe
from xloader.recipe.selection import select_coords
from xloader.sources.arrays import catalog
from xloader.sources.base import INDEX_ROW_NBYTES, Described, Read, Source, Variable
from xloader.sources.chunk_sizes import num_chunks
from xloader.sources.store_watch import Watch


class RechunkedSource(Described):
    """A description of some variables of a source, stored anew in chunks of other sizes."""

    def __init__(
        self,
        base: Source,
        variables: Sequence[str],
        kept: Mapping[str, Kept],
        chunks: Mapping[str, int],
        shards: Mapping[str, int] | None = None,
    ) -> None:
        self._base = base
        self._kept = dict(kept)
        self._chunks = dict(chunks)
        self._shards = None if shards is None else dict(shards)
        self.name = f"{base.name} in other chunks"
        self._variables = {name: self._described(base.variables[name]) for name in variables}
        self.fingerprint = catalog.fingerprint(
            self._variables, {name: [base.fingerprint, repr(kept)] for name in variables}
        )

    def _described(self, stored: Variable) -> Variable:
        """One variable as it would be stored."""
        sizes = {
            dim: size if (kept := self._kept.get(dim)) is None else len(kept)  # type: ignore[arg-type]
            for dim, size in zip(stored.dims, stored.shape, strict=True)
            if not isinstance(self._kept.get(dim), int)
        }
        chunks = {dim: min(self._chunks.get(dim, n), n) or 1 for dim, n in sizes.items()}
        return replace(
            stored,
            dims=tuple(sizes),
            shape=tuple(sizes.values()),
            chunks=tuple(chunks.values()),
            index_nbytes=0 if stored.is_computed else self._index_nbytes(sizes, chunks),
            thinning=1,
        )

    def _index_nbytes(self, sizes: Mapping[str, int], chunks: Mapping[str, int]) -> int:
        """Bytes of the indexes of all shards, with rows for chunks beyond the array's end."""
        if self._shards is None:
            return 0
        per_shard = {dim: max(self._shards.get(dim, n) // n, 1) for dim, n in chunks.items()}
        return INDEX_ROW_NBYTES * math.prod(
            num_chunks(per_shard[dim] * chunks[dim], size) * per_shard[dim]
            for dim, size in sizes.items()
        )

    def coordinates(self, *, is_indexed: bool = True) -> xr.Dataset:
        """The coordinates of the part that is kept; see `Source.coordinates`."""
        return select_coords(self._base.coordinates(is_indexed=is_indexed), self._kept.items())

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of the source as it is stored today; see `Source.notes`."""
        return self._base.notes

    def fetch(self, reads: Sequence[Read]) -> Never:
        """Refuse to read."""
        raise UnsupportedDataError(
            "these chunks are only described, and not stored",
            given=self.name,
            remedy="write them with samples.materialize(target)",
        )

    def bundle_of(self, variable: str, chunk: tuple[int, ...]) -> Hashable:
        """Refuse to read."""
        self.fetch([])

    def watches(self, variables: Iterable[str]) -> Sequence[Watch]:
        """None: there is no store that could change."""
        return ()

    def is_waiting(self, variable: str) -> bool:
        """Whether reading the source as it is stored today mostly waits."""
        return self._base.is_waiting(variable)

    def is_through_xarray(self, variable: str) -> bool:
        """Whether xarray would read the variable: it would not."""
        return False

    def path_of(self, variable: str) -> str:
        """How a variable would be read, in words."""
        return "not stored yet"


def taken_variables(recipe: Recipe) -> list[Variable]:
    """The variables that some field takes, in the order of the recipe."""
    taken = {name for field in recipe.gathered_fields for name in field.variables}
    return [recipe.variable(name) for name in recipe.variables if name in taken]


def stored_variables(recipe: Recipe) -> list[Variable]:
    """Those of them that a copy would store: all but the computed ones."""
    return [variable for variable in taken_variables(recipe) if not variable.is_computed]


def recipe_in_chunks(
    recipe: Recipe, chunks: Mapping[str, int], shards: Mapping[str, int] | None = None
) -> Recipe:
    """The samples of a store that holds the variables of a recipe, over the part that it selects.

    Ids, fields, transforms and subset are the same. Forcings are computed again.
    """
    if recipe.slab is not None:
        # The store is that of the whole samples, of which the slab's ranks share one copy.
        whole = recipe_in_chunks(recipe.slab.whole, chunks, shards)
        return dataclasses.replace(
            recipe,
            source=whole.source,
            variables=whole.variables,
            selection=((recipe.slab.dim, recipe.slab.part),),
            slab=dataclasses.replace(recipe.slab, whole=whole),
        )
    names = tuple(variable.name for variable in taken_variables(recipe))
    source = RechunkedSource(recipe.source, names, dict(recipe.selection), chunks, shards)
    return dataclasses.replace(recipe, source=source, variables=names, selection=())


def chunked_part(
    recipe: Recipe, num_samples: int, batch_size: int, pool_nbytes: int
) -> ChunkedPart:
    """The variables that a copy would store, and what samples take of them."""
    recipe = recipe.planned
    windows = recipe.require_windows()
    stored = stored_variables(recipe)
    dims_of = {variable.name: recipe.dims_of(variable.name) for variable in stored}
    dims = []
    # Dimensions come in the order of the variable that has the most of them.
    for name in dict.fromkeys(
        d for names in sorted(dims_of.values(), key=len)[::-1] for d in names
    ):
        size = max(recipe.dim_sizes[name], 1)
        if name not in windows.dims:
            dims.append(ChunkedDim(name, size))
            continue
        axis = windows.dims.index(name)
        extent, stride = min(windows.extents[axis], size), windows.strides[axis]
        dims.append(ChunkedDim(name, size, extent, stride, windows.num_positions[axis]))
    return ChunkedPart(
        tuple(dims),
        tuple(ChunkedVariable(dims_of[v.name], v.stored_dtype.itemsize) for v in stored),
        num_samples,
        batch_size,
        pool_nbytes,
    )
