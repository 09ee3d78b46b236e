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
    """Open chunked arrays. No value is read.

    Parameters
    ----------
    source : str, os.PathLike, store, zarr.Group, Dataset, DataArray, DataTree, or list of them
        A folder, zip file or URL with a Zarr group (v2 or v3); a file that xarray opens (netCDF,
        GRIB); an open group or store (of zarr, obstore, fsspec or icechunk); or an open Dataset.
        Variables of a DataTree are named by their paths, as ``"radar/rain"``. The members of a list
        have different variables on the same grid, and may be :class:`Samples` without windows.
    variables : iterable of str, optional
        The data variables to offer; by default all that hold bool, integers or floats.
    group : str, optional
        Path of the group within a store or file.
    storage_options : mapping, optional
        Options for the file system of a URL.
    dtype : dtype-like or None, default "float32"
        Dtype that packed integers are unpacked to. By default, integers of four bytes or more
        become float64. ``None`` leaves the choice to xarray. An open Dataset keeps its own dtypes.
    on_missing : {"warn", "raise", "fill"}, default "warn"
        What to do about absent Zarr chunks: read the fill value with one warning, raise, or read
        the fill value silently.
    read_timeout : float, default 300.0
        Seconds that each attempt at a read may take.
    max_retries : int, default 4
        Further attempts after one that failed for a reason that may pass: no answer in time, a
        short body, HTTP status 408, 429 or 5xx.
    **open_kwargs
        Passed to :func:`xarray.open_dataset`; or ``branch``, ``tag`` or ``snapshot_id`` of an
        ``icechunk.Repository``, by default ``branch="main"``.

    Returns
    -------
    Samples
        Everything that the source offers, with no windows yet.

    Raises
    ------
    SourceNotFoundError
        If there is nothing to open.
    SourceAccessError
        If a store does not answer, or refuses access.
    UnknownNameError
        If a variable asked for does not exist.
    UnsupportedDataError
        If a variable asked for holds no numbers, or nothing can open the source.
    OptionError
        If an option is out of range, or members of a list share a variable or differ in labels.

    See Also
    --------
    join : Sources of different grids or times.
    concat : Many files along one dimension.

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
    """Count the elements that two sets of samples share. No value is read.

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
    """The windows of a source: each id names a sample, a tuple of arrays.

    Made by :func:`xloader.open` or ``ds.xloader``. Every method returns new samples.
    ``samples[17]`` reads one sample, ``samples[[3, 5]]`` several as a :class:`Batch`.

    Methods of :class:`xarray.Dataset` are recorded, and run on whole batches: ``all any assign
    astype bfill clip coarsen count cumprod cumsum diff differentiate drop_vars expand_dims ffill
    integrate interp interpolate_na isin isnull max mean median min notnull pad prod quantile rank
    reindex rename roll rolling round shift sortby squeeze std sum transpose var where``.

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
        """Keep elements by label, as :meth:`xarray.Dataset.sel` does.

        Parameters
        ----------
        indexers : mapping of str to (label, slice or sequence of labels), optional
            The labels along each dimension. A single label drops the dimension; a list of one label
            keeps it. Along a dimension without labels, values are positions.
        method, tolerance : optional
            As in xarray.
        **labels
            The same as keyword arguments.

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
            that they have left, or there are windows already.
        EmptySamplesError
            If nothing is left.
        """
        require_before(self.recipe, "sel", self._has_windows)
        chosen = selection.sel(
            self.recipe, {**(indexers or {}), **labels}, method=method, tolerance=tolerance
        )
        return self._but(selection=chosen)

    def isel(self, indexers: Mapping[str, Any] | None = None, **positions: Any) -> Self:
        """Keep elements by position, as :meth:`xarray.Dataset.isel` does.

        They may be in any order in which the elements of each chunk follow each other: latitudes
        from the other end, levels as a trained model expects them.

        Parameters
        ----------
        indexers : mapping of str to (int, slice, sequence of int or mask), optional
            The positions along each dimension. An int drops the dimension.
        **positions
            The same as keyword arguments.

        Returns
        -------
        Samples
            The same source with fewer elements selected.

        Raises
        ------
        UnknownNameError, OptionError, EmptySamplesError
            As for :meth:`sel`.
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
        """Add variables that are computed from time, latitude and longitude.

        They are used as those that are stored, and nothing is read for them.

        Parameters
        ----------
        *names : str or callable
            Names of functions in :mod:`xloader.forcings`, or functions of your own, which name
            their variables.
        coords : mapping of str to str, optional
            For parameters of the functions, the coordinate whose labels they get. By default,
            ``time``, ``lat`` and ``lon`` get those with these meanings by the CF conventions or by
            common names, and any other parameter the coordinate of its own name.
        dtype : dtype-like, default "float32"
            Dtype of the variables.
        **functions : str or callable
            The same under names of your choice: ``forcing(sun="insolation", tide=fn)``. A function
            takes labels as :class:`xarray.DataArray` by the names of its parameters: times as
            datetime64 or cftime objects, ``lat`` and ``lon`` in degrees. It returns a DataArray or
            array with one value for each element, or with fewer dimensions. It runs on several
            threads and gets a part of the labels at a time, so each value may depend on its own
            labels only. Attributes of its DataArray, such as ``units``, are kept.

        Returns
        -------
        Samples
            The samples with more variables.

        Raises
        ------
        UnknownNameError
            If there is no such function or coordinate.
        OptionError
            If the name is taken, a function has no name, takes no labels or returns a wrong shape,
            several coordinates could be meant, latitudes lie beyond 90 degrees, or there are
            windows already.
        UnsupportedDataError
            If a function returns no numbers.
        TransformError
            If a function raises an error.

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
        """Set the window of each sample. Other dimensions are taken whole.

        Windows count selected elements: after :meth:`isel` or :meth:`sel`, elements that were far
        apart in the store become neighbours.

        Parameters
        ----------
        sizes : int, duration, or mapping of str to these, optional
            Elements of a window along each dimension; or one int for all. Along times, a duration
            such as ``"3D"``: a whole number and one of NumPy's units ``Y M W D h m s``. ``M`` and
            ``Y`` need labels that are months, seasons or years.
        stride : int, duration, or mapping of str to these, optional
            Elements between the starts of neighbouring windows; the window's size by default. A
            single number holds for the dimensions whose window is longer than one element; if there
            are none, for all.
        dilation : int, duration, or mapping of str to these, default 1
            Elements from one element of a window to the next.
        gaps : {"drop", "raise", "allow"} or mapping of str to these
            What to do about windows that cross a gap between times: leave them out (if at least 90
            % of the steps are no gaps), raise, or let them run across. A gap is a step that differs
            by over a tenth from the common one (by over a half where times jitter more). A mapping
            may also name dimensions whose labels are numbers.
        wrap : str or sequence of str
            Dimensions along which windows run on from the last element to the first, such as
            longitude. A window then starts at every stride.
        pad : mapping of str to ("edge", "reflect" or float), optional
            Dimensions whose borders are padded, as :func:`numpy.pad` does it, before any transform.
            Windows are then centred on every stride-th element, from the first. Fields take all of
            the window along such a dimension.
        **sizes_by_dim
            Sizes as keyword arguments.

        Returns
        -------
        Samples
            One sample for each window position.

        Raises
        ------
        OptionError
            If a window does not fit, a number is below 1 or not whole, a duration is no whole
            number of steps, windows cannot wrap or be padded as asked, there are gaps with
            ``gaps="raise"``, or there are windows already.
        UnknownNameError
            If a dimension does not exist, or has an option but no window.
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

        Windows across the date line, and windows centred on each element:

        >>> ds = xr.Dataset({"sst": ("lon", np.arange(4.0))}, {"lon": [0, 90, 180, 270]})
        >>> ds.xloader.window(lon=3, stride=1, wrap="lon").to_xarray(3).sst.lon.values.tolist()
        [270, 0, 90]
        >>> padded = ds.xloader.window(lon=3, stride=1, pad={"lon": "edge"})
        >>> [window[0].tolist() for window in padded][::3]
        [[0.0, 0.0, 1.0], [2.0, 3.0, 3.0]]
        """
        require_before(self.recipe, "window", self._has_windows)
        sizes = merged_sizes(self.recipe, sizes, sizes_by_dim)
        windows = make_windows(self.recipe, sizes, stride, dilation, gaps, wrap, pad)
        return self._but(windows=windows)

    def inputs(self, *variables: str | Sequence[str], **offsets: Any) -> Self:
        """Add the field ``inputs``: see :meth:`field`."""
        return self.field("inputs", *variables, **offsets)

    def targets(self, *variables: str | Sequence[str], **offsets: Any) -> Self:
        """Add the field ``targets``: see :meth:`field`."""
        return self.field("targets", *variables, **offsets)

    def field(self, name: str, /, *variables: str | Sequence[str], **offsets: Any) -> Self:
        """Add a named array of variables, stacked along ``channel``.

        Parameters
        ----------
        name : str
            Name of the field.
        *variables : str or sequence of str
            The variables. Dimensions of a variable that are neither windowed nor among its last two
            become channels as well: the levels 500 and 850 of ``z`` are ``z_500`` and ``z_850``. A
            variable that lacks a dimension of the others is repeated along it. Several dtypes are
            promoted as by NumPy: int32 beside float32 makes float64.
        **offsets : int, duration, slice or sequence of these
            Positions within the window, from 0; by default all. An int drops the dimension.
            Negative positions count from the window's end. A duration is a lead after the start of
            the window, and may lie beyond its end: ``time="+10D"``, ``time="+40"`` for 40 steps, or
            ``time=["+1D", "+2D"]``. Then samples reach up to the last lead, so there are fewer. The
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
            If the variables cannot share one array, the name is taken, an offset does not fit the
            window, a lead is no whole number of steps or leaves the dimension, a new lead comes
            after :meth:`select`, there are no windows yet, or a transform may have changed the
            fields.
        UnsupportedDataError
            If a variable holds no numbers.
        """
        self.recipe.require_windows()
        require_before(self.recipe, "field", self.recipe.is_mapped)
        names = [[given] if isinstance(given, str) else given for given in variables]
        added, windows = make_field(self.recipe, name, tuple(chain.from_iterable(names)), offsets)
        return self._but(fields=(*self.recipe.fields, added), windows=windows)

    # Transforms

    def normalize(self, stats: Any = None, std: Any = None, *, mean: Any = None) -> Self:
        """Subtract a mean and divide by a standard deviation.

        Variables without statistics stay as they are; ``print(samples)`` names them. Integers
        become float32, or float64 from 32 bits on. It runs before :meth:`map` and recorded methods.

        Parameters
        ----------
        stats : mapping or xarray.Dataset, optional
            The result of :meth:`stats`; ``{variable: (mean, std)}`` or ``{variable: {"mean": ...,
            "std": ...}}``; a Dataset with a dimension ``stat`` labelled ``mean`` and ``std``, or
            with variables ``<variable>_mean`` and ``<variable>_std``. Each number may be an array
            along the dimensions that become channels, or a DataArray along any dimensions of the
            variable and by the ``month``, ``dayofyear``, ``hour`` or ``season`` of its times: each
            element takes the number of its own time and place.
        mean, std : mapping or xarray.Dataset, optional
            The same as two mappings or Datasets: ``normalize(mean=a, std=b)`` or ``normalize(a,
            b)``.

        Returns
        -------
        Samples
            The samples with this transform added.

        Raises
        ------
        OptionError
            If a number is missing, not finite or does not fit; if a standard deviation is not above
            0; if there are no windows yet, or a transform may have changed the fields; if a Dataset
            of xloader lacks a variable of a field.
        UnknownNameError
            If a variable does not exist.

        Warns
        -----
        StatisticsWarning
            If a Dataset of xloader is of data in other units or on another grid.

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
        """Undo :meth:`normalize`, for example for a prediction.

        Parameters
        ----------
        array : array
            Floats of shape ``(n, *shapes[field])`` or ``shapes[field]``: a NumPy array, a tensor,
            or an array of any library that knows ``*`` and ``+``.
        field : str
            Name of the field, whose variables say which numbers belong to which channel.
        ids : array_like of int, shape (n,), or int, optional
            Ids of the samples, as ``batch.ids``; needed if statistics vary from sample to sample.

        Returns
        -------
        array
            A new array of the same kind, on the same device, in the dtype of ``array``, or float32
            for float16 and bfloat16. Transforms after :meth:`normalize` are not undone.

        Raises
        ------
        UnknownNameError
            If there is no such field.
        OptionError
            If no variable of the field is normalised, the shape or dtype does not fit, ids are
            missing, or a later transform has changed a dimension along which the numbers vary.

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
            One number, or one for each variable; after ``map`` or a recorded method, for each
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
        """Run a function on batches; it returns the new fields.

        Parameters
        ----------
        fn : callable
            Takes and returns an :class:`xarray.Dataset` of the fields, on several threads at once.
            It is called once on zeros to find names, shapes and dtypes. Old fields keep their
            order; new ones follow.
        per : {"batch", "sample"}
            Whether ``fn`` gets whole batches, with a leading dimension ``sample``, or one sample.
        random : bool, default False
            Whether ``fn`` is called as ``fn(ds, rng)``, with an :class:`~xloader.Rng` for each
            batch.

        Returns
        -------
        Samples
            The samples with this transform added.

        Raises
        ------
        OptionError
            If ``fn`` is not callable, an option is not one of the choices, or there are no windows
            yet.

        Notes
        -----
        *Random numbers* of a sample depend on the seed, the epoch and its id alone, and on how
        often it has occurred in the epoch. Samples read outside an epoch have seed 0 and epoch 0.

        *Names of dimensions.* If two fields differ in the size, offsets or channels of a dimension,
        it is called ``<field>_<dim>`` in every field, such as ``inputs_channel``.

        *Labels* that all samples share are indexes. In a batch, those of windowed dimensions are
        ``<dim>_label (sample, <dim>)``. ``sample`` holds the ids.

        *A pitfall of xarray.* Arithmetic and ``assign`` keep only elements with the same labels, so
        ``ds.assign(inputs=...)`` loses a channel that was added and undoes a flip of ``lon``.
        Return a new Dataset, or drop the labels by ``.drop_vars``.

        Examples
        --------
        >>> ds = xr.Dataset({name: ("time", np.arange(4.0)) for name in ("u10", "v10")})
        >>> def with_speed(batch):
        ...     wind = batch["inputs"]
        ...     speed = np.hypot(wind.sel(channel="u10"), wind.sel(channel="v10"))
        ...     speed = speed.expand_dims(channel=["speed"])
        ...     return xr.Dataset({"inputs": xr.concat([wind, speed], dim="channel")})
        >>> samples = ds.xloader.window(time=1).inputs("u10", "v10").map(with_speed)
        >>> samples.channels("inputs")
        ('u10', 'v10', 'speed')

        Noise for each sample, the same in any batch of an epoch:

        >>> def augment(batch, rng):
        ...     noise = rng.normal(batch["inputs"].shape[1:], 0.0, 0.1)
        ...     return batch.assign(inputs=batch["inputs"] + noise)
        >>> noisy = ds.xloader.window(time=1).inputs("u10").map(augment, random=True)
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
        """Take one sample around each point of a table.

        Row ``i`` of the table is sample ``i``, in any order.

        Parameters
        ----------
        table : pandas.DataFrame, xarray.Dataset or mapping of str to array-like
            One row for each point, with a column of labels for each windowed dimension (of
            positions, if it has no labels). Every other column becomes a field with one value for
            each sample: numbers and bools keep their dtype; text and categories become int64 codes,
            named by :attr:`classes`.
        method : {None, "nearest"} or mapping of str to these, optional
            How labels are looked up, as in :meth:`xarray.Dataset.sel`: equal ones, or the closest.
        tolerance : optional
            Greatest distance to the closest label, in the unit of the labels; for times a
            timedelta, or text such as ``"1h"``. By default, with ``"nearest"``, points may lie half
            a step beyond the first and last label.
        at : {"center", "start", "end"} or mapping of str to these, default "center"
            Where in its window a point lies: at position ``size // 2``, at the first element, or at
            the last.
        outside : {"raise", "drop"}, default "raise"
            What to do about points without a sample, because no label matches, or the window leaves
            the array or crosses a gap. ``"drop"`` leaves them out, and ids count those that are
            left.

        Returns
        -------
        Samples
            One sample for each point.

        Raises
        ------
        UnknownNameError
            If the table lacks a column, or points lie off the grid.
        OptionError
            If windows leave the array or cross a gap; if labels are missing (NaN), not sorted or
            occur twice along a dimension; if columns do not fit; if there are no windows yet,
            samples were chosen before, or a transform may have changed the fields.
        UnsupportedDataError
            If the table or its labels are of another kind, or a column holds neither numbers nor
            text.
        EmptySamplesError
            If no point is left.

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
        """Keep some samples, which get new ids: ``0, 1, 2, ...``.

        Parameters
        ----------
        ids : slice, array-like of int, or of bool, or SampleMask
            Sample ids, 1-d, or a mask with one flag for each sample, as :meth:`is_valid` makes it.
            A sample named twice occurs twice.

        Returns
        -------
        Samples
            The samples that were kept.

        Raises
        ------
        SampleIndexError
            If an id is out of range, or a mask has another length.
        EmptySamplesError
            If no sample is left, or all have weight 0; only ``out.remaining_ids`` of a
            :meth:`mosaic` may be empty.
        OptionError
            If there are no windows yet.

        Examples
        --------
        >>> ds = xr.Dataset({"t2m": ("time", np.arange(10.0))})
        >>> samples = ds.xloader.window(time=1)
        >>> warm = samples.select([2, 7, 5])
        >>> len(warm), warm[1][0].tolist()
        (3, [7.0])
        """
        from xloader.samples import subset_verbs

        return self._but(subset=subset_verbs.select(self.recipe, ids))

    def sample(self, n: int, *, seed: int = 0) -> Self:
        """Keep some samples at random, the same in every epoch.

        All have the same chance, none is taken twice, and they stay in the order of the store. All
        ranks take the same. A chunk is read if one of its samples is kept: to read little, keep
        whole chunks by :meth:`split`.

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

        Examples
        --------
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
        """Find samples with enough valid values. This reads each chunk once, at once.

        A value is valid if it is not NaN after decoding. Integers without fill values are always
        valid, and are not read. Transforms do not matter.

        Parameters
        ----------
        *fields : str
            Names of fields, or of variables, that must all be valid; by default all fields.
        at_least : float, default 1.0
            Share of the values of a field or variable, over all its channels, that must be valid.
        mask : str or xarray.DataArray, optional
            Where values count: the name of a boolean variable, or a boolean DataArray, such as a
            land-sea mask that is True over sea. Values where it is False count as not valid.
        memory, threads, client : optional
            As for :meth:`stats`.
        cache : path, None or False, optional
            Folder in which the mask is kept for the next call with the same samples and arguments.
            By default the user's cache folder, for local files only, whose names, sizes and times
            show changes. For other sources, pass a folder, and another one if values change.
            ``False`` keeps nothing.

        Returns
        -------
        SampleMask
            One bit for each sample id, for :meth:`select`. Masks are combined by ``&``, ``|`` and
            ``~``; ``mask.num_valid`` counts the samples.

        Raises
        ------
        UnknownNameError
            If a field or variable does not exist.
        OptionError
            If ``at_least`` is not in [0, 1], the mask is not boolean or does not fit, or there are
            no windows yet.
        MemoryBudgetError, ChunkError, ClusterError
            As for :meth:`stats`.

        Examples
        --------
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
        """Compute statistics of the values that samples need. This reads them, at once.

        Each element that samples need counts once, so nothing of a test year gets into statistics
        of training samples. Transforms, weights of samples and NaN do not count. Each chunk is read
        once.

        Parameters
        ----------
        dim : str, iterable of str, or ..., optional
            The dimensions that are reduced; ``...`` for all. By default all but those that become
            channels. ``dim="time"`` gives statistics of each cell.
        by : {"month", "dayofyear", "hour", "season"}, optional
            Statistics by a label of the time, along a dimension of that name.
        quantiles : iterable of float, optional
            Quantiles to estimate, by the library crick: at most 0.4 % away in rank at the median,
            0.08 % at 0.01 and 0.99.
        leads : int, duration, or iterable of them, optional
            Statistics of differences ``x(t + lead) - x(t)``, along a dimension ``lead``: steps or
            durations such as ``"6h"``; 0 stands for the values themselves.
        weights : {"area"} or xarray.DataArray, optional
            Weights of elements: ``"area"`` for the cosine of the latitude, or numbers along some
            dimensions.
        path : path, optional
            A file ``.nc`` or store ``.zarr`` for the result. If the job is killed, call it again:
            it reads only what is missing.
        part : (int, int), optional
            ``(i, n)``: only the part ``i`` of ``n``, from 0. :func:`xloader.merge` makes the
            result.
        overwrite : bool
            Whether to replace what lies at ``path``.
        memory : int or str, default "2GiB"
            Memory of the job; on a cluster, of each worker process.
        threads : int, optional
            Threads that read and compute; by default one for each core.
        progress : bool, optional
            Whether to show a progress bar; by default in a terminal.
        client : distributed.Client or False, optional
            A dask cluster whose workers read the chunks. By default the active client, if its
            workers can open the data; False for the threads of this process.

        Returns
        -------
        xarray.Dataset or PartialStats
            The variables in float64, along ``stat``: ``"count"``, ``"mean"``, ``"std"`` (with
            ``ddof=0``), ``"min"``, ``"max"``, and ``"q0.5"`` for quantiles. :meth:`normalize` takes
            it. With ``part``, partial statistics that pickle.

        Raises
        ------
        OptionError, UnknownNameError
            If an option cannot be used.
        MemoryBudgetError
            If the memory is too small; the error gives the minimum that is enough.
        ChunkError
            If a chunk cannot be read.
        ClusterError
            If the cluster fails.
        TargetError, StateError
            If something else, or parts of other samples, options or data, lie at ``path``.
        StoreFullError
            If there is no room left.

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

        This reads all samples, at once.

        Parameters
        ----------
        fn : callable
            Takes a :class:`Batch` of NumPy arrays, after all transforms, and returns a number for
            each sample: a rain rate, a variance. On a cluster it is called on the workers.
        memory, threads, client : optional
            As for :meth:`stats`.
        batch_size : int, optional
            Most samples that ``fn`` gets at a time; 256 by default.
        cache : path, None or False, optional
            Folder in which the scores are kept, as for :meth:`is_valid`: those of plain functions
            without closure, default arguments and names of your own modules; after :meth:`map`,
            only in a folder of your own.

        Returns
        -------
        numpy.ndarray
            The numbers, float64, shape ``(len(samples),)``.

        Raises
        ------
        OptionError
            If ``fn`` does not return a number for each sample, or there are no windows yet.
        TransformError
            If ``fn`` raises.
        MemoryBudgetError, ChunkError, ClusterError
            As for :meth:`stats`.

        Examples
        --------
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
        """Drop samples with too few valid values: ``select(is_valid(...))``.

        Parameters
        ----------
        *fields, at_least, client
            As for :meth:`is_valid`.

        Returns
        -------
        Samples
            The samples that are valid.

        Raises
        ------
        EmptySamplesError
            If no sample is valid.
        UnknownNameError, OptionError, ChunkError, ClusterError
            As for :meth:`is_valid`.
        """
        return self.select(self.is_valid(*fields, at_least=at_least, client=client))

    def weighted(
        self,
        weights: ArrayLike | None = None,
        num_samples: int | None = None,
        *,
        balance: str | None = None,
    ) -> Self:
        """Draw samples in proportion to their weights in each epoch.

        Parameters
        ----------
        weights : array-like of float, optional
            One weight for each sample id, finite and not negative; by default all are equal.
        num_samples : int, optional
            Number of samples of an epoch; by default ``len(samples)``. Fewer make each epoch a
            random part.
        balance : str, optional
            In place of ``weights``: a column of :meth:`at_points` with text, categories, integers
            or bools. Each of its values is drawn equally often.

        Returns
        -------
        Samples
            The same samples and ids, with these weights in place of earlier ones. A later
            :meth:`select` keeps each sample's weight.

        Raises
        ------
        OptionError
            If weights do not fit, are negative, not finite or all 0; if ``num_samples`` is below 1;
            if ``weights`` and ``balance`` are both given, or nothing is; if ``balance`` names a
            column of floats; if there are no windows yet.
        UnknownNameError
            If ``balance`` names no column.

        Notes
        -----
        Systematic resampling, keyed by the loader's seed and the epoch: a sample whose share is 2.3
        occurs 2 or 3 times, and 2.3 times on average. With equal weights none comes twice before
        all came once. Each chunk is still read once.

        Examples
        --------
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
        """Draw windows at random, anew in each epoch.

        Parameters
        ----------
        n : int
            Number of windows to draw, none of them twice; a group with fewer gives all it has.
        per : str or sequence of str, optional
            Dimensions with windows: ``per="scene"`` draws ``n`` of each scene, ``per=("scene",
            "time")`` of each scene at each time. By default ``n`` of all.

        Returns
        -------
        Samples
            The same samples and ids, of which an epoch has ``loader.num_samples``.

        Raises
        ------
        OptionError
            If ``n`` is below 1, the windows have no position along a dimension of ``per``, the
            samples are :meth:`weighted`, or there are no windows yet.

        Notes
        -----
        All windows of a group have the same chance, by the loader's seed and the epoch; all ranks
        draw the same. Nothing is kept per window. Only chunks that a drawn window needs are read.
        It may come before or after :meth:`select`, :meth:`dropna` and :meth:`split`.

        Examples
        --------
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
        """Divide the samples into parts that share no element.

        A sample belongs to a part if all its elements do, from the first to the last that its
        fields need.

        Parameters
        ----------
        parts : mapping of str to part, optional
            The parts by name: regions as labels by dimension, ``{"north": {"lat": slice(90, 0)},
            ...}``; with ``blocks`` or ``groups`` fractions, or with ``groups`` lists of groups.
        gap : "auto", int, duration, or mapping of str to these, default "auto"
            Least distance, in elements, between the windows of two parts, such as ``"10D"``.
            ``"auto"`` keeps them from sharing elements.
        blocks : mapping of str to (int or duration), optional
            Least size of random blocks of whole chunks along dimensions with windows.
        groups : str or array-like, optional
            A coordinate along a dimension with windows, such as ``"station"``; a column of
            :meth:`at_points`; or a group for each sample. All of a group belongs to one part.
        seed : int, default 0
            Fixes which blocks or groups belong to which part.
        **along
            Parts along dimensions with windows, as labels of :meth:`sel` or as fractions in order:
            ``time={"train": 0.8, "valid": 0.2}``.

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

        All ranks of the group get the same samples in the same order, each its own part of one
        dimension, and read only its chunks. They count as one data rank: give them the same
        ``world`` and the same calls. The state of one restores all.

        Parameters
        ----------
        dim : str
            A dimension without windows.
        rank, size : int
            Number of the part, in ``[0, size)``, and number of parts, which differ by one element
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
            If the dimension is windowed or has fewer than ``size`` elements, ``rank`` or ``size``
            is out of range, the samples are a slab already, a function of :meth:`map` or a method
            of xarray is recorded already, or there are no windows yet.

        Notes
        -----
        Functions recorded after it see only the slab: ``.mean("lat")`` is the mean of the part.
        Statistics and DataArrays along the dimension are given for the whole of it. Random
        functions draw the same numbers on all ranks of the group; for noise of its own, a rank
        draws by a name: ``rng.normal(shape, name=f"noise {rank}")``.

        Examples
        --------
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
            Labels along windowed dimensions, as in :meth:`xarray.Dataset.sel`; positions along
            those without labels. Of other dimensions, all windows are taken.
        method, tolerance : optional
            As in xarray.
        **labels
            The same as keyword arguments.

        Returns
        -------
        numpy.ndarray
            Sample ids, int64, shape ``(n,)``, in the order of the labels.

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
        A window that begins before the end of a slice may reach beyond it: :meth:`split` makes
        parts that share no elements.

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
        """Read one sample, or several, as a Dataset with labels.

        Parameters
        ----------
        index : int, slice, or array-like of int or bool
            The sample's id, several ids such as ``batch.ids``, or a mask. Negative ids count from
            the end.

        Returns
        -------
        xarray.Dataset
            The fields after all transforms, with dimensions and labels as for :meth:`map`. Several
            samples lie along a first dimension ``sample``.

        Raises
        ------
        SampleIndexError
            If an id is out of range.

        Examples
        --------
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
        """Draw one sample, or several, as maps and lines.

        Each row of panels is a channel, each column a time step. Panels of one variable share a
        colour scale; missing values are grey. With cartopy, maps in degrees have coastlines.

        Parameters
        ----------
        index : int, slice, or array-like of int or bool, default 0
            As for :meth:`to_xarray`.
        channel : str or sequence of str, optional
            The channels, or fields without channels, to draw; by default the first four of each
            field.

        Returns
        -------
        matplotlib.figure.Figure
            At most 8 steps and 16 rows; a line below says what is left out.

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
        """Count how often an epoch has each element.

        Nothing is read but labels.

        Parameters
        ----------
        *fields : str
            The fields whose elements are counted; by default all.

        Returns
        -------
        Coverage
            ``counts`` for each windowed dimension, and ``grid``, a map of the last two; ``print``,
            ``to_xarray()`` and ``plot()`` show them. Samples that are drawn count as often as on
            average.

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
        """Plan shuffled batches within a memory budget. Nothing is read yet.

        Parameters
        ----------
        batch_size : int, default 32
            Samples per batch, on each rank.
        shuffle : bool, default True
            Whether samples are shuffled anew in each epoch. If not, ids ascend.
        seed : int, default 0
            Fixes the order.
        drop_last : bool, default False
            Whether samples that do not fill a global batch are left out. If not, the last batch is
            shorter, and ``batch.is_padding`` flags rows that ranks repeat.
        steps : int, optional
            Batches per epoch on each rank, all full. The next epoch goes on where this one stopped.
            By default an epoch gives each sample once.
        memory : int or str, optional
            Bytes of this rank for batches, reads under way and decoded chunks: ``"4GiB"``; a part
            of its share of the machine, ``"50%"``; or for all ranks of the machine,
            ``"64GiB/node"``. By default what all data need, at most half of the share, less for
            further loaders.
        output : {"torch", "numpy", "jax", "cupy"}
            What batches hold: tensors, or arrays of NumPy, JAX (on the CPU) or CuPy.
        device : torch.device, str or OnDevice, optional
            Where batches are copied while the one before is used, such as ``"cuda"``; see
            :class:`OnDevice`.
        collate_fn : callable, optional
            Makes the delivered value from a list of samples, each a tuple of arrays.
        world : World, optional
            Rank and number of ranks; by default those of ``torch.distributed``, ``RANK`` and
            ``WORLD_SIZE``, or a SLURM step, at first use.

        Other Parameters
        ----------------
        threads : int, optional
            Threads that load and gather, at most 4096; by default the cores of the process, divided
            among the ranks of the machine.
        processes : int, default 0
            Worker processes, at most 1024, that call transforms of Python and ``collate_fn``, which
            must copy arrays that they keep.
        prefetch : int, default 2
            Batches made ahead; more if they are small and ``memory`` holds them.
        on_error : {"raise", "skip"}
            What to do about a chunk that cannot be read: raise, or replace the rows that need it by
            others, flagged by ``batch.is_padding``.
        plan : PlanRules, optional
            Bounds of reads and mixing; batches for other numbers of ranks.
        on_nan : {"warn", "count", "raise", "ignore"}
            What to do about NaN after the transforms: warn of those in the first eight batches,
            count all in ``report()``, raise, or nothing.

        Returns
        -------
        Loader
            An iterable of :class:`Batch`.

        Raises
        ------
        MemoryBudgetError
            If the memory is too small; the error gives the minimum.
        EmptySamplesError
            If there are fewer samples than ranks.
        RanksError
            At first use without ``memory``, if not all data fit and ranks on other machines cannot
            be asked for theirs.
        OptionError
            If an option is unknown, out of range or does not fit the ranks, samples or device.
        ForkError
            In a process forked from one that used the GPU.
        MissingDependencyError
            If the library of ``output`` is missing.

        Examples
        --------
        >>> ds = xr.Dataset({"t2m": ("time", np.arange(6.0))})
        >>> loader = ds.xloader.window(time=2).loader(batch_size=2, output="numpy")
        >>> [batch.t2m.shape for batch in loader]
        [(2, 2), (1, 2)]
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
            Sample ids in an order of your own, to predict its cost in the same memory: exact for up
            to 10 million ids, and scaled up from these for more.
        cache : {None, "lru"}
            How the order is read: known in advance, so that the chunk needed farthest ahead is
            dropped first; or unknown, as under a sampler, with the chunks used last in memory.
        num_workers : int, default 1
            With ``cache``: workers that share ``memory`` and take turns at batches.
        **options
            As for :meth:`loader`. With ``cache``, only ``batch_size``, ``memory`` and ``prefetch``
            matter.

        Returns
        -------
        Explanation
            Counts of reads and bytes, the peak of the memory, and how well batches mix.

        Raises
        ------
        SampleIndexError, EmptySamplesError
            If the order holds an id that is out of range, or none.
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
        """Plan for several memories. No value is read.

        Parameters
        ----------
        memory : sequence of (int or str)
            Memories to plan for, as :meth:`loader` takes them.
        max_amplification : sequence of float, optional
            Bounds of the mean reads per chunk; by default that of ``plan=``, or 1.05, 2 and 4.
        **options
            Other options of :meth:`loader`, the same for all plans.

        Returns
        -------
        PlanComparison
            Reads, mixing and memory for each pair; ``plot()`` draws them. Where the memory is too
            small, the smallest that would do.

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
        """Find chunks and shards that suit these samples better.

        Chunks are planned for as if the data were stored in them. No value is read, unless
        ``measure`` is set. :meth:`materialize` writes the copy.

        Parameters
        ----------
        measure : bool
            Whether to read up to four chunks, and to measure how fast they decode, and how fast and
            small they are in zstd. By default speeds are assumed.
        client : distributed.Client or False, optional
            As for :meth:`stats`; a worker measures.
        **options
            Options of :meth:`loader` for the training that the copy is for: above all
            ``batch_size``, ``memory`` and ``world``.

        Returns
        -------
        Advice
            Today's chunks and up to three better ones, with predicted reads, mixing, speed and
            size.

        Raises
        ------
        OptionError
            If there are no windows, or an option is unknown or outside its range.
        MemoryBudgetError
            If the memory does not even hold the batches.
        EmptySamplesError
            If there are fewer samples than ranks.
        ChunkError, ClusterError
            If ``measure`` is set and a chunk cannot be read, or the cluster fails.

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
        """Write a Zarr store in chunks that suit training.

        It holds the variables that the samples take, over the part that :meth:`sel` and
        :meth:`isel` keep, without windows, recorded methods and forcings: open it, and use the same
        verbs after the selection. If the job is killed, make the same call again: finished shards
        are kept.

        Parameters
        ----------
        target : path, URL or store
            A folder, a URL, a store of zarr, obstore or fsspec, or a writable session of icechunk,
            to be committed afterwards.
        chunks, shards : mapping of str to int, optional
            Elements of a chunk, and of a shard (one stored object with many chunks), along
            dimensions; those not named, or -1, are not cut. ``{"t2m": {"time": 8}}`` is for one
            variable. Without ``chunks`` and ``advice``, the first proposal of :meth:`advise` is
            taken.
        advice : Advice or ChunkProposal, optional
            Chunks and shards as :meth:`advise` proposes them.
        dtype : dtype-like, optional
            Dtype of floats in the target; by default that of the source.
        pack : mapping of str to object, optional
            Variables to store as integers: ``"int16"``; with the largest error allowed, ``("int16",
            0.01)``; or ``{"dtype": "int16", "scale_factor": 0.01, "add_offset": 280.0}``.
        stats : xarray.Dataset, optional
            The result of :meth:`stats`, for the range of packed values; else one pass more finds
            it.
        compressor : {"zstd", "lz4"}, codec of zarr, or None
            How chunks are compressed.
        checksum : bool
            Whether a CRC-32C is stored with each chunk.
        storage_options : mapping, optional
            Options for the file system of a URL.
        overwrite : bool
            Whether to remove a Zarr store that lies at the target.
        verify : bool
            Whether all objects are read back at the end.
        part : (int, int), optional
            ``(i, n)``: only the part ``i`` of ``n``, from 0. The part that ends last completes the
            store.
        dry_run : bool
            Whether to return the plan, and write nothing.
        memory, threads, progress, client : optional
            As for :meth:`stats`.

        Returns
        -------
        Materialized
            What was written, with reads predicted and counted.

        Raises
        ------
        TargetError
            If something else lies at the target, or it was begun with other arguments.
        MemoryBudgetError
            If the memory is too small for a shard and its chunks.
        StoreFullError, ClusterError
            If no room is left, or the cluster fails. What is written stays.
        OptionError
            If values cannot be packed as asked.

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
        """Put predictions back on the grid, as a Zarr store or in memory.

        Parameters
        ----------
        target : path, optional
            Path of the Zarr store. Without one, the mosaic becomes an :class:`xarray.Dataset`.
        field : str, optional
            The field that is predicted; by default ``targets``, or the only field.
        blend : {"mean", "linear", "crop"}
            The value of a cell that several windows cover: their mean; their mean with weights
            ``min(j + 1, n - j)`` for element ``j`` of ``n`` along each windowed dimension; or the
            value of the window with the nearest centre.
        leads : str or collection of str, optional
            Dimensions along which predictions at different offsets are kept apart, along ``lead``;
            ``()`` for none. By default those of which the field takes several elements, but not the
            whole window.
        chunks : mapping of str to int, optional
            Cells per chunk of the store; by default as in the source.
        keep_units : bool
            Whether variables keep the units of the source after :meth:`normalize`: for predictions
            that you have converted back.
        memory : int or str
            Bytes that merging may take, besides about 100 per sample.
        overwrite : bool
            Whether to remove what lies at the target, and predictions of earlier runs for it.
        world : World, optional
            As for :meth:`loader`.

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
        Predictions wait in the folder ``<target>.parts`` until they are merged. After a kill, run
        the same again.
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
