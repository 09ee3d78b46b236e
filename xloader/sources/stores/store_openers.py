"""Openers: small values that pickle with a source and open its store or file where it arrives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import xarray as xr
import zarr
from zarr.abc.store import Store

from xloader.sources import zarr_adapter
from xloader.sources.stores.locations import StoreLocation
from xloader.sources.stores.pickling import pack, unpack

_MARKS: Final = (("zarr.json", 3), (".zgroup", 2))
"""The key that says that there is a group, for each version of the format."""


@dataclass(frozen=True)
class ZarrOpener:
    """Opens one Zarr group, as zarr and as xarray see it; pickles with the source.

    Parameters
    ----------
    place : StoreLocation
        Where the store lies.
    group : str
        Path of the group within the store.
    kwargs : mapping
        What the user passes to ``xr.open_dataset``.
    """

    place: StoreLocation
    group: str
    kwargs: Mapping[str, Any] = field(repr=False)

    @property
    def name(self) -> str:
        """The store and the group, for messages."""
        return f"{self.place.name}, group {self.group!r}" if self.group else self.place.name

    def open_store(self) -> Store:
        """Open the store of a path; give back a store that was given."""
        return self.place.open_store()

    def with_format(self) -> ZarrOpener:
        """Ask which version of the format the group has, one key at a time, and keep it.

        zarr asks for all keys at once, and where several requests fail it may leave errors behind
        that are logged with their URLs.

        Returns
        -------
        ZarrOpener
            The opener itself where the key of neither version is there.

        Raises
        ------
        Exception
            Whatever the store raised first, if no key could be read.
        """
        if not zarr_adapter.is_known():
            return self
        store, failed = self.open_store(), None
        asked = self.kwargs.get("zarr_format")
        prototype = zarr_adapter.default_buffer_prototype()
        for name, number in _MARKS:
            if asked not in (None, number):
                continue
            key = f"{self.group.strip('/')}/{name}".lstrip("/")
            try:
                if zarr_adapter.sync(store.get(key, prototype)) is not None:
                    return replace(self, kwargs={**self.kwargs, "zarr_format": number})
            # Where listing is not allowed, an absent key may be refused and another be there.
            except Exception as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return self

    def open_group(self) -> zarr.Group:
        """Open the group; only metadata is read."""
        with zarr_adapter.allow_rectilinear_chunks():
            return zarr.open_group(
                self.open_store(),
                path=self.group,
                mode="r",
                use_consolidated=self.kwargs.get("consolidated"),
                zarr_format=self.kwargs.get("zarr_format"),
            )

    def open_dataset(self, create_default_indexes: bool) -> xr.Dataset:
        """Open the group as xarray sees it, lazily."""
        group = self.open_group()
        is_consolidated = group.metadata.consolidated_metadata is not None
        # Saying whether it is consolidated keeps xarray from trying, failing and warning.
        kwargs = {"consolidated": is_consolidated, **self.kwargs, "chunks": None, "cache": False}
        kwargs.pop("engine", None)
        with zarr_adapter.allow_rectilinear_chunks():
            return xr.open_dataset(
                group.store,  # type: ignore[arg-type]  # the zarr engine takes stores
                engine="zarr",
                group=self.group or None,
                create_default_indexes=create_default_indexes,
                **kwargs,
            )


@dataclass(frozen=True)
class Given:
    """Gives back a dataset that was given; pickles with it."""

    dataset: xr.Dataset

    def __call__(self) -> xr.Dataset:
        """The dataset itself."""
        return self.dataset

    def __getstate__(self) -> bytes:
        return pack(
            self.dataset,
            "an open Dataset",
            "pass the path that it was opened from, or write it to a Zarr store first",
        )

    def __setstate__(self, state: bytes) -> None:
        object.__setattr__(self, "dataset", unpack(state))
