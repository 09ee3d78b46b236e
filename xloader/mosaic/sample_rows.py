"""The samples that the rows of a batch are of, checked against those of the mosaic."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from xloader.core.axis import Ints
from xloader.core.option_checks import check_ids
from xloader.core.subset import Subset
from xloader.errors import TargetError, UnsupportedDataError
from xloader.loader.batches.batch import Batch
from xloader.loader.ranks.rank_plan import describe_samples
from xloader.recipe.layout import FieldLayout
from xloader.recipe.recipe import Recipe


class RemainingIds(np.ndarray[Any, Any]):
    """Ids of the samples that a mosaic lacks. `Samples.select` takes them if there are none."""


def as_array(values: Any) -> NDArray[Any]:
    """A NumPy array of an array or tensor, in the memory of the host."""
    if hasattr(values, "detach") and hasattr(values, "cpu"):
        values = values.detach().cpu()
        if str(values.dtype) == "torch.bfloat16":
            values = values.float()
        values = values.resolve_neg().numpy()
    elif hasattr(values, "__cuda_array_interface__"):
        values = values.get()
    array = np.asarray(values)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def as_ids(ids: Any, num_ids: int) -> Ints:
    """Check sample ids."""
    remedy = "pass the ids of the samples that the mosaic was made with: batch.ids"
    return check_ids(as_array(ids), 0, num_ids, remedy)


def as_predictions(values: Any, num_rows: int, layout: FieldLayout) -> NDArray[Any]:
    """Check predictions, and give them the dtype in which they are kept."""
    array = as_array(values)
    if array.shape != (num_rows, *layout.shape):
        raise TargetError(
            f"the predictions do not have the shape of the field {layout.name!r}",
            given=array.shape,
            allowed=f"{(num_rows, *layout.shape)}: the samples, then {layout.dims}",
            remedy="give the predictions the shape of the field in a batch; name another field "
            "with field=, or make the mosaic with samples whose field has this shape",
        )
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind not in "biuf" or (kind == "f" and size > 8):
        raise UnsupportedDataError(
            "the predictions are not real numbers of up to 64 bits",
            given=f"dtype {array.dtype}",
            remedy='convert them, for example with .astype("float32")',
        )
    is_wide = size == 8 or (kind in "iu" and size == 4)
    return array.astype(np.float64 if is_wide else np.float32, copy=False)


class SampleRows:
    """Finds the ids of rows among the samples of a mosaic."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._subset = _unweighted(recipe)
        # The samples of the batches before, which need not be compared again.
        self._known: tuple[Recipe | None, bytes | None] = None, None

    def of(
        self, ids: Batch | ArrayLike, selected: ArrayLike | None = None
    ) -> tuple[Ints, NDArray[np.bool_]]:
        """The ids of rows, and which rows are padding."""
        num_ids = self._recipe.num_ids
        among = None if selected is None else as_ids(selected, num_ids)
        if isinstance(ids, Batch):
            self._check_batch(ids, among)
        row_ids = as_ids(
            ids.require_ids() if isinstance(ids, Batch) else ids,
            num_ids if among is None else len(among),
        )
        is_padding = ids.is_padding if isinstance(ids, Batch) else np.zeros(len(row_ids), bool)
        return row_ids if among is None else among[row_ids], is_padding

    def _check_batch(self, batch: Batch, among: Ints | None) -> None:
        """Check that the ids of a batch mean the samples of the mosaic, as far as it knows them."""
        if batch.source is not None:
            raise TargetError(
                "the rows of this batch are of several sets, each with ids of its own",
                given=f"rows of {', '.join(dict.fromkeys(batch.source.tolist()))}",
                remedy="make a mosaic for each set, and write its rows: out.write("
                "batch.ids[batch.source == name], prediction[batch.source == name])",
            )
        recipe = None if batch.origin is None else batch.origin.recipe
        if recipe is None:
            # Made by hand or in another process. Only the ids are known.
            return
        known, chosen = self._known
        selection = None if among is None else among.tobytes()
        if known is recipe and chosen == selection:
            return
        subset = self._subset if among is None else self._subset.select(among)
        is_placed_alike = _places(recipe.planned) == _places(self._recipe)
        if not is_placed_alike or _unweighted(recipe) != subset:
            raise TargetError(
                "the batch is of other samples than the mosaic, so its ids mean other places",
                given=(
                    f"a batch of {recipe.num_ids:,} samples"
                    + " of another selection, or with other windows" * (not is_placed_alike)
                ),
                allowed=(
                    f"batches of the {len(subset):,} samples "
                    + ("of the mosaic" if among is None else "that selected= names")
                ),
                remedy="for batches of samples.select(ids), pass selected=ids, or write("
                "ids[batch.ids], prediction); otherwise make the mosaic with the samples that the "
                "loader has",
            )
        self._known = recipe, selection


def _places(recipe: Recipe) -> tuple[Any, ...]:
    """The elements that windows have, apart from the choice of windows."""
    windows = recipe.require_windows()
    kept = tuple(recipe.kept_of(dim) for dim in windows.dims)
    return windows, kept, describe_samples(recipe)["labels"]


def _unweighted(recipe: Recipe) -> Subset:
    """The subset of a recipe without draws, which change no id."""
    return (recipe.subset or Subset(len(recipe.require_windows()))).undrawn
