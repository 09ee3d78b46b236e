"""The verbs that choose among samples: which of them there are, how often, and at which labels."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from xloader.core.axis import Ints
from xloader.core.subset import Subset
from xloader.errors import EmptySamplesError, OptionError, SampleIndexError
from xloader.recipe import selection as selecting
from xloader.recipe.recipe import find
from xloader.samples.verbs import Verbs
from xloader.transforms import slabs

_MOST_DRAWS = 1 << 32
"""What is drawn takes 8 bytes each: more would not fit any memory."""


class Choosing(Verbs):
    """The verbs that choose among samples, above those that describe one."""

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
        chosen = normal_ids(self.recipe.num_ids, listed_ids(self.recipe.num_ids, ids))
        if not len(chosen):
            raise EmptySamplesError(
                "no sample is selected", given=repr(ids), allowed="at least one id"
            )
        subset = self._subset.select(chosen)
        if not len(subset.possible_ids):
            raise EmptySamplesError(
                "no sample that is selected has a weight",
                given=repr(ids),
                allowed="at least one id whose weight is above 0",
                remedy="call .select before .weighted, or select others",
            )
        return self._but(subset=subset)

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
        recipe = self.recipe
        windowed = recipe.require_windows().dims
        find(dim, recipe.dim_sizes, "dimension")
        total = recipe.dim_sizes[dim]
        part = slabs.part_of(total, rank, size)
        if part is None or dim in windowed or recipe.whole is not None:
            raise OptionError(
                f"samples cannot be cut into slabs of {dim!r} like this",
                given=f"rank={rank!r}, size={size!r}, windows along {', '.join(windowed)}"
                + ", of a slab" * (recipe.whole is not None),
                allowed="once, along a dimension without windows; whole numbers, "
                f"0 <= rank < size <= {total}",
                remedy="choose a dimension that samples have whole",
            )
        slabs.require_apart(recipe, dim)
        return type(self)(slabs.cut(recipe, dim, part))

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
        given = np.asarray(weights)
        # Text is none, and the imaginary part of a complex number would be lost.
        is_real = given.dtype.kind in "biuf"
        values = given.astype(np.float64) if is_real else np.full(given.shape, np.nan)
        if values.shape != (self.recipe.num_ids,) or not np.isfinite(values).all():
            raise OptionError(
                "these are no weights of the samples",
                given=f"{given.dtype} of shape {given.shape}, not finite: "
                f"{np.count_nonzero(~np.isfinite(values))}",
                allowed=f"one finite real number for each of {self.recipe.num_ids} samples",
                remedy="count ids with len(samples)",
            )
        if values.min() < 0 or not values.any():
            raise OptionError(
                "weights say how often samples occur",
                given=f"weights from {values.min()} to {values.max()}",
                allowed=">= 0, and not all of them 0",
            )
        return self._but(
            subset=replace(self._subset, weights=values, num_draws=_count(num_samples))
        )

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
        windows = self.recipe.require_windows()
        found = selecting.positions_at(self.recipe, asked, method=method, tolerance=tolerance)
        grid = np.meshgrid(*found, indexing="ij")
        at = windows.ids_of(np.stack([column.reshape(-1) for column in grid], axis=-1))
        ids = self._subset.ids_of(at)
        if not len(ids):
            raise EmptySamplesError(
                "none of these windows is among the samples",
                given=asked,
                allowed=f"labels of the {self.recipe.num_ids} samples that were selected",
                remedy="ask before select, or look at samples.positions(range(len(samples)))",
            )
        return ids

    @property
    def _subset(self) -> Subset:
        return self.recipe.subset or Subset(len(self.recipe.require_windows()))


def listed_ids(size: int, key: Any) -> NDArray[Any]:
    """What a slice, a mask of all samples or anything else names, not yet checked as ids."""
    if isinstance(key, slice):
        return np.arange(*key.indices(size), dtype=np.int64)
    ids = np.asarray(key)
    return np.flatnonzero(ids) if ids.dtype == bool and ids.shape == (size,) else ids


def normal_ids(size: int, ids: NDArray[Any]) -> Ints:
    """Ids in ``[0, size)``, negative ones counted from the end.

    Raises
    ------
    SampleIndexError
        If they are no ids, or out of range.
    """
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise SampleIndexError(
            "this names no samples",
            given=f"{ids.dtype} of shape {ids.shape}",
            allowed="a slice, a 1-d sequence of ints, or a mask of all samples",
        )
    outside = ids[(ids < -size) | (ids >= size)]
    if outside.size:
        raise SampleIndexError(
            "the sample id is out of range",
            given=int(outside[0]),
            allowed=f"[{-size}, {size})",
            remedy="len(samples) counts the ids",
        )
    # Not before they are known to be in range, as the largest uint64 is no int64.
    ids = ids.astype(np.int64)
    return np.where(ids < 0, ids + size, ids)


def _count(num_samples: Any) -> int | None:
    if num_samples is None:
        return None
    try:
        count = operator.index(num_samples)
    except TypeError:
        count = 0
    if not 1 <= count <= _MOST_DRAWS:
        raise OptionError(
            "num_samples is no number of samples",
            given=repr(num_samples),
            allowed=f"a whole number in [1, {_MOST_DRAWS}]",
            remedy="leave it out to draw as many as there are ids",
        )
    return count
