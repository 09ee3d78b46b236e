"""The functions and methods that users write: `open`, and `Samples` in the order of their use.

Each method calls a module below and returns a new value. Nothing is read until a sample or a batch
is asked for. The file is long because of its docstrings.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, product
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, DTypeLike, NDArray

from xloader.core.axis import Ints
from xloader.core.options import LoaderKeywords, lists_options, make_options
from xloader.core.retry_policy import RetryPolicy
from xloader.errors import OptionError
from xloader.recipe import selection
from xloader.recipe.layout import make_layouts
from xloader.recipe.parse_fields import make_field
from xloader.recipe.parse_windows import NO_PADS, Gaps, Pads, Size, make_windows, merged_sizes
from xloader.recipe.recipe import Recipe, Transform, find
from xloader.samples import describe, single_samples
from xloader.samples.describe import require_before, require_windows_before, warn_of_no_plan
from xloader.samples.single_samples import normal_ids
from xloader.sources.arrays.catalog import DEFAULT_DTYPE
from xloader.transforms.outputs import Output, frame_of_zeros, make_outputs
from xloader.transforms.steps import Map
from xloader.transforms.xarray_methods import RecordedMethods, make_method

if TYPE_CHECKING:
    from xloader.core.ranks import World
    from xloader.jobs.advice.chunk_advice import Advice, ChunkProposal
    from xloader.jobs.materialize.materialized import Materialized
    from xloader.jobs.materialize.target_arrays import Sizes
    from xloader.jobs.statistics.stats_options import Clock, Dims, Lead
    from xloader.jobs.valid.sample_mask import SampleMask
    from xloader.loader.batches.batch import Batch
    from xloader.loader.loader import Loader
    from xloader.mosaic.mosaic import Mosaic
    from xloader.mosaic.target_grid import Blend
    from xloader.planning.explain import Explanation
    from xloader.planning.plan_comparison import PlanComparison
    from xloader.recipe.layout import FieldLayout
    from xloader.recipe.points import At
    from xloader.samples.coverage import Coverage
    from xloader.samples.splits import Gap, Split
    from xloader.show.canvas import Picture
    from xloader.transforms.denormalize import Denormalize


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
    source : str, os.PathLike, store, zarr.Group, Dataset, DataArray, DataTree, or list of them
        A directory, zip file or URL with a Zarr group (v2 or v3), a file that xarray opens
        (netCDF, GRIB), an open group or store (of zarr, obstore, fsspec's ``FSMap`` or icechunk),
        or an open Dataset of any backing. An unnamed DataArray is offered as ``"data"``. The
        variables of an :class:`xarray.DataTree` are named by their paths, as ``"radar/rain"``. A
        list holds stores of different variables on the same grid, which are offered together; its
        members may be :class:`Samples` without windows, too. :func:`xloader.join` takes stores of
        different grids or times.
    variables : iterable of str, optional
        The data variables to offer; by default all that hold bool, integers or floats.
    group : str, optional
        Path of the group within a store or file.
    storage_options : mapping, optional
        Options for the file system of a URL.
    dtype : dtype-like or None, default "float32"
        Dtype that packed integers are unpacked to. By default, integers of four bytes or more
        become float64; a dtype that is passed holds for all. ``None`` leaves the choice to xarray.
        An open Dataset keeps its own dtypes.
    on_missing : {"warn", "raise", "fill"}, default "warn"
        What to do about absent Zarr chunks: read the fill value with one warning, raise, or read
        the fill value silently. ``report()`` counts them in each case.
    read_timeout : float, default 300.0
        Seconds that each attempt at a read may take. It holds for ``samples[17]``, for
        :meth:`Samples.to_xarray`, and for loaders.
        Samples in a list may raise it, and ``max_retries``, to their own.
    max_retries : int, default 4
        Further attempts after one that failed for a reason that may pass: no answer in time, a
        dropped connection, a short body, HTTP status 408, 429 or 5xx. The pause before a new
        attempt is at most 0.1 s at first and doubles up to 10 s, or is as long as the store asks
        for.
    **open_kwargs
        Passed to :func:`xarray.open_dataset`. The exceptions are ``branch``, ``tag`` and
        ``snapshot_id``, which choose the version of an ``icechunk.Repository``: by default that of
        its branch ``"main"``.

    Returns
    -------
    Samples
        Everything that the source offers, with no windows yet.

    Raises
    ------
    SourceNotFoundError
        If there is nothing to open.
    SourceAccessError
        If a store cannot be reached, does not answer, or refuses access.
    UnknownNameError
        If a variable asked for does not exist.
    UnsupportedDataError
        If a variable asked for holds no numbers, or nothing can open the source.
    OptionError
        If an option is out of range. If two sources of a list have a variable of one name, or
        other labels along a dimension.

    Examples
    --------
    >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(40.0).reshape(10, 4))})
    >>> samples = open(ds).window(time=3, stride=1).inputs("t2m", time=slice(0, 2))
    >>> len(samples), samples[7][0].tolist()
    (8, [[[28.0, 29.0, 30.0, 31.0], [32.0, 33.0, 34.0, 35.0]]])
    """
    from xloader.samples.whole_sources import longest_policy, merged_source
    from xloader.sources.open.open_source import open_source

    retry_policy = RetryPolicy(read_timeout, max_retries)
    if isinstance(source, list | tuple):
        retry_policy = longest_policy(source, retry_policy)
    open_one = partial(
        open_source,
        group=group,
        storage_options=storage_options,
        dtype=dtype,
        on_missing=on_missing,
        retry_policy=retry_policy,
        **open_kwargs,
    )
    if isinstance(source, list | tuple):
        opened = merged_source(source, variables, lambda member: open_one(source=member))
    else:
        opened = open_one(source=source, variables=variables)
    return Samples(Recipe(opened, retry_policy=retry_policy))


def overlap(first: Samples, second: Samples) -> int:
    """Count the stored elements that both of two sets of samples need. No value is read.

    Parameters
    ----------
    first, second : Samples
        Samples with windows, of the same source.

    Returns
    -------
    int
        The number of elements, over all stored variables; 0 if nothing leaks from one to the other.
        A variable that all samples share, such as a static mask, counts too.

    Raises
    ------
    OptionError
        If the samples are of different sources or have no windows yet, or are too many to compare.

    Examples
    --------
    >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(40.0).reshape(10, 4))})
    >>> samples = ds.xloader.window(time=3, stride=1)
    >>> overlap(samples.select([0, 1]), samples.select([3, 6])), overlap(samples, samples)
    (4, 40)
    """
    from xloader.recipe.shared_elements import count_shared

    for samples in (first, second):
        if not isinstance(samples, Samples):
            raise OptionError(
                "overlap compares samples",
                given=repr(samples),
                remedy='pass for example split["train"], split["valid"]',
            )
    return count_shared(first.recipe, second.recipe)


@dataclass(frozen=True, repr=False)
class Samples(RecordedMethods):
    """Sequence of the windows of a source: each id names a sample, a tuple of arrays.

    Made by :func:`xloader.open` or ``ds.xloader``. Every method that changes samples returns new
    samples and leaves these as they are. Methods of :class:`xarray.Dataset` that work on whole
    batches, such as ``clip`` or ``mean``, can be called as well:
    :mod:`xloader.transforms.xarray_methods` lists them.

    Parameters
    ----------
    recipe : Recipe
        The source, selection, windows, fields and transforms, as frozen data.

    Examples
    --------
    >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(40.0).reshape(10, 4))})
    >>> samples = ds.xloader.window(time=6, stride=1).inputs("t2m").targets("t2m", time=5)
    >>> samples.fields, samples.shapes
    (('inputs', 'targets'), {'inputs': (1, 6, 4), 'targets': (1, 4)})
    """

    recipe: Recipe

    # Selecting from the store

    def sel(
        self,
        indexers: Mapping[str, Any] | None = None,
        method: str | None = None,
        tolerance: Any = None,
        **labels: Any,
    ) -> Self:
        """Keep the elements with certain labels, lazily, as :meth:`xarray.Dataset.sel` does.

        Parameters
        ----------
        indexers : mapping of str to (label, slice or sequence of labels), optional
            The labels to keep along each dimension. A single label drops the dimension, as in
            ``sel(level=500)``; a list of one label keeps it. Along a dimension without labels,
            values are positions.
        method, tolerance : optional
            As in :meth:`xarray.Dataset.sel`.
        **labels
            The same as ``indexers``, as keyword arguments.

        Returns
        -------
        Samples
            The same source with fewer elements selected.

        Raises
        ------
        UnknownNameError
            If a dimension or a label does not exist.
        OptionError
            If xarray refuses the labels, an element occurs twice, elements come back to a chunk
            that they have left, ``method`` is given for a dimension without labels, or there are
            windows already.
        EmptySamplesError
            If nothing is left.
        """
        require_before(self.recipe, "sel", self._has_windows)
        chosen = selection.sel(
            self.recipe, {**(indexers or {}), **labels}, method=method, tolerance=tolerance
        )
        return self._but(selection=chosen)

    def isel(self, indexers: Mapping[str, Any] | None = None, **positions: Any) -> Self:
        """Keep the elements at certain positions, lazily, as :meth:`xarray.Dataset.isel` does.

        They may be in any order in which the elements of each chunk follow each other, so that no
        chunk is read twice: latitudes from the other end, levels as a trained model expects them.

        Parameters
        ----------
        indexers : mapping of str to (int, slice, sequence of int or mask), optional
            The positions to keep along each dimension. An int drops the dimension.
        **positions
            The same as ``indexers``, as keyword arguments.

        Returns
        -------
        Samples
            The same source with fewer elements selected.

        Raises
        ------
        UnknownNameError
            If a dimension does not exist.
        OptionError
            If a position is out of range or occurs twice, positions come back to a chunk that they
            have left, or there are windows already.
        EmptySamplesError
            If nothing is left.
        """
        require_before(self.recipe, "isel", self._has_windows)
        chosen = selection.isel(self.recipe, {**(indexers or {}), **positions})
        return self._but(selection=chosen)

    def forcing(
        self,
        *names: str | Callable[..., Any],
        coords: Mapping[str, str] | None = None,
        dtype: DTypeLike = "float32",
        **functions: str | Callable[..., Any],
    ) -> Self:
        """Add variables that are computed from labels, such as time, latitude and longitude.

        They are variables like those that are stored: fields, windows, leads, :meth:`normalize` and
        recorded methods take them. Nothing is read for them, so they count in no number of reads;
        the memory that they take is counted. A variable has only the dimensions of its labels, and
        is repeated along the others in a field with other variables.

        Parameters
        ----------
        *names : str or callable
            Names of functions in :mod:`xloader.forcings`: ``"insolation"``, ``"cos_day_of_year"``,
            ``"sin_day_of_year"``, ``"cos_local_time"``, ``"sin_local_time"``, ``"cos_longitude"``,
            ``"sin_longitude"`` and ``"latitude"``. Or functions of your own, which name their
            variables.
        coords : mapping of str to str, optional
            For parameters of the functions, the coordinate whose labels they get. By default,
            ``time``, ``lat`` and ``lon`` get the coordinates with these meanings by the CF
            conventions or by common names, also those with two dimensions, and any other parameter
            gets the coordinate of its own name. A parameter with a default value keeps it, unless
            it is named here.
        dtype : dtype-like, default "float32"
            Dtype of the variables.
        **functions : str or callable
            The same under names of your choice: ``forcing(sun="insolation", tide=fn)``. A function
            takes labels as :class:`xarray.DataArray`, without attributes, by the names of its
            parameters: times as datetime64 or cftime objects, ``lat`` and ``lon`` in degrees. It
            returns a DataArray or an array with one value for each element, or with fewer
            dimensions. It gets a part of the labels at a time, on several threads, so each value
            may depend on its own labels only. Attributes of a DataArray that it returns, such as
            ``units``, become those of the variable.

        Returns
        -------
        Samples
            The samples with more variables.

        Raises
        ------
        UnknownNameError
            If there is no such function or coordinate.
        OptionError
            If the name is taken, a function has no name or takes no labels, several coordinates
            could be meant, latitudes lie beyond 90 degrees, or there are windows already.
        OptionError
            If a function returns a wrong shape.
        UnsupportedDataError
            If a function returns no numbers, or ``dtype`` is not one of numbers.
        TransformError
            If a function raises an error.

        See Also
        --------
        xloader.forcings : The functions, with their sources and units.

        Examples
        --------
        >>> times = np.arange("2000-01-01", "2000-01-05", dtype="M8[D]")
        >>> t2m = xr.DataArray(np.zeros((4, 2)), {"time": times, "lat": [-45.0, 45.0]})
        >>> ds = xr.Dataset({"t2m": t2m})
        >>> samples = ds.xloader.forcing("latitude", is_north=lambda lat: lat > 0)
        >>> samples = samples.window(time=2).inputs("t2m", "latitude", "is_north")
        >>> samples[0][0][1:, 0].tolist()
        [[-45.0, 45.0], [0.0, 1.0]]
        """
        from xloader.transforms.computed_variables import add_computed

        require_before(self.recipe, "forcing", self._has_windows)
        return replace(
            self, recipe=add_computed(self.recipe, names, functions, coords or {}, dtype)
        )

    # Windows and fields

    def window(
        self,
        sizes: Mapping[str, Size] | Size | None = None,
        *,
        stride: Mapping[str, Size] | Size | None = None,
        dilation: Mapping[str, Size] | Size = 1,
        gaps: Mapping[str, Gaps] | Gaps = "drop",
        wrap: Sequence[str] | str = (),
        pad: Pads = NO_PADS,
        **sizes_by_dim: Size,
    ) -> Self:
        """Set the window that each sample covers. Dimensions that are not named are taken whole.

        Windows count selected elements. After :meth:`isel` or :meth:`sel` with a list or a mask,
        elements that were far apart in the store become neighbours. Where a dimension has times as
        labels and steps of equal length, windows that would cross such a gap are left out.

        Parameters
        ----------
        sizes : int, duration, or mapping of str to these, optional
            Elements of a window along each dimension; an int holds for every dimension. Along
            times, a duration such as ``"3D"`` is converted to elements: a whole number and one of
            NumPy's units ``Y M W D h m s``. ``M`` (months) and ``Y`` need labels that are months,
            seasons or years. Ids count windows in C order, with the dimensions in the order in
            which they are named here.
        stride : int, duration, or mapping of str to these, optional
            Elements between the starts of neighbouring windows; the window's size by default. A
            single number holds for the dimensions whose window is longer than one element; if
            there are none, for all. A note says where elements lie between windows, so that no
            sample has them.
        dilation : int, duration, or mapping of str to these, default 1
            Elements from one element of a window to the next.
        gaps : {"drop", "raise", "allow"} or mapping of str to these
            What to do about windows that cross a gap along a dimension of times. A gap is a step
            that differs by over a tenth from the common one, a fixed duration or some calendar
            months; by over a half, or against its direction, where times jitter more.
            ``"drop"`` leaves these windows out, if at least 90 % of the steps are no gaps.
            Otherwise it leaves out none, and the irregular steps are noted. ``"raise"``
            is an error if there are gaps. ``"allow"`` lets windows run across them. All elements
            count from the window's first to its last one, or to the longest lead of a field. A
            mapping may also name dimensions whose labels are numbers.
        wrap : str or sequence of str
            Dimensions along which windows run on from the last element to the first one, such as
            the longitudes of the globe. A window then starts at every stride, also near the end.
        pad : mapping of str to ("edge", "reflect" or float), optional
            Dimensions whose borders are padded. Windows are then centred on every stride-th
            element, the first one included, so that each element can be at a centre. A window of
            an even size has one more element before its centre than after it. What lies outside
            is filled, before any transform: with the nearest element, with the mirrored ones or
            with a number, as :func:`numpy.pad` does it. Fields take all of the window along such a
            dimension. Ids and :meth:`positions` go by the centre.
        **sizes_by_dim
            Sizes as keyword arguments.

        Returns
        -------
        Samples
            One sample for each window position.

        Raises
        ------
        OptionError
            If a window does not fit its dimension, a number is below 1, or there are gaps, with
            ``gaps="raise"``.
        UnknownNameError
            If a dimension does not exist, or a stride, dilation, ``gaps``, ``wrap`` or ``pad`` is
            for one without windows.
        OptionError
            If no dimension is named, a number is not whole, a duration is no whole number of
            steps, windows are to wrap along times or across gaps, borders cannot be padded as
            asked, or there are windows already.
        EmptySamplesError
            If every window crosses a gap.
        SourceAccessError
            If times cannot be read to find gaps.
        UnsupportedDataError
            If labels are times of several calendars.

        Examples
        --------
        Six-hourly data that lacks the second day:

        >>> hours = np.delete(np.arange(0, 240, 6), slice(4, 8)) * np.timedelta64(1, "h")
        >>> time = np.datetime64("2001-01-01T00", "ns") + hours
        >>> ds = xr.Dataset({"t2m": ("time", np.arange(36.0))}, {"time": time})
        >>> samples = ds.xloader.window(time="1D", stride="6h")
        >>> len(samples), len(ds.xloader.window(time="1D", stride="6h", gaps="allow"))
        (30, 33)
        >>> samples.explain(memory="1MiB").dropped_windows
        {'gap': 3}

        Windows across the date line:

        >>> ds = xr.Dataset({"sst": ("lon", np.arange(4.0))}, {"lon": [0, 90, 180, 270]})
        >>> ds.xloader.window(lon=3, stride=1, wrap="lon").to_xarray(3).sst.lon.values.tolist()
        [270, 0, 90]

        Windows centred on each element, also on the first and the last one:

        >>> padded = ds.xloader.window(lon=3, stride=1, pad={"lon": "edge"})
        >>> [window[0].tolist() for window in padded]
        [[0.0, 0.0, 1.0], [0.0, 1.0, 2.0], [1.0, 2.0, 3.0], [2.0, 3.0, 3.0]]
        """
        require_before(self.recipe, "window", self._has_windows)
        sizes = merged_sizes(self.recipe, sizes, sizes_by_dim)
        windows = make_windows(self.recipe, sizes, stride, dilation, gaps, wrap, pad)
        return self._but(windows=windows)

    def inputs(self, *variables: str | Sequence[str], **offsets: Any) -> Self:
        """Add the field ``inputs``; the arguments are those of :meth:`field`."""
        return self.field("inputs", *variables, **offsets)

    def targets(self, *variables: str | Sequence[str], **offsets: Any) -> Self:
        """Add the field ``targets``; the arguments are those of :meth:`field`."""
        return self.field("targets", *variables, **offsets)

    def field(self, name: str, /, *variables: str | Sequence[str], **offsets: Any) -> Self:
        """Add a named array to each sample, its variables stacked along a leading ``channel``.

        Parameters
        ----------
        name : str
            Name of the field.
        *variables : str or sequence of str
            The variables, one by one or as a list. Dimensions of a variable that are neither
            windowed nor among its last two become channels as well: the levels 500 and 850 of
            ``z`` are the channels ``z_500`` and ``z_850``. A variable that lacks a dimension of
            the others is repeated along it. Variables of several dtypes get the dtype that numpy
            promotes them to: int32 beside float32 makes float64.
        **offsets : int, duration, slice or sequence of these
            Positions within the window along windowed dimensions, ``0 .. window_size - 1``; by
            default all of them. An int drops the dimension. Negative positions count from the
            window's end. Several positions may come in any order, each once. A duration is a lead
            after the start of the window, and may lie beyond its end: ``time="+10D"``,
            ``time="+40"`` for 40 steps, or several, ``time=["+1D", "+2D", "+4D"]``. Then samples
            reach up to the last lead, so there are fewer of them. As in slices of positions, the
            end of ``slice("0h", "12h")`` is not included.

        Returns
        -------
        Samples
            The samples with one more field.

        Raises
        ------
        UnknownNameError
            If a variable or dimension does not exist.
        OptionError
            If the variables cannot share one array.
        UnsupportedDataError
            If a variable holds no numbers.
        OptionError
            If the name is taken, an offset does not fit the window, a lead is no whole number of
            steps, or lies beyond the window and comes after :meth:`select`; if there are no
            windows yet, or a transform is recorded that may have changed the fields.
        OptionError
            If a lead leaves the dimension.
        """
        self.recipe.require_windows()
        require_before(self.recipe, "field", self.recipe.is_mapped)
        names = [[given] if isinstance(given, str) else given for given in variables]
        added, windows = make_field(self.recipe, name, tuple(chain.from_iterable(names)), offsets)
        return self._but(fields=(*self.recipe.fields, added), windows=windows)

    # Transforms

    def normalize(self, stats: Any = None, std: Any = None, *, mean: Any = None) -> Self:
        """Subtract a mean and divide by a standard deviation, variable by variable.

        Variables without statistics stay as they are, and ``print(samples)`` names them. Integer
        fields become float32, or float64 where the integers have 32 bits or more. Fields are
        normalised before :meth:`map` and recorded methods run.

        Parameters
        ----------
        stats : mapping or xarray.Dataset, optional
            ``{variable: (mean, std)}``, ``{variable: {"mean": ..., "std": ...}}``, a Dataset with
            a dimension ``stat`` labelled ``mean`` and ``std``, or a Dataset with variables
            ``<variable>_mean`` and ``<variable>_std``. Each number may be an array along the
            dimensions that become channels, or a DataArray along any dimensions of the variable,
            and by the ``month``, ``dayofyear``, ``hour`` or ``season`` of its times, labelled as
            by xarray. Each element of a window takes the number of its own time and place. After
            :meth:`slab`, pass arrays along the whole dimension: each rank takes its part.
        mean, std : mapping or xarray.Dataset, optional
            The same as two mappings or Datasets, by variable: ``normalize(mean=a, std=b)``, or
            ``normalize(a, b)`` for short.

        Returns
        -------
        Samples
            The samples with this transform added.

        Raises
        ------
        OptionError
            If a number is missing, is not finite or does not fit; if a standard deviation is not
            above 0; if there are no windows yet, or a transform is recorded that may have changed
            the fields. If a Dataset that xloader has made holds none of the variables, or lacks
            one that a field uses.
        UnknownNameError
            If a variable does not exist.

        Warns
        -----
        StatisticsWarning
            If a Dataset that xloader has made is of data in other units or on another grid.

        Examples
        --------
        >>> ds = xr.Dataset({"t2m": ("time", [270.0, 280.0, 290.0])})
        >>> samples = ds.xloader.window(time=3).normalize({"t2m": (280.0, 10.0)})
        >>> samples[0][0].tolist()
        [-1.0, 0.0, 1.0]
        """
        from xloader.transforms.normalize import make_normalize

        self.recipe.require_windows()
        require_before(self.recipe, "normalize", self.recipe.is_mapped)
        return self._with_step(make_normalize(self.recipe.planned, stats, mean, std))

    def denormalize(self, array: Any, field: str, ids: Any = None) -> Any:
        """Undo :meth:`normalize` for an array of a field's shape, such as a model's prediction.

        Parameters
        ----------
        array : array
            Floating numbers of shape ``(n, *shapes[field])`` or ``shapes[field]``: a NumPy array,
            a tensor of PyTorch, or an array of any library that knows ``*`` and ``+``.
        field : str
            Name of the field. Its variables say which numbers belong to which channel.
        ids : array_like of int, shape (n,), or int, optional
            Ids of the samples, as ``batch.ids``. Needed if statistics vary from sample to sample:
            by month or day of year, or along windowed dimensions.

        Returns
        -------
        array
            A new array of the same kind, on the same device: each element times its standard
            deviation, plus its mean. Variables that are not normalised stay as they are. The dtype
            is that of ``array``, or float32 for float16 and bfloat16, in which values in their own
            units may be too large.

        Raises
        ------
        UnknownNameError
            If there is no such field.
        OptionError
            If no variable of the field is normalised; if the shape or the dtype does not fit; if
            ids are needed and missing; if a transform after :meth:`normalize` has changed a
            dimension along which the numbers vary.

        Notes
        -----
        This is the inverse of :meth:`normalize` up to rounding. Transforms recorded after it are
        not undone. Where they reorder channels, or keep some of them, labels say which numbers
        belong to which.

        Examples
        --------
        >>> ds = xr.Dataset({"t2m": ("time", [270.0, 280.0, 290.0])})
        >>> samples = ds.xloader.window(time=3).normalize({"t2m": (280.0, 10.0)})
        >>> samples.denormalize(samples[0][0], "t2m").tolist()
        [270.0, 280.0, 290.0]
        """
        if field not in self._inverses:
            from xloader.transforms.denormalize import make_denormalize

            self._inverses[field] = make_denormalize(self.recipe, self._layouts, field)
        return self._inverses[field].apply(array, ids)

    def fillna(self, value: Any) -> Self:
        """Replace NaN by a number.

        Parameters
        ----------
        value : float or mapping of str to float
            One number, or one for each variable; after ``map`` or a recorded method, one for each
            field.

        Returns
        -------
        Samples
            The samples with this transform added.

        Raises
        ------
        UnknownNameError
            If a variable does not exist.
        OptionError
            If a value is not a number, or there are no windows yet.
        """
        from xloader.transforms.fillna import make_fillna

        if self.recipe.is_mapped:
            return self._with_step(make_method("fillna", (value,), {}))
        return self._with_step(make_fillna(self.recipe, value))

    def map(
        self,
        fn: Callable[..., xr.Dataset],
        *,
        per: Literal["batch", "sample"] = "batch",
        random: bool = False,
    ) -> Self:
        """Run a function on the samples; the data variables that it returns are the new fields.

        Fields that existed before keep their order. New fields follow in the order of the returned
        Dataset. Batches are made on several threads, so ``fn`` runs on several threads at once. It
        is called once on one sample of zeros to find out names, shapes and dtypes.

        Parameters
        ----------
        fn : callable
            Takes and returns an :class:`xarray.Dataset` of the fields. With ``random=True`` it is
            called as ``fn(ds, rng)``.
        per : {"batch", "sample"}
            Whether ``fn`` is given whole batches, with a leading dimension ``sample``, or one
            sample at a time.
        random : bool, default False
            Whether ``fn`` also gets an :class:`~xloader.Rng`. There is a new one
            for each batch, and its arrays have one row for each sample of the batch. With
            ``per="sample"`` they have one row.

        Returns
        -------
        Samples
            The samples with this transform added.

        Raises
        ------
        OptionError
            If ``fn`` is not callable, ``per`` is not one of the choices, ``random`` is not a bool,
            or there are no windows yet.

        Notes
        -----
        *Random numbers.* The numbers that ``rng`` draws for a sample depend on the seed, the epoch
        and the sample's id. Where weights draw a sample several times in an epoch, they also
        depend on which of these times it is. They do not depend on batches, threads, workers and
        ranks, and they change from epoch to epoch. Samples read outside a planned epoch, by
        ``samples[i]`` or by a ``MapDataset`` under a sampler other than
        :class:`~xloader.torch.ChunkSampler`, use seed 0 and epoch 0. Each function draws numbers
        of its own, unless two draw by the same ``name``.

        *Names of dimensions.* A dimension keeps its name if all fields that have it agree in its
        size, its offsets and its channels. If two fields differ, it is named ``<field>_<dim>`` in
        every field that has it. With ``inputs("t2m", "u10")`` and ``targets("t2m")`` there are
        ``inputs_channel`` and ``targets_channel``; with one field, or the same channels in both,
        there is ``channel``.

        *Labels.* Labels that are the same for every sample are a coordinate with an index, under
        the dimension's own name: those of channels, and of dimensions that are not windowed. In a
        batch, labels of windowed dimensions are ``<dim>_label (sample, <dim>)``. In a Dataset of
        one sample they are an index like the others. ``sample`` holds the ids.

        *A pitfall of xarray.* Arithmetic and ``assign`` keep only elements with the same labels,
        in the order of the Dataset that is assigned to. So ``ds.assign(inputs=...)`` loses a
        channel that was added and undoes a flip of ``lon``. Return a new Dataset, or drop the
        labels first with ``.drop_vars``.

        Examples
        --------
        >>> import numpy as np
        >>> ds = xr.Dataset({name: ("time", np.arange(4.0)) for name in ("u10", "v10")})
        >>> def with_speed(batch):
        ...     wind = batch["inputs"]
        ...     speed = np.hypot(wind.sel(channel="u10"), wind.sel(channel="v10"))
        ...     speed = speed.expand_dims(channel=["speed"])
        ...     return xr.Dataset({"inputs": xr.concat([wind, speed], dim="channel")})
        >>> samples = ds.xloader.window(time=1).inputs("u10", "v10").map(with_speed)
        >>> samples.channels("inputs")
        ('u10', 'v10', 'speed')

        Add noise to each sample, and change the sign of half of them:

        >>> def augment(batch, rng):
        ...     values = batch["inputs"] + rng.normal(batch["inputs"].shape[1:], 0.0, 0.1)
        ...     is_turned = xr.DataArray(rng.uniform() < 0.5, dims="sample")
        ...     return xr.Dataset({"inputs": xr.where(is_turned, -values, values)})
        >>> noisy = ds.xloader.window(time=1).inputs("u10").map(augment, random=True)

        Sample 3 gets the same numbers in any batch:

        >>> bool((noisy[3][0] == noisy[[0, 3]].inputs[1]).all())
        True
        """
        known = product(("batch", "sample"), (True, False))
        if (per, random) not in known or not callable(fn):
            raise OptionError(
                "map cannot take these arguments",
                given=f"{fn!r}, per={per!r}, random={random!r}",
                allowed='a callable, per="batch" or per="sample", random=True or random=False',
                remedy="pass a function that takes and returns an xarray.Dataset",
            )
        return self._with_step(Map(fn, per, random))

    def _with_step(self, step: Transform) -> Self:
        require_windows_before(self.recipe, step.describe().partition("(")[0])
        return self._but(steps=(*self.recipe.planned.steps, step))

    def _batch_of_zeros(self) -> xr.Dataset:
        return frame_of_zeros(self.recipe, self._layouts)

    # Samples around points

    def at_points(
        self,
        table: Any,
        *,
        method: Literal["nearest"] | Mapping[str, Literal["nearest"] | None] | None = None,
        tolerance: Any = None,
        at: At | Mapping[str, At] = "center",
        outside: Literal["raise", "drop"] = "raise",
    ) -> Self:
        """Take one sample around each point of a table, such as stations or observations.

        Row ``i`` of the table is sample ``i``: the table may be in any order, and name a place
        more than once. Strides of :meth:`window` do not matter here, because a window may begin
        at any element.

        Parameters
        ----------
        table : pandas.DataFrame, xarray.Dataset or mapping of str to array-like
            One row for each point. Each windowed dimension needs a column of its name, with
            labels; along a dimension without labels, values count selected elements. Every other
            column becomes a field after the existing ones, with one value for each sample:
            numbers and bools keep their dtype; text and categories become int64 codes, and
            :attr:`classes` gives the text of each code. Named levels of a DataFrame's index are
            columns too. A Dataset must have one dimension. A mapping holds 1-d arrays.
        method : {None, "nearest"} or mapping of str to these, optional
            How labels are looked up, as in :meth:`xarray.Dataset.sel`: by default they must be
            equal; "nearest" takes the closest one. A mapping says it for each dimension by name.
        tolerance : optional
            Greatest distance between a point's label and the closest one, in the unit of the
            labels; for times a timedelta, or text such as ``"1h"``. A mapping gives it by
            dimension. Without a tolerance, "nearest" takes points that lie beyond the first or
            last label by half a step at most. A larger tolerance also takes points farther off.
        at : {"center", "start", "end"} or mapping of str to these, default "center"
            Where in its window a point lies. ``"center"``: at position ``size // 2`` of the
            window, so the window begins ``size // 2 * dilation`` elements before the point.
            ``"start"``: the window begins at the point. ``"end"``: it ends there, as the time
            steps before an observation do. Dimensions that a mapping does not name are centred.
        outside : {"raise", "drop"}, default "raise"
            What to do about points that have no sample, because no label matches, or the window
            leaves the array or crosses a gap. ``"drop"`` leaves them out: ``print(samples)`` and
            ``explain()`` say how many, and ids count the points that are left.

        Returns
        -------
        Samples
            One sample for each point.

        Raises
        ------
        UnknownNameError
            If the table lacks the column of a windowed dimension, or points lie off the grid.
        OptionError
            If the windows of points leave the array, or cross a gap that :meth:`window` drops.
        OptionError
            If a label is missing (NaN); if the labels of a dimension are not sorted, or occur
            more than once; if a column has the name of a field, a coordinate or another
            dimension; if an option is outside its range; if there are no windows yet, samples were
            chosen before, or a transform is recorded that may have changed the fields.
        UnsupportedDataError
            If the table is of another kind, labels are of another kind than those of their
            dimension, or a column holds neither numbers nor text.
        OptionError
            If the columns differ in length, or the table is not one-dimensional.
        EmptySamplesError
            If no point is left.

        See Also
        --------
        weighted : ``weighted(balance="column")`` draws each class equally often.
        ids : The samples at certain labels, among all windows.

        Examples
        --------
        >>> import pandas as pd, xarray as xr
        >>> values = np.arange(24.0).reshape(4, 6)
        >>> ds = xr.Dataset({"sst": (("lat", "lon"), values)}, {"lat": [30, 20, 10, 0]})
        >>> ds = ds.assign_coords(lon=np.arange(0.0, 60, 10))
        >>> buoys = pd.DataFrame(
        ...     {"lat": [19, 11], "lon": [22.0, 38.0], "waves": [1.5, 0.5], "sea": ["calm", "high"]}
        ... )
        >>> samples = ds.xloader.window(lat=1, lon=3).at_points(buoys, method="nearest")
        >>> samples.fields, samples.classes
        (('sst', 'waves', 'sea'), {'sea': ('calm', 'high')})
        >>> sst, waves, sea = samples[1]
        >>> sst.tolist(), float(waves), int(sea)
        ([[15.0, 16.0, 17.0]], 0.5, 1)
        """
        from xloader.recipe.points import PointRules, place_points

        require_before(self.recipe, "at_points", self.recipe.is_mapped)
        rules = PointRules(method, tolerance, at, outside)
        windows, subset = place_points(self.recipe.planned, table, rules)
        return self._but(windows=windows, subset=subset)

    # Choosing samples

    def select(self, ids: ArrayLike | slice | SampleMask) -> Self:
        """Keep some samples, which get new ids in the order given: ``0, 1, 2, ...``.

        A sample named twice occurs twice. :meth:`positions` gives the places of samples in the
        store.

        Parameters
        ----------
        ids : slice, array-like of int, or of bool, or SampleMask
            Sample ids, 1-d, or a mask with one flag for each sample, as :meth:`is_valid` makes it.
            A mask takes one bit for each sample, and nothing for each id.

        Returns
        -------
        Samples
            The samples that were kept.

        Raises
        ------
        SampleIndexError
            If an id is out of range, or a mask has another length.
        EmptySamplesError
            If no sample is left, or all that are left have weight 0. Only ``out.remaining_ids`` of
            a :meth:`mosaic`, or a part of it, may be empty: then there are no samples, and their
            loader has no batches.
        OptionError
            If there are no windows yet.

        Examples
        --------
        >>> import xarray as xr
        >>> ds = xr.Dataset({"t2m": ("time", np.arange(10.0))})
        >>> samples = ds.xloader.window(time=1)
        >>> warm = samples.select([2, 7, 5])
        >>> len(warm), warm[1][0].tolist()
        (3, [7.0])
        """
        from xloader.samples import subset_verbs

        return self._but(subset=subset_verbs.select(self.recipe, ids))

    def sample(self, n: int, *, seed: int = 0) -> Self:
        """Keep some samples at random, the same ones in every epoch, for a quick validation.

        All have the same chance, none is taken twice, and they stay in the order of the store. They
        depend on ``n``, on the seed and on the number of samples alone, so all ranks take the same.

        Parameters
        ----------
        n : int
            Number of samples to keep, from 1 to all.
        seed : int, default 0
            Another seed keeps other samples.

        Returns
        -------
        Samples
            ``n`` samples, with the ids ``0, 1, 2, ...``.

        Raises
        ------
        OptionError
            If ``n`` is more than there are, or there are no windows yet.
        EmptySamplesError
            If all samples that are kept have weight 0.

        Notes
        -----
        A chunk is read if one of its samples is kept, so a few samples of each chunk cost as much
        as all. For a validation that reads little, keep whole chunks: cut the samples with
        :meth:`split`.

        Examples
        --------
        >>> import xarray as xr
        >>> ds = xr.Dataset({"t2m": ("time", np.arange(1000.0))})
        >>> samples = ds.xloader.window(time=1)
        >>> samples.sample(3, seed=1).positions([0, 1, 2])["time"].values.tolist()
        [1, 296, 617]
        """
        from xloader.samples import subset_verbs

        return self._but(subset=subset_verbs.sample(self.recipe, n, seed))

    def is_valid(
        self,
        *fields: str,
        at_least: float = 1.0,
        mask: str | xr.DataArray | None = None,
        memory: int | str = "2GiB",
        threads: int | None = None,
        cache: str | os.PathLike[str] | Literal[False] | None = None,
        client: Any = None,
    ) -> SampleMask:
        """Find the samples that hold enough valid values. This reads each chunk once, at once.

        A value is valid if it is not NaN after decoding; fill values are NaN then. Transforms do
        not matter. Integers without fill values are always valid, and are not read.

        Parameters
        ----------
        *fields : str
            Names of the fields to check; by default all. The name of a variable stands for that
            variable alone, in each field that has it. A sample is valid if each of them is.
        at_least : float, default 1.0
            Share of the values of a field, or of its variable, that must be valid. Those of all
            channels count together.
        mask : str or xarray.DataArray, optional
            Where values count: the name of a boolean variable, or a boolean DataArray along some
            dimensions of the samples, such as a land-sea mask that is True over sea. Values where
            it is False count as not valid, as after ``ds.where(mask)``. It applies to variables
            that have all its dimensions. It is kept in memory, one byte an element.
        memory : int or str, default "2GiB"
            Memory for chunks and for counts of windows, as for :meth:`loader`.
        threads : int, optional
            Number of threads that read and count; by default one for each core.
        cache : path, None or False, optional
            Folder in which the mask is kept, to be found by the next call with the same samples and
            arguments. By default the user's cache folder, but only for files and folders of this
            machine, where names, sizes and times of files show whether values changed. For other
            sources, pass a folder, and another one if values change. ``False`` keeps nothing.
        client : distributed.Client or False, optional
            A dask cluster whose workers read the chunks. By default the active client, if there is
            one and its workers can open the data; False for the threads of this process.
            ``memory`` holds for each worker process, and ``threads`` is not used on a cluster.

        Returns
        -------
        SampleMask
            One bit for each sample id. ``mask.num_reads`` says how many chunks were read for it.

        Raises
        ------
        UnknownNameError
            If a field or variable does not exist.
        OptionError
            If ``at_least`` is not in [0, 1]; if the mask is not boolean, or has another shape or
            other labels than the selected elements; if there are no windows yet.
        MemoryBudgetError
            If the memory is too small for one chunk, the mask, or the counts of the windows that a
            chunk reaches into.
        ChunkError
            If a chunk cannot be read.
        ClusterError
            If the cluster fails.

        Examples
        --------
        >>> import xarray as xr
        >>> sst = [[280.0, 281.0], [np.nan, 282.0], [np.nan, np.nan]]
        >>> samples = xr.Dataset({"sst": (("time", "x"), sst)}).xloader.window(time=2, stride=1)
        >>> mask = samples.is_valid("sst", at_least=0.75)
        >>> np.asarray(mask).tolist(), len(samples.select(mask))
        ([True, False], 1)
        """
        from xloader.jobs.valid.valid_samples import find_valid

        return find_valid(
            self.recipe,
            fields,
            at_least=at_least,
            mask=mask,
            memory=memory,
            threads=threads,
            cache=cache,
            client=client,
        )

    def stats(
        self,
        *,
        dim: Dims = None,
        by: Clock | None = None,
        quantiles: Iterable[float] = (),
        leads: Lead | Iterable[Lead] = (),
        weights: Literal["area"] | xr.DataArray | None = None,
        memory: int | str = "2GiB",
        threads: int | None = None,
        progress: bool | None = None,
        path: str | os.PathLike[str] | None = None,
        part: tuple[int, int] | None = None,
        overwrite: bool = False,
        client: Any = None,
    ) -> Any:
        """Compute statistics of the stored values that the samples need. This reads them, at once.

        Each element counts once, however many windows hold it, also after :meth:`weighted`.
        Elements that no sample needs do not count, so nothing of a test year gets into the
        statistics of the training samples. Transforms do not matter. NaN does not count. Each
        chunk is read once.

        Parameters
        ----------
        dim : str, iterable of str, or ..., optional
            The dimensions that are reduced, as in xarray; ``...`` for all. By default all but those
            that become channels. ``dim="time"`` gives statistics of each cell.
        by : {"month", "dayofyear", "hour", "season"}, optional
            Statistics by a label of the time. The result has a dimension of that name.
        quantiles : iterable of float, optional
            Quantiles to estimate, from 0 to 1: at most 0.4 % away in rank at the median, 0.08 % at
            0.01 and 0.99. They need the library crick.
        leads : int, duration, or iterable of them, optional
            Statistics of differences along time, ``x(t + lead) - x(t)``, instead of the values:
            leads are numbers of steps or durations such as ``"6h"``; 0 stands for the values
            themselves. Only pairs of elements count whose labels differ by the lead, and which
            samples need both. With ``by``, the earlier time counts. The result has a dimension
            ``lead``.
        weights : {"area"} or xarray.DataArray, optional
            Weights of elements: ``"area"`` for the cosine of the latitude, or numbers along some
            dimensions. Variables without these dimensions are not weighted. Counts, minima and
            maxima are not weighted either, but elements of weight 0 still count in them.
        memory : int or str, default "2GiB"
            Memory of the job for chunks at work, statistics under way and the result.
        threads : int, optional
            Number of threads that read and compute; by default one for each core. The result has
            the same bits for any number.
        progress : bool, optional
            Whether to show a progress bar; by default where stderr is a terminal.
        path : path, optional
            A netCDF file or Zarr store, ending in ``.nc`` or ``.zarr``, to write the result to.
            Partial results lie beside it meanwhile. If the job is killed, call it again: it reads
            only what is missing, and if the result is there already, it returns that.
        part : (int, int), optional
            Compute the part ``i`` of ``n`` only, as ``(i, n)`` with ``i`` from 0. Then
            :func:`xloader.merge` makes the result, with the same bits.
        overwrite : bool
            Whether to replace what lies at ``path``, and partial results of another job.
        client : distributed.Client or False, optional
            A dask cluster whose workers read the chunks. By default the active client, if there is
            one and its workers can open the data; False for the threads of this process.
            ``memory`` holds for each worker process, and ``threads`` is not used on a cluster.

        Returns
        -------
        xarray.Dataset or PartialStats
            The variables with a dimension ``stat``, whose labels are ``"count"``, ``"mean"``,
            ``"std"`` (with ``ddof=0``), ``"min"``, ``"max"``, and ``"q0.5"`` for quantiles, in
            float64. :meth:`normalize` takes it. With ``part``, partial statistics that pickle.

        Raises
        ------
        OptionError, UnknownNameError
            If an option cannot be used.
        MemoryBudgetError
            If the memory is too small; the error gives the minimum that is enough.
        ChunkError
            If a chunk cannot be read.
        ClusterError
            If the dask cluster fails.
        TargetError
            If something else lies at ``path`` already.
        StateError
            If partial results there are of other samples, options or data.
        StoreFullError
            If there is no room left for partial results. What is written counts when you call it
            again.

        Examples
        --------
        >>> ds = xr.Dataset({"t2m": (("time", "x"), [[1.0, 2.0], [3.0, 4.0], [9.0, 9.0]])})
        >>> train = ds.isel(time=slice(0, 2)).xloader.window(time=2)
        >>> stats = train.stats()
        >>> stats.t2m.sel(stat=["count", "mean", "max"]).values.tolist()
        [4.0, 2.5, 4.0]
        >>> train.stats(dim="time").t2m.sel(stat="mean").values.tolist()
        [2.0, 3.0]
        """
        from xloader.jobs.statistics.statistics import compute_stats

        return compute_stats(
            self.recipe,
            dim=dim,
            by=by,
            quantiles=quantiles,
            leads=leads,
            weights=weights,
            memory=memory,
            threads=threads,
            progress=progress,
            path=path,
            part=part,
            overwrite=overwrite,
            client=client,
        )

    def score(
        self,
        fn: Callable[[Batch], Any],
        *,
        memory: int | str = "2GiB",
        threads: int | None = None,
        batch_size: int | None = None,
        cache: str | os.PathLike[str] | Literal[False] | None = None,
        client: Any = None,
    ) -> NDArray[np.float64]:
        """Compute a number for each sample, for :meth:`weighted` and :meth:`select`.

        This reads all samples, at once, in an order in which each chunk is read once where the
        memory allows that.

        Parameters
        ----------
        fn : callable
            Takes a :class:`Batch` of NumPy arrays, after all transforms, and returns a number for
            each of its samples: a rain rate, a variance, a distance to a front.
        memory : int or str, default "2GiB"
            Memory for chunks and batches, as for :meth:`loader`.
        threads : int, optional
            Number of threads that load; by default one for each core. ``fn`` is called by the
            thread that calls ``score``.
        batch_size : int, optional
            Most samples that ``fn`` is given at a time; 256 by default.
        cache : path, None or False, optional
            Folder in which the scores are kept, as for :meth:`is_valid`. They are found again while
            data, samples and the code of ``fn`` are the same. Only those of plain functions are
            kept, without a closure, default arguments, and names of your own modules' numbers and
            functions, because these may change unseen. Scores after :meth:`map` are kept only in a
            folder of your own.
        client : distributed.Client or False, optional
            A dask cluster whose workers read the chunks. By default the active client, if there is
            one and its workers can open the data; False for the threads of this process.
            ``memory`` holds for each worker process, and ``threads`` is not used on a cluster.
            ``fn`` is then called on the workers, with batches of other sizes. Chunks that windows
            straddle where the work is divided are read by two tasks.

        Returns
        -------
        numpy.ndarray
            The number of each sample id, float64, shape ``(len(samples),)``.

        Raises
        ------
        OptionError
            If ``fn`` does not return a number for each sample, or there are no windows yet.
        TransformError
            If ``fn`` raises.
        MemoryBudgetError
            If the memory is too small; the error gives the minimum that is enough.
        ChunkError
            If a chunk cannot be read.
        ClusterError
            If the cluster fails.

        Examples
        --------
        >>> import xarray as xr
        >>> rain = xr.DataArray([0.0, 0.0, 3.0, 1.0, 0.0, 8.0], dims="time", name="rain")
        >>> samples = rain.to_dataset().xloader.window(time=2)
        >>> scores = samples.score(lambda batch: batch.rain.max(axis=1))
        >>> scores.tolist(), len(samples.select(scores > 0))
        ([0.0, 3.0, 8.0], 2)
        >>> often = samples.weighted(0.1 + scores)
        """
        from xloader.jobs.valid.sample_scores import score_samples

        return score_samples(
            self.recipe,
            fn,
            memory=memory,
            threads=threads,
            batch_size=batch_size,
            cache=cache,
            client=client,
        )

    def dropna(self, *fields: str, at_least: float = 1.0, client: Any = None) -> Self:
        """Drop the samples that hold too few valid values: ``select(is_valid(...))``.

        This reads each chunk once, at once, unless the mask is in the cache.

        Parameters
        ----------
        *fields : str
            Names of the fields or variables to check; by default all fields.
        at_least : float, default 1.0
            Share of the values of a field or variable that must not be NaN.
        client : distributed.Client or False, optional
            A dask cluster whose workers read the chunks, as for :meth:`is_valid`.

        Returns
        -------
        Samples
            The samples that are valid; see :meth:`is_valid`.

        Raises
        ------
        EmptySamplesError
            If no sample is valid.
        UnknownNameError, OptionError, ChunkError, ClusterError
            As :meth:`is_valid` raises them.
        """
        return self.select(self.is_valid(*fields, at_least=at_least, client=client))

    def weighted(
        self,
        weights: ArrayLike | None = None,
        num_samples: int | None = None,
        *,
        balance: str | None = None,
    ) -> Self:
        """Draw in each epoch how often a sample occurs, in proportion to its weight.

        Parameters
        ----------
        weights : array-like of float, optional
            One weight for each sample id, finite and not negative. With equal weights and
            ``num_samples`` below the number of ids, each epoch is a random part of the samples.
            With more, each epoch holds all samples, and some of them more than once. If only
            ``num_samples`` is given, all weights are equal.
        num_samples : int, optional
            Number of samples in an epoch, ``loader.num_samples``. By default the number of ids,
            ``len(samples)``, which weights do not change.
        balance : str, optional
            In place of ``weights``: the name of a column of :meth:`at_points` that holds text,
            categories, integers or bools. Each of its values is then drawn equally often, and
            samples with one value are drawn equally often among themselves.

        Returns
        -------
        Samples
            The same samples and ids, with weights.

        Raises
        ------
        OptionError
            If there is not one weight for each sample, or a weight is negative or not finite; if
            all are 0; if ``num_samples`` is below 1, or there are no windows yet; if ``weights``
            and ``balance`` are both given, or nothing is; if ``balance`` names a column of floats.
        UnknownNameError
            If ``balance`` names no column.

        Notes
        -----
        The method is systematic resampling, keyed by the loader's seed and the epoch: a sample
        whose share of an epoch is 2.3 occurs 2 or 3 times in it, and 2.3 times on average. So with
        equal weights none comes twice before all came once, as they may in PyTorch's
        ``WeightedRandomSampler``. New weights replace those given before. Each chunk is still read
        once in an epoch, however often its samples occur. A later :meth:`select` keeps each
        sample's weight, and ``num_samples`` if it was given.

        Examples
        --------
        >>> import xarray as xr
        >>> ds = xr.Dataset({"rain": ("time", np.arange(4.0))})
        >>> samples = ds.xloader.window(time=1).weighted([0, 1, 1, 2], num_samples=8)
        >>> loader = samples.loader(batch_size=8, output="numpy")
        >>> len(samples), loader.num_samples, sorted(next(iter(loader)).ids.tolist())
        (4, 8, [1, 1, 2, 2, 3, 3, 3, 3])
        """
        from xloader.recipe.points import choose_weights
        from xloader.samples import subset_verbs

        chosen = choose_weights(self.recipe, weights, balance, num_samples)
        return self._but(subset=subset_verbs.weigh(self.recipe, chosen, num_samples))

    def random(self, n: int, per: str | Sequence[str] | None = None) -> Self:
        """Draw windows at random, anew in each epoch: so many of all, or of each scene.

        Parameters
        ----------
        n : int
            Number of windows to draw. None is drawn twice in an epoch.
        per : str or sequence of str, optional
            Dimensions with windows. ``n`` windows are drawn at each position along them: with
            ``per="scene"`` of each scene, with ``per=("scene", "time")`` of each scene at each
            time. By default ``n`` of all windows.

        Returns
        -------
        Samples
            The same samples and ids, of which an epoch has some.

        Raises
        ------
        OptionError
            If ``n`` is below 1; if the windows have no position along a dimension of ``per``; if
            the samples are :meth:`weighted`, or there are no windows yet.

        See Also
        --------
        sample : The same samples in every epoch.
        weighted : Each sample as often as its weight says.

        Notes
        -----
        All windows of a group have the same chance. What is drawn depends on the loader's seed, on
        the epoch and on the group alone, not on ranks, so all ranks draw the same. Nothing is kept
        per window: at a stride of 1, any patch of a scene may be drawn. Each chunk is read once in
        an epoch, as by any plan, and only if a window that was drawn needs it.

        A group with fewer windows than ``n`` gives all it has. ``print(samples)`` and ``explain()``
        say how many groups do, and how many samples an epoch has then. It may follow
        :meth:`select`, :meth:`dropna` and :meth:`split`, and come before them: windows are drawn of
        those that are left. ``loader.num_samples`` counts the samples of an epoch;
        ``len(samples)`` does not change.

        Examples
        --------
        >>> import xarray as xr
        >>> ds = xr.Dataset({"red": (("scene", "y", "x"), np.zeros((4, 100, 100), "f4"))})
        >>> samples = ds.xloader.window(scene=1, y=32, x=32, stride=1)
        >>> patches = samples.random(8, per="scene")
        >>> loader = patches.loader(batch_size=32, output="numpy")
        >>> len(patches), loader.num_samples
        (19044, 32)
        >>> (batch,) = loader
        >>> np.bincount(patches.positions(batch.ids)["scene"]).tolist()
        [8, 8, 8, 8]
        """
        from xloader.samples import subset_verbs

        return self._but(subset=subset_verbs.draw_per_group(self.recipe, n, per))

    def split(
        self,
        parts: Mapping[str, Any] | None = None,
        *,
        gap: Gap | Literal["auto"] = "auto",
        blocks: Mapping[str, Size] | None = None,
        groups: str | ArrayLike | None = None,
        seed: int = 0,
        **along: Mapping[str, Any],
    ) -> Split[Self]:
        """Divide the samples into named parts that share no element, such as train and valid.

        A sample belongs to a part if all its elements do, from the first to the last one that its
        fields need. Samples that reach over the edge of a part belong to none; the result counts
        them. Variables without the dimension that is split, such as a static mask, are the same in
        all parts.

        Parameters
        ----------
        parts : mapping of str to part, optional
            The parts by name. Without ``blocks`` and ``groups``, a part is a region: labels by
            dimension, as in ``{"north": {"lat": slice(90, 0)}, "south": {"lat": slice(-1, -90)}}``.
            With them it is a fraction, or with ``groups`` also a list of groups.
        gap : "auto", int, duration, or mapping of str to these, default "auto"
            The least distance, in elements, between the windows of two parts. ``"auto"`` keeps
            them from sharing elements. More is useful where neighbouring elements are alike:
            ``gap="10D"``. Elements that belong to no part may lie in the gap.
        blocks : mapping of str to (int or duration), optional
            Least size of random blocks, along dimensions with windows. A block is made of whole
            chunks, unless one chunk holds the whole dimension, and belongs to one part.
        groups : str or array-like, optional
            The name of a coordinate along a dimension with windows, such as ``"station"``, or of a
            column of :meth:`at_points`; or a group for each sample, such as the number of a storm.
            All of a group belongs to one part. With a group for each sample, a sample that shares
            elements with a part named before its own belongs to none.
        seed : int, default 0
            Fixes which blocks or groups belong to which part, where fractions are given.
        **along
            Parts along dimensions with windows: ``time={"train": slice(None, "2015"), "valid":
            slice("2016", None)}``. Labels are those of :meth:`sel`. Floats are fractions of the
            dimension, one after the other: ``time={"train": 0.8, "valid": 0.2}``.

        Returns
        -------
        Split
            A mapping of names to samples. Its ``num_crossing`` and ``num_apart`` count the samples
            that reach over an edge or lie in a gap, and those that touch no part.

        Raises
        ------
        OptionError
            If parts overlap, fractions do not fit, a dimension has no windows, or there are fewer
            blocks or groups than parts.
        UnknownNameError
            If a dimension, label, coordinate or group does not exist.
        EmptySamplesError
            If a part has no samples.

        Examples
        --------
        >>> import pandas as pd
        >>> time = pd.date_range("2001-01-01", periods=100)
        >>> ds = xr.Dataset({"t2m": ("time", np.arange(100.0))}, {"time": time})
        >>> samples = ds.xloader.window(time=3, stride=1)
        >>> split = samples.split(
        ...     time={"train": slice(None, "2001-03-01"), "valid": slice("2001-03-02", None)}
        ... )
        >>> split
        <xloader.Split>
            train       58 samples
            valid       38 samples
            in no part  2 cross the edge of a part or its gap
        >>> overlap(split["train"], split["valid"])
        0
        """
        from xloader.samples import splits

        request = splits.SplitRequest(parts, along, gap, blocks, groups, seed)
        # All ranks of a group must make the same parts, so the whole of a slab counts.
        return splits.make_split(self.recipe.planned, request, self.select)

    def slab(self, dim: str, rank: int, size: int) -> Self:
        """Keep one rank's part of each sample, for a group of ranks that share the samples.

        All ranks of the group get the same samples in the same order. Each gets its own slab of
        one dimension, and reads only the chunks of that slab. The ranks of a group count as one
        data rank: give them the same ``world`` in the loader, and call the same
        methods with the same arguments on each. The state of one of them restores all.

        Parameters
        ----------
        dim : str
            A dimension without windows.
        rank, size : int
            Number of the part, in ``[0, size)``, and number of parts. Parts differ by one element
            at most.

        Returns
        -------
        Samples
            The same samples, with this part of the dimension.

        Raises
        ------
        UnknownNameError
            If the dimension does not exist.
        OptionError
            If there are no windows yet; if the dimension is windowed, or has fewer than ``size``
            elements; if ``rank`` or ``size`` is out of range; if the samples are a slab already;
            if a function of :meth:`map` or a method of xarray is recorded already.

        Notes
        -----
        *Transforms.* Only :meth:`normalize` and :meth:`fillna` may come before the slab. Functions
        of :meth:`map` and recorded methods come after it, and see only the slab: ``.mean("lat")``
        gives each rank the mean of its own part. The group has to combine these means itself.

        *Numbers along the dimension* are given for the whole of it: statistics for
        :meth:`normalize`, or a DataArray for ``where``, ``clip`` and ``fillna``. Each rank takes
        its part, by label if both have labels.

        *Random numbers.* A random function draws the same numbers for a sample on all ranks of a
        group, so the ranks agree on whether to flip it. As a consequence, noise in the shape of a
        slab repeats from slab to slab. To avoid that, draw it under a name with the rank in it, as
        in ``rng.normal(shape, name=f"noise {rank}")``.

        Examples
        --------
        >>> import xarray as xr
        >>> ds = xr.Dataset({"t2m": (("time", "lat"), np.arange(30.0).reshape(6, 5))})
        >>> samples = ds.xloader.window(time=2)
        >>> south, north = (samples.slab("lat", rank, 2) for rank in range(2))
        >>> south[1][0].tolist(), north[1][0].tolist()
        ([[10.0, 11.0], [15.0, 16.0]], [[12.0, 13.0, 14.0], [17.0, 18.0, 19.0]])
        """
        from xloader.samples import subset_verbs

        return type(self)(subset_verbs.cut_slab(self.recipe, dim, rank, size))

    def ids(
        self,
        indexers: Mapping[str, Any] | None = None,
        method: str | None = None,
        tolerance: Any = None,
        **labels: Any,
    ) -> Ints:
        """Ids of the samples whose windows begin at certain labels.

        Parameters
        ----------
        indexers : mapping of str to (label, slice or sequence of labels), optional
            Labels along windowed dimensions at which windows begin, with the meaning that labels
            have in :meth:`xarray.Dataset.sel`. Along dimensions that are not named, all windows
            are taken. Along a dimension without labels, values count selected elements.
        method, tolerance : optional
            As for :meth:`sel`: ``method="nearest"`` takes the window that begins closest to a
            label.
        **labels
            The same as ``indexers``, as keyword arguments.

        Returns
        -------
        numpy.ndarray
            Sample ids, int64, shape ``(n,)``, by window in the order of the labels.

        Raises
        ------
        UnknownNameError
            If a dimension does not exist, or no window begins at a label.
        OptionError
            If a dimension has no windows, or xarray refuses the request.
        EmptySamplesError
            If such windows exist, but none is among the samples.

        Notes
        -----
        A window that begins before the end of a slice may reach beyond it. If two splits must not
        share elements, split the store by :meth:`sel`, or leave a gap of a window's span.

        Examples
        --------
        >>> import pandas as pd, xarray as xr
        >>> time = pd.date_range("2001-01-01", periods=10)
        >>> ds = xr.Dataset({"t2m": ("time", np.arange(10.0))}, {"time": time})
        >>> samples = ds.xloader.window(time=3, stride=1)
        >>> samples.ids(time="2001-01-04").tolist()
        [3]
        >>> samples.ids(time=slice("2001-01-06", None)).tolist()
        [5, 6, 7]
        """
        from xloader.samples import subset_verbs

        wanted = {**(indexers or {}), **labels}
        return subset_verbs.ids_at(self.recipe, wanted, method=method, tolerance=tolerance)

    # Properties of the samples

    def __len__(self) -> int:
        """Number of samples. Their ids are ``0`` to ``len(samples) - 1``."""
        return self.recipe.num_ids

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the dimensions that the selection leaves."""
        return tuple(self.recipe.dim_sizes)

    @property
    def sizes(self) -> Mapping[str, int]:
        """Number of selected elements along each dimension."""
        return dict(self.recipe.dim_sizes)

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields, after all transforms."""
        return tuple(output.name for output in self._outputs)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of one sample of each field, after all transforms."""
        return {output.name: output.shape for output in self._outputs}

    @property
    def dtypes(self) -> dict[str, np.dtype]:
        """Dtype of each field, after all transforms."""
        return {output.name: output.dtype for output in self._outputs}

    def channels(self, field: str) -> tuple[str, ...]:
        """Names of a field's channels, such as ``("t2m", "z_500")``.

        Parameters
        ----------
        field : str
            Name of the field.

        Returns
        -------
        tuple of str
            One name for each channel.

        Raises
        ------
        UnknownNameError
            If the field does not exist.
        OptionError
            If the field has no channels.
        """
        find(field, self.fields, "field")
        channels = {output.name: output.channels for output in self._outputs}[field]
        if channels is None:
            raise OptionError(
                f"the field {field!r} has no channels",
                given=f"shape {self.shapes[field]}",
                remedy=f'make the field with .field("{field}", ...)',
            )
        return channels

    @property
    def classes(self) -> dict[str, tuple[str, ...]]:
        """Text of each code, for the fields of :meth:`at_points` that hold text or categories."""
        columns = self.recipe.label_columns
        return {column.name: column.classes for column in columns if column.classes is not None}

    @property
    def coords(self) -> xr.Coordinates:
        """The source's coordinates, cut to the selection, as :attr:`xarray.Dataset.coords`.

        Examples
        --------
        >>> grid = xr.Dataset({"sst": ("lat", np.zeros(3))}, {"lat": [-30.0, 0.0, 30.0]})
        >>> grid.xloader.sel(lat=slice(0, 30)).coords["lat"].values.tolist()
        [0.0, 30.0]
        """
        return single_samples.coords_of(self.recipe)

    def positions(self, ids: ArrayLike) -> xr.Dataset:
        """Positions in the store at which samples begin.

        Parameters
        ----------
        ids : array-like of int
            Sample ids, 1-d.

        Returns
        -------
        xarray.Dataset
            One variable along ``sample`` for each windowed dimension: the stored offset of the
            window's first element. Where the dimension has labels, the label of that element is a
            coordinate ``<dim>_label``.

        Raises
        ------
        SampleIndexError
            If an id is out of range.
        """
        ids = normal_ids(len(self), np.atleast_1d(np.asarray(ids)))
        return single_samples.positions_of(self.recipe, ids)

    # Single samples, read without a plan

    @overload
    def __getitem__(self, key: int | np.integer[Any]) -> tuple[NDArray[Any], ...]: ...
    @overload
    def __getitem__(self, key: slice | list[int] | NDArray[Any]) -> Batch: ...
    def __getitem__(self, key: Any) -> tuple[NDArray[Any], ...] | Batch:
        """Read one sample as a tuple of arrays, or several as a batch, without a plan.

        Each chunk is decoded once for all samples of the request, on one thread.

        Parameters
        ----------
        key : int, slice, or array-like of int or bool
            A sample's id, or several ids, or a mask with one flag for each sample. Negative ids
            count from the end.

        Returns
        -------
        tuple of numpy.ndarray, or Batch
            One array for each field, or a batch where ``key`` names several samples.

        Raises
        ------
        SampleIndexError
            If an id is out of range.

        Warns
        -----
        WorkersWarning
            Once in a process, if a PyTorch ``DataLoader`` asks for the sample.
        """
        warn_of_no_plan()
        return single_samples.read(self.recipe, self._layouts, key)

    def to_xarray(self, index: int | slice | ArrayLike) -> xr.Dataset:
        """Read one sample, or several, as a Dataset with labels, channel names and attributes.

        Parameters
        ----------
        index : int, slice, or array-like of int or bool
            The sample's id, or several ids such as ``batch.ids``, or a mask, as ``samples[...]``
            takes them. Negative ids count from the end.

        Returns
        -------
        xarray.Dataset
            The fields after all transforms. A dimension that two fields have with different sizes,
            offsets or channels is called ``<field>_<dim>``. Several samples lie along a first
            dimension ``sample``, with their ids. Labels that differ from sample to sample are then
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
        return single_samples.to_xarray(self.recipe, self._layouts, index)

    def plot(
        self, index: int | slice | ArrayLike = 0, *, channel: str | Sequence[str] | None = None
    ) -> Picture:
        """Draw one sample, or several: maps, lines and single values side by side.

        Each row of panels is a channel of a field, each column a time step. Equal times stand
        below each other. Panels of one variable share a colour scale, in all fields, steps and
        samples. Missing values are grey. Where cartopy and its coastlines are installed, maps in
        degrees have coastlines; nothing is downloaded.

        Parameters
        ----------
        index : int, slice, or array-like of int or bool, default 0
            The sample's id, or several ids, as :meth:`to_xarray` takes them.
        channel : str or sequence of str, optional
            The channels to draw, by name; a field without channels is its own channel. By default
            the first four of each field.

        Returns
        -------
        matplotlib.figure.Figure
            A figure of its own: ``figure.savefig("sample.png")`` writes it. Notebooks show it once,
            also if the line ends with a semicolon.
            At most 8 steps and 16 rows of panels are drawn. A line below the picture says what is
            left out.

        Raises
        ------
        SampleIndexError
            If an id is out of range.
        UnknownNameError
            If no field has the channel.
        MissingDependencyError
            If matplotlib is not installed.

        Examples
        --------
        >>> time = np.arange("2001-01", "2001-07", dtype="M8[M]").astype("M8[ns]")
        >>> ds = xr.Dataset({"sst": (("time", "y", "x"), np.ones((6, 5, 4)))}, {"time": time})
        >>> samples = ds.xloader.window(time=3).inputs("sst", time=slice(0, 2))
        >>> figure = samples.targets("sst", time=2).plot(1)
        >>> [panel.get_title() for panel in figure.axes if panel.get_title()]
        ['2001-04-01', '2001-05-01', '2001-06-01']
        """
        return single_samples.plot(self.recipe, self._layouts, index, channel)

    def coverage(self, *fields: str) -> Coverage:
        """Count how often an epoch has each element, so that gaps, masks, weights and splits show.

        Nothing is read but labels. The counts follow from arithmetic on windows, so they take
        little time for any number of samples.

        Parameters
        ----------
        *fields : str
            The fields whose elements are counted; by default all. A sample counts once for each
            element, however many fields need it.

        Returns
        -------
        Coverage
            Counts for each windowed dimension, and a map of the last two; as text, as a Dataset
            and as a picture. Samples that are drawn by weight, or of which an epoch takes a part,
            count as often as they occur on average.

        Raises
        ------
        OptionError
            If there are no windows yet, or samples lie at too many places of two dimensions.
        UnknownNameError
            If a field does not exist.

        Examples
        --------
        >>> ds = xr.Dataset({"sst": ("time", np.zeros(10))})
        >>> coverage = ds.xloader.window(time=3, stride=2).select([0, 3]).coverage()
        >>> coverage.counts["time"].values.tolist()
        [1, 1, 1, 0, 0, 0, 1, 1, 1, 0]
        >>> print(coverage)
        Coverage of an epoch by sst
          samples  2 an epoch
          time     10 elements, 4 of them never, the others once. Never: 3 to 5, 9
        """
        from xloader.samples.coverage import count_coverage

        return count_coverage(self.recipe, self._layouts, fields)

    # Planned batches

    @lists_options
    def loader(self, **options: Unpack[LoaderKeywords]) -> Loader:
        """Plan epochs of shuffled batches within a memory budget. Nothing is read yet.

        Parameters
        ----------
        batch_size : int, default 32
            Number of samples in a batch, on each rank.
        shuffle : bool, default True
            Whether samples are shuffled anew in each epoch. If not, ids ascend.
        seed : int, default 0
            Together with the epoch and the plan, it fixes the order. From -2**63 to 2**64 - 1, as
            ``torch.manual_seed`` takes it.
        drop_last : bool, default False
            Whether samples that do not fill a global batch are left out. If not, the last batch is
            shorter. Ranks that have one sample less than others repeat a row in it, which
            ``batch.is_padding`` flags.
        steps : int, optional
            Number of batches of an epoch on each rank; by default an epoch gives each sample once.
            With it, each epoch goes on where the one before stopped, through pass after pass over
            the samples, so that all of them come equally often. Each batch is full, and
            ``drop_last`` has no effect. Where two passes meet, no sample is twice in a global batch
            if there are at least as many global batches of samples as lanes, and one more. Weighted
            samples may be. The next epoch reads the chunks again that are in memory when an epoch
            ends, so very short epochs cost reads: :meth:`explain` counts them.
        memory : int or str, optional
            Bytes that this rank may use for batches, reads under way and decoded chunks; or a part
            of what the machine has for this rank, such as ``"50%"``, or of all its ranks together,
            such as ``"64GiB/node"``. By default what all data need, if that is at most half of this
            rank's part of the machine, and else that half, down to a power of two. A second loader
            takes a quarter, a third one an eighth. What is free does not matter; ``explain()`` says
            what was taken. The ranks of a process group agree on the smallest machine's.
        output : {"torch", "numpy", "jax", "cupy"}
            Whether batches hold PyTorch tensors, NumPy arrays, JAX arrays on JAX's CPU, or CuPy
            arrays on CuPy's current GPU. JAX and CuPy need no PyTorch.
        device : torch.device, str or OnDevice, optional
            Device that batches are copied to while the one before is used, such as ``"cuda"``,
            ``"cuda:1"`` or ``"mps"``. By default tensors stay in ordinary memory. An
            :class:`~xloader.OnDevice` also says which dtype they get, which function of tensors is
            called there, and into which tensors they are copied.
        collate_fn : callable, optional
            Makes the delivered value from a list of samples, each a tuple with one array or tensor
            for each field, as in PyTorch. By default a :class:`Batch` is delivered.
        threads : int, optional
            Number of threads that load and gather, 4096 at most. By default the cores that the
            process may use, divided among the ranks that torchrun, ``srun`` or ``mpirun`` started
            on this machine.
        processes : int, default 0
            Number of worker processes that finish the batches, 1024 at most, for transforms that
            keep Python busy. By default this process's threads do that. Threads of this process
            still load and gather. The processes start with the first iteration and stay until
            :meth:`Loader.close`. They call the transforms and ``collate_fn``, which must copy
            arrays that they keep; with ``device``, this process calls ``collate_fn``. No more of
            them work at a time than batches are made ahead, see ``prefetch``. Batches lie in memory
            that the processes share: one that you keep, beyond the last two, is copied out of it.
        prefetch : int, default 2
            Number of batches that are made ahead. More small ones are made ahead if ``memory``
            holds them without any change to the plan.
        on_error : {"raise", "skip"}
            What to do about a chunk that cannot be read. ``"raise"`` raises at the batch that
            needs it. ``"skip"`` replaces each row that needs it by another row of the batch, so
            that batches and steps stay as they are: ``batch.is_padding`` flags these rows, and
            ``report()`` gives the chunks and the number of samples. A batch without any good row
            raises in both cases.
        plan : PlanRules, optional
            Bounds of the plan: how often a chunk may be read, lanes for other numbers of ranks, and
            the spread.
        world : World, optional
            Number of this process among those that train together, and how many there are. By
            default they are taken from ``torch.distributed``, from ``RANK`` and ``WORLD_SIZE``, or
            from a SLURM step, when the loader is first used.
        on_nan : {"warn", "count", "raise", "ignore"}
            What to do about NaN in floating fields, after the transforms. ``"warn"`` checks the
            first eight batches of an epoch and warns once. ``"count"`` checks all batches and
            counts NaN in ``report().num_nan``. ``"raise"`` checks all batches and raises at the
            first NaN. ``"ignore"`` checks none.

        Returns
        -------
        Loader
            An iterable of :class:`Batch`.

        Raises
        ------
        MemoryBudgetError
            If the memory is too small; the error gives the minimum that is enough.
        EmptySamplesError
            If there are fewer samples than ranks.
        RanksError
            When the loader is first used, if ``memory`` is left out, the data do not fit, and ranks
            on other machines cannot be asked for theirs.
        OptionError
            If an option is unknown or outside its range, lanes do not divide the global batch, or
            ranks the lanes; if there are fewer samples than two global batches, with ``steps``; if
            the device does not exist or lacks the dtype of a field, ``out`` does not fit the
            batches, or the function for the device fails or returns another one.
        ForkError
            If the process was forked from one that used the GPU.
        MissingDependencyError
            If the library of ``output`` is not installed.
        """
        from xloader.samples import loader_verbs

        return loader_verbs.make_loader(self.recipe, make_options(**options))

    @lists_options
    def explain(
        self,
        order: ArrayLike | None = None,
        *,
        cache: Literal["lru"] | None = None,
        num_workers: int = 1,
        **options: Unpack[LoaderKeywords],
    ) -> Explanation:
        """Predict what an epoch costs in reads and memory. No value is read.

        Parameters
        ----------
        order : array_like of int, optional
            Sample ids in an order of your own. The prediction is then for this order within the
            same memory: exact for up to 10 million ids, and scaled up from the first 10 million
            for more.
        cache : {None, "lru"}
            How the order is read. By default the whole order is known in advance, and the chunk
            that is needed farthest ahead is dropped first. With "lru" it is not known, as when a
            sampler hands out batches: each worker begins without chunks and keeps those that it
            used last, sample by sample.
        num_workers : int, default 1
            With ``cache``: number of workers that share ``memory`` and take turns at batches, as
            those of a PyTorch ``DataLoader`` do. With 0, the process itself reads. Each worker
            makes ``prefetch`` batches ahead.
        **options
            As for :meth:`loader`. With ``cache``, the order is that of this rank, and only
            ``batch_size``, ``memory`` and ``prefetch`` matter.

        Returns
        -------
        Explanation
            Counts of reads and bytes, the peak of the memory, and how well batches mix.

        Raises
        ------
        SampleIndexError
            If the order holds an id that is out of range.
        EmptySamplesError
            If the order is empty.
        MemoryBudgetError
            If the memory is too small; the error gives the minimum that is enough.
        OptionError
            If an option is outside its range, or a cache is given without an order.

        Examples
        --------
        >>> import numpy as np, xarray as xr, xloader
        >>> from xloader.testing import write_store
        >>> ds = xr.Dataset({"t2m": (("time", "x"), np.ones((960, 1000)))})
        >>> samples = xloader.open(write_store(ds, {"t2m": (16, 1000)})).window(time=1)
        >>> order = np.arange(960).reshape(60, 16).T.ravel()
        >>> told = samples.explain(order, cache="lru", memory="4MiB", num_workers=2)
        >>> told.num_reads, samples.explain(memory="4MiB").num_reads
        (960, 60)
        """
        from xloader.samples import loader_verbs

        return loader_verbs.explain(self.recipe, order, cache, num_workers, options)

    def compare_plans(
        self,
        *,
        memory: Sequence[int | str] | int | str = ("256MiB", "512MiB", "1GiB", "2GiB", "4GiB"),
        max_amplification: Sequence[float] | float | None = None,
        **options: Any,
    ) -> PlanComparison:
        """Plan an epoch for several memories and bounds of amplification. No value is read.

        More memory mixes better, or reads less. A plan that may read each chunk several times can
        mix better in the same memory, as it may come by a tile several times in an epoch, each time
        for another part of its samples.

        Parameters
        ----------
        memory : sequence of (int or str)
            Memories to plan for, as :meth:`loader` takes them.
        max_amplification : sequence of float, optional
            Bounds of the mean number of reads a chunk to plan for; by default that of ``plan=``, or
            1.05, 2 and 4.
        **options
            Other options of :meth:`loader`, the same for all plans.

        Returns
        -------
        PlanComparison
            A plan for each pair of a memory and a bound: reads, mixing and memory. Where the memory
            is too small, the smallest that would do. Its method ``plot`` draws them.

        Raises
        ------
        OptionError
            If there are no windows, or an option is unknown or outside its range.

        Examples
        --------
        >>> import numpy as np, xarray as xr, xloader
        >>> from xloader.testing import write_store
        >>> ds = xr.Dataset({"t2m": (("time", "x"), np.ones((960, 1000), "float32"))})
        >>> samples = xloader.open(write_store(ds, {"t2m": (16, 1000)})).window(time=3, stride=1)
        >>> memory = ["64KiB", "4MiB", "16MiB"]
        >>> found = samples.compare_plans(memory=memory, max_amplification=1.05, batch_size=8)
        >>> [plan.explanation is not None for plan in found.plans]
        [False, True, True]
        >>> found.plans[2].explanation.num_reads, len(found.front)
        (60, 1)
        """
        from xloader.samples import loader_verbs

        return loader_verbs.compare_plans(self.recipe, memory, max_amplification, options)

    @lists_options
    def advise(
        self, *, measure: bool = False, client: Any = None, **options: Unpack[LoaderKeywords]
    ) -> Advice:
        """Find chunks and shards in which a copy of the data suits these samples better.

        Shapes of chunks are planned for as if the data were stored in them: the variables that the
        samples take, over the part that they cover. No value is read, unless ``measure`` is set.

        Parameters
        ----------
        measure : bool
            Whether to read up to four chunks, and to measure how fast they decode, and how fast and
            how small their values are in zstd. By default speeds are computed from assumed figures.
        client : distributed.Client or False, optional
            A dask cluster of which a worker reads and measures these chunks. By default the active
            client, if there is one and its workers can open the data; False for this process.
        **options
            Options of :meth:`loader`, for the training that the copy is meant for: above all
            ``batch_size``, ``memory`` and ``world``. Speeds are for ``threads``, by default
            one for each core of this machine.

        Returns
        -------
        Advice
            Today's chunks and up to three better ones, with predicted reads, mixing, speed and
            size. If none is clearly better, it says so.

        Raises
        ------
        OptionError
            If there are no windows, or an option is unknown or outside its range.
        MemoryBudgetError
            If the memory is too small for any chunks, because it does not hold the batches.
        EmptySamplesError
            If there are fewer samples than ranks.
        ChunkError
            If ``measure`` is set and a chunk cannot be read.
        ClusterError
            If ``measure`` is set and the cluster fails.

        Notes
        -----
        :meth:`materialize` writes such a copy.

        Examples
        --------
        One chunk holds all times of a few cells, so each field needs all chunks:

        >>> import numpy as np, xarray as xr, xloader
        >>> from xloader.testing import write_store
        >>> ds = xr.Dataset({"t2m": (("time", "x"), np.ones((960, 4000), "float32"))})
        >>> samples = xloader.open(write_store(ds, {"t2m": (960, 100)})).window(time=1)
        >>> advice = samples.advise(memory="8MiB", threads=2)
        >>> advice.current.problem
        'the memory is too small for these chunks, which need memory="18MiB"'
        >>> best = advice.best
        >>> dict(best.chunks), best.read_amplification
        ({'time': 24, 'x': 4000}, 1.0)
        """
        from xloader.jobs.advice.chunk_search import find_advice

        return find_advice(self.recipe, make_options(**options), measure=measure, client=client)

    def materialize(
        self,
        target: Any,
        *,
        chunks: Sizes | None = None,
        shards: Sizes | None = None,
        advice: Advice | ChunkProposal | None = None,
        memory: int | str = "2GiB",
        threads: int | None = None,
        dtype: DTypeLike | None = None,
        pack: Mapping[str, Any] | None = None,
        stats: xr.Dataset | None = None,
        compressor: Any = "zstd",
        checksum: bool = True,
        storage_options: Mapping[str, Any] | None = None,
        overwrite: bool = False,
        verify: bool = False,
        part: tuple[int, int] | None = None,
        progress: bool | None = None,
        dry_run: bool = False,
        client: Any = None,
    ) -> Materialized:
        """Write a Zarr store in chunks that suit training, which gives the same samples.

        It holds the variables that the samples take, over the part that :meth:`sel` and
        :meth:`isel` keep, with their labels and attributes. It has no windows and no recorded
        methods: open it with :func:`xloader.open`, and use the same verbs after the selection.
        Forcings are not written, because they are computed from labels.

        Parameters
        ----------
        target : path, URL or store
            Where to write: a folder, a URL, a store of zarr, obstore or fsspec that can be written,
            or a writable session of icechunk, which you commit afterwards.
        chunks, shards : mapping of str to int, optional
            Number of elements of a chunk, and of a shard, along dimensions. Those that are not
            named, or are -1, are not cut. A shard is one stored object with many chunks, of which
            it must hold whole ones. ``{"t2m": {"time": 8}}`` gives sizes for one variable. Without
            ``shards``, each chunk is an object of its own. Without ``chunks`` and ``advice``, the
            first proposal of :meth:`advise` is taken.
        advice : Advice or ChunkProposal, optional
            The chunks and shards, as :meth:`advise` proposes them. Shards that ``memory`` is too
            small for are made smaller, with a warning.
        memory : int or str
            Bytes that the job may take.
        threads : int, optional
            Number of threads; by default the number of cores that this process may use.
        dtype : dtype-like, optional
            Dtype of floats in the target, such as ``"float32"``. By default that of the source;
            values that the source has packed stay packed.
        pack : mapping of str to object, optional
            Variables to store as integers: a dtype, as ``{"t2m": "int16"}``, with the largest error
            allowed, as ``("int16", 0.01)``, or with the numbers themselves, as ``{"dtype": "int16",
            "scale_factor": 0.01, "add_offset": 280.0}``. Values are read back and compared before
            they are written.
        stats : xarray.Dataset, optional
            The result of :meth:`stats`, from which the smallest and the largest values to pack are
            taken. Without it, they are found by one pass more over the variables that are packed.
        compressor : {"zstd", "lz4"}, codec of zarr, or None
            How chunks are compressed.
        checksum : bool
            Whether a CRC-32C is stored with each chunk, by which damage is noticed.
        storage_options : mapping, optional
            Options for the file system of a URL.
        overwrite : bool
            Whether to remove a Zarr store that lies at the target.
        verify : bool
            Whether all objects are read back at the end, and their digests compared. Otherwise
            their sizes are compared.
        part : (int, int), optional
            ``(i, n)`` with ``0 <= i < n``: write only the i-th of n parts. Several processes may
            write parts at once. The one that ends last completes the store.
        progress : bool, optional
            Whether to show a progress bar; by default on a terminal, if tqdm is installed.
        dry_run : bool
            Whether to return the plan, and write nothing.
        client : distributed.Client or False, optional
            A dask cluster whose workers read the chunks and write the target. By default the active
            client, if there is one and its workers can open the data and the target; False for the
            threads of this process. ``memory`` holds for each worker process, and ``threads`` is
            not used on a cluster.

        Returns
        -------
        Materialized
            What was written, with reads predicted and counted. Printed, it is a table.

        Raises
        ------
        TargetError
            If something else lies at the target, or it was begun with other arguments.
        MemoryBudgetError
            If the memory is too small for a shard and the chunks that it is made of.
        StoreFullError
            If no room is left. What is written stays; the same call goes on.
        OptionError
            If values cannot be packed as asked.
        ClusterError
            If the cluster fails. What is written stays; the same call goes on.

        Notes
        -----
        A job that was killed goes on when the same call is made again: shards that are complete are
        not written again. Shards that no sample needs are left out, and counted.

        Examples
        --------
        >>> import numpy as np, xarray as xr, zarr
        >>> ds = xr.Dataset({"t2m": (("time", "x"), np.zeros((12, 4), "f4"))})
        >>> store = zarr.storage.MemoryStore()
        >>> done = ds.xloader.window(time=3).materialize(store, chunks={"time": 3})
        >>> done.is_complete, done.variables[0].num_shards
        (True, 4)
        """
        from xloader.jobs.advice.chunk_search import chosen_chunks
        from xloader.jobs.materialize.training_store import StoreOptions, materialize

        chosen, chosen_shards = chosen_chunks(self.recipe, chunks, shards, advice)
        options = StoreOptions(
            chunks=chosen,
            shards=chosen_shards,
            is_advised=chunks is None,
            memory=memory,
            threads=threads,
            dtype=dtype,
            pack=pack,
            stats=stats,
            compressor=compressor,
            checksum=checksum,
            storage_options=storage_options,
            overwrite=overwrite,
            verify=verify,
            part=part,
            progress=progress,
            dry_run=dry_run,
            client=client,
        )
        return materialize(self.recipe, target, options)

    def mosaic(
        self,
        target: str | os.PathLike[str] | None = None,
        field: str | None = None,
        *,
        blend: Blend = "mean",
        leads: str | Collection[str] | None = None,
        chunks: Mapping[str, int] | None = None,
        keep_units: bool = False,
        memory: int | str = "256MiB",
        overwrite: bool = False,
        world: World | None = None,
    ) -> Mosaic:
        """Put predictions of the samples back on the grid, as a Zarr store or in memory.

        Parameters
        ----------
        target : path, optional
            Path of the Zarr store. Without one, the mosaic becomes an :class:`xarray.Dataset`.
        field : str, optional
            The field that is predicted; by default ``targets``, or the only field. Predictions have
            its shape and its channels.
        blend : {"mean", "linear", "crop"}
            The value of a cell that several windows cover. ``"mean"``: their mean. ``"linear"``:
            their mean with weights that fall towards the edges of a window: along each windowed
            dimension, element ``j`` of ``n`` has the weight ``min(j + 1, n - j)``. ``"crop"``: the
            value of the window whose centre is nearest, and of several, that with the lowest id.
        leads : str or collection of str, optional
            Dimensions along which predictions of different offsets into the window are kept apart,
            along a dimension ``lead``. By default those of which the field takes several elements,
            but not the whole window; not where labels are decimal numbers, as latitudes are.
            ``leads=()`` blends along all dimensions.
        chunks : mapping of str to int, optional
            Number of cells of a chunk of the store along some dimensions. By default as in the
            source.
        keep_units : bool
            Whether variables keep the units of the source although :meth:`normalize` changes them:
            for predictions that you have converted back.
        memory : int or str
            Bytes that merging may take, besides about 100 for each sample.
        overwrite : bool
            Whether to remove what lies at the target, and what earlier runs have written for it.
        world : World, optional
            Number of this process, and number of processes; found as for :meth:`loader`.

        Returns
        -------
        Mosaic
            Takes predictions by ``out.write(batch, prediction)``.

        Raises
        ------
        UnknownNameError
            If the field or a dimension does not exist.
        OptionError
            If an option is not valid, a transform changes the shape of the field, or its samples
            have no place on a grid.
        TargetError
            If something else lies at the target, such as the mosaic of other samples.
        UnsupportedDataError
            If a variable or label cannot be stored under its name.
        StoreFullError, SourceAccessError
            If the disk is full, or cannot be written to.

        Notes
        -----
        Predictions wait in the folder ``<target>.parts`` until they are merged; it takes as many
        bytes as all predictions together. It is removed when every sample is written. After a kill
        at any moment, run the same again; if the mosaic is complete, ``out.remaining_ids`` is
        empty.
        """
        from xloader.mosaic.mosaic import Mosaic

        return Mosaic(
            self.recipe,
            target,
            field=field,
            blend=blend,
            leads=leads,
            chunks=chunks,
            keep_units=keep_units,
            memory=memory,
            overwrite=overwrite,
            world=world,
        )

    # Printing and pickling

    def __repr__(self) -> str:
        return describe.as_text(self.recipe)

    def _repr_html_(self) -> str:
        return describe.as_html(self.recipe)

    def __reduce__(self) -> tuple[object, ...]:
        # Cached values are computed again where they are needed, which keeps pickles small.
        return type(self), (self.recipe,)

    # Helpers of the methods above

    def _but(self, **changes: Any) -> Self:
        from xloader.transforms import slabs

        changed = replace(self.recipe.planned, **changes)
        slab = self.recipe.slab
        return type(self)(changed if slab is None else slabs.cut(changed, slab.dim, slab.part))

    @property
    def _has_windows(self) -> bool:
        return self.recipe.windows is not None

    @cached_property
    def _layouts(self) -> tuple[FieldLayout, ...]:
        return make_layouts(self.recipe)

    @cached_property
    def _inverses(self) -> dict[str, Denormalize]:
        return {}

    @cached_property
    def _outputs(self) -> tuple[Output, ...]:
        return make_outputs(self.recipe, self._layouts)
