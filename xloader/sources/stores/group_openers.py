"""Openers: small objects that pickle with a source and open its data in each process."""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self

import xarray as xr
import zarr
from zarr.abc.store import Store
from zarr.storage import WrapperStore

from xloader.sources import zarr_adapter
from xloader.sources.stores.locations import StoreLocation, pack

if TYPE_CHECKING:
    from zarr.abc.buffer import Buffer, BufferPrototype
    from zarr.abc.store import ByteRequest

_MARKS: Final = (("zarr.json", 3), (".zgroup", 2))
"""Key that every group has, and the version of the Zarr format that uses it."""


@dataclass(frozen=True)
class ZarrOpener:
    """Opens one Zarr group with zarr and with xarray. It pickles with the source."""

    place: StoreLocation
    group: str
    kwargs: Mapping[str, Any] = field(repr=False)
    hidden: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Names of the store and the group, for messages."""
        return f"{self.place.name}, group {self.group!r}" if self.group else self.place.name

    def with_format(self) -> ZarrOpener:
        """Find the group's version of the Zarr format, and keep it in the opener.

        The keys of the versions are asked for one at a time. zarr asks for all of them at once. If
        several requests fail, it may leave errors behind that are logged with their URLs.
        """
        if not zarr_adapter.is_known():
            return self
        store, failed = self.place.open_store(), None
        wanted_format = self.kwargs.get("zarr_format")
        prototype = zarr_adapter.default_buffer_prototype()
        for name, number in _MARKS:
            if wanted_format not in (None, number):
                continue
            key = f"{self.group.strip('/')}/{name}".lstrip("/")
            try:
                if zarr_adapter.sync(store.get(key, prototype)) is not None:
                    return replace(self, kwargs={**self.kwargs, "zarr_format": number})
            # Where listing is not allowed, a store may refuse an absent key and still have another.
            except Exception as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return self

    def open_group(self) -> zarr.Group:
        """Open the group with zarr. Only metadata is read."""
        with zarr_adapter.allow_rectilinear_chunks():
            return zarr.open_group(
                self.place.open_store(),
                path=self.group,
                mode="r",
                use_consolidated=self.kwargs.get("consolidated"),
                zarr_format=self.kwargs.get("zarr_format"),
            )

    def open_dataset(self, create_default_indexes: bool) -> xr.Dataset:
        """Open the group with xarray, lazily."""
        group = self.open_group()
        is_consolidated = group.metadata.consolidated_metadata is not None
        # Without this, xarray tries consolidated metadata, fails and warns.
        kwargs = {"consolidated": is_consolidated, **self.kwargs, "chunks": None, "cache": False}
        kwargs.pop("engine", None)
        store = group.store
        if self.hidden:
            begin = f"{self.group.strip('/')}/".lstrip("/")
            store = HidingStore(store, [begin + name for name in self.hidden])
            kwargs["consolidated"] = False
        with zarr_adapter.allow_rectilinear_chunks():
            return xr.open_dataset(
                store,  # type: ignore[arg-type]  # the zarr engine takes stores
                engine="zarr",
                group=self.group or None,
                create_default_indexes=create_default_indexes,
                **kwargs,
            )


class HidingStore(WrapperStore[Store]):
    """A store without some of its folders."""

    def __init__(self, store: Store, hidden: Collection[str]) -> None:
        super().__init__(store)
        self._hidden = tuple(f"{path}/" for path in hidden)

    def __str__(self) -> str:
        # Messages name the store itself.
        return str(self._store)

    def _with_store(self, store: Store) -> Self:
        return type(self)(store, [path.removesuffix("/") for path in self._hidden])

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Read an object, or a part of it; None if it is hidden."""
        if key.startswith(self._hidden):
            return None
        return await self._store.get(key, prototype, byte_range)

    async def exists(self, key: str) -> bool:
        """Whether there is an object that is not hidden."""
        return not key.startswith(self._hidden) and await self._store.exists(key)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """List the names in a folder that are not hidden."""
        begin = f"{prefix.rstrip('/')}/".lstrip("/")
        async for name in self._store.list_dir(prefix):
            if f"{begin}{name.rstrip('/')}/" not in self._hidden:
                yield name


def arrays_without_dims(group: zarr.Group) -> list[str]:
    """Names of the arrays of a group whose dimensions have no names; none if some do not open."""
    try:
        arrays = dict(group.arrays())
    # zarr raises errors of many kinds for documents that make no sense.
    except Exception:
        return []
    return [
        name
        for name, array in arrays.items()
        if (array.ndim or array.metadata.zarr_format == 2)
        and None in (getattr(array.metadata, "dimension_names", None) or (None,))
        and "_ARRAY_DIMENSIONS" not in array.attrs
    ]


@dataclass(frozen=True)
class Given:
    """Returns an open dataset that the user passed. It pickles with the dataset."""

    dataset: xr.Dataset

    def __call__(self) -> xr.Dataset:
        """Return the dataset."""
        return self.dataset

    def __getstate__(self) -> bytes:
        return pack(
            self.dataset,
            "an open Dataset",
            "pass the path that it was opened from, or write it to a Zarr store first",
        )

    def __setstate__(self, state: bytes) -> None:
        object.__setattr__(self, "dataset", pickle.loads(state))
