"""The verbs that describe samples; each gives a new value.

They come in this order: what to keep of the store (``sel``, ``isel``), what a sample spans
(``window``), its arrays (``inputs``, ``targets``, ``field``), what is done to them
(``normalize``, ``fillna``, ``map`` and the recorded methods of :class:`xarray.Dataset`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import Any, Literal, Self

import xarray as xr

from xloader.errors import OptionError
from xloader.recipe import selection as selecting
from xloader.recipe.parse_windows import make_field, make_windows
from xloader.recipe.recipe import Recipe, Transform
from xloader.samples import describe as describing
from xloader.transforms import slabs
from xloader.transforms.fillna import make_fillna
from xloader.transforms.normalize import make_normalize
from xloader.transforms.steps import Map
from xloader.transforms.xarray_methods import Recorded, make_method


@dataclass(frozen=True, repr=False)
class Verbs(Recorded):
    """What is described so far.

    Parameters
    ----------
    recipe : Recipe
        The description as data.
    """

    recipe: Recipe

    def __reduce__(self) -> tuple[object, ...]:
        # What is cached is made anew where it is needed, which keeps pickles small.
        return type(self), (self.recipe,)

    # Verbs: what to keep

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
        chosen = selecting.sel(
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
        chosen = selecting.isel(self.recipe, {**(indexers or {}), **positions})
        return self._but(selection=chosen)

    # Verbs: what a sample spans, and its arrays

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

    # Verbs: what is done to the arrays

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
            Whether ``fn`` also gets an :class:`xloader.transforms.rng.Rng`, new for each batch, whose
            arrays have a row for each of its samples, with ``per="sample"`` one row.

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

    def _but(self, **changes: Any) -> Self:
        changed = replace(self.recipe.planned, **changes)
        slab = self.recipe.slab
        return type(self)(changed if slab is None else slabs.cut(changed, slab.dim, slab.part))

    @property
    def _has_windows(self) -> bool:
        return self.recipe.windows is not None

    def _require_before(self, verb: str, is_too_late: bool) -> None:
        if is_too_late:
            raise OptionError(
                f"{verb} comes too late",
                given=f"after {describing.last_verb(self.recipe)}",
                allowed="first sel and isel, then window once, then inputs, targets and field, "
                "normalize and fillna, then map and recorded methods",
                remedy=f"call .{verb}(...) earlier, on the samples as they were",
            )
