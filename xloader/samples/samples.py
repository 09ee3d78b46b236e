"""What a user can write, in the order in which it is written: `open`, and the methods of `Samples`.

Each method hands on to a room below and returns a new value; nothing is read before a sample or a
batch is asked for. The file is as long as its docstrings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, product
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, DTypeLike, NDArray

from xloader.core.axis import Ints
from xloader.core.nans import OnNan
from xloader.core.options import make_options
from xloader.core.retry_policy import RetryPolicy
from xloader.errors import OptionError
from xloader.loader.batch import Batch
from xloader.loader.loader import Loader
from xloader.planning.explain import Explanation
from xloader.recipe import selection
from xloader.recipe.layout import FieldLayout, make_layouts
from xloader.recipe.parse_windows import make_field, make_windows
from xloader.recipe.recipe import Recipe, Transform, find
from xloader.samples import describe, loader_verbs, single_samples, subset_verbs
from xloader.samples.sample_ids import normal_ids
from xloader.samples.unplanned import warn_of_no_plan
from xloader.sources.open.open_source import DEFAULT_DTYPE, open_source
from xloader.tensors.convert import tensor_maker
from xloader.transforms import slabs
from xloader.transforms.fillna import make_fillna
from xloader.transforms.normalize import make_normalize
from xloader.transforms.outputs import Output, make_outputs
from xloader.transforms.steps import Map
from xloader.transforms.xarray_methods import RecordedMethods, make_method

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
    retry_policy = RetryPolicy(read_timeout, max_retries)
    opened = open_source(
        source,
        variables=variables,
        group=group,
        storage_options=storage_options,
        dtype=dtype,
        on_missing=on_missing,
        retry_policy=retry_policy,
        **open_kwargs,
    )
    return Samples(Recipe(opened, retry_policy=retry_policy))


@dataclass(frozen=True, repr=False)
class Samples(RecordedMethods):
    """Windows of a source as a sequence: each id names a sample, a tuple of arrays.

    Made by :func:`xloader.open` or ``ds.xloader``. Every verb gives new samples and leaves these
    as they are. Methods of :class:`xarray.Dataset` that work on whole batches, such as ``clip`` or
    ``mean``, can be called as well: :mod:`xloader.transforms.xarray_methods` lists them.

    Parameters
    ----------
    recipe : Recipe
        The description of the samples, as data.

    Examples
    --------
    >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(40.0).reshape(10, 4))})
    >>> samples = ds.xloader.window(time=6, stride=1).inputs("t2m").targets("t2m", time=5)
    >>> samples.fields, samples.shapes
    (('inputs', 'targets'), {'inputs': (1, 6, 4), 'targets': (1, 4)})
    """

    recipe: Recipe

    # What to keep of the store

    def sel(
        self,
        indexers: Mapping[str, Any] | None = None,
        method: str | None = None,
        tolerance: Any = None,
        **labels: Any,
    ) -> Self:
        """Keep what has certain labels, as :meth:`xarray.Dataset.sel` does, lazily.

        Parameters
        ----------
        indexers : mapping of str to (label, slice or sequence of labels), optional
            What to keep along each dimension. A single label drops the dimension, as in
            ``sel(level=500)``, a list of one keeps it; a dimension without labels is chosen
            from by position.
        method, tolerance : optional
            As in :meth:`xarray.Dataset.sel`.
        **labels
            The same as keyword arguments.

        Raises
        ------
        UnknownNameError
            If a dimension or a label is not there.
        OptionError
            If the elements do not increase, or there are windows already.
        EmptySamplesError
            If nothing is left.
        """
        self._require_before("sel", self._has_windows)
        chosen = selection.sel(
            self.recipe, {**(indexers or {}), **labels}, method=method, tolerance=tolerance
        )
        return self._but(selection=chosen)

    def isel(self, indexers: Mapping[str, Any] | None = None, **positions: Any) -> Self:
        """Keep what is at certain positions, as :meth:`xarray.Dataset.isel` does, lazily.

        Parameters
        ----------
        indexers : mapping of str to (int, slice, sequence of int or mask), optional
            What to keep along each dimension. An int drops the dimension.
        **positions
            The same as keyword arguments.

        Raises
        ------
        UnknownNameError
            If a dimension is not there.
        OptionError
            If a position is out of range, the elements do not increase, or there are windows
            already.
        EmptySamplesError
            If nothing is left.
        """
        self._require_before("isel", self._has_windows)
        chosen = selection.isel(self.recipe, {**(indexers or {}), **positions})
        return self._but(selection=chosen)

    # What a sample spans, and its arrays

    def window(
        self,
        sizes: Mapping[str, int] | int | None = None,
        *,
        stride: Mapping[str, int] | int | None = None,
        dilation: Mapping[str, int] | int = 1,
        **sizes_by_dim: int,
    ) -> Self:
        """Say what one sample spans. Dimensions that are not named are taken whole.

        Windows count what is selected: after :meth:`isel` or :meth:`sel` with a list or a mask
        they run across what was left out, as elements that were far apart are neighbours then:
        ``explain()`` names steps between labels that are irregular.

        Parameters
        ----------
        sizes : int or mapping of str to int, optional
            Elements of a window along each dimension; an int stands for every dimension. Ids
            count windows in C order, dimensions as named here.
        stride : int or mapping of str to int, optional
            Elements between windows; where not given, the window's size.
        dilation : int or mapping of str to int, default 1
            Elements between a window's elements.
        **sizes_by_dim
            Sizes as keyword arguments.

        Raises
        ------
        WindowError
            If a window does not fit its dimension, or a number is below 1.
        UnknownNameError
            If a dimension is not there.
        OptionError
            If no dimension is named, or there are windows already.
        """
        self._require_before("window", self._has_windows)
        if isinstance(sizes, Mapping) or sizes_by_dim:
            if isinstance(sizes, int):
                sizes = dict.fromkeys(self.recipe.dim_sizes, sizes)
            sizes = {**(sizes or {}), **sizes_by_dim}
        windows = make_windows(self.recipe, sizes, stride, dilation)
        return self._but(windows=windows)

    def inputs(self, *variables: str | Sequence[str], **offsets: Any) -> Self:
        """Name the field ``inputs``: as :meth:`field`."""
        return self.field("inputs", *variables, **offsets)

    def targets(self, *variables: str | Sequence[str], **offsets: Any) -> Self:
        """Name the field ``targets``: as :meth:`field`."""
        return self.field("targets", *variables, **offsets)

    def field(self, name: str, /, *variables: str | Sequence[str], **offsets: Any) -> Self:
        """Name an array of the sample, the variables stacked along a leading ``channel``.

        Parameters
        ----------
        name : str
            Name of the field.
        *variables : str or sequence of str
            The variables, one by one or as a list. Their dimensions that are neither windowed
            nor among their last two become channels as well, variable by variable: the levels
            500 and 850 of ``z`` are the channels ``z_500`` and ``z_850``. One that lacks a
            dimension of the others is repeated along it. Variables of several dtypes share
            the one that numpy promotes them to: int32 beside float32 makes float64.
        **offsets : int, slice or sequence of int
            Positions within the window along windowed dimensions, ``0 .. window_size - 1``; all
            of them where not given. An int drops the dimension. Negative ones count from the
            window's end, and slices clip, as in Python.

        Raises
        ------
        UnknownNameError
            If a variable or dimension is not there.
        StackError
            If the variables cannot share one array.
        UnsupportedDataError
            If a variable holds no numbers.
        OptionError
            If the name is taken, an offset does not fit the window, there are no windows yet,
            or a transform is recorded that may have changed the fields.
        """
        self.recipe.require_windows()
        self._require_before("field", self.recipe.is_mapped)
        names = [[given] if isinstance(given, str) else given for given in variables]
        added = make_field(self.recipe, name, tuple(chain.from_iterable(names)), offsets)
        return self._but(fields=(*self.recipe.fields, added))

    # What is done to the arrays

    def normalize(self, stats: Any = None, std: Any = None, *, mean: Any = None) -> Self:
        """Subtract a mean and divide by a standard deviation, variable by variable.

        Variables without statistics stay as they are. Integer fields become float32, or float64
        from 32 bits on. Fields are normalised before :meth:`map` and recorded methods.

        Parameters
        ----------
        stats : mapping or xarray.Dataset, optional
            ``{variable: (mean, std)}``, ``{variable: {"mean": ..., "std": ...}}``, a Dataset
            with a dimension ``stat`` labelled ``mean`` and ``std``, or a Dataset with variables
            ``<variable>_mean`` and ``<variable>_std``. Each number may be an array along the
            dimensions that become channels, or a DataArray along any that is not windowed; after
            :meth:`slab` too along the whole dimension, of which each rank takes its part.
        mean, std : mapping or xarray.Dataset, optional
            The same as two mappings or Datasets, by variable: ``normalize(mean=a, std=b)``, or
            ``normalize(a, b)`` for short.

        Raises
        ------
        OptionError
            If a number is missing, not finite, not above 0, or does not fit; if there are no
            windows yet, or a transform is recorded that may have changed the fields.
        UnknownNameError
            If a variable is not there.

        Examples
        --------
        >>> ds = xr.Dataset({"t2m": ("time", [270.0, 280.0, 290.0])})
        >>> samples = ds.xloader.window(time=3).normalize({"t2m": (280.0, 10.0)})
        >>> samples[0][0].tolist()
        [-1.0, 0.0, 1.0]
        """
        self.recipe.require_windows()
        self._require_before("normalize", self.recipe.is_mapped)
        return self.with_step(make_normalize(self.recipe.planned, stats, mean, std))

    def fillna(self, value: Any) -> Self:
        """Put numbers in place of NaN.

        Parameters
        ----------
        value : float or mapping of str to float
            One number, or one by variable; after ``map`` or a recorded method, by field.

        Raises
        ------
        UnknownNameError
            If a variable is not there.
        OptionError
            If a value is no number.
        """
        if self.recipe.is_mapped:
            return self.with_step(make_method("fillna", (value,), {}))
        return self.with_step(make_fillna(self.recipe, value))

    def map(
        self,
        fn: Callable[..., xr.Dataset],
        *,
        per: Literal["batch", "sample"] = "batch",
        random: bool = False,
    ) -> Self:
        """Run a function on the samples; the data variables that it returns are the new fields.

        Fields that were there before keep their order, and new ones follow in the Dataset's.
        Batches are made on several threads, so ``fn`` runs on several at once. It is tried on
        one sample of zeros to find out names, shapes and dtypes.

        Parameters
        ----------
        fn : callable
            Takes and returns an :class:`xarray.Dataset` of the fields; with ``random=True``
            called as ``fn(ds, rng)``.
        per : {"batch", "sample"}
            Whether it is given whole batches, with a leading dimension ``sample``, or one
            sample at a time.
        random : bool, default False
            Whether ``fn`` also gets an :class:`~xloader.transforms.rng.Rng`, new for each batch,
            whose arrays have a row for each of its samples, with ``per="sample"`` one row.

        Raises
        ------
        OptionError
            If ``fn`` is not callable, ``per`` is neither, or ``random`` is no bool.

        Notes
        -----
        *Chance.* What ``rng`` gives a sample follows from the seed, the epoch, the sample's id
        and, where weights draw it several times in an epoch, which time it is: the same
        whatever the batches, threads, workers and ranks, and something else in each epoch.
        What is read outside a planned epoch, as by ``samples[i]`` or by a ``MapDataset`` under
        another sampler than ours, is of seed 0 and epoch 0. Functions have numbers of their
        own, unless they draw by the same ``name``.

        *Names of dimensions.* A dimension keeps its name where all fields that have it agree in
        its size, its offsets and its channels. Where two differ, it is ``<field>_<dim>`` in
        every field that has it: with ``inputs("t2m", "u10")`` and ``targets("t2m")`` there are
        ``inputs_channel`` and ``targets_channel``, with one field, or the same channels in
        both, ``channel``.

        *Labels.* What is the same for every sample is a coordinate with an index under the
        dimension's own name: channels, and dimensions that are not windowed. Labels of windowed
        dimensions are ``<dim>_label (sample, <dim>)`` in a batch; in a Dataset of one sample
        they are an index like the others. ``sample`` holds the ids.

        *A pitfall of xarray's.* Arithmetic and ``assign`` keep only what has the same labels,
        in the order of the Dataset assigned to: ``ds.assign(inputs=...)`` with another channel
        or a flipped ``lon`` loses the channel and the flip. Return a new Dataset, or drop the
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

        Some noise on each sample, and half of them turned round:

        >>> def augment(batch, rng):
        ...     values = batch["inputs"] + rng.normal(batch["inputs"].shape[1:], 0.0, 0.1)
        ...     is_turned = xr.DataArray(rng.uniform() < 0.5, dims="sample")
        ...     return xr.Dataset({"inputs": xr.where(is_turned, -values, values)})
        >>> noisy = ds.xloader.window(time=1).inputs("u10").map(augment, random=True)

        Sample 3 gets the same in any batch:

        >>> bool((noisy[3][0] == noisy[[0, 3]].inputs[1]).all())
        True
        """
        known = product(("batch", "sample"), (True, False))
        if (per, random) not in known or not callable(fn):
            raise OptionError(
                "map needs a function and what to give it",
                given=f"{fn!r}, per={per!r}, random={random!r}",
                allowed='a callable, per="batch" or per="sample", random=True or random=False',
                remedy="pass a function that takes and returns an xarray.Dataset",
            )
        return self.with_step(Map(fn, per, random))

    def with_step(self, step: Transform) -> Self:
        """The samples with one more transform.

        Raises
        ------
        OptionError
            If there are no windows yet.
        """
        self.recipe.require_windows()
        return self._but(steps=(*self.recipe.planned.steps, step))

    # Which samples there are

    def select(self, ids: ArrayLike | slice) -> Self:
        """Keep some samples, which get new ids in the order given: ``0, 1, 2, ...``.

        A sample named twice occurs twice. :meth:`positions` says where in the store they lie.

        Parameters
        ----------
        ids : slice, array-like of int, or of bool
            Sample ids, 1-d, or a mask with one flag for each sample.

        Raises
        ------
        SampleIndexError
            If an id is out of range, or a mask has another length.
        EmptySamplesError
            If none is left, or none with a weight.
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
        return self._but(subset=subset_verbs.select(self.recipe, ids))

    def weighted(self, weights: ArrayLike, num_samples: int | None = None) -> Self:
        """Draw anew in each epoch how often a sample occurs, in proportion to its weight.

        Parameters
        ----------
        weights : array-like of float
            One for each sample id, finite and not negative. With equal weights and fewer
            ``num_samples`` than ids, each epoch is a random part of the samples; with more, all
            of them and some once more.
        num_samples : int, optional
            Samples of an epoch: ``loader.num_samples``. By default as many as there are ids,
            ``len(samples)``, which weights do not change.

        Raises
        ------
        OptionError
            If the weights are not one for each sample, not finite, negative, or all 0; if
            ``num_samples`` is below 1, or there are no windows yet.

        Notes
        -----
        Systematic resampling, keyed by the loader's seed and the epoch: a sample whose share of
        an epoch is 2.3 occurs 2 or 3 times in it, 2.3 times on average. Weights that were given
        before are replaced. Each chunk is still read once an epoch, however often its samples
        occur. A :meth:`select` that follows keeps each sample's weight, and ``num_samples``
        where it was given.

        Examples
        --------
        >>> import xarray as xr
        >>> ds = xr.Dataset({"rain": ("time", np.arange(4.0))})
        >>> samples = ds.xloader.window(time=1).weighted([0, 1, 1, 2], num_samples=8)
        >>> loader = samples.loader(batch_size=8, output="numpy")
        >>> len(samples), loader.num_samples, sorted(next(iter(loader)).ids.tolist())
        (4, 8, [1, 1, 2, 2, 3, 3, 3, 3])
        """
        return self._but(subset=subset_verbs.weigh(self.recipe, weights, num_samples))

    def slab(self, dim: str, rank: int, size: int) -> Self:
        """Keep one rank's part of each sample, for a group of ranks that share the samples.

        All ranks of the group get the same samples in the same order, each its own slab of one
        dimension, and reads the chunks of that alone. They are one data rank: give them the same
        ``rank`` and ``world_size``, and call the same verbs with the same arguments on each. A
        state of any of them restores all.

        Parameters
        ----------
        dim : str
            A dimension that samples have whole.
        rank, size : int
            Which part, in ``[0, size)``, of how many equal ones, give or take an element.

        Raises
        ------
        UnknownNameError
            If there is no such dimension.
        OptionError
            If there are no windows yet, the dimension is windowed, or it has fewer elements; if
            a transform is recorded that may need the whole of it.

        Notes
        -----
        *Transforms before.* Slabs are then parts of what the transforms make of the whole, so
        only those may come before that give the same on parts: :meth:`normalize`,
        :meth:`fillna`, and recorded methods that do not work along the dimension. No function
        of :meth:`map` may, as nobody knows what it does.

        *Transforms after* see the slab alone: ``.mean("lat")`` gives each rank the mean of its
        own part, which is left to the group to put together.

        *Numbers along the dimension* are given for the whole of it, as statistics to
        :meth:`normalize` or a DataArray to ``where``, ``clip`` and ``fillna``: each rank
        takes its part, by label where both have labels.

        *Chance.* What a random function draws for a sample is the same on all ranks of a group,
        so they agree on whether to flip it. Noise in the shape of a slab repeats from slab to
        slab, therefore; under a name of the rank's own it does not, as with
        ``rng.normal(shape, name=f"noise {rank}")``.

        Examples
        --------
        >>> import xarray as xr
        >>> ds = xr.Dataset({"t2m": (("time", "lat"), np.arange(30.0).reshape(6, 5))})
        >>> samples = ds.xloader.window(time=2)
        >>> south, north = (samples.slab("lat", rank, 2) for rank in range(2))
        >>> south[1][0].tolist(), north[1][0].tolist()
        ([[10.0, 11.0], [15.0, 16.0]], [[12.0, 13.0, 14.0], [17.0, 18.0, 19.0]])
        """
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
            Along windowed dimensions, where windows begin, with the meaning that labels have
            in :meth:`xarray.Dataset.sel`; all of them along dimensions that are not named. A
            dimension without labels counts selected elements.
        method, tolerance : optional
            As in :meth:`xarray.Dataset.sel`: ``method="nearest"`` takes the window that begins
            closest to a label.
        **labels
            The same as keyword arguments.

        Returns
        -------
        numpy.ndarray
            Sample ids, int64, shape ``(n,)``, by window in the order of the labels.

        Raises
        ------
        UnknownNameError
            If a dimension is not there, or no window begins at a label.
        OptionError
            If a dimension has no windows, or xarray refuses the request.
        EmptySamplesError
            If the windows are there, but none is among the samples.

        Notes
        -----
        A window that begins before the end of a slice may reach beyond it. Where a split must
        not share elements, split the store by :meth:`sel`, or leave a gap of a window's span.

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
        asked = {**(indexers or {}), **labels}
        return subset_verbs.ids_at(self.recipe, asked, method=method, tolerance=tolerance)

    # What there is

    def __len__(self) -> int:
        return self.recipe.num_ids

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
        return single_samples.coordinates_of(self.recipe)

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
        ids = normal_ids(len(self), np.atleast_1d(np.asarray(ids)))
        return single_samples.positions_of(self.recipe, ids)

    # Single samples, read without a plan

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
        return single_samples.read(self.recipe, self._layouts, key)

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
        return single_samples.to_xarray(self.recipe, self._layouts, index)

    # Batches, planned

    def loader(
        self,
        *,
        batch_size: int = 32,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        memory: int | str = "2GiB",
        output: Literal["torch", "numpy"] = "torch",
        device: Any = None,
        collate_fn: Callable[[list[tuple[Any, ...]]], Any] | None = None,
        threads: int | None = None,
        processes: int = 0,
        prefetch: int = 2,
        on_error: Literal["raise", "skip"] = "raise",
        max_amplification: float = 1.05,
        lanes: int | None = None,
        spread: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        read_timeout: float | None = None,
        max_retries: int | None = None,
        on_nan: OnNan = "warn",
        **unknown: Any,
    ) -> Loader:
        """Plan epochs of shuffled batches within a memory budget. Nothing is read yet.

        Parameters
        ----------
        batch_size : int, default 32
            Samples of a batch, on each rank.
        shuffle : bool, default True
            Whether each epoch has an order of its own; if not, ids ascend.
        seed : int, default 0
            With the epoch and the plan, it fixes the order. From -2**63 to 2**64 - 1, as
            ``torch.manual_seed`` takes it.
        drop_last : bool, default False
            Whether samples that do not fill a global batch are left out. If not, the last batch
            is short on one rank, and padded on several: ``batch.is_padding`` says where.
        memory : int or str, default "2GiB"
            Bytes that this rank may use for batches, reads under way and decoded chunks.
        output : {"torch", "numpy"}
            What batches are made of.
        device : torch.device or str, optional
            Where tensors go, by :meth:`Batch.to`.
        collate_fn : callable, optional
            Makes what is delivered from a list of samples, each a tuple with one array or
            tensor for each field, as in PyTorch.
        threads : int, optional
            Threads that load and gather, 4096 at most; the cores that the process may use by
            default.
        processes : int, default 0
            Worker processes; there are none yet.
        prefetch : int, default 2
            Batches made ahead of need.
        on_error : {"raise", "skip"}
            What to do about a chunk that cannot be had. Raise at the batch it belongs to; or let
            another row of the batch take the place of each row that needs it, so that batches
            and steps stay as they are: ``batch.is_padding`` says where, ``report()`` which chunks
            and how many samples. A batch without a good row raises all the same.
        max_amplification : float, default 1.05
            How often a chunk may be read on average, where windows straddle chunks.
        lanes : int, optional
            Independent parts of the order, which ranks divide among them: one a rank by
            default. With it given, batches are the same on any world size that divides it.
        spread : int, optional
            How many later tiles come in while a tile hands out its samples; by default, what
            the memory allows.
        rank, world_size : int, optional
            This process among those that train together. By default as ``torch.distributed``,
            ``RANK`` and ``WORLD_SIZE``, or a SLURM step say when the loader is first used.
        read_timeout : float, optional
            Seconds that each attempt at a read may take: by default what :func:`xloader.open`
            was given, and 300.0 there.
        max_retries : int, optional
            Attempts after the first, where that fails for a reason that may pass: by default
            what :func:`xloader.open` was given, and 4 there.
        on_nan : {"warn", "count", "raise", "ignore"}
            What to do about NaN in floating fields, after the transforms: warn once, where one
            of the first eight batches of an epoch holds any; look at all batches and count them
            in ``report().num_nan``; look at all and raise at the first; or look at none.
        **unknown
            Nothing else is taken; the error says what is meant by PyTorch's names.

        Returns
        -------
        Loader
            An iterable of :class:`Batch`.

        Raises
        ------
        MemoryBudgetError
            If the memory is too small, with the minimum that would do.
        LanesError
            If lanes do not divide the global batch, or ranks do not divide the lanes.
        OptionError
            If an option is outside its range.
        MissingDependencyError
            If tensors are asked for and PyTorch is not installed.
        """
        options = {k: v for k, v in locals().items() if k not in ("self", "unknown")}
        return loader_verbs.make_loader(self.recipe, make_options(**options, **unknown))

    def explain(
        self,
        order: ArrayLike | None = None,
        *,
        cache: Literal["lru"] | None = None,
        num_workers: int = 1,
        **options: Any,
    ) -> Explanation:
        """What an epoch would cost. No value is read.

        Parameters
        ----------
        order : array_like of int, optional
            Sample ids in an order of your own, whose cost within the same memory is told
            instead: exactly up to 10 million of them, from the first 10 million beyond that.
        cache : {None, "lru"}
            How the order would be carried out. By default it is known beforehand, so that what
            is needed farthest ahead is dropped first. With "lru" it is not, as where a sampler
            hands out batches: each worker begins with no chunks and keeps those that it used
            last, sample by sample.
        num_workers : int, default 1
            With ``cache``: workers that share ``memory`` and take turns at batches, as those of
            a PyTorch ``DataLoader`` do; 0 is the process itself. Each makes ``prefetch`` batches
            ahead.
        **options
            As for :meth:`loader`. With ``cache``, the order is that of this rank, and only
            ``batch_size``, ``memory`` and ``prefetch`` matter.

        Raises
        ------
        SampleIndexError
            If the order holds an id that is out of range.
        MemoryBudgetError
            If the memory is too small, with the minimum that would do.
        OptionError
            If an option is outside its range.

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
        return loader_verbs.explain(self.recipe, order, cache, num_workers, options)

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
        from xloader.tensors.in_memory import fill_tensors

        with loader_verbs.whole_loader(self.recipe, memory, on_nan) as batches:
            return fill_tensors(batches, len(self), self.shapes, self.dtypes)

    # How it is shown, and how it travels

    def __repr__(self) -> str:
        return describe.as_text(self.recipe)

    def _repr_html_(self) -> str:
        return describe.as_html(self.recipe)

    def __reduce__(self) -> tuple[object, ...]:
        # What is cached is made anew where it is needed, which keeps pickles small.
        return type(self), (self.recipe,)

    # What the methods above share

    def _but(self, **changes: Any) -> Self:
        changed = replace(self.recipe.planned, **changes)
        slab = self.recipe.slab
        return type(self)(changed if slab is None else slabs.cut(changed, slab.dim, slab.part))

    def _require_before(self, verb: str, is_too_late: bool) -> None:
        if is_too_late:
            raise OptionError(
                f"{verb} comes too late",
                given=f"after {describe.last_verb(self.recipe)}",
                allowed="first sel and isel, then window once, then inputs, targets and field, "
                "normalize and fillna, then map and recorded methods",
                remedy=f"call .{verb}(...) earlier, on the samples as they were",
            )

    @property
    def _has_windows(self) -> bool:
        return self.recipe.windows is not None

    @cached_property
    def _layouts(self) -> tuple[FieldLayout, ...]:
        return make_layouts(self.recipe)

    @cached_property
    def _outputs(self) -> tuple[Output, ...]:
        return make_outputs(self.recipe, self._layouts)
