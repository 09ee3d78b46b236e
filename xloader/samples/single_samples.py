"""Single samples without a plan: ids parsed, samples read, shown and drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.messages import require_matplotlib
from xloader.core.option_checks import check_ids
from xloader.engine.sample_reader import read_samples
from xloader.errors import OptionError
from xloader.loader.batches.batch import Batch
from xloader.loader.batches.batch_origin import BatchOrigin
from xloader.recipe import selection
from xloader.recipe.layout import FieldLayout
from xloader.recipe.names import LABEL, SAMPLE
from xloader.recipe.recipe import Recipe
from xloader.transforms.batch_datasets import auxiliary_coords, refuse_clashes, show_labels
from xloader.transforms.outputs import finish, finish_frame

if TYPE_CHECKING:
    from xloader.show.canvas import Picture


def listed_ids(size: int, key: Any) -> NDArray[Any]:
    """Ids that a slice, a mask or a sequence stands for. They are not checked yet."""
    if isinstance(key, slice):
        return np.arange(*key.indices(size), dtype=np.int64)
    flags = as_mask(size, key)
    return np.asarray(key) if flags is None else np.flatnonzero(flags)


def as_mask(size: int, key: Any) -> NDArray[np.bool_] | None:
    """The flags, if a key is a mask with one flag for each of ``size`` samples, else None."""
    if isinstance(key, slice):
        return None
    flags = np.asarray(key)
    return flags if flags.dtype == bool and flags.shape == (size,) else None


def normal_ids(size: int, ids: NDArray[Any]) -> Ints:
    """Check ids and count negative ones from the end.

    Ids in ``[0, size)``, int64, shape ``(n,)``.
    """
    remedy = "pass ids below len(samples), a slice, or a mask with one flag for each sample"
    ids = check_ids(ids, -size, size, remedy)
    return np.where(ids < 0, ids + size, ids)


def read(
    recipe: Recipe, layouts: tuple[FieldLayout, ...], key: Any
) -> tuple[NDArray[Any], ...] | Batch:
    """Read one sample as a tuple of arrays, or several as a batch; see `Samples.__getitem__`."""
    ids = listed_ids(recipe.num_ids, key)
    checked = normal_ids(recipe.num_ids, np.atleast_1d(ids))
    arrays = read_samples(recipe, layouts, checked)
    arrays = finish(recipe, layouts, arrays, checked)
    if np.ndim(ids):
        return Batch(arrays.values(), arrays, checked, origin=BatchOrigin(recipe))
    # Also a field of one number for each sample gives an array.
    return tuple(array[0, ...] for array in arrays.values())


def to_xarray(recipe: Recipe, layouts: tuple[FieldLayout, ...], index: Any) -> xr.Dataset:
    """Read one sample or several as a Dataset with labels; see `Samples.to_xarray`."""
    listed = listed_ids(recipe.num_ids, index)
    ids = normal_ids(recipe.num_ids, np.atleast_1d(listed))
    frame = finish_frame(recipe, layouts, read_samples(recipe, layouts, ids), ids)
    if np.ndim(listed):
        return frame
    frame = show_labels(frame.isel({SAMPLE: 0}))
    if not recipe.is_mapped:
        coords = auxiliary_coords(recipe, layouts, int(ids[0]))
        # A field or dimension with the name of a coordinate would be replaced by it.
        taken = {*frame.variables, *frame.dims}
        frame = frame.assign_coords({k: v for k, v in coords.items() if k not in taken})
    return frame


def plot(
    recipe: Recipe,
    layouts: tuple[FieldLayout, ...],
    index: Any,
    channel: str | Sequence[str] | None,
) -> Picture:
    """Draw one sample or several; see `Samples.plot`."""
    from xloader.show.sample_panels import MOST_ROWS, draw_samples

    require_matplotlib()
    listed = np.atleast_1d(listed_ids(recipe.num_ids, index))
    ids = normal_ids(recipe.num_ids, listed)[:MOST_ROWS].tolist()
    if not ids:
        raise OptionError("there is no sample to draw", given="no ids")
    frames = {f"sample {number}": to_xarray(recipe, layouts, number) for number in ids}
    return draw_samples(frames, recipe, channel, num_asked=len(listed))


def coords_of(recipe: Recipe) -> xr.Coordinates:
    """The source's coordinates, as selected; see `Samples.coords`."""
    return selection.select_coords(recipe.source.coordinates(), recipe.selection).coords


def positions_of(recipe: Recipe, ids: Ints) -> xr.Dataset:
    """Stored offsets and labels at which samples begin; see `Samples.positions`."""
    windows = recipe.require_windows()
    # Where borders are padded, windows have their place at their centre.
    offsets = recipe.firsts_of(ids) - np.asarray(windows.origins, np.int64)
    coords: dict[str, Any] = {SAMPLE: ids}
    variables: dict[str, xr.Variable] = {}
    refuse_clashes(name for dim in windows.dims for name in (dim, dim + LABEL))
    for axis, dim in enumerate(windows.dims):
        kept = recipe.kept_of(dim)
        assert not isinstance(kept, int)
        variables[dim] = xr.Variable(SAMPLE, selection.stored(kept, offsets[:, axis]))
        labels = recipe.source.coordinates()
        if dim in labels.indexes:
            coords[dim + LABEL] = labels[dim].variable.to_base_variable()[variables[dim]]
    return xr.Dataset(variables, coords)
