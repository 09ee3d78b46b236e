"""`BatchGenerator`, with the interface of xbatcher 0.4 and xloader's reading."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import xarray as xr

from xloader.core.messages import warn_caller
from xloader.errors import BatchGeneratorWarning, OptionError

if TYPE_CHECKING:
    from xloader.samples.samples import Samples
    from xloader.xbatcher.reading import Reader


class BatchGenerator:
    """Batches of an xarray object, as ``xbatcher.BatchGenerator`` of xbatcher 0.4 makes them.

    A loop over the generator reads on several threads and ahead of need. It reads each chunk once
    where ``memory`` allows that. With ``cache``, or with ``preload_batch=False``, a loop makes the
    batches one by one. ``generator[i]`` is batch ``i``, and ``len(generator)`` is the number of
    batches.

    Parameters
    ----------
    ds : xarray.Dataset or xarray.DataArray
        The data to iterate over, in a store or in memory.
    input_dims : mapping of hashable to int
        Number of elements of an input along each of its dimensions, for example
        ``{"lat": 30, "lon": 30}``. The other dimensions of ``ds`` are stacked into ``sample``, if
        there are two or more.
    input_overlap : mapping of hashable to int, optional
        Number of elements that neighbouring inputs share along a dimension, for example
        ``{"lat": 3}``.
    batch_dims : mapping of hashable to int, optional
        Number of elements of a batch along a dimension, for example ``{"time": 10}``.
    concat_input_dims : bool, default False
        Whether the inputs of a batch are joined along a new dimension ``input_batch``. If not,
        each input is a batch of its own.
    preload_batch : bool, default True
        Whether batches are loaded into memory. If not, they are lazy selections of ``ds``, and
        xloader reads nothing.
    cache : mutable mapping or Zarr store, optional
        Store for finished batches, one Zarr group for each. A batch found there is not made
        again, and is a Dataset even where ``ds`` is a DataArray.
    cache_preprocess : callable, optional
        Function that is applied to a batch before it is written to ``cache``.
    memory : int or str, default "2GiB"
        Bytes that a loop over the generator may use for reading. ``generator[i]`` may use as many
        bytes besides, to keep the chunks that were used last.
    threads : int, optional
        Number of threads that read. By default the number of cores that the process may use.

    Raises
    ------
    UnknownNameError
        If a dimension does not exist.
    OptionError
        If an input is longer than its dimension, or the overlap is not less than its length.
    OptionError
        If ``ds`` is not an xarray object, a number is not a whole one, ``memory`` is not a number
        of bytes, or there is not one whole batch.

    Warns
    -----
    BatchGeneratorWarning
        If a dimension of ``batch_dims`` has no effect.

    Examples
    --------
    >>> import numpy as np
    >>> da = xr.DataArray(np.arange(24.0).reshape(12, 2), dims=("time", "x"), name="t2m")
    >>> generator = BatchGenerator(da, {"time": 4}, input_overlap={"time": 2})
    >>> len(generator), [batch.to_numpy()[0, 0].item() for batch in generator]
    (5, [0.0, 4.0, 8.0, 12.0, 16.0])
    """

    def __init__(
        self,
        ds: xr.Dataset | xr.DataArray,
        input_dims: Mapping[Any, int],
        input_overlap: Mapping[Any, int] | None = None,
        batch_dims: Mapping[Any, int] | None = None,
        concat_input_dims: bool = False,
        preload_batch: bool = True,
        cache: Any = None,
        cache_preprocess: Callable[[Any], Any] | None = None,
        *,
        memory: int | str = "2GiB",
        threads: int | None = None,
    ) -> None:
        from xloader.xbatcher.batches import Frames
        from xloader.xbatcher.patches import make_patches
        from xloader.xbatcher.reading import Reader

        if not isinstance(ds, xr.Dataset | xr.DataArray):
            raise OptionError(
                "a generator needs an xarray object",
                given=type(ds).__name__,
                remedy="open it with xarray first",
            )
        self.ds = ds
        self.input_dims = dict(input_dims)
        self.input_overlap = dict(input_overlap or {})
        self.batch_dims = dict(batch_dims or {})
        self.concat_input_dims = concat_input_dims
        self.preload_batch = preload_batch
        self.cache = cache
        self.cache_preprocess = cache_preprocess
        self.memory = memory
        self.threads = threads
        self._patches = make_patches(
            {dim: int(size) for dim, size in ds.sizes.items()},
            self.input_dims,
            self.input_overlap,
            self.batch_dims,
            is_joined=concat_input_dims,
        )
        self._frames = Frames(ds, self._patches)
        self._reader: Reader | None = None
        if self._frames.names and preload_batch:
            self._reader = Reader(self._frames, memory, threads)
        idle = [dim for dim in self.batch_dims if dim in self.input_dims]
        if idle and not concat_input_dims:
            warn_caller(
                f"batch_dims has no effect along {idle}, because input_dims names it too: pass "
                "concat_input_dims=True to join the inputs of a batch",
                BatchGeneratorWarning,
            )

    @property
    def samples(self) -> Samples:
        """The inputs as samples, for example to load them in shuffled batches.

        Raises
        ------
        OptionError
            If xloader reads no variable: with ``preload_batch=False``, or where every variable is
            in memory, does not hold numbers, or has no dimension that is cut.
        """
        if self._reader is None:
            raise OptionError(
                "there is nothing to read",
                given="preload_batch=False, or only variables in memory, without numbers or "
                "without a dimension that is cut",
                remedy="leave out preload_batch=False; for an object in memory, call "
                "ds.xloader.window(...)",
            )
        return self._reader.samples

    def __len__(self) -> int:
        """Number of batches."""
        return len(self._patches)

    def __iter__(self) -> Iterator[Any]:
        """Read all batches in order."""
        return self.iterate()

    def __getitem__(self, idx: int) -> Any:
        """Read one batch by its number. A negative number counts from the end."""
        return self.read(idx)

    def read(self, idx: int, num_shares: int = 1) -> Any:
        """Read one batch, as ``generator[idx]`` does, in one of several processes.

        Parameters
        ----------
        idx : int
            The batch's number. A negative number counts from the end.
        num_shares : int, default 1
            Number of processes that share the memory. Each keeps chunks in an equal part of it.

        Returns
        -------
        xarray.Dataset or xarray.DataArray
            The batch.

        Raises
        ------
        NotImplementedError
            If ``idx`` is not an int.
        SampleIndexError
            If there is no such batch.
        EmptySamplesError
            If no whole input begins in the batch.
        """
        if not isinstance(idx, int):
            # xbatcher raises the same type, which users' code may catch.
            raise NotImplementedError(
                f"{type(self).__name__} takes one whole number as an index. Given: {idx!r}"
            )
        batch = self._patches.normal(idx)
        if self.cache is not None:
            with suppress(FileNotFoundError):
                cached = xr.open_zarr(self.cache, group=str(batch), consolidated=False)
                return cached.load() if self.preload_batch else cached
        if self.preload_batch:
            arrays = {} if self._reader is None else self._reader.read(batch, num_shares)
            made = self._frames.make(batch, arrays)
        else:
            made = self._frames.make_lazily(batch)
        if self.cache is not None:
            if self.cache_preprocess is not None:
                made = self.cache_preprocess(made)
            made.to_zarr(self.cache, group=str(batch), mode="a", consolidated=False)
        return made

    def iterate(self, batches: range | None = None, num_shares: int = 1) -> Iterator[Any]:
        """Read consecutive batches in order.

        Parameters
        ----------
        batches : range, optional
            Numbers of the batches, with a step of 1. By default all batches.
        num_shares : int, default 1
            Number of processes that share the memory. The loop uses an equal part of it.

        Yields
        ------
        xarray.Dataset or xarray.DataArray
            The batches.
        """
        batches = range(len(self)) if batches is None else batches
        # Batches found in the cache need no reading, and it is not known beforehand which are.
        if self._reader is None or not self.preload_batch or self.cache is not None:
            for batch in batches:
                yield self[batch]
            return
        for batch, arrays in zip(batches, self._reader.read_all(batches, num_shares), strict=True):
            yield self._frames.make(batch, arrays)

    def __repr__(self) -> str:
        return f"<xloader.xbatcher.BatchGenerator: {len(self)} batches of {self.input_dims}>"


_NAME = "batch"


class BatchAccessor:
    """The accessor ``ds.batch``, which makes batch generators of ``ds``.

    Parameters
    ----------
    obj : xarray.Dataset or xarray.DataArray
        The object to iterate over.
    """

    def __init__(self, obj: xr.Dataset | xr.DataArray) -> None:
        self._obj = obj

    def generator(self, *args: Any, **kwargs: Any) -> BatchGenerator:
        """Make a :class:`BatchGenerator` of the object.

        Parameters
        ----------
        *args, **kwargs
            Arguments of :class:`BatchGenerator` after ``ds``.

        Returns
        -------
        BatchGenerator
        """
        return BatchGenerator(self._obj, *args, **kwargs)


class _AccessorDescriptor:
    """Descriptor that makes the accessor of an object, and gives way to others of the same name.

    It exists on objects, and raises `AttributeError` on the class. xarray warns if an accessor is
    registered under a name that the class has, so xbatcher, imported later, replaces this one
    without a warning. A variable or coordinate called ``batch`` is not hidden either.
    """

    def __get__(self, obj: Any, owner: type[Any]) -> BatchAccessor:
        if obj is None or _NAME in obj.coords or _NAME in getattr(obj, "data_vars", ()):
            raise AttributeError(_NAME)
        return BatchAccessor(obj)


def register() -> None:
    """Add ``batch`` to `xarray.Dataset` and `xarray.DataArray`, unless they have it already."""
    for xarray_class in (xr.Dataset, xr.DataArray):
        if not hasattr(xarray_class, _NAME):
            setattr(xarray_class, _NAME, _AccessorDescriptor())
