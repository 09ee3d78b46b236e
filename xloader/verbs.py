"""The verbs that describe samples; each gives a new value.

They come in this order: what to keep of the store (``sel``, ``isel``), what a sample spans
(``window``), its arrays (``inputs``, ``targets``, ``field``), what is done to them
(``normalize``, ``fillna``, ``map`` and the recorded methods of :class:`xarray.Dataset`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import xarray as xr

from xloader import describing, selecting
from xloader.errors import OptionError
from xloader.filling import make_fillna
from xloader.normalizing import make_normalize
from xloader.recipe import Recipe, Step
from xloader.recorded import Recorded, make_method
from xloader.transforms import Map
from xloader.windowing import make_field, make_windows


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
            What to keep along each dimension. A single label drops the dimension; a dimension
            without labels is chosen from by position.
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

    def inputs(self, *variables: str, **offsets: Any) -> Self:
        """Name the field ``inputs``: as :meth:`field`."""
        return self.field("inputs", *variables, **offsets)

    def targets(self, *variables: str, **offsets: Any) -> Self:
        """Name the field ``targets``: as :meth:`field`."""
        return self.field("targets", *variables, **offsets)

    def field(self, name: str, /, *variables: str, **offsets: Any) -> Self:
        """Name an array of the sample, the variables stacked along a leading ``channel``.

        Parameters
        ----------
        name : str
            Name of the field.
        *variables : str
            The variables. Their dimensions that are neither windowed nor among their last two
            become channels as well, variable by variable. One that lacks a dimension of the
            others is repeated along it.
        **offsets : int, slice or sequence of int
            Positions within the window along windowed dimensions, ``0 .. window_size - 1``; all
            of them where not given. An int drops the dimension.

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
        added = make_field(self.recipe, name, variables, offsets)
        return self._but(fields=(*self.recipe.fields, added))

    # Verbs: what is done to the arrays

    def normalize(self, stats: Any = None, *, mean: Any = None, std: Any = None) -> Self:
        """Subtract a mean and divide by a standard deviation, variable by variable.

        Variables without statistics stay as they are. Integer fields become float32, or float64
        from 32 bits on.

        Parameters
        ----------
        stats : mapping or xarray.Dataset, optional
            ``{variable: (mean, std)}``, ``{variable: {"mean": ..., "std": ...}}``, a Dataset
            with a dimension ``stat`` labelled ``mean`` and ``std``, or a Dataset with variables
            ``<variable>_mean`` and ``<variable>_std``. Each number may be an array along the
            dimensions that become channels, or a DataArray along any that is not windowed.
        mean, std : mapping or xarray.Dataset, optional
            The same as two mappings or Datasets, by variable.

        Raises
        ------
        OptionError
            If a number is missing, not finite, not above 0, or does not fit; if there are no
            windows yet, or a transform is recorded that may have changed the fields.
        UnknownNameError
            If a variable is not there.
        """
        self.recipe.require_windows()
        self._require_before("normalize", self.recipe.is_mapped)
        return self.with_step(make_normalize(self.recipe, stats, mean, std))

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
        fn: Callable[[xr.Dataset], xr.Dataset],
        *,
        per: Literal["batch", "sample"] = "batch",
    ) -> Self:
        """Run a function on the samples; what it returns are the new fields.

        Parameters
        ----------
        fn : callable
            Takes and returns an :class:`xarray.Dataset` of the fields. A dimension that two
            fields have in different sizes, offsets or channels is called ``<field>_<dim>``.
        per : {"batch", "sample"}
            Whether it is given whole batches, with a leading dimension ``sample`` and labels as
            coordinates ``<dim>_label``, or one sample at a time, with labels as indexes.

        Raises
        ------
        OptionError
            If ``fn`` is not callable, or ``per`` is neither.
        """
        if per not in ("batch", "sample") or not callable(fn):
            raise OptionError(
                "map needs a function and what to give it",
                given=f"{fn!r}, per={per!r}",
                allowed='a callable, and per="batch" or per="sample"',
                remedy="pass a function that takes and returns an xarray.Dataset",
            )
        return self.with_step(Map(fn, per))

    def with_step(self, step: Step) -> Self:
        """The samples with one more transform.

        Raises
        ------
        OptionError
            If there are no windows yet.
        """
        self.recipe.require_windows()
        return self._but(steps=(*self.recipe.steps, step))

    def _but(self, **changes: Any) -> Self:
        return type(self)(replace(self.recipe, **changes))

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
