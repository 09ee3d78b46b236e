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
from tests.flat_options import grouped
from xloader import Samples
from xloader.core.windows import Pad, Segments
from xloader.errors import EmptySamplesError, MemoryBudgetError, OptionError
from xloader.loader.loader import Loader
from xloader.loader.ranks.state import sign
from xloader.testing import CountingStore, datasets, write_store

Offsets = dict[str, int | list[int]]
Chunks = Mapping[str, tuple[int | tuple[int, ...], ...]]

HAS_RECTILINEAR = Version(zarr.__version__) >= Version("3.2")
"""Whether the installed zarr reads chunks of several sizes along a dimension."""


@dataclass(frozen=True)
class Spans:
    """A window along each dimension: its size, stride and dilation, and the gaps it must not cross.

    A gap is given as the offset of the first element after it. Along the dimensions of ``wrap``, a
    window runs on from the last element to the first one. Along those of ``pad``, it is centred on
    an element, and what lies outside is filled.
    """

    sizes: Mapping[str, int]
    strides: Mapping[str, int]
    dilations: Mapping[str, int]
    gaps: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    wrap: tuple[str, ...] = ()
    pad: Mapping[str, Pad] = field(default_factory=dict)

    def starts(self, dim: str, size: int, last: int) -> list[int]:
        """Return the first elements of all windows whose last needed position is ``last``."""
        reach = last * self.dilations[dim]
        if dim in self.wrap or dim in self.pad:
            before = self.sizes[dim] // 2 if dim in self.pad else 0
            return [place - before for place in range(0, size, self.strides[dim])]
        return [
            first
            for first in range(0, size - reach, self.strides[dim])
            if not any(first < gap <= first + reach for gap in self.gaps.get(dim, ()))
        ]

    def elements(self, dim: str, size: int, offsets: np.ndarray) -> np.ndarray:
        """Return the elements that stand at offsets, of which some may lie outside."""
        if dim in self.wrap:
            return offsets % size
        if self.pad.get(dim) == "reflect":
            return np.pad(np.arange(size), size - 1, "reflect")[offsets + size - 1]
        return np.clip(offsets, 0, size - 1)


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
    visits: int = 1

    def __repr__(self) -> str:
        sizes = {name: dict(array.sizes) for name, array in self.dataset.items()}
        return (
            f"Case({sizes}, chunks={dict(self.chunks)}, isel={dict(self.selection)}, {self.spans}, "
            f"fields={self.fields}, {self.chosen}, {dict(self.options)}, visits={self.visits})"
        )

    @property
    def world_size(self) -> int:
        return int(self.options["world_size"])

    def options_of(self, rank: int, **changes: Any) -> dict[str, Any]:
        """Return the options for the loader of a rank, of which some may be changed."""
        return grouped(**{**self.options, "rank": rank, **changes})

    def loader(self, rank: int = 0, **changes: Any) -> Loader:
        loader = self.samples.loader(**self.options_of(rank, **changes))
        if self.visits > 1:
            # Data as small as these mix well with one visit, so the plan would not take more.
            state = loader.state_dict()
            state["plan"]["pace"]["visits"] = min(self.visits, loader.num_samples)
            loader.load_state_dict(sign(state))
        return loader

    def sample(self, index: int) -> list[np.ndarray]:
        """Return the arrays of sample ``index``, computed with plain xarray."""
        ds = self.dataset.isel(self.selection)
        spans = self.spans
        lasts = {
            dim: max(size - 1, *(_last(offsets.get(dim, 0)) for *_, offsets in self.fields), 0)
            for dim, size in spans.sizes.items()
        }
        starts = [spans.starts(dim, ds.sizes[dim], last) for dim, last in lasts.items()]
        window = index if self.chosen.windows is None else self.chosen.windows[index]
        places = np.unravel_index(window, [len(own) for own in starts])
        offsets = {
            dim: own[place] + np.arange(lasts[dim] + 1) * spans.dilations[dim]
            for dim, own, place in zip(lasts, starts, places, strict=True)
        }
        part = ds.isel(
            {dim: spans.elements(dim, ds.sizes[dim], own) for dim, own in offsets.items()}
        )
        outside = {
            dim: xr.DataArray((offsets[dim] < 0) | (offsets[dim] >= ds.sizes[dim]), dims=dim)
            for dim, pad in spans.pad.items()
            if isinstance(pad, float)
        }
        labels = [np.asarray(values[index]) for values in self.chosen.columns.values()]
        if not self.fields:
            windowed = [array for array in part.values() if set(array.dims) & set(spans.sizes)]
            return [*(self._filled(array, outside).to_numpy() for array in windowed), *labels]
        whole: Offsets = {dim: list(range(size)) for dim, size in spans.sizes.items()}
        fields = [
            self._stack(part, names, {**whole, **own}, outside) for _, names, own in self.fields
        ]
        return [*fields, *labels]

    def _filled(self, array: xr.DataArray, outside: Mapping[str, xr.DataArray]) -> xr.DataArray:
        for dim in set(array.dims) & set(outside):
            array = array.where(~outside[dim], self.spans.pad[dim]).astype(array.dtype)
        return array

    def _stack(
        self,
        window: xr.Dataset,
        names: tuple[str, ...],
        offsets: Offsets,
        outside: Mapping[str, xr.DataArray],
    ) -> np.ndarray:
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
            whole = self._filled(array.expand_dims(missing), outside)
            whole = whole.transpose(*flat[name], *common)
            parts.append(whole.to_numpy().reshape(-1, *(sizes[dim] for dim in common)))
        return np.concatenate(parts)


def _last(taken: int | list[int]) -> int:
    return taken if isinstance(taken, int) else max(taken)


@st.composite
def cases(
    draw: st.DrawFn, *, may_be_weighted: bool = True, has_nan: bool = False, **fixed: Any
) -> Case:
    """Draw dataset, chunks, selection, windows, fields and options; ``fixed`` sets options."""
    dataset, chunks = draw(datasets(max_size=20))
    if has_nan:
        dataset = draw(_with_nan(dataset))
    if HAS_RECTILINEAR:
        chunks = draw(_rectilinear(dataset, chunks))
    store = CountingStore(write_store(dataset, chunks))
    dims = dataset["v0"].dims
    selection = {
        dim: draw(_slices(size))
        for dim, size in dataset.sizes.items()
        if draw(st.integers(0, 4)) == 0
    }
    kept = dataset.isel(selection)
    spans = draw(_spans({dim: kept.sizes[dim] for dim in draw(st.permutations(dims))}))
    samples = xloader.open(store).isel(selection)
    samples = samples.window(
        spans.sizes,
        stride=spans.strides,
        dilation=spans.dilations,
        wrap=spans.wrap,
        pad=spans.pad,
    )
    spans, samples = draw(_gaps(spans, samples))
    fields, samples = draw(_fields(samples, dataset, spans))
    chosen, samples = draw(_chosen(samples, may_be_weighted, kept, spans))
    if chosen.columns:
        spans = replace(spans, strides=dict.fromkeys(spans.sizes, 1))
    options = {**draw(_options(chosen.num_samples or len(samples))), **fixed}
    if "world_size" in fixed:
        options["lanes"] = None
    case = Case(dataset, chunks, selection, spans, fields, options, store, samples, chosen)
    memory = draw(_memory(case))
    visits = draw(st.sampled_from([1, 1, 2, 3]))
    return replace(case, options={**options, "memory": memory}, visits=visits)


def _slices(size: int) -> st.SearchStrategy[slice]:
    """Slices of a dimension, some of them from its end to its begin."""
    begins, steps = st.integers(0, (size - 1) // 2), st.sampled_from([1, 1, 2, 5, -1, -2])
    ahead = st.builds(lambda begin, step: slice(begin, None, step), begins, steps)
    return ahead.map(lambda own: own if own.step > 0 else slice(None, own.start or None, own.step))


@st.composite
def _with_nan(draw: st.DrawFn, dataset: xr.Dataset) -> xr.Dataset:
    """Draw a share of NaN for each variable of floats."""
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    for name, array in dataset.items():
        if array.dtype.kind == "f":
            is_lost = rng.random(array.shape) < draw(st.sampled_from([0.0, 0.02, 0.2, 0.7]))
            dataset[name] = array.where(~xr.DataArray(is_lost, dims=array.dims))
    return dataset


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
    wrap = tuple(dim for dim in windowed if draw(st.integers(0, 4)) == 0)
    pad: dict[str, Pad] = {}
    for dim in windowed:
        if dim not in wrap and dilations[dim] == 1 and draw(st.integers(0, 4)) == 0:
            # Every dtype has the number 1, but a window of an even size has no mirror image.
            pads: list[Pad] = ["edge", 1.0, *(["reflect"] if window_sizes[dim] % 2 else [])]
            pad[dim] = draw(st.sampled_from(pads))
    return Spans(window_sizes, strides, dilations, wrap=wrap, pad=pad)


@st.composite
def _gaps(draw: st.DrawFn, spans: Spans, samples: Samples) -> tuple[Spans, Samples]:
    """Draw gaps, more of them than `window` would take from labels, unless no window is left."""
    gaps: dict[str, tuple[int, ...]] = {}
    windows = samples.recipe.require_windows()
    for dim, size in zip(windows.dims, windows.dim_sizes, strict=True):
        if size > 1 and dim not in {*spans.wrap, *spans.pad} and draw(st.integers(0, 2)) == 0:
            gaps[dim] = tuple(sorted(draw(st.sets(st.integers(1, size - 1), max_size=3))))
    segments = tuple(
        Segments.between(size, np.array(gaps[dim], np.int64)) if gaps.get(dim) else None
        for dim, size in zip(windows.dims, windows.dim_sizes, strict=True)
    )
    try:
        windows = replace(windows, segments=segments)
    except EmptySamplesError:
        return spans, samples
    return replace(spans, gaps=gaps), Samples(replace(samples.recipe, windows=windows))


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
            if dim in spans.pad:
                continue
            if dim in owned and draw(st.integers(0, 4)) == 0:
                unequal = [size + 1, 0, size]
                leads = draw(st.sampled_from([[size], [size - 1, size], [0, size + 1], unequal]))
                if _is_within(samples, dim, max(leads) * spans.dilations[dim] + 1):
                    offsets[dim] = leads if len(leads) > 1 else leads[0]
            elif dim in owned and draw(st.booleans()):
                chosen = draw(st.integers(0, size - 1))
                offsets[dim] = draw(
                    st.sampled_from([chosen, list(range(chosen, size)), list(range(0, size, 2))])
                    | st.permutations(range(size)).map(lambda own, end=chosen: own[: end + 1])
                )
        try:
            samples = samples.field(f"f{number}", *names, **_given(offsets, spans))
        except OptionError:
            names = names[:1] if number else ["v0"]
            own = dataset[names[0]].dims
            offsets = {dim: taken for dim, taken in offsets.items() if dim in own}
            samples = samples.field(f"f{number}", *names, **_given(offsets, spans))
        fields.append((f"f{number}", tuple(names), offsets))
    return tuple(fields), samples


def _is_within(samples: Samples, dim: str, reach: int) -> bool:
    """Say whether windows are left where samples reach over so many elements of a dimension."""
    windows = samples.recipe.require_windows()
    extents = tuple(
        max(own, reach) if name == dim else own
        for name, own in zip(windows.dims, windows.extents, strict=True)
    )
    try:
        replace(windows, extents=extents)
    except (OptionError, EmptySamplesError):
        return False
    return True


def _given(offsets: Offsets, spans: Spans) -> dict[str, Any]:
    """Return offsets as the user gives them: leads beyond the window as a number of steps."""
    given: dict[str, Any] = {}
    for dim, taken in offsets.items():
        if _last(taken) < spans.sizes[dim]:
            given[dim] = taken
        elif isinstance(taken, int):
            given[dim] = f"+{taken * spans.dilations[dim]}"
        else:
            given[dim] = [f"+{own * spans.dilations[dim]}" for own in taken]
    return given


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
    everywhere = replace(spans, strides=dict.fromkeys(spans.sizes, 1))
    starts = {
        dim: everywhere.starts(dim, kept.sizes[dim], (reach - 1) // spans.dilations[dim])
        for dim, reach in zip(spans.sizes, samples.recipe.require_windows().extents, strict=True)
    }
    # Only the centre of a window that reaches beyond a padded border surely has a label.
    at = "center" if spans.pad else draw(st.sampled_from(["center", "start", "end"]))
    one = st.tuples(*(st.integers(0, len(own) - 1) for own in starts.values()))
    positions = np.array(draw(st.lists(one, min_size=1, max_size=30)))
    firsts = [np.array(own)[i] for own, i in zip(starts.values(), positions.T, strict=True)]
    table: dict[str, Any] = {}
    for column, (dim, size) in zip(firsts, spans.sizes.items(), strict=True):
        before = {"center": size // 2, "start": 0, "end": size - 1}[at] * spans.dilations[dim]
        # Without labels, values count elements.
        labels = kept[dim].values if dim in kept.coords else np.arange(kept.sizes[dim])
        table[dim] = labels[(column + before) % len(labels)]
    place = np.arange(len(positions))
    columns = {
        "height": place * 0.5 - 3,
        "hour": (place % 24).astype(np.int16),
        "is_wet": place % 2 == 1,
        "sky": np.array(["low", "clear", "high"])[place % 3],
    }
    samples = samples.at_points({**table, **columns}, at=at)
    # Text becomes codes, in the order of the sorted texts.
    columns["sky"] = np.unique(columns["sky"], return_inverse=True)[1]
    counts = tuple(map(len, starts.values()))
    windows = np.ravel_multi_index(tuple(positions.T), counts).tolist()
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
