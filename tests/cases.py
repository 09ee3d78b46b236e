"""Random loading jobs, and each sample's values computed with plain xarray."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import xarray as xr
import zarr
from hypothesis import strategies as st
from packaging.version import Version

import xloader
from xloader import Samples
from xloader.errors import MemoryBudgetError, StackError
from xloader.loader.loader import Loader
from xloader.testing import CountingStore, datasets, write_store

Offsets = dict[str, int | list[int]]
Chunks = Mapping[str, tuple[int | tuple[int, ...], ...]]

HAS_RECTILINEAR = Version(zarr.__version__) >= Version("3.2")
"""Whether the installed zarr reads chunks of several sizes along a dimension."""


@dataclass(frozen=True)
class Spans:
    """A window along each dimension: its size, stride and dilation."""

    sizes: Mapping[str, int]
    strides: Mapping[str, int]
    dilations: Mapping[str, int]


@dataclass(frozen=True)
class Chosen:
    """A subset of the windows: the window of each sample id, its weight, and the number drawn.

    A value of None means that all windows are taken, each once. For samples around points,
    ``columns`` holds the label fields, and ``windows`` counts windows at every element.
    """

    windows: list[int] | None = None
    weights: list[float] | None = None
    num_samples: int | None = None
    columns: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Case:
    """A dataset in a counting store, samples over it, and options for a loader."""

    dataset: xr.Dataset = field(repr=False)
    chunks: Chunks
    selection: Mapping[str, slice]
    spans: Spans
    fields: tuple[tuple[str, tuple[str, ...], Offsets], ...]
    options: Mapping[str, Any]
    store: CountingStore = field(repr=False)
    samples: Samples = field(repr=False)
    chosen: Chosen = Chosen()

    def __repr__(self) -> str:
        sizes = {name: dict(array.sizes) for name, array in self.dataset.items()}
        return (
            f"Case({sizes}, chunks={dict(self.chunks)}, isel={dict(self.selection)}, {self.spans}, "
            f"fields={self.fields}, {self.chosen}, {dict(self.options)})"
        )

    @property
    def world_size(self) -> int:
        return int(self.options["world_size"])

    def loader(self, rank: int = 0, **changes: Any) -> Loader:
        return self.samples.loader(**{**self.options, "rank": rank, **changes})

    def sample(self, index: int) -> list[np.ndarray]:
        """Return the arrays of sample ``index``, computed with plain xarray."""
        ds = self.dataset.isel(self.selection)
        spans = self.spans
        counts = [
            (ds.sizes[dim] - (size - 1) * spans.dilations[dim] - 1) // spans.strides[dim] + 1
            for dim, size in spans.sizes.items()
        ]
        window = index if self.chosen.windows is None else self.chosen.windows[index]
        first = dict(zip(spans.sizes, np.unravel_index(window, counts), strict=True))
        elements = {
            dim: first[dim] * spans.strides[dim] + np.arange(size) * spans.dilations[dim]
            for dim, size in spans.sizes.items()
        }
        part = ds.isel(elements)
        labels = [np.asarray(values[index]) for values in self.chosen.columns.values()]
        if not self.fields:
            windowed = [array for array in part.values() if set(array.dims) & set(spans.sizes)]
            return [*(array.to_numpy() for array in windowed), *labels]
        return [*(self._stack(part, names, offsets) for _, names, offsets in self.fields), *labels]

    def _stack(self, window: xr.Dataset, names: tuple[str, ...], offsets: Offsets) -> np.ndarray:
        flat, arrays = {}, {}
        for name in names:
            dims = window[name].dims
            flat[name] = [dim for dim in dims[:-2] if dim not in self.spans.sizes]
            arrays[name] = window[name].isel({d: o for d, o in offsets.items() if d in dims})
        kept = [[d for d in a.dims if d not in flat[name]] for name, a in arrays.items()]
        common = max(kept, key=len)
        sizes = {dim: size for array in arrays.values() for dim, size in array.sizes.items()}
        parts = []
        for name, array in arrays.items():
            missing = {dim: sizes[dim] for dim in common if dim not in array.dims}
            whole = array.expand_dims(missing).transpose(*flat[name], *common).to_numpy()
            parts.append(whole.reshape(-1, *(sizes[dim] for dim in common)))
        return np.concatenate(parts)


@st.composite
def cases(draw: st.DrawFn, *, may_be_weighted: bool = True, **fixed: Any) -> Case:
    """Draw dataset, chunks, selection, windows, fields and options; ``fixed`` sets options."""
    dataset, chunks = draw(datasets(max_size=20))
    if HAS_RECTILINEAR:
        chunks = draw(_rectilinear(dataset, chunks))
    store = CountingStore(write_store(dataset, chunks))
    dims = dataset["v0"].dims
    selection = {
        dim: slice(draw(st.integers(0, (size - 1) // 2)), None, draw(st.sampled_from([1, 1, 2, 5])))
        for dim, size in dataset.sizes.items()
        if draw(st.integers(0, 4)) == 0
    }
    kept = dataset.isel(selection)
    spans = draw(_spans({dim: kept.sizes[dim] for dim in draw(st.permutations(dims))}))
    samples = xloader.open(store).isel(selection)
    samples = samples.window(spans.sizes, stride=spans.strides, dilation=spans.dilations)
    fields, samples = draw(_fields(samples, dataset, spans))
    chosen, samples = draw(_chosen(samples, may_be_weighted, kept, spans))
    if chosen.columns:
        spans = replace(spans, strides=dict.fromkeys(spans.sizes, 1))
    options = {**draw(_options(chosen.num_samples or len(samples))), **fixed}
    if "world_size" in fixed:
        options["lanes"] = None
    case = Case(dataset, chunks, selection, spans, fields, options, store, samples, chosen)
    return replace(case, options={**options, "memory": draw(_memory(case))})


@st.composite
def _rectilinear(draw: st.DrawFn, dataset: xr.Dataset, chunks: Chunks) -> Chunks:
    """Draw chunks of several sizes along some dimensions of some variables."""
    drawn = {name: list(sizes) for name, sizes in chunks.items()}
    for name, sizes in drawn.items():
        for axis, size in enumerate(dataset[name].shape):
            if size > 1 and draw(st.integers(0, 5)) == 0:
                inner = draw(st.sets(st.integers(1, size - 1), min_size=1))
                edges = [0, *sorted(inner), size]
                sizes[axis] = tuple(end - start for start, end in itertools.pairwise(edges))
    return {name: tuple(sizes) for name, sizes in drawn.items()}


@st.composite
def _spans(draw: st.DrawFn, sizes: dict[str, int]) -> Spans:
    windowed = list(sizes)[: draw(st.integers(1, len(sizes)))]
    window_sizes, strides, dilations = {}, {}, {}
    for dim in windowed:
        size = draw(st.integers(1, min(sizes[dim], 6)))
        most = (sizes[dim] - 1) // (size - 1) if size > 1 else 3
        dilations[dim] = draw(st.integers(1, min(most, 3)))
        strides[dim] = draw(st.integers(1, 4))
        window_sizes[dim] = size
    return Spans(window_sizes, strides, dilations)


@st.composite
def _fields(
    draw: st.DrawFn, samples: Samples, dataset: xr.Dataset, spans: Spans
) -> tuple[tuple[tuple[str, tuple[str, ...], Offsets], ...], Samples]:
    fields: list[tuple[str, tuple[str, ...], Offsets]] = []
    for number in range(draw(st.integers(0, 2))):
        # The first field has v0, which has every dimension, so some field has a windowed one.
        names = list(draw(st.permutations(sorted(map(str, dataset)))))
        names = names[: draw(st.integers(1, len(names)))]
        if number == 0 and "v0" not in names:
            names[0] = "v0"
        offsets: Offsets = {}
        owned = {dim for name in names for dim in dataset[name].dims}
        for dim, size in spans.sizes.items():
            if dim in owned and draw(st.booleans()):
                chosen = draw(st.integers(0, size - 1))
                offsets[dim] = draw(
                    st.sampled_from([chosen, list(range(chosen, size)), list(range(0, size, 2))])
                )
        try:
            samples = samples.field(f"f{number}", *names, **offsets)
        except StackError:
            names = names[:1] if number else ["v0"]
            own = dataset[names[0]].dims
            offsets = {dim: taken for dim, taken in offsets.items() if dim in own}
            samples = samples.field(f"f{number}", *names, **offsets)
        fields.append((f"f{number}", tuple(names), offsets))
    return tuple(fields), samples


@st.composite
def _chosen(
    draw: st.DrawFn, samples: Samples, may_be_weighted: bool, kept: xr.Dataset, spans: Spans
) -> tuple[Chosen, Samples]:
    windows: list[int] | None = None
    columns: dict[str, np.ndarray] = {}
    kind = draw(st.sampled_from(["all", "all", "mask", "ids", "points"]))
    if kind == "mask":
        flags = np.array(
            draw(st.lists(st.booleans(), min_size=len(samples), max_size=len(samples)))
        )
        flags[draw(st.integers(0, len(samples) - 1))] = True
        samples, windows = samples.select(flags), np.flatnonzero(flags).tolist()
    elif kind == "ids":
        windows = draw(st.lists(st.integers(0, len(samples) - 1), min_size=1, max_size=30))
        samples = samples.select(windows)
    elif kind == "points":
        windows, columns, samples = draw(_points(samples, kept, spans))
    if not may_be_weighted or draw(st.integers(0, 2)):
        return Chosen(windows, columns=columns), samples
    weight = st.sampled_from([0.0, 0.5, 1.0, 1.0, 3.0])
    weights = draw(st.lists(weight, min_size=len(samples), max_size=len(samples)))
    weights[draw(st.integers(0, len(samples) - 1))] = 2.0
    num_samples = draw(st.sampled_from([None, 1, len(samples) // 2 + 1, 2 * len(samples)]))
    weighted = samples.weighted(weights, num_samples)
    return Chosen(windows, weights, num_samples, columns), weighted


@st.composite
def _points(
    draw: st.DrawFn, samples: Samples, kept: xr.Dataset, spans: Spans
) -> tuple[list[int], dict[str, np.ndarray], Samples]:
    """Draw a table of points, in any order, with repeated places and columns of four kinds."""
    counts = {
        dim: kept.sizes[dim] - (size - 1) * spans.dilations[dim]
        for dim, size in spans.sizes.items()
    }
    one = st.tuples(*(st.integers(0, count - 1) for count in counts.values()))
    firsts = np.array(draw(st.lists(one, min_size=1, max_size=30)))
    at = draw(st.sampled_from(["center", "start", "end"]))
    table: dict[str, Any] = {}
    for column, (dim, size) in zip(firsts.T, spans.sizes.items(), strict=True):
        before = {"center": size // 2, "start": 0, "end": size - 1}[at] * spans.dilations[dim]
        # Without labels, values count elements.
        labels = kept[dim].values if dim in kept.coords else np.arange(kept.sizes[dim])
        table[dim] = labels[column + before]
    place = np.arange(len(firsts))
    columns = {
        "height": place * 0.5 - 3,
        "hour": (place % 24).astype(np.int16),
        "is_wet": place % 2 == 1,
        "sky": np.array(["low", "clear", "high"])[place % 3],
    }
    samples = samples.at_points({**table, **columns}, at=at)
    # Text becomes codes, in the order of the sorted texts.
    columns["sky"] = np.unique(columns["sky"], return_inverse=True)[1]
    windows = np.ravel_multi_index(tuple(firsts.T), tuple(counts.values())).tolist()
    return windows, columns, samples


@st.composite
def _options(draw: st.DrawFn, num_samples: int) -> dict[str, Any]:
    world_size = draw(st.integers(1, min(3, num_samples)))
    lanes_per_rank = draw(st.sampled_from([None, None, 1, 2, 3]))
    batch_size = draw(st.integers(1, 5)) * (lanes_per_rank or 1)
    return {
        "batch_size": batch_size,
        "world_size": world_size,
        "lanes": None if lanes_per_rank is None else lanes_per_rank * world_size,
        "shuffle": draw(st.sampled_from([True, True, True, False])),
        "seed": draw(st.integers(0, 5)),
        "drop_last": draw(st.booleans()),
        "prefetch": draw(st.integers(0, 3)),
        "threads": draw(st.integers(1, 4)),
        "output": "numpy",
    }


@st.composite
def _memory(draw: st.DrawFn, case: Case) -> int:
    """Draw a memory between the smallest possible and more than all data."""
    nbytes = case.dataset.nbytes
    more = [0, 0, 0, nbytes // 16, nbytes // 8, nbytes // 4, 3 * nbytes]
    return least_memory(case) + draw(st.sampled_from(more))


def least_memory(case: Case) -> int:
    """Return the smallest sufficient memory, which the error for a single byte names."""
    try:
        case.loader(memory=1)
    except MemoryBudgetError as error:
        return error.minimum_nbytes
    raise AssertionError("a plan within a single byte")
