"""An intermediate store: where no sections that fit into memory suit both sources and targets.

The stored numbers are written once in chunks between those of the source and of the target, and
read again from there. It lies in the target's folder of records until the variable is written.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import zarr
from zarr.codecs import BloscCodec
from zarr.storage import MemoryStore

from xloader.jobs.cluster_tasks import ClusterTasks
from xloader.jobs.materialize.target_arrays import TargetArray
from xloader.jobs.materialize.target_marks import remove_mark
from xloader.jobs.materialize.target_records import FOLDER
from xloader.recipe.recipe import Recipe
from xloader.sources.open.open_source import open_source
from xloader.sources.stores.retrying_store import plain
from xloader.sources.stores.writable_store import WritableStore


class IntermediateStore:
    """The intermediate store of one variable."""

    def __init__(self, store: WritableStore, array: TargetArray, chunks: tuple[int, ...]) -> None:
        shape = "x".join(map(str, chunks))
        self.path = f"{FOLDER}/middle-{array.name.replace('/', '-')}-{shape}"
        self._store = store
        self.array = replace(
            array,
            chunks=chunks,
            shards=None,
            unpacking=None,
            dtype=array.source_dtype,
            packing=None,
            bound=0.0,
            attrs={},
        )
        self.metadata = self._objects()[f"{array.name}/zarr.json"]

    @property
    def mark(self) -> dict[str, bytes]:
        """The object without which tasks neither write it nor use what they have read of it."""
        return {f"{self.prefix}zarr.json": self._objects()["zarr.json"]}

    @property
    def prefix(self) -> str:
        """The text that its keys begin with."""
        return f"{self.path}/"

    def begin(self) -> None:
        """Write its metadata."""
        # zarr would warn of these files.
        self._store.delete_partial(self.prefix)
        for key, data in self._objects().items():
            self._store.put(self.prefix + key, data)

    def reading(self, recipe: Recipe, array: TargetArray) -> tuple[Recipe, TargetArray]:
        """The values as they are read from here, and the array that is written of them."""
        source = open_source(
            plain(self._store.store),
            variables=[array.name],
            group=self.path,
            # All chunks are written. Tasks of an earlier call may read while they are removed.
            on_missing="raise",
        )
        own = Recipe(source, (array.name,), retry_policy=recipe.retry_policy)
        kept = tuple(range(len(array.dims)))
        return own, replace(array, axes=own.axes_of(array.name), kept=kept)

    def remove(self, tasks: ClusterTasks | None) -> None:
        """Remove it."""
        for key in self.mark:
            remove_mark(self._store, key, tasks)
        self._store.delete(self.path)

    def _objects(self) -> dict[str, bytes]:
        held: dict[str, Any] = {}
        group = zarr.create_group(MemoryStore(held), zarr_format=3)
        group.create_array(
            self.array.name,
            shape=self.array.shape,
            chunks=self.array.chunks,
            dtype=self.array.source_dtype,
            dimension_names=self.array.dims,
            compressors=[BloscCodec(cname="lz4", clevel=1, shuffle="shuffle")],
        )
        return {key: bytes(own.to_bytes()) for key, own in held.items()}
