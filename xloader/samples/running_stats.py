"""`RunningStats`: statistics of a stream of batches, where a first pass is impossible.

Each field is split into its variables. A variable keeps the dimensions that become channels in some
field, and everything else is reduced, samples included::

    inputs (n, channel: t2m, z_500, z_850, time, lat, lon)
        t2m  ()              count, mean, std, min, max
        z    (level: 2)      of each level
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.messages import show_count
from xloader.errors import OptionError, StateError, UnsupportedDataError, XloaderError
from xloader.jobs.statistics.moments import STATISTICS, Moments, moments_table
from xloader.loader.batches.batch import Batch
from xloader.loader.batches.batch_origin import as_numpy
from xloader.recipe.layout import FieldPart, make_layouts
from xloader.recipe.names import CHANNEL, SAMPLE
from xloader.recipe.recipe import Recipe, find
from xloader.samples.samples import Samples
from xloader.show.cards import facts_text
from xloader.transforms.outputs import Output, make_outputs
from xloader.transforms.statistics_forms import FINGERPRINT, GRID, OPTIONS, grids_of


@dataclass(frozen=True, eq=False)
class StreamSeries:
    """The values of one variable in one field, or all values of a field.

    `part`: the variable's part of the field; None for the whole array.
    """

    field: str
    variable: str = ""
    dims: tuple[str, ...] = ()
    labels: tuple[NDArray[Any] | None, ...] = ()
    part: FieldPart | None = None
    kept: tuple[int, ...] = ()
    attrs: Mapping[str, object] | None = None

    @property
    def key(self) -> str:
        """Name of the series in a state."""
        return f"{self.field}/{self.variable}"

    def moments(self, array: NDArray[Any]) -> Moments:
        """The moments of a batch of the field."""
        view = array if self.part is None else self.part.view(np.ascontiguousarray(array))
        reduced = tuple(axis for axis in range(view.ndim) if axis not in self.kept)
        return Moments.of(view, reduced)


def series_of(recipe: Recipe) -> dict[str, list[StreamSeries]]:
    """The series of all fields of samples."""
    if recipe.is_mapped:
        outputs = make_outputs(recipe, make_layouts(recipe))
        return {output.name: [_of_output(output)] for output in outputs}
    return _by_variable(recipe)


def _of_output(output: Output) -> StreamSeries:
    for dim in (CHANNEL, f"{output.name}_{CHANNEL}"):
        if dim in output.dims:
            labels = None if output.channels is None else np.array(output.channels, object)
            return _of_channels(output.name, 1 + output.dims.index(dim), labels)
    return StreamSeries(output.name)


def series_of_array(name: str, channel_axis: int | None, num_axes: int) -> StreamSeries:
    """The series of a field of unknown samples."""
    if channel_axis is None or channel_axis >= num_axes:
        return StreamSeries(name)
    return _of_channels(name, channel_axis, None)


def series_of_labelled(name: str, field: xr.DataArray) -> StreamSeries:
    """The series of a field in a Dataset of a batch, whose first dimension is that of samples."""
    for axis, dim in enumerate(field.dims):
        if dim in (CHANNEL, f"{name}_{CHANNEL}"):
            return _of_channels(name, axis, field[dim].to_numpy() if dim in field.indexes else None)
    return StreamSeries(name)


def _of_channels(name: str, axis: int, labels: NDArray[Any] | None) -> StreamSeries:
    return StreamSeries(name, dims=(f"{name}_{CHANNEL}",), labels=(labels,), kept=(axis,))


def _by_variable(recipe: Recipe) -> dict[str, list[StreamSeries]]:
    """The series of all fields of a recipe without transforms that change fields."""
    layouts = make_layouts(recipe)
    coords = recipe.source.coordinates()
    by_field: dict[str, list[StreamSeries]] = {}
    for layout in layouts:
        by_field[layout.name] = [] if layout.parts else [StreamSeries(layout.name)]
        for part in layout.variables:
            variable = recipe.variable(part.variable)
            dims = recipe.channel_dims(variable.name) if layout.channels is not None else ()
            kept = [np.asarray(recipe.kept_of(dim), np.int64) for dim in dims]
            # A view has an axis for samples, those of missing dimensions, and then its own.
            before = 1 + len(part.axes) - len(variable.dims)
            changes = any(step.changes_units((variable.name,)) for step in recipe.steps)
            wanted = ("long_name",) if changes else ("units", "long_name")
            by_field[layout.name].append(
                StreamSeries(
                    layout.name,
                    variable.name,
                    dims,
                    tuple(
                        coords[dim].to_numpy()[numbers] if dim in coords.indexes else None
                        for dim, numbers in zip(dims, kept, strict=True)
                    ),
                    part,
                    tuple(before + variable.dims.index(dim) for dim in dims),
                    {key: variable.attrs[key] for key in wanted if key in variable.attrs},
                )
            )
    return by_field


_VERSION: Final = 1


class RunningStats:
    """Count, mean, standard deviation, minimum and maximum of batches.

    For streams that can be read only once, and to see what a model gets: values after all
    transforms, each as often as it was delivered. NaN and padded rows are left out.

    Parameters
    ----------
    samples : Samples, optional
        The samples of the batches, for names of variables and channels. Batches of xloader bring
        them along.
    channel_axis : int, optional
        For arrays of unknown samples: the axis of channels, 1 in PyTorch's order.

    Raises
    ------
    OptionError
        If the samples have no windows, or ``channel_axis`` is the axis of samples.

    Examples
    --------
    >>> import numpy as np, xarray as xr, xloader
    >>> ds = xr.Dataset({"sst": ("time", np.arange(6.0))})
    >>> samples = ds.xloader.window(time=2)
    >>> running = xloader.RunningStats(samples)
    >>> for batch in samples.loader(batch_size=2, output="numpy"):
    ...     running.update(batch)
    >>> running.num_samples, running.to_dataset().sst.values.tolist()
    (3, [6.0, 2.5, 1.707825127659933, 0.0, 5.0])
    >>> samples.normalize(running.to_dataset())[0][0].round(2).tolist()
    [-1.46, -0.88]
    """

    def __init__(self, samples: Samples | None = None, *, channel_axis: int | None = None) -> None:
        if channel_axis is not None and (type(channel_axis) is not int or channel_axis < 1):
            raise OptionError(
                "channel_axis is not an axis of channels",
                given=repr(channel_axis),
                remedy="pass an int from 1 on, as axis 0 is that of samples; None without channels",
            )
        self._channel_axis = channel_axis
        self._series: dict[str, list[StreamSeries]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._attrs: dict[str, object] = {}
        self._moments: dict[str, Moments] = {}
        self.num_samples = 0
        """Number of rows that were counted."""
        self.num_padding = 0
        """Number of padded rows that were left out."""
        if samples is not None:
            self._take_names(samples.recipe)

    def update(self, batch: Any, is_padding: Any = None) -> None:
        """Count a batch.

        Parameters
        ----------
        batch : Batch, mapping of str to array, sequence of array, or xarray.Dataset
            Arrays or tensors of shape ``(n, ...)``, by field name or in the order of
            ``samples.fields``. In a Dataset, channels lie along ``channel`` or ``<field>_channel``.
        is_padding : array_like of bool, shape (n,), optional
            Rows that do not count; by default those that the batch says.

        Raises
        ------
        OptionError
            If fields or shapes differ from those of the samples, or of the batches before.
        UnsupportedDataError
            If these are no arrays of numbers.
        """
        if isinstance(batch, Batch):
            origin = batch.origin
            if not self._series and origin is not None and origin.recipe is not None:
                self._take_names(origin.recipe)
            if is_padding is None:
                batch.require_ids()
                is_padding = batch.is_padding
        before = self._series
        try:
            self._count(self._arrays_of(batch), is_padding)
        except XloaderError:
            # A batch that is refused must not decide which fields the next one has.
            self._series = before
            raise

    def _count(self, arrays: Mapping[str, NDArray[Any]], is_padding: Any) -> None:
        num_rows = {len(array) for array in arrays.values()}
        padding = np.zeros(max(num_rows, default=0), bool)
        if is_padding is not None:
            padding = np.asarray(as_numpy(is_padding), bool)
        if not arrays or num_rows != {len(padding)}:
            raise OptionError(
                "the parts of a batch do not match",
                given=f"{ {name: array.shape for name, array in arrays.items()} }, and "
                f"{len(padding)} rows of is_padding",
            )
        self._check_shapes(arrays)
        moments = {}
        for name, array in arrays.items():
            rows = array[~padding] if padding.any() else array
            for series in self._series[name]:
                moments[series.key] = series.moments(rows)
        self._add(moments)
        self.num_samples += int((~padding).sum())
        self.num_padding += int(padding.sum())

    def merge(self, other: RunningStats) -> RunningStats:
        """Make the statistics of the batches of both.

        The last bits depend on the order, as for every sum of floating numbers. Merge ranks in
        the order of their numbers, and all of them get the same bits.

        Parameters
        ----------
        other : RunningStats
            Statistics of the same fields, such as those of another rank.

        Returns
        -------
        RunningStats
            New statistics.

        Raises
        ------
        OptionError
            If the two are of different fields or channels.
        """
        first, second = (self, other) if self._series else (other, self)
        made = RunningStats(channel_axis=first._channel_axis)
        made._series, made._shapes = dict(first._series), dict(first._shapes)
        made._attrs = first._attrs
        made._moments = dict(self._moments)
        if first._series and second._series and first._keys() != second._keys():
            raise OptionError(
                "statistics of different fields cannot be merged",
                given=f"{', '.join(first._keys())} and {', '.join(second._keys())}",
                remedy="make both from samples with the same fields",
            )
        made._add(other._moments)
        made.num_samples = self.num_samples + other.num_samples
        made.num_padding = self.num_padding + other.num_padding
        return made

    def to_dataset(self) -> xr.Dataset:
        """Put the statistics into a Dataset, as ``samples.stats()`` gives it.

        Returns
        -------
        xarray.Dataset
            The variables along ``stat`` (``count``, ``mean``, ``std`` with ``ddof=0``, ``min``,
            ``max``) and the dimensions that become channels. Where transforms make the fields, or
            the samples are not known, the fields along ``<field>_channel``. NaN where there was no
            value.
        """
        by_variable: dict[str, list[StreamSeries]] = {}
        for series in self._every():
            by_variable.setdefault(series.variable or series.field, []).append(series)
        variables, coords = {}, {"stat": np.array(STATISTICS, object)}
        for name, several in by_variable.items():
            known = [self._moments[series.key] for series in several if series.key in self._moments]
            if not known:
                continue
            table = moments_table(reduce(Moments.merge, known))
            first = several[0]
            variables[name] = (("stat", *first.dims), table, dict(first.attrs or {}))
            coords.update(
                {
                    dim: labels
                    for dim, labels in zip(first.dims, first.labels, strict=True)
                    if labels is not None
                }
            )
        options = {
            "stream": True,
            "variables": list(variables),
            "num_samples": self.num_samples,
            "num_padding": self.num_padding,
        }
        return xr.Dataset(variables, coords, {**self._attrs, OPTIONS: json.dumps(options)})

    def state_dict(self) -> dict[str, Any]:
        """Save the statistics, for a checkpoint.

        Returns
        -------
        dict
            Numbers, texts and lists alone.
        """
        series = {
            key: {name: values.tolist() for name, values in moments.arrays().items()}
            for key, moments in self._moments.items()
        }
        return {
            "version": _VERSION,
            "num_samples": self.num_samples,
            "num_padding": self.num_padding,
            "series": series,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from saved statistics. What was counted before is forgotten.

        Parameters
        ----------
        state : mapping
            The value of :meth:`state_dict`, perhaps stored as JSON.

        Raises
        ------
        StateError
            If it is damaged, or of other fields.
        """
        try:
            if state["version"] != _VERSION:
                raise ValueError("another version")
            moments = {str(key): _moments_of(arrays) for key, arrays in state["series"].items()}
            counts = [int(state["num_samples"]), int(state["num_padding"])]
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise StateError(
                "the state of these statistics is damaged",
                given=f"{type(state).__name__} ({error})",
                remedy="load another checkpoint",
            ) from error
        if self._series and not set(moments) <= set(self._keys()):
            raise self._other_state(moments)
        if not self._series:
            if any(not key.endswith("/") for key in moments):
                raise self._other_state(moments)
            for key, values in moments.items():
                axis = (self._channel_axis or 1) if values.shape else None
                self._series[key[:-1]] = [series_of_array(key[:-1], axis, 9)]
        self._moments = moments
        self.num_samples, self.num_padding = counts

    def __getitem__(self, field: str) -> Moments:
        """Count, mean, variance, smallest and largest value of a field, in float64."""
        find(field, list(self._series), "field")
        series = self._series[field]
        known = [self._moments[member.key] for member in series if member.key in self._moments]
        if len(known) < len(series):
            raise OptionError(
                f"no batch of the field {field!r} was counted", remedy="call update(batch) first"
            )
        if len(known) == 1 and not known[0].shape:
            return known[0]
        return Moments.joined(
            known, lambda arrays: np.concatenate([array.reshape(-1) for array in arrays])
        )

    def __repr__(self) -> str:
        padding = f", {self.num_padding:,} padded rows left out" if self.num_padding else ""
        rows = []
        for series in self._every():
            moments = self._moments.get(series.key)
            if moments is not None:
                named = " ".join(filter(None, (series.field, series.variable)))
                many = f" along {', '.join(series.dims)}" if series.dims else ""
                mean = np.array2string(moments.mean, precision=6, threshold=4, edgeitems=2)
                std = np.array2string(moments.std, precision=6, threshold=4, edgeitems=2)
                rows.append((f"{named}{many}", f"mean {mean}, std {std}"))
        count = show_count(self.num_samples, "sample")
        return facts_text(f"xloader.RunningStats, {count}{padding}", rows)

    def _keys(self) -> list[str]:
        return sorted(series.key for series in self._every())

    def _every(self) -> list[StreamSeries]:
        return [series for several in self._series.values() for series in several]

    def _add(self, added: Mapping[str, Moments]) -> None:
        merged = {}
        for key, moments in added.items():
            before = self._moments.get(key)
            if before is not None and before.shape != moments.shape:
                raise OptionError(
                    f"{key.strip('/')!r} has another number of channels than before",
                    given=moments.shape,
                    allowed=before.shape,
                    remedy="use one RunningStats for each kind of batch",
                )
            merged[key] = moments if before is None else before.merge(moments)
        self._moments.update(merged)

    def _take_names(self, recipe: Recipe) -> None:
        """Learn the fields of samples, their variables and channels."""
        self._attrs = {FINGERPRINT: recipe.source.fingerprint, GRID: grids_of(recipe)}
        outputs = make_outputs(recipe, make_layouts(recipe))
        self._shapes = {output.name: output.shape for output in outputs}
        self._series = series_of(recipe)

    def _arrays_of(self, batch: Any) -> dict[str, NDArray[Any]]:
        """The arrays of a batch by field; fields that are seen for the first time get a series."""
        if isinstance(batch, xr.Dataset):
            return self._arrays_of_dataset(batch)
        if isinstance(batch, Batch):
            given: dict[str, Any] = batch.as_dict()
        elif isinstance(batch, Mapping):
            given = {str(name): array for name, array in batch.items()}
        elif isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
            names = list(self._series) or [str(number) for number in range(len(batch))]
            if len(names) != len(batch):
                raise self._other_fields(f"{len(batch)} arrays")
            given = dict(zip(names, batch, strict=True))
        else:
            raise UnsupportedDataError(
                "this is no batch",
                given=type(batch).__name__,
                remedy="pass a batch, a Dataset, or a dict, list or tuple of arrays: (array,)",
            )
        arrays = {name: _numbers(name, array) for name, array in given.items()}
        if not self._series:
            self._series = {
                name: [series_of_array(name, self._channel_axis, array.ndim)]
                for name, array in arrays.items()
            }
        return arrays

    def _arrays_of_dataset(self, batch: xr.Dataset) -> dict[str, NDArray[Any]]:
        fields = {}
        for name, field in batch.data_vars.items():
            labelled = field if SAMPLE in field.dims else field.expand_dims(SAMPLE)
            fields[str(name)] = labelled.transpose(SAMPLE, ...)
        if not self._series:
            self._series = {
                name: [series_of_labelled(name, field)] for name, field in fields.items()
            }
        return {name: _numbers(name, field.to_numpy()) for name, field in fields.items()}

    def _check_shapes(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        if set(arrays) != set(self._series):
            raise self._other_fields(f"fields {list(arrays)}")
        for name, array in arrays.items():
            shape = self._shapes.get(name)
            if shape is not None and array.shape[1:] != shape:
                raise self._other_fields(f"{name!r} of shape {array.shape}")

    def _other_fields(self, given: str) -> OptionError:
        shapes = [f"{name} {self._shapes.get(name, '')}".strip() for name in self._series]
        return OptionError(
            "the batch has other fields than the samples, or than the batches before",
            given=given,
            allowed=f"{', '.join(shapes)}, with samples along the first axis",
            remedy="make RunningStats() without samples for batches that a function has changed",
        )

    def _other_state(self, moments: Mapping[str, Moments]) -> StateError:
        return StateError(
            "the state is of other fields than these statistics",
            given=", ".join(moments),
            allowed=", ".join(self._keys()) or "fields of unknown samples",
            remedy="make RunningStats(samples) with the samples of the saved statistics",
        )


def _numbers(name: str, array: Any) -> NDArray[Any]:
    numbers = as_numpy(array)
    if numbers.dtype.kind not in "biuf" or not numbers.ndim:
        raise UnsupportedDataError(
            f"the field {name!r} holds no real numbers",
            given=f"{numbers.dtype} of shape {numbers.shape}",
            remedy="leave the field out: pass a dict of the others",
        )
    return numbers


def _moments_of(arrays: Mapping[str, Any]) -> Moments:
    made: dict[str, Any] = {
        name: np.asarray(values, np.int64 if name == "count" else np.float64)
        for name, values in arrays.items()
    }
    moments = Moments(**made)
    if len({values.shape for values in made.values()}) != 1:
        raise ValueError("arrays of several shapes")
    return moments
