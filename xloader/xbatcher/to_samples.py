"""Turns the batches of a generator into samples, for :func:`xloader.from_xbatcher`.

Each batch is one sample. A transform stacks its dimensions as the generator does. If patches are
joined, the sample's window is the smallest box that holds the patches of the batch, and the
transform cuts the patches out of it::

    patches      x  x  x  x                     batch 0: two patches of 4 that overlap by 2
                       x  x  x  x
    window       x  x  x  x  x  x
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from xloader.errors import OptionError
from xloader.recipe.names import SAMPLE
from xloader.samples.samples import Samples
from xloader.transforms.steps import Map
from xloader.xbatcher.batches import BATCH, SUFFIX, Frames, cut_variable
from xloader.xbatcher.patches import Line, Patches, make_patches
from xloader.xbatcher.reading import make_samples

STACKED = "stacked"
"""Name, in a sample, of the dimension that a generator's batch calls ``sample``."""


@dataclass(frozen=True)
class Stacked:
    """Transform that gives each sample the shape of a generator's batch.

    It cuts the sample's window into patches if the generator joins patches, and then stacks
    dimensions.
    """

    patches: Patches
    others: tuple[str, ...]
    input_dims: tuple[str, ...]

    def __post_init__(self) -> None:
        # The fingerprint of a recipe holds the names of its functions. Two transforms with
        # different patches must differ in it.
        object.__setattr__(self, "__qualname__", f"Stacked({self.others}, {self.patches})")

    def __call__(self, frame: xr.Dataset) -> xr.Dataset:
        """Give a batch of samples the shape of the generator's batches."""
        if self.patches.is_joined:
            frame = _cut_frame(frame, self.patches)
        if len(self.others) < 2:
            return frame
        stacked = frame.stack({STACKED: self.others}, create_index=False)
        order = (SAMPLE, STACKED, *self.input_dims)
        return stacked.transpose(*order, missing_dims="ignore")


def _joined(made: Frames, names: tuple[str, ...]) -> Samples:
    """Samples that equal the batches of a generator that joins patches."""
    patches, dataset = made.patches, made.dataset
    if not patches.is_even:
        counts = {str(line.dim): (line.per_batch, line.num_patches) for line in patches.lines}
        raise OptionError(
            "the batches of the generator differ in size",
            given=f"patches of a batch, and patches: {counts}",
            remedy="pass batch_dims that divide the dimension evenly, or concat_input_dims=False, "
            "and let samples.loader(batch_size=...) put inputs together",
        )
    order = made.joined_order
    if order is None:
        raise OptionError(
            "xbatcher would join these inputs by their labels, which samples cannot do",
            given=f"a {type(made.obj).__name__} with coordinates {list(dataset.coords)}",
            remedy="pass ds.to_dataset(name=...), or remove these labels with ds.drop_vars(...)",
        )
    lines, selection = [], []
    for line in patches.lines:
        span, stride = (line.per_batch - 1) * line.stride + line.size, line.per_batch * line.stride
        lines.append(Line(line.dim, span, stride, line.num_batches, 1, line.num_batches))
        # Elements after the last batch are left out, so that there are as many windows as batches.
        selection.append((str(line.dim), range((line.num_batches - 1) * stride + span)))
    inputs = tuple(f"{dim}{SUFFIX}" for dim in patches.input_dims)
    step = Map(Stacked(patches, _stacked_dims(order, inputs), inputs))
    return make_samples(dataset, names, lines, tuple(selection))._with_step(step)


def _stacked_dims(order: tuple[Hashable, ...], input_dims: tuple[Hashable, ...]) -> tuple[str, ...]:
    """The dimensions that are not those of an input."""
    return tuple(str(dim) for dim in order if dim not in input_dims)


def _cut_frame(frame: xr.Dataset, patches: Patches) -> xr.Dataset:
    """Cut each window of a frame into patches, along the new dimension ``input_batch``."""
    starts = patches.starts_of(0)
    data: dict[Hashable, xr.Variable] = {}
    coords: dict[Hashable, xr.Variable] = {}
    inputs = {str(dim): f"{dim}{SUFFIX}" for dim in patches.input_dims}
    for name, variable in frame.variables.items():
        dims = [inputs.get(str(dim), str(dim)) for dim in variable.dims]
        if name not in frame.data_vars and set(dims) == set(map(str, variable.dims)):
            coords[name] = variable
            continue
        cut = cut_variable(variable, patches.lines, starts)
        if SAMPLE in dims:
            at = dims.index(SAMPLE)
            cut, dims = np.moveaxis(cut, at + 1, 0), [d for d in dims if d != SAMPLE]
            dims = [SAMPLE, BATCH, *dims]
        else:
            dims = [BATCH, *dims]
        target = data if name in frame.data_vars else coords
        target[name] = xr.Variable(dims, cut, variable.attrs)
    # Indexes of the coordinates that cutting has not changed.
    kept = {k: v for k, v in frame.xindexes.items() if coords.get(k) is frame.variables[k]}
    return xr.Dataset(data, xr.Coordinates(coords, indexes=kept), frame.attrs)


_NEEDED = ("ds", "input_dims", "input_overlap", "batch_dims", "concat_input_dims")
"""Attributes by which a batch generator is recognised, so that xbatcher need not be installed."""


def from_xbatcher(generator: Any) -> Samples:
    """Samples that equal the batches of an ``xbatcher.BatchGenerator``. No chunk is read.

    Parameters
    ----------
    generator : xbatcher.BatchGenerator or xloader.xbatcher.BatchGenerator
        A generator of xbatcher 0.4, or of xloader.

    Returns
    -------
    Samples
        ``samples[i]`` holds the values of ``generator[i]``: one array for each data variable. What
        the generator stacks into ``sample`` is stacked into ``stacked``.

    Raises
    ------
    OptionError
        If the argument is no such generator, or its batches cannot be samples: it cuts no
        dimension, they differ in shape, ``cache_preprocess`` changes them, or xarray joins them by
        labels.
    UnsupportedDataError
        If a data variable does not hold numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from xloader.xbatcher import BatchGenerator
    >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(40.0).reshape(10, 4))})
    >>> samples = from_xbatcher(BatchGenerator(ds, {"time": 4}, input_overlap={"time": 2}))
    >>> len(samples), samples.shapes, samples[1][0][0].tolist()
    (4, {'t2m': (4, 4)}, [8.0, 9.0, 10.0, 11.0])
    """
    missing = [name for name in _NEEDED if not hasattr(generator, name)]
    if missing or not isinstance(generator.ds, xr.Dataset | xr.DataArray):
        raise OptionError(
            "this is not a generator of xbatcher",
            given=f"{type(generator).__module__}.{type(generator).__qualname__}"
            + (f" without {', '.join(missing)}" if missing else f" of a {type(generator.ds)}"),
            remedy="pass a BatchGenerator(ds, input_dims={...}) of xbatcher (0.4) or xloader",
        )
    if getattr(generator, "cache", None) is not None and generator.cache_preprocess is not None:
        raise OptionError(
            "the generator changes batches with cache_preprocess",
            given=f"cache_preprocess={generator.cache_preprocess!r}",
            remedy="make the generator without cache, and call .map(fn) on the samples",
        )
    obj = generator.ds
    patches = make_patches(
        {dim: int(size) for dim, size in obj.sizes.items()},
        generator.input_dims,
        generator.input_overlap or {},
        generator.batch_dims or {},
        is_joined=bool(generator.concat_input_dims),
    )
    if not patches.lines:
        raise OptionError(
            "the generator does not cut its object: its one batch is the whole object",
            given="neither input_dims nor batch_dims",
            remedy="use the xarray object itself",
        )
    made = Frames(obj, patches)
    names = tuple(map(str, made.dataset.data_vars))
    if patches.is_joined:
        return _joined(made, names)
    samples = make_samples(made.dataset, names, patches.lines)
    stacked = _stacked_dims(made.order, patches.input_dims)
    if len(stacked) < 2:
        return samples
    return samples._with_step(Map(Stacked(patches, stacked, tuple(map(str, patches.input_dims)))))
