"""`ZarrSource`: the arrays of one Zarr group, read chunk by chunk on the calling thread."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
import xarray as xr
import zarr
from numpy.typing import NDArray
from zarr.abc.store import Store

from xloader.errors import UnsupportedDataError, XloaderError
from xloader.sources.arrays import catalog
from xloader.sources.arrays.xarray_source import XarraySource
from xloader.sources.base import (
    INDEX_ROW_NBYTES,
    SMALL_NBYTES,
    ChunkFiles,
    Described,
    Fetched,
    Outcome,
    Read,
    SmallKey,
    Variable,
)
from xloader.sources.chunk_sizes import ObjectInventory, StoredObjects, shape_of
from xloader.sources.fetched import Deferred, Several, held_values
from xloader.sources.retries import is_transient
from xloader.sources.store_watch import Watch
from xloader.sources.stores.locations import StoreLocation
from xloader.sources.stores.per_process import PerProcess
from xloader.sources.stores.redaction import Secrets, access_error, cause_of, is_denied, told_of
from xloader.sources.zarr.array_watch import watches_of
from xloader.sources.zarr.fetched_chunks import OnMissing, ReadFaults, ShardChunks, SingleChunks
from xloader.sources.zarr.object_inventory import stored_share, take_inventory
from xloader.sources.zarr.object_readers import is_waiting, objects_of
from xloader.sources.zarr.parse_codecs import (
    Metadata,
    chain_of,
    check_codecs,
    codecs_in_words,
    sharding_of,
)
from xloader.sources.zarr.stored_array import StoredArray, check_keys, metadata_in_json
from xloader.sources.zarr.stored_grid import StoredGrid, grid_of

Kind = Literal["direct", "indexed", "decoded"]
"""Decoding by xloader itself, by zarr's indexing, or by xarray for its CF conventions."""


@dataclass(frozen=True)
class Route:
    """How one variable is read. It is fixed at opening, and pickled with the source."""

    path: str
    metadata: Metadata
    grid: StoredGrid
    kind: Kind
    words: str

    @cached_property
    def is_sharded(self) -> bool:
        """Whether xloader itself reads the variable's chunks out of shards."""
        return self.kind == "direct" and self.grid.is_sharded

    def object_of(self, chunk: tuple[int, ...]) -> tuple[int, ...]:
        """Index of the stored object that xloader reads for a chunk."""
        return self.grid.object_of(chunk) if self.is_sharded else chunk


def plan_variable(
    decoded: xr.DataArray, array: zarr.Array[Any], dtype: Any
) -> tuple[Variable, Route]:
    """Describe a variable as the source offers it, and choose how it is read."""
    kind: Kind
    values_dtype = catalog.decoded_dtype(decoded, dtype)
    coding = catalog.coding_of(decoded, np.dtype(array.dtype), values_dtype)
    grid = grid_of(array)
    if coding.xarray_only:
        kind = "decoded"
        words = f"block by block through xarray, because of its CF decoding ({coding.xarray_only})"
    elif not _is_decoded_here(array.metadata, grid):
        kind, words = "indexed", "chunk by chunk through zarr's own indexing"
    else:
        kind, words = "direct", "direct"
    packed = f"; packed as {coding.packing.stored_dtype}" if coding.packing else ""
    words = f"{words}: {codecs_in_words(array)}{packed}"
    route = Route(array.path, array.metadata, grid, kind, words)
    inside = math.prod(map(min, array.shape, grid.largest_shape))
    variable = Variable(
        name=str(decoded.name),
        dims=tuple(str(dim) for dim in decoded.dims),
        shape=tuple(array.shape),
        dtype=values_dtype,
        chunks=grid.chunks,
        attrs=dict(decoded.attrs),
        packing=coding.packing,
        index_nbytes=INDEX_ROW_NBYTES * grid.num_chunks_in_shards if route.is_sharded else 0,
        # A chunk may be far larger than its array, and is decoded at its full size.
        thinning=max(1, math.prod(grid.largest_shape) // max(1, inside)),
    )
    return variable, route


def _is_decoded_here(metadata: Metadata, grid: StoredGrid) -> bool:
    if chain_of(metadata, grid.largest_shape) is None:
        return False
    if not grid.is_sharded:
        return True
    sizes = grid.chunks_per_object((0,) * len(grid.shape))
    return sharding_of(metadata, sizes) is not None


def _open_arrays(
    store: PerProcess[Store], routes: Mapping[str, Route], watches: Mapping[str, Watch]
) -> dict[str, StoredArray]:
    objects = objects_of(store.get())
    return {
        v: StoredArray(store.get(), r.path, r.metadata, r.grid, watches[v], objects)
        for v, r in routes.items()
    }


class ZarrSource(Described):
    """The data variables of a Zarr group, read chunk by chunk.

    A variable of Zarr v2 or v3 whose codecs are known is read directly. One request fetches the
    chunk's bytes, which are decoded on the calling thread straight into the caller's array. Chunks
    of a shard are found by its index, which is read once and kept.
    """

    def __init__(
        self,
        *,
        place: StoreLocation,
        open_dataset: Callable[[bool], xr.Dataset],
        arrays: Mapping[str, zarr.Array[Any]],
        dataset: xr.Dataset,
        name: str,
        dtype: Any,
        on_missing: OnMissing,
        is_forkable: bool = False,
        is_behind: bool = True,
    ) -> None:
        self.name = name
        secrets = Secrets(place.secrets)
        self._faults = ReadFaults(name, secrets, on_missing)
        for array in arrays.values():
            check_keys(array)
            check_codecs(array)
        planned = {v: plan_variable(dataset[v], array, dtype) for v, array in arrays.items()}
        self._variables = {v: variable for v, (variable, _) in planned.items()}
        self._routes = {v: route for v, (_, route) in planned.items()}
        metadata = {v: metadata_in_json(array) for v, array in arrays.items()}
        self.fingerprint = catalog.fingerprint(self._variables, metadata, place.version)
        self._is_waiting = any(is_waiting(array.store) for array in arrays.values())
        # Chunks that are read with others in little more time.
        self._small = {
            v
            for v, route in self._routes.items()
            if route.kind == "direct"
            and not self._is_waiting
            and math.prod(route.grid.largest_shape) * arrays[v].dtype.itemsize <= SMALL_NBYTES
        }
        store = PerProcess(place.open_store, name, is_remade=is_forkable)
        self._watches = {v: Watch(name) for v in arrays}
        if not place.is_frozen:
            self._watches = watches_of(arrays, name, secrets, store.get, is_behind=is_behind)
        self._arrays = PerProcess(
            partial(_open_arrays, store, self._routes, self._watches), name, is_remade=is_forkable
        )
        self._coordinates, self._labels = (
            PerProcess(
                partial(_open_coordinates, open_dataset, name, secrets, is_indexed),
                name,
                is_remade=is_forkable,
            )
            for is_indexed in (True, False)
        )
        chosen = {v: self._variables[v] for v in self._variables if self.is_through_xarray(v)}
        self._decoded = XarraySource(chosen, open_dataset=partial(open_dataset, False), name=name)
        if place.is_shared:
            self._arrays.get()

    @property
    def num_missing(self) -> int:
        """Number of reads of absent chunks that this source has made in this process."""
        return self._faults.num_missing

    def is_through_xarray(self, variable: str) -> bool:
        """Whether xarray reads the variable, because only xarray can decode it."""
        return self._routes[variable].kind == "decoded"

    def files_of(self, variable: str) -> ChunkFiles | None:
        """The files of a variable whose chunks are at most compressed; see `Source.files_of`."""
        is_direct = self._routes[variable].kind == "direct"
        return self._arrays.get()[variable].files() if is_direct else None

    def path_of(self, variable: str) -> str:
        """How a variable is read, in words: ``"direct: zarr v3, bytes, zstd"``."""
        return self._routes[variable].words

    def coordinates(self, *, is_indexed: bool = True) -> xr.Dataset:
        """The coordinates as a lazy dataset of xarray; see `Source.coordinates`."""
        return (self._coordinates if is_indexed else self._labels).get()

    def fetch(self, reads: Sequence[Read]) -> Fetched:
        """Fetch the chunks if reading the store waits, else defer it; see `Source.fetch`."""
        # Equal for variables whose chunks are read together.
        groups: dict[str, Hashable] = {}
        for name in {read.variable for read in reads}:
            route = self._routes[name]
            groups[name] = route.is_sharded if route.kind == "direct" else name
        if len(set(groups.values())) == 1:
            return self._fetch(reads)
        alike: dict[Hashable, list[int]] = {}
        for number, read in enumerate(reads):
            alike.setdefault(groups[read.variable], []).append(number)
        return Several(
            [(self._fetch([reads[n] for n in numbers]), numbers) for numbers in alike.values()]
        )

    def _fetch(self, reads: Sequence[Read]) -> Fetched:
        """Fetch chunks that are read together."""
        variable, arrays = reads[0].variable, self._arrays.get()
        array = arrays[variable]
        if self._routes[variable].kind == "direct":
            chunks_class = ShardChunks if array.is_sharded else SingleChunks
            read_arrays = [arrays[read.variable] for read in reads]
            fetched = chunks_class(read_arrays, reads, self._faults)
            if self._is_waiting:
                fetched.hold()
            return fetched
        if not self._is_waiting:
            return Deferred(partial(self._read_values, array, reads))
        begin = time.perf_counter()
        dtype = self._variables[variable].stored_dtype
        values = [
            np.empty(shape_of(read.cut, array.grid.shape_of(read.chunk)), dtype) for read in reads
        ]
        outcome = self._read_values(array, reads, values)
        return held_values(values, replace(outcome, fetch_seconds=time.perf_counter() - begin))

    def is_waiting(self, variable: str) -> bool:
        """Whether reading the store mostly waits; see `Source.is_waiting`."""
        return self._is_waiting

    def watches(self, variables: Iterable[str]) -> Sequence[Watch]:
        """The watch of each variable's array; see `Source.watches`."""
        return [self._watches[variable] for variable in variables]

    def bundle_of(self, variable: str, chunk: tuple[int, ...]) -> Hashable:
        """The variable, with the index of the shard or of the chunk; see `Source.bundle_of`."""
        route = self._routes[variable]
        if variable not in self._small:
            return variable, route.object_of(chunk)
        return SmallKey((variable, route.object_of(chunk))) if route.is_sharded else None

    def stored_objects(self, variable: str) -> StoredObjects:
        """The stored objects of a variable. Sizes of a few are looked up, and none is read."""
        grid = self._routes[variable].grid
        itemsize = self._variables[variable].stored_dtype.itemsize
        share = stored_share(self._arrays.get()[variable], itemsize)
        return StoredObjects(grid.object_sizes if grid.is_sharded else None, share)

    def inventory(self, variable: str) -> ObjectInventory | None:
        """The stored objects of a variable, as the store lists them; see `take_inventory`."""
        return take_inventory(self._arrays.get()[variable])

    def _read_values(
        self, array: StoredArray, reads: Sequence[Read], outs: Sequence[NDArray[Any]]
    ) -> Outcome:
        """Read chunks that zarr or xarray decodes."""
        num_missing = 0
        for read, out in zip(reads, outs, strict=True):
            try:
                # Within the try: for a shard, its index is decoded here, which may fail.
                is_there = array.is_there(read.chunk)
                if not is_there:
                    num_missing += 1
                    self._faults.note_missing(read, array)
                if self._routes[read.variable].kind == "indexed":
                    array.index(read.chunk, read.cut, out)
                else:
                    np.copyto(out, self._decoded.values(read), casting="same_kind")
            except Exception as error:
                self._faults.tell(error, read, array, is_decoding=True)
        array.watch.note_read()
        return Outcome(num_missing, num_requests=len(reads))


def _open_coordinates(
    open_dataset: Callable[[bool], xr.Dataset], name: str, secrets: Secrets, is_indexed: bool
) -> xr.Dataset:
    try:
        return open_dataset(is_indexed).coords.to_dataset()
    except (XloaderError, MemoryError):
        raise
    except Exception as error:
        cause = cause_of(error, secrets)
        if is_transient(error) or is_denied(error):
            raise access_error(error, name, secrets, "while reading its labels") from cause
        # Damaged labels raise the errors of codecs.
        raise UnsupportedDataError(
            f"the labels of {name} cannot be decoded",
            given=told_of(error, secrets),
            remedy="write the coordinates again, or leave out the one that xarray cannot load",
        ) from cause
