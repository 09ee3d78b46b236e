"""Opens the Zarr group at a store location, in each process, and makes a source of it.

Errors of zarr, xarray and the store's library are turned into errors that say what to do.
"""

from __future__ import annotations

import glob
import os
import re
import zipfile
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self, cast

import xarray as xr
import zarr
from numpy.typing import DTypeLike
from zarr.abc.store import Store
from zarr.errors import ContainsArrayError, NodeNotFoundError
from zarr.storage import WrapperStore

from xloader.core.messages import closest, extra_remedy, warn_caller
from xloader.errors import (
    ArrayNotGroupError,
    MissingDependencyError,
    SourceNotFoundError,
    TargetWarning,
    UnsupportedDataError,
    XloaderError,
)
from xloader.sources import zarr_adapter
from xloader.sources.arrays import catalog
from xloader.sources.base import Source
from xloader.sources.retries import is_timeout
from xloader.sources.stores.locations import PathPlace, StoreLocation, UrlPlace
from xloader.sources.stores.redaction import access_error, cause_of, told_of
from xloader.sources.zarr.fetched_chunks import OnMissing
from xloader.sources.zarr.parse_codecs import unknown_codec_error
from xloader.sources.zarr.zarr_source import ZarrSource

if TYPE_CHECKING:
    from zarr.abc.buffer import Buffer, BufferPrototype
    from zarr.abc.store import ByteRequest


_MARKS: Final = (("zarr.json", 3), (".zgroup", 2))
"""Key that every group has, and the version of the Zarr format that uses it."""


WRITTEN_BY: Final = "xloader_materialize"
"""Attribute of a store that `Samples.materialize` writes: the job, and whether it is complete."""

_ENDING: Final = re.compile(r"\.(nc4?|cdf|h(df|e)?5|hdf|gri?b2?|tiff?|zarr|zip|parq)", re.I)
"""The ending of a file or store that a folder may hold."""


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


def dims_of(array: zarr.Array[Any]) -> Sequence[str] | None:
    """The names of an array's dimensions; None if xarray finds no name for some."""
    names: Any = getattr(array.metadata, "dimension_names", None) or (None,) * array.ndim
    if None in names or array.metadata.zarr_format == 2:
        names = array.attrs.get("_ARRAY_DIMENSIONS")
    return names if isinstance(names, list | tuple) and len(names) == array.ndim else None


def arrays_without_dims(group: zarr.Group) -> list[str]:
    """Names of the arrays of a group whose dimensions have no names; none if some do not open."""
    try:
        arrays = dict(group.arrays())
    # zarr raises errors of many kinds for documents that make no sense.
    except Exception:
        return []
    return [name for name, array in arrays.items() if dims_of(array) is None]


def from_zarr(
    opener: ZarrOpener,
    variables: Iterable[str] | str | None,
    dtype: DTypeLike | None,
    on_missing: OnMissing,
) -> Source:
    """Open a Zarr group. Its metadata is read, but no chunk of a data variable."""
    # An iterator would be exhausted after the first look.
    if variables is not None and not isinstance(variables, str):
        variables = tuple(variables)
    with zarr_adapter.allow_rectilinear_chunks():
        place = opener.place
        if isinstance(place, UrlPlace) and (by_fsspec := place.by_fsspec()) is not place:
            by_other = replace(opener, place=by_fsspec)
            opener, dataset, group = _open_either(opener, by_other, variables)
        else:
            opener, dataset, group = _open_both(opener, variables)
        if not dataset.data_vars:
            refuse_empty(opener.name, _groups_of(group))
        _warn_if_incomplete(group, opener.name)
        # Stores list their arrays in any order, and copies of a store may differ in it.
        dataset = dataset[sorted(dataset.data_vars, key=str)].assign_coords(dataset.coords)
        chosen = catalog.choose(dataset, variables, opener.name)
        return ZarrSource(
            place=opener.place,
            open_dataset=opener.open_dataset,
            arrays={v: cast("zarr.Array[Any]", group[v]) for v in chosen},
            dataset=dataset,
            name=opener.name,
            dtype=dtype,
            on_missing=on_missing,
            is_forkable=opener.place.is_forkable,
            is_behind=group.metadata.consolidated_metadata is not None,
        )


def _warn_if_incomplete(group: zarr.Group, name: str) -> None:
    """Warn of a store that `Samples.materialize` has not completed: absent chunks read as fills."""
    job = group.attrs.get(WRITTEN_BY)
    if isinstance(job, dict) and job.get("is_complete") is False:
        warn_caller(
            f"{name} is not complete: the samples.materialize(...) that writes it was killed, or "
            "is still at work. Values that are not written yet read as fill values. Call it again "
            "with the same arguments to complete the store.",
            TargetWarning,
        )


def _open_both(
    opener: ZarrOpener, variables: Iterable[str] | str | None
) -> tuple[ZarrOpener, xr.Dataset, zarr.Group]:
    """Open a group with zarr and with xarray."""
    opener, group = _open_group(opener)
    try:
        return opener, _open_dataset(opener, group), group
    except UnsupportedDataError:
        names = {variables} if isinstance(variables, str) else set(variables or ())
        hidden = set(arrays_without_dims(group)) - names if names else None
        if not hidden:
            raise
    opener = replace(opener, hidden=tuple(hidden))
    return opener, _open_dataset(opener, group), group


def _open_either(
    opener: ZarrOpener, by_fsspec: ZarrOpener, variables: Iterable[str] | str | None
) -> tuple[ZarrOpener, xr.Dataset, zarr.Group]:
    """Open a URL with obstore, and with fsspec if obstore fails.

    fsspec can list directory pages, finds buckets in other regions and knows more ways to log in.
    """
    try:
        return _open_both(opener, variables)
    except XloaderError as error:
        # A store that does not answer obstore will not answer fsspec, and asking takes long.
        if error.__context__ is not None and is_timeout(error.__context__):
            raise
        failed = error
    try:
        return _open_both(by_fsspec, variables)
    except MissingDependencyError:
        raise failed from failed.__cause__


def refuse_empty(name: str, groups: list[str]) -> None:
    """Raise an error that names the groups which may hold data variables.

    Called for a group without data variables. Nothing is raised if no other group is known.
    """
    if groups:
        raise UnsupportedDataError(
            f"{name} has no data variable, but its groups may have some",
            remedy=f"pass group= with one of {groups}",
        )


def _open_group(opener: ZarrOpener) -> tuple[ZarrOpener, zarr.Group]:
    """Open a group with zarr. Errors say what to do."""
    secrets = opener.place.secrets
    try:
        opener = opener.with_format()
        return opener, opener.open_group()
    except XloaderError:
        raise
    except (NodeNotFoundError, FileNotFoundError) as error:
        raise _not_found(opener) from cause_of(error, secrets)
    except ContainsArrayError as error:
        raise _array_error(opener) from error
    except ImportError as error:
        raise MissingDependencyError(
            f"a library for this kind of URL is not installed ({error})",
            given=opener.name,
            remedy=extra_remedy("cloud"),
        ) from error
    except (ValueError, TypeError, KeyError, zipfile.BadZipFile) as error:
        raise _unreadable(error, opener) from cause_of(error, secrets)
    # Store libraries have errors of their own, which may show a signed URL.
    except Exception as error:
        fault = access_error(error, opener.name, secrets, "while reading its metadata")
        raise fault from cause_of(error, secrets)


def _open_dataset(opener: ZarrOpener, group: zarr.Group) -> xr.Dataset:
    """Open a group with xarray. Errors say what to do."""
    secrets = opener.place.secrets
    try:
        return opener.open_dataset(create_default_indexes=False)
    except XloaderError:
        raise
    # Impossible sizes in the metadata raise OverflowError or ZeroDivisionError.
    except (KeyError, ValueError, TypeError, ArithmeticError) as error:
        raise _undecodable(error, opener) from cause_of(error, secrets)
    except Exception as error:
        fault = access_error(error, opener.name, secrets, "while opening its arrays")
        if group.metadata.consolidated_metadata is None:
            fault = type(fault)(
                fault.what,
                given=fault.given,
                remedy=f"{fault.remedy}; if the store cannot be listed, as over HTTP, write "
                "consolidated metadata: zarr.consolidate_metadata(store)",
            )
        raise fault from cause_of(error, secrets)


def _undecodable(error: Exception, opener: ZarrOpener) -> UnsupportedDataError:
    """The error for a group of which xarray cannot make a dataset."""
    if (of_codec := unknown_codec_error(error, opener.name)) is not None:
        return of_codec
    text = told_of(error, opener.place.secrets)
    if "rectilinear" in text:
        return UnsupportedDataError(
            f"the installed zarr does not read rectilinear chunk grids ({text})",
            given=f"{opener.name}, zarr {zarr.__version__}",
            remedy="install zarr 3.2 or newer, which needs Python 3.12",
        )
    if isinstance(error, TypeError) and "unexpected keyword argument" in text:
        return UnsupportedDataError(
            f"xarray does not take these options ({text})",
            given=opener.name,
            remedy="leave out the option that the message names",
        )
    # For Zarr v2 in stores other than folders, xarray fails while it looks for the names.
    has_names = not isinstance(error, KeyError) and "'prototype'" not in text
    return UnsupportedDataError(
        "xarray cannot make a dataset of this Zarr group",
        given=f"{opener.name} ({text})",
        remedy="open it with xarray (drop_variables= or decode_cf= may help), and pass the Dataset"
        if has_names
        else "write dimension names (dimension_names in v3, _ARRAY_DIMENSIONS in v2), or name the "
        "variables that have them: variables=[...]",
    )


def _unreadable(error: Exception, opener: ZarrOpener) -> UnsupportedDataError:
    """The error for a group whose metadata cannot be read."""
    if (of_codec := unknown_codec_error(error, opener.name)) is not None:
        return of_codec
    text = told_of(error, opener.place.secrets)
    if "Protocol not known" in text:
        return UnsupportedDataError(
            "there is no file system for this kind of URL",
            given=opener.name,
            allowed="a path, or a URL that fsspec knows, such as s3://, gs:// and https://",
        )
    if isinstance(error, zipfile.BadZipFile):
        return UnsupportedDataError(
            "this file is not a zip file", given=f"{opener.name} ({text})", remedy="write it again"
        )
    return UnsupportedDataError(
        "the metadata of this Zarr group cannot be read",
        given=f"{opener.name} ({text})",
        remedy="check storage_options=, and the JSON of zarr.json or .zgroup",
    )


def _array_error(opener: ZarrOpener) -> ArrayNotGroupError:
    """The error for an array, with the group above it."""
    above = opener.group.strip("/").rpartition("/")[0]
    remedy = f"pass group={above!r}" if above else "leave group= out"
    if not opener.group:
        path = opener.place.name.rstrip("/").rpartition("/")[0]
        remedy = f"pass the group above it, {path}" if path else "pass the group above it"
    return ArrayNotGroupError(
        "this is a single Zarr array, and not a group of arrays", given=opener.name, remedy=remedy
    )


def _not_found(opener: ZarrOpener) -> XloaderError:
    """The error for an absent group, an array, or a location without any group."""
    try:
        # In Zarr v2, an array does not keep zarr from looking for a group.
        zarr.open_array(opener.place.open_store(), path=opener.group, mode="r", zarr_format=2)
    # zarr raises errors of many kinds where there is no array, either.
    except Exception:
        pass
    else:
        return _array_error(opener)
    if opener.group:
        root = replace(opener, group="")
        try:
            groups = _groups_of(root.with_format().open_group())
        except Exception:
            groups = []
        else:
            close = closest(opener.group, groups)
            return SourceNotFoundError(
                "there is no such group in this Zarr store",
                given=opener.name,
                allowed=", ".join(["the root", *groups]),
                remedy=f"did you mean {close!r}?" if close else "leave group= out for the root",
            )
    return SourceNotFoundError(
        "there is no Zarr group here", given=opener.name, remedy=_remedy_of(opener)
    )


def _remedy_of(opener: ZarrOpener) -> str:
    """Advice for the user if there is no group at a location."""
    place = opener.place
    # icechunk 1 has a folder "refs", and icechunk 2 a file "repo".
    if isinstance(place, PathPlace) and (
        os.path.isdir(os.path.join(place.path, "snapshots"))
        and any(os.path.exists(os.path.join(place.path, name)) for name in ("refs", "repo"))
    ):
        return (
            "this looks like a repository of icechunk: pass icechunk.Repository.open("
            f'icechunk.local_filesystem_storage("{place.path}"))'
        )
    if place.name.endswith(".zip") and "://" in place.name:
        return f'for a zip file behind a URL, pass "zip::{place.name}"'
    if isinstance(place, PathPlace) and zipfile.is_zipfile(place.path):
        with zipfile.ZipFile(place.path) as archive:
            marks = (name.rpartition("/") for name in archive.namelist())
            tops = {top for top, _, name in marks if name in ("zarr.json", ".zgroup")}
        if tops:
            return f'pass group="{min(tops, key=len)}"'
    if isinstance(place, PathPlace) and os.path.isdir(place.path):
        for pattern in ("*", "*/*"):
            files = map(os.path.splitext, glob.glob(pattern, root_dir=place.path))
            counts = Counter(end for _, end in files if _ENDING.fullmatch(end))
            if ".parq" in counts:
                return 'these are references: pass engine="kerchunk"'
            if counts:
                paths = os.path.join(glob.escape(place.path), pattern + counts.most_common(1)[0][0])
                return f"open what lies in this folder as one: xloader.concat({paths!r})"
    return "check the path, or pass group= for one further down"


def _groups_of(group: zarr.Group) -> list[str]:
    """Paths, from the store's root, of the groups further down that hold arrays."""
    if not group.store.supports_listing:
        return []
    # A group that holds only groups would be as empty for the user as this one.
    try:
        paths = {
            path.rpartition("/")[0]
            for path, member in group.members(max_depth=None)
            if isinstance(member, zarr.Array)
        }
    # A store over HTTP claims that it can be listed, and then fails.
    except Exception:
        return []
    return sorted("/".join(filter(None, (group.path, path))) for path in paths if path)
