"""Samples: windows of a chunked store as a sequence of arrays, and the door that opens one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, DTypeLike, NDArray

from xloader.core.nans import OnNan
from xloader.core.nbytes import parse_nbytes
from xloader.core.patience import Patience
from xloader.engine.sample_reader import read_samples
from xloader.errors import MemoryBudgetError, OptionError
from xloader.loader.batch import Batch
from xloader.loader.loader import Loader
from xloader.recipe import selection as selecting
from xloader.recipe.layout import FieldLayout, make_layouts
from xloader.recipe.names import LABEL, SAMPLE
from xloader.recipe.recipe import Recipe, find
from xloader.samples import describe as describing
from xloader.samples.loader_verbs import Loading
from xloader.samples.subset_verbs import listed_ids, normal_ids
from xloader.samples.unplanned import warn_of_no_plan
from xloader.sources.open.open_source import DEFAULT_DTYPE, open_source
from xloader.tensors.convert import tensor_maker
from xloader.transforms.datasets import auxiliary_coords, show_labels
from xloader.transforms.outputs import Output, make_outputs
from xloader.transforms.run import finish, finish_frame

if TYPE_CHECKING:
    from xloader.tensors.in_memory import TensorDataset


def open(  # noqa: A001
    source: object,
    *,
    variables: Iterable[str] | str | None = None,
    group: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    dtype: DTypeLike | None = DEFAULT_DTYPE,
    on_missing: Literal["warn", "raise", "fill"] = "warn",
    read_timeout: float = 300.0,
    max_retries: int = 4,
    **open_kwargs: Any,
) -> Samples:
    """Open chunked arrays to take samples from. No value is read.

    Parameters
    ----------
    source : str, os.PathLike, store, zarr.Group, xarray.Dataset or xarray.DataArray
        A directory, zip file or URL with a Zarr group (v2 or v3), a file that xarray opens
        (netCDF, GRIB), an open group or store (of zarr, obstore, fsspec's ``FSMap`` or icechunk),
        or an open Dataset of any backing. An unnamed DataArray is offered as ``"data"``.
    variables : iterable of str, optional
        The data variables to offer; by default all that hold bool, integers or floats.
    group : str, optional
        Path of the group within a store or file.
    storage_options : mapping, optional
        Options for the file system of a URL.
    dtype : dtype-like or None, default "float32"
        What packed integers decode to, where the source is opened by path: those of four bytes
        or more to float64 unless a dtype is passed. ``None`` leaves it to xarray.
    on_missing : {"warn", "raise", "fill"}, default "warn"
        What to do about Zarr chunks that are absent: read the fill value with one warning,
        raise, or read the fill value silently. ``report()`` counts them in each case.
    read_timeout : float, default 300.0
        Seconds that each attempt at a read may take, of ``samples[17]`` and
        :meth:`Samples.to_xarray`, and of loaders that are not told otherwise.
    max_retries : int, default 4
        Attempts after the first, where that fails for a reason that may pass: no answer in time,
        a dropped connection, a short body, HTTP status 408, 429 or 5xx. Between them are pauses
        of up to 0.1 s, doubling to 10 s, or as long as the store asks for.
    **open_kwargs
        Passed to :func:`xarray.open_dataset`, but ``branch``, ``tag`` or ``snapshot_id``: the
        version of an ``icechunk.Repository``, by default that of its branch ``"main"``.

    Returns
    -------
    Samples
        Everything the source offers, with no windows yet.

    Raises
    ------
    SourceNotFoundError
        If there is nothing to open.
    SourceAccessError
        If a store cannot be reached, does not answer, or does not let this reader in.
    UnknownNameError
        If a variable asked for is not there.
    UnsupportedDataError
        If a variable asked for holds no numbers, or nothing can open the source.
    OptionError
        If an option is out of range.

    Examples
    --------
    >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(40.0).reshape(10, 4))})
    >>> samples = open(ds).window(time=3, stride=1).inputs("t2m", time=slice(0, 2))
    >>> len(samples), samples[7][0].tolist()
    (8, [[[28.0, 29.0, 30.0, 31.0], [32.0, 33.0, 34.0, 35.0]]])
    """
    patience = Patience(read_timeout, max_retries)
    opened = open_source(
        source,
        variables=variables,
        group=group,
        storage_options=storage_options,
        dtype=dtype,
        on_missing=on_missing,
        patience=patience,
        **open_kwargs,
    )
    return Samples(Recipe(opened, patience=patience))


@dataclass(frozen=True, repr=False)
class Samples(Loading):
    """Windows of a source as a sequence: each id names a sample, a tuple of arrays.

    Made by :func:`xloader.open` or ``ds.xloader``. :class:`xloader.samples.verbs.Verbs` describes them;
    the recorded methods of :class:`xarray.Dataset` are listed in :mod:`xloader.transforms.xarray_methods`.

    Parameters
    ----------
    recipe : Recipe
        The data behind the samples.

    Examples
    --------
    >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(40.0).reshape(10, 4))})
    >>> samples = ds.xloader.window(time=6, stride=1).inputs("t2m").targets("t2m", time=5)
    >>> samples.fields, samples.shapes
    (('inputs', 'targets'), {'inputs': (1, 6, 4), 'targets': (1, 4)})
    """

    # What there is

    @property
    def dims(self) -> tuple[str, ...]:
        """Dimensions that the selection leaves."""
        return tuple(self.recipe.dim_sizes)

    @property
    def sizes(self) -> Mapping[str, int]:
        """Number of selected elements along each of them."""
        return dict(self.recipe.dim_sizes)

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields, as delivered."""
        return tuple(output.name for output in self._outputs)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of one sample of each field, as delivered."""
        return {output.name: output.shape for output in self._outputs}

    @property
    def dtypes(self) -> dict[str, np.dtype]:
        """Dtype of each field, as delivered."""
        return {output.name: output.dtype for output in self._outputs}

    def channels(self, field: str) -> tuple[str, ...]:
        """Names of a field's channels, such as ``("t2m", "z_500")``.

        Raises
        ------
        UnknownNameError
            If there is no such field.
        OptionError
            If the field has no channels.
        """
        find(field, self.fields, "field")
        channels = {output.name: output.channels for output in self._outputs}[field]
        if channels is None:
            raise OptionError(
                f"the field {field!r} has no channels",
                given=f"shape {self.shapes[field]}",
                allowed="fields named by inputs, targets or field, their channels kept",
                remedy=f'name it, as in .field("{field}", ...)',
            )
        return channels

    @property
    def coordinates(self) -> xr.Dataset:
        """The source's coordinates, as selected, with no data variable."""
        coords = self.recipe.source.coordinates()
        selection = {
            dim: slice(kept.start, kept.stop, kept.step) if isinstance(kept, range) else kept
            for dim, kept in self.recipe.selection
            if dim in coords.dims
        }
        indexers = {d: list(k) if isinstance(k, tuple) else k for d, k in selection.items()}
        return coords.isel(indexers)

    def positions(self, ids: ArrayLike) -> xr.Dataset:
        """Where samples begin in the store.

        Parameters
        ----------
        ids : array-like of int
            Sample ids, 1-d.

        Returns
        -------
        xarray.Dataset
            Along ``sample``: for every windowed dimension the stored offset of the window's
            first element, and its label as a coordinate ``<dim>_label`` where there is one.

        Raises
        ------
        SampleIndexError
            If an id is out of range.
        """
        windows = self.recipe.require_windows()
        ids = normal_ids(len(self), np.atleast_1d(np.asarray(ids)))
        offsets = self.recipe.positions_of(ids) * np.asarray(windows.strides, np.int64)
        coords: dict[str, Any] = {SAMPLE: ids}
        variables = {}
        for axis, dim in enumerate(windows.dims):
            kept = self.recipe.kept_of(dim)
            assert not isinstance(kept, int)
            variables[dim] = xr.Variable(SAMPLE, selecting.stored(kept, offsets[:, axis]))
            labels = self.recipe.source.coordinates()
            if dim in labels.indexes:
                coords[dim + LABEL] = labels[dim].variable.to_base_variable()[variables[dim]]
        return xr.Dataset(variables, coords)

    # Samples, read without a plan

    def __len__(self) -> int:
        return self.recipe.num_ids

    @overload
    def __getitem__(self, key: int | np.integer[Any]) -> tuple[NDArray[Any], ...]: ...
    @overload
    def __getitem__(self, key: slice | list[int] | NDArray[Any]) -> Batch: ...
    def __getitem__(self, key: Any) -> tuple[NDArray[Any], ...] | Batch:
        """Read one sample as a tuple of arrays, or several as a batch, without a plan.

        Each chunk is decoded once for all samples that are asked for together, on one thread.

        Warns
        -----
        UnplannedWarning
            Once in a process, where a PyTorch ``DataLoader`` asks.
        """
        warn_of_no_plan()
        ids = listed_ids(len(self), key)
        checked = normal_ids(len(self), np.atleast_1d(ids))
        arrays = read_samples(self.recipe, self._layouts, checked)
        arrays = finish(self.recipe, self._layouts, arrays, checked)
        if np.ndim(ids):
            return Batch(arrays.values(), arrays, checked)
        return tuple(array[0] for array in arrays.values())

    def to_xarray(self, index: int | slice | ArrayLike) -> xr.Dataset:
        """One sample, or several, as a Dataset with labels, channel names and attributes.

        Parameters
        ----------
        index : int, slice or array-like of int
            The sample's id, or several, as ``samples[...]`` takes them; a negative one counts
            from the end.

        Returns
        -------
        xarray.Dataset
            The fields as delivered. A dimension that two fields have in different sizes,
            offsets or channels is called ``<field>_<dim>``. Several samples lie along a first
            dimension ``sample``, with their ids; labels that differ from sample to sample are
            coordinates ``<dim>_label``, as in functions given to :meth:`map`.

        Raises
        ------
        SampleIndexError
            If an id is out of range.

        Examples
        --------
        >>> import numpy as np
        >>> series = xr.Dataset({"sst": ("time", np.arange(6.0))}, {"time": np.arange(6) * 10})
        >>> samples = series.xloader.window(time=2)
        >>> samples.to_xarray(1)["time"].values.tolist()
        [20, 30]
        >>> samples.to_xarray([0, 2])["time_label"].values.tolist()
        [[0, 10], [40, 50]]
        """
        asked = listed_ids(len(self), index)
        ids = normal_ids(len(self), np.atleast_1d(asked))
        arrays = read_samples(self.recipe, self._layouts, ids)
        frame = finish_frame(self.recipe, self._layouts, arrays, ids)
        if np.ndim(asked):
            return frame
        frame = show_labels(frame.isel({SAMPLE: 0}))
        if not self.recipe.is_mapped:
            frame = frame.assign_coords(auxiliary_coords(self.recipe, self._layouts, int(ids[0])))
        return frame

    def to_tensor_dataset(
        self, memory: int | str = "2GiB", on_nan: OnNan = "warn"
    ) -> TensorDataset:
        """Read all samples into memory, as PyTorch's own dataset.

        Parameters
        ----------
        memory : int or str, default "2GiB"
            Bytes for the tensors, and for what is under way while they are filled.
        on_nan : {"warn", "raise", "ignore"}
            What to do about NaN, as for :meth:`loader`; batches are of ascending ids.

        Returns
        -------
        torch.utils.data.TensorDataset
            Of one tensor a field, in the order of :attr:`fields`: row ``i`` is sample ``i``, on
            every rank.

        Raises
        ------
        MemoryBudgetError
            If the samples do not fit, with the memory that would do.
        OptionError
            If samples are weighted, as a dataset holds each once, or ``on_nan`` is none of the
            choices.
        NanError
            If some sample holds NaN, with ``on_nan="raise"``.
        MissingDependencyError
            If PyTorch is not installed.

        Examples
        --------
        >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(40.0).reshape(10, 4))})
        >>> dataset = ds.xloader.window(time=2).to_tensor_dataset(memory="16MiB")
        >>> len(dataset), dataset[3][0].tolist()
        (5, [[24.0, 25.0, 26.0, 27.0], [28.0, 29.0, 30.0, 31.0]])
        """
        tensor_maker()
        from xloader.core.nans import check_on_nan
        from xloader.tensors.in_memory import fill_tensors

        subset = self.recipe.subset
        if subset is not None and subset.weights is not None:
            raise OptionError(
                "a dataset in memory holds each sample once, and these are weighted",
                remedy="call it before .weighted, and draw with torch's WeightedRandomSampler",
            )
        with self._whole_loader(parse_nbytes(memory), check_on_nan(on_nan)) as batches:
            return fill_tensors(batches, len(self), self.shapes, self.dtypes)

    def _whole_loader(self, memory_nbytes: int, on_nan: OnNan) -> Loader:
        """A loader of all samples by their ids, in what memory the whole of them leaves."""
        sample_nbytes = sum(
            math.prod(self.shapes[name]) * self.dtypes[name].itemsize for name in self.fields
        )
        whole_nbytes = len(self) * sample_nbytes
        left = max(memory_nbytes - whole_nbytes, 1)
        rows = min(max(left // (16 * max(sample_nbytes, 1)), 1), 256)
        try:
            return self.loader(
                batch_size=rows,
                shuffle=False,
                output="numpy",
                memory=left,
                rank=0,
                world_size=1,
                on_nan=on_nan,
            )
        except MemoryBudgetError as error:
            raise MemoryBudgetError(
                "the samples do not fit in memory, or not with what it takes to read them",
                given=f"memory={memory_nbytes}, {len(self)} samples of {sample_nbytes} bytes",
                minimum_nbytes=whole_nbytes + error.minimum_nbytes,
                remedy=".select fewer, or iterate over .loader(...), which "
                "needs no more than a few chunks",
            ) from error

    def __repr__(self) -> str:
        return describing.as_text(self.recipe)

    def _repr_html_(self) -> str:
        return describing.as_html(self.recipe)

    @cached_property
    def _layouts(self) -> tuple[FieldLayout, ...]:
        return make_layouts(self.recipe)

    @cached_property
    def _outputs(self) -> tuple[Output, ...]:
        return make_outputs(self.recipe, self._layouts)
