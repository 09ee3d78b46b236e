"""`BatchGenerator`: xbatcher's, with xloader reading."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import xarray as xr

from xloader.core.messages import warn_caller
from xloader.errors import OptionError, XloaderWarning
from xloader.samples.samples import Samples
from xloader.xbatcher.batch_cache import load_batch, store_batch
from xloader.xbatcher.batches import Frames
from xloader.xbatcher.patches import make_patches
from xloader.xbatcher.reading import Reader

Batch = xr.Dataset | xr.DataArray


class BatchGenerator:
    """Iterates over an xarray object in batches, as ``xbatcher.BatchGenerator`` of xbatcher 0.4.

    A loop over it reads each chunk once where ``memory`` allows that, on several threads and
    ahead of need. ``generator[i]`` is batch ``i`` alone, and ``len(generator)`` counts them.

    Parameters
    ----------
    ds : xarray.Dataset or xarray.DataArray
        The data to iterate over, of any backing.
    input_dims : mapping of hashable to int
        Size of an input along each of its dimensions, as ``{"lat": 30, "lon": 30}``. Other
        dimensions are stacked into ``sample``, where there are two or more.
    input_overlap : mapping of hashable to int, optional
        Elements that neighbours share along a dimension, as ``{"lat": 3}``.
    batch_dims : mapping of hashable to int, optional
        Size of a batch along dimensions, as ``{"time": 10}``.
    concat_input_dims : bool, default False
        Whether the inputs of a batch are joined along a new dimension ``input_batch``; if not,
        each is a batch of its own.
    preload_batch : bool, default True
        Whether batches are in memory. If not, they are lazy selections of ``ds``, of which
        nothing is read here.
    cache : mutable mapping or Zarr store, optional
        Where batches are kept, each a Zarr group, and looked for before anything is read.
    cache_preprocess : callable, optional
        What is done to a batch before it is kept.
    memory : int or str, default "2GiB"
        Bytes that a loop over the generator may use for reading. Batches that are asked for one
        by one have as many, for the chunks that were used last.
    threads : int, optional
        Threads that read; the cores that the process may use by default.

    Raises
    ------
    UnknownNameError
        If a dimension is not there.
    WindowError
        If an input does not fit its dimension, or overlaps wholly.
    OptionError
        If a number is out of range, or there is not one batch.

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
        if not isinstance(ds, xr.Dataset | xr.DataArray):
            raise OptionError(
                "a generator is made of an xarray object",
                given=type(ds).__name__,
                allowed="an xarray.Dataset or xarray.DataArray",
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
        self._reader = self._make_reader()
        self._warn_of_idle_dims()

    @property
    def samples(self) -> Samples:
        """The inputs as samples, for all that xloader does beside: shuffled batches above all.

        Raises
        ------
        OptionError
            If nothing is left to read: every variable is in memory, or holds no numbers.
        """
        if self._reader is None:
            raise OptionError(
                "there is nothing to read",
                given="variables that are in memory already, hold no numbers, or are not cut",
                allowed="numbers that xarray opened lazily, along a dimension that is cut",
                remedy="call ds.xloader.window(...) for samples of an object in memory",
            )
        return self._reader.samples

    def __len__(self) -> int:
        return len(self._patches)

    def __iter__(self) -> Iterator[Any]:
        return self.iterate()

    def __getitem__(self, idx: int) -> Any:
        """Read one batch, by its number; a negative one counts from the end."""
        return self.read(idx)

    def read(self, idx: int, num_shares: int = 1) -> Any:
        """As ``generator[idx]``, where several processes share the memory.

        Parameters
        ----------
        idx : int
            The batch.
        num_shares : int, default 1
            How many processes share the memory: each keeps chunks in one share.
        """
        if not isinstance(idx, int):
            # As xbatcher does: an error of another kind would pass by those who catch it.
            raise NotImplementedError(
                f"{type(self).__name__} takes one whole number and nothing else. Given: {idx!r}"
            )
        batch = self._patches.normal(idx)
        if self.cache is not None:
            found = load_batch(self.cache, batch, is_loaded=self.preload_batch)
            if found is not None:
                return found
        return self._keep(batch, self._make(batch, num_shares))

    def iterate(self, batches: range | None = None, num_shares: int = 1) -> Iterator[Any]:
        """Some batches after each other, in turn.

        Parameters
        ----------
        batches : range, optional
            Their numbers, which count up by 1; by default, all of them.
        num_shares : int, default 1
            How many processes share the memory: each loop takes one share.
        """
        batches = range(len(self)) if batches is None else batches
        # A batch that is kept already needs no reading, and which are is not known beforehand.
        if self._reader is None or not self.preload_batch or self.cache is not None:
            for batch in batches:
                yield self[batch]
            return
        for batch, arrays in zip(batches, self._reader.read_all(batches, num_shares), strict=True):
            yield self._frames.make(batch, arrays)

    def __reduce__(self) -> tuple[object, ...]:
        # What is read and what reads stay behind.
        options = {"memory": self.memory, "threads": self.threads}
        args = (self.ds, self.input_dims, self.input_overlap, self.batch_dims)
        more = (self.concat_input_dims, self.preload_batch, self.cache, self.cache_preprocess)
        return _rebuild, (type(self), (*args, *more), options)

    def __repr__(self) -> str:
        return f"<xloader.xbatcher.BatchGenerator: {len(self)} batches of {self.input_dims}>"

    def _make(self, batch: int, num_shares: int) -> Any:
        if not self.preload_batch:
            return self._frames.make_lazily(batch)
        arrays = {} if self._reader is None else self._reader.read(batch, num_shares)
        return self._frames.make(batch, arrays)

    def _keep(self, batch: int, made: Any) -> Any:
        if self.cache is None:
            return made
        if self.cache_preprocess is not None:
            made = self.cache_preprocess(made)
        store_batch(self.cache, batch, made)
        return made

    def _make_reader(self) -> Reader | None:
        names = self._frames.names
        if not names or not self.preload_batch:
            return None
        dataset = self._frames.dataset
        return Reader(dataset, names, self._patches, self.memory, self.threads)

    def _warn_of_idle_dims(self) -> None:
        idle = [dim for dim in self.batch_dims if dim in self.input_dims]
        if idle and not self.concat_input_dims:
            warn_caller(
                f"batch_dims does nothing along {idle}, which input_dims has as well: pass "
                "concat_input_dims=True to join the inputs of a batch",
                XloaderWarning,
            )


def _rebuild(
    kind: type[BatchGenerator], args: tuple[Any, ...], options: dict[str, Any]
) -> BatchGenerator:
    with warnings.catch_warnings():
        # It was given where the generator was made.
        warnings.simplefilter("ignore", XloaderWarning)
        return kind(*args, **options)
