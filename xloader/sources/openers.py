"""Openers: small values that pickle with a source and open its store or file where it arrives."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import xarray as xr
import zarr
from zarr.abc.store import Store
from zarr.storage import LocalStore


def safe_name(text: str) -> str:
    """Take what may be a credential out of a path or URL: the user, the query, the fragment.

    Examples
    --------
    >>> safe_name("https://me:secret@host/era5.zarr?sig=abc")
    'https://host/era5.zarr'
    """
    scheme, mark, rest = text.partition("://")
    if not mark:
        return text
    return f"{scheme}://{re.sub(r'^[^/]*@', '', re.split(r'[?#]', rest)[0])}"


@dataclass(frozen=True)
class ZarrOpener:
    """Opens one Zarr group, as zarr and as xarray see it; pickles with the source."""

    place: str | Store
    group: str
    storage_options: Mapping[str, Any] | None
    kwargs: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The store and the group, for messages."""
        store = safe_name(str(self.place))
        return f"{store}, group {self.group!r}" if self.group else store

    def open_store(self) -> Store:
        """Open the store of a path; give back a store that was given."""
        if isinstance(self.place, Store):
            return self.place
        if "://" not in self.place:
            return LocalStore(self.place, read_only=True)
        from zarr.storage import FsspecStore

        options = dict(self.storage_options or {})
        return FsspecStore.from_url(self.place, storage_options=options, read_only=True)

    def open_group(self) -> zarr.Group:
        """Open the group; only metadata is read."""
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
        return xr.open_dataset(
            group.store,  # type: ignore[arg-type]  # the zarr engine takes stores
            engine="zarr",
            group=self.group or None,
            create_default_indexes=create_default_indexes,
            **kwargs,
        )


@dataclass(frozen=True)
class FileOpener:
    """Opens one file through xarray; pickles with the source."""

    path: str
    kwargs: Mapping[str, Any]

    def __call__(self) -> xr.Dataset:
        """Open the file, lazily."""
        return xr.open_dataset(self.path, **{"chunks": None, "cache": False, **self.kwargs})


@dataclass(frozen=True)
class Given:
    """Gives back a dataset that was given; pickles with it."""

    dataset: xr.Dataset

    def __call__(self) -> xr.Dataset:
        """The dataset itself."""
        return self.dataset
