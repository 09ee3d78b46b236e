"""ZarrSource: the arrays of one Zarr group, read chunk by chunk on the calling thread."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import xarray as xr
import zarr
from numpy.typing import NDArray
from zarr.abc.store import Store

from xloader.errors import MissingChunkError, MissingChunkWarning
from xloader.sources import catalog
from xloader.sources.base import Cut, Described, Outcome, Read, Variable, read_each
from xloader.sources.datasets.blocks import XarraySource
from xloader.sources.handles import PerProcess
from xloader.sources.stores.naming import Secrets
from xloader.sources.zarr.arrays import StoredArray, check_keys, metadata_in_json
from xloader.sources.zarr.blame import Blame
from xloader.sources.zarr.chains import Sharding
from xloader.sources.zarr.codec_chains import chain_of
from xloader.sources.zarr.codecs import check_codecs
from xloader.sources.zarr.decoding import SCRATCH
from xloader.sources.zarr.routes import Route, make_route, make_variable

OnMissing = Literal["warn", "raise", "fill"]


class _Handle:
    """The open store of one process, and what hangs on it."""

    def __init__(self, open_store: Callable[[], Store], routes: Mapping[str, Route]) -> None:
        store = open_store()
        self.arrays = {
            name: StoredArray(store, route.path, route.metadata) for name, route in routes.items()
        }


class ZarrSource(Described):
    """The data variables of a Zarr group, chunk by chunk.

    A variable whose codecs are known takes the direct path, be it of Zarr v2 or v3: one
    request for the chunk's bytes, decoded on the calling thread straight into the caller's
    array. Chunks of a shard are found by its index, which is read once and kept, and those
    that lie close together are fetched with one request. Other codecs go through zarr's own
    indexing, and what only xarray decodes goes through xarray: `path_of` says which.

    Parameters
    ----------
    open_store : callable
        Opens the store, once in each process. It has to pickle.
    open_dataset : callable
        Opens the same group as xarray sees it, given ``create_default_indexes``.
    arrays : mapping of str to zarr.Array
        The open array of each data variable to offer; only its metadata is kept.
    dataset : xarray.Dataset
        The open dataset; only its metadata is kept.
    name : str
        Where the data comes from, for messages.
    dtype : dtype-like or None
        What packed integers decode to, as `catalog.decoded_dtype` has it.
    on_missing : {"warn", "raise", "fill"}
        What to do about a chunk that is not in the store.
    is_shared : bool
        Whether ``open_store`` gives a store that this process already uses, so that a forked
        child may not.
    version : str, optional
        Which version of the store it is, where there are several.
    secrets : tuple of str
        Texts that no error may tell.
    """

    def __init__(
        self,
        *,
        open_store: Callable[[], Store],
        open_dataset: Callable[[bool], xr.Dataset],
        arrays: Mapping[str, zarr.Array[Any]],
        dataset: xr.Dataset,
        name: str,
        dtype: Any,
        on_missing: OnMissing,
        is_shared: bool,
        version: str = "",
        secrets: tuple[str, ...] = (),
    ) -> None:
        self._name = name
        self._secrets = Secrets(secrets)
        self._on_missing = on_missing
        for array in arrays.values():
            check_keys(array)
            check_codecs(array)
        described = {v: make_variable(dataset[v], array, dtype) for v, array in arrays.items()}
        self._routes = {v: make_route(dataset[v], array) for v, array in arrays.items()}
        self._shardings = {
            v: sharding
            for v, route in self._routes.items()
            if (sharding := _sharding_of(route)) is not None
        }
        self._variables = {
            v: replace(variable, index_nbytes=self._index_nbytes(variable))
            for v, variable in described.items()
        }
        self._fingerprint = catalog.fingerprint(
            self._variables, {v: metadata_in_json(array) for v, array in arrays.items()}, version
        )
        self._handle = PerProcess(partial(_Handle, open_store, self._routes), name)
        self._coordinates = PerProcess(partial(_open_coordinates, open_dataset), name)
        decoded = [v for v, route in self._routes.items() if route.kind == "decoded"]
        self._decoded = XarraySource(
            {v: self._variables[v] for v in decoded},
            open_dataset=partial(open_dataset, False),
            name=name,
        )
        if is_shared:
            self._handle.get()
        self._set_counters()

    def _set_counters(self) -> None:
        self._num_missing = 0
        self._lock = threading.Lock()

    @property
    def num_missing(self) -> int:
        """How many reads of absent chunks this process has made."""
        return self._num_missing

    def path_of(self, variable: str) -> str:
        """How a variable is read, in words: ``"direct: zarr v3, bytes, zstd"``."""
        return self._routes[variable].words

    def coordinates(self) -> xr.Dataset:
        """The coordinates, lazily, with no data variable: xarray's own view of them."""
        return self._coordinates.get()

    def read(
        self, variable: str, chunk: tuple[int, ...], cut: Cut, out: NDArray[np.generic]
    ) -> bool:
        """Decode the part ``cut`` of one chunk into ``out``; see `Source.read`."""
        if self._routes[variable].kind == "direct":
            return not self._read_direct([Read(variable, chunk, cut, out)]).num_missing
        array = self._handle.get().arrays[variable]
        # Whether a shard holds a chunk is known from its index, which is decoded for it.
        with self._blame(variable, chunk, array, is_decoding=True):
            is_there = array.is_there(chunk)
        if not is_there:
            self._miss(variable, chunk, array)
        with self._blame(variable, chunk, array, is_decoding=True):
            if self._routes[variable].kind == "indexed":
                array.index(chunk, cut, out)
            else:
                self._decoded.load(variable, chunk, cut, out)
        return is_there

    def bundle_of(self, variable: str, chunk: tuple[int, ...]) -> Hashable:
        """The variable with the index of the shard, or of the chunk; see `Source.bundle_of`."""
        sharding = self._shardings.get(variable)
        return variable, chunk if sharding is None else sharding.shard_of(chunk)

    def read_together(self, reads: Sequence[Read]) -> Outcome:
        """Decode several chunks of one bundle: those of one shard with few requests."""
        if reads and reads[0].variable in self._shardings:
            return self._read_direct(reads)
        return read_each(self, reads)

    def _index_nbytes(self, variable: Variable) -> int:
        sharding = self._shardings.get(variable.name)
        if sharding is None:
            return 0
        shards = self._routes[variable.name].metadata.shards
        assert shards is not None, "an array that has an index has shards"
        pairs = zip(variable.shape, shards, strict=True)
        return math.prod(-(-size // n) for size, n in pairs) * sharding.index_nbytes

    def _read_direct(self, reads: Sequence[Read]) -> Outcome:
        handle = self._handle.get()
        variable = reads[0].variable
        array = handle.arrays[variable]
        parts = array.fetch([read.chunk for read in reads])
        num_missing = num_requests = 0
        while True:
            with self._blame(variable, reads[0].chunk, array, is_decoding=False):
                part = next(parts, None)
            if part is None:
                return Outcome(num_missing, num_requests)
            num_requests += part.num_requests
            for number, data in part.chunks:
                read = reads[number]
                if data is None:
                    self._miss(variable, read.chunk, array)
                    array.fill(read.out)
                    num_missing += 1
                    continue
                with self._blame(variable, read.chunk, array, is_decoding=True):
                    array.decode(data, read.cut, read.out, SCRATCH)

    def _blame(
        self, variable: str, chunk: tuple[int, ...], array: StoredArray, *, is_decoding: bool
    ) -> Blame:
        return Blame(self._name, variable, chunk, array, is_decoding, self._secrets)

    def _miss(self, variable: str, chunk: tuple[int, ...], array: StoredArray) -> None:
        key = array.key(chunk)
        with self._lock:
            self._num_missing += 1
            is_first = self._num_missing == 1
        if self._on_missing == "raise":
            raise MissingChunkError(
                "a chunk is absent from the store",
                store=self._name,
                variable=variable,
                chunk=chunk,
                key=key,
                remedy='restore it, or open with on_missing="fill" to read the fill value',
            )
        if self._on_missing == "warn" and is_first:
            warnings.warn(
                f"chunk {chunk} of variable {variable!r} (key {key!r}) is absent from "
                f"{self._name} and is read as the fill value; so is any other, which is "
                'counted without a warning. Pass on_missing="fill" if this is meant, or '
                'on_missing="raise" to stop at it.',
                MissingChunkWarning,
                stacklevel=3,
            )

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_lock", "_num_missing")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._set_counters()


def _open_coordinates(open_dataset: Callable[[bool], xr.Dataset]) -> xr.Dataset:
    return open_dataset(True).coords.to_dataset()


def _sharding_of(route: Route) -> Sharding | None:
    chain = chain_of(route.metadata) if route.kind == "direct" else None
    return None if chain is None else chain.sharding
