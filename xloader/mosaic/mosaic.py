"""The mosaic: predictions of samples, written in any order, become one store or Dataset."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from xloader.cluster.checkpoint_places import note_mosaic
from xloader.core.axis import Ints
from xloader.core.messages import warn_caller
from xloader.core.nbytes import parse_nbytes
from xloader.core.option_checks import check_choice
from xloader.core.ranks import World, resolve_world
from xloader.errors import ClosedError, OptionError, SourceAccessError, TargetError, TargetWarning
from xloader.jobs.kept_result import KeptResult
from xloader.loader.batches.batch import Batch
from xloader.mosaic.field_grid import FieldGrid, make_labels
from xloader.mosaic.merged_boxes import MosaicSummary, merge_boxes, merged_dtype
from xloader.mosaic.merged_store import merge_store, merged_summary, open_merged, open_target
from xloader.mosaic.parts import FolderParts, MemoryParts, done_ids
from xloader.mosaic.sample_rows import RemainingIds, SampleRows, as_predictions
from xloader.mosaic.target_grid import BLENDS, COVERAGE, Blend, TargetGrid
from xloader.recipe.recipe import Recipe

_LOG: Final = logging.getLogger("xloader")

_FLUSH_NBYTES: Final = 8 << 20
"""Bytes of predictions that wait in memory, at most, before they are written."""

_FLUSH_SECONDS: Final = 30.0
"""Seconds after which predictions are written however few they are."""

_NOT_DONE, _DONE_BEFORE, _DONE_NOW = 0, 1, 2


class Mosaic:
    """Predictions of samples, put back on the grid.

    :meth:`Samples.mosaic` makes it. At the end of its ``with`` block, the predictions are merged.
    If an error leaves the block, they are kept, and a later run goes on.

    Attributes
    ----------
    target : pathlib.Path or None
        The store; None for a mosaic in memory.
    num_skipped : int
        Rows left out because their samples were written by an earlier run, or occur several times.
    summary : MosaicSummary or None
        Counts of the merged mosaic; None until it is merged.
    is_closed : bool
        Whether nothing can be written any more.

    Examples
    --------
    >>> import xloader
    >>> field = np.arange(12.0).reshape(3, 4)
    >>> ds = xr.Dataset({"t2m": (("lat", "lon"), field)}, {"lat": [60, 50, 40]})
    >>> samples = ds.xloader.window(lat=2, lon=2, stride=1).targets("t2m")
    >>> with samples.mosaic() as out:
    ...     for batch in samples.loader(batch_size=4, output="numpy"):
    ...         out.write(batch, batch.targets + 1)
    >>> bool((out.dataset.t2m == field + 1).all()), out.num_uncovered
    (True, 0)
    >>> out.coverage["t2m"].values.tolist()
    [[1, 2, 2, 1], [2, 4, 4, 2], [1, 2, 2, 1]]
    """

    target: Path | None
    num_skipped: int
    summary: MosaicSummary | None

    def __init__(
        self,
        recipe: Recipe,
        target: str | os.PathLike[str] | None,
        *,
        field: str | None,
        blend: Blend,
        leads: Collection[str] | None,
        chunks: Mapping[str, int] | None,
        keep_units: bool,
        memory: int | str,
        overwrite: bool,
        world: World | None,
    ) -> None:
        check_choice("blend", blend, BLENDS)
        parse_nbytes(memory)
        self._grid = FieldGrid(recipe, field, blend, leads, chunks, keep_units)
        self._rows = SampleRows(recipe)
        self._labels = make_labels(recipe, self._grid)
        self._memory, self._overwrite = memory, overwrite
        self._world = resolve_world(world)
        self._kept = None
        if target is not None:
            self._kept = KeptResult.to_write(target, TargetGrid, recipe.source, overwrite=overwrite)
        self.target = None if self._kept is None else self._kept.target
        self.summary, self._was_complete = None, False
        self._parts = self._open_parts()
        self._is_weighted = recipe.subset is not None and recipe.subset.weights is not None
        is_known = _DONE_BEFORE if self._was_complete else _NOT_DONE
        self._states = np.full(recipe.num_ids, is_known, np.uint8)
        self._states[done_ids(self._parts.records())] = _DONE_BEFORE
        self._waiting: list[tuple[Ints, NDArray[Any]]] = []
        self._waiting_nbytes = 0
        self._flushed_at = time.monotonic()
        self._merged: dict[str, xr.Dataset] = {}
        self.is_closed = False
        self.num_skipped = 0
        note_mosaic(self)

    def __repr__(self) -> str:
        where = "in memory" if self.target is None else str(self.target)
        grid = self._grid.target
        text = f"{self.num_done:,} of {grid.num_ids:,} windows written, not merged yet"
        text = text if self.summary is None else str(self.summary)
        return f"Mosaic({where}, field={grid.field!r}, blend={grid.blend!r}: {text})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: object, *_: object) -> None:
        if error_type is None:
            self.close()
        elif not self.is_closed:
            self.flush()
            self.is_closed = True

    @property
    def num_done(self) -> int:
        """Number of samples with a prediction, of this run and of those before it."""
        return int(np.count_nonzero(self._states))

    @property
    def done_ids(self) -> Ints:
        """Ids of the samples with a prediction that this run knows of, ascending, int64."""
        return np.flatnonzero(self._states)

    @property
    def remaining_ids(self) -> Ints:
        """Ids of the samples without a prediction that this run knows of, ascending, int64.

        If none is left, ``samples.select(out.remaining_ids)`` has no samples, and its loader no
        batches. Any other empty selection is an error.
        """
        return np.flatnonzero(self._states == _NOT_DONE).view(RemainingIds)

    @property
    def num_uncovered(self) -> int:
        """Number of cells that no window covers, which are NaN.

        Raises
        ------
        TargetError
            If the mosaic is not merged yet.
        """
        return self._require_summary().num_uncovered

    @property
    def dataset(self) -> xr.Dataset:
        """The merged mosaic: the store, opened lazily, or the Dataset in memory.

        Raises
        ------
        TargetError
            If the mosaic is not merged yet.
        """
        return self._result("")

    @property
    def coverage(self) -> xr.Dataset:
        """Number of windows of each cell, int32, by variable.

        Raises
        ------
        TargetError
            If the mosaic is not merged yet.
        """
        return self._result(COVERAGE)

    def is_done(self, ids: Batch | ArrayLike) -> NDArray[np.bool_]:
        """Whether samples have a prediction already, so that it need not be computed.

        Parameters
        ----------
        ids : Batch, or array-like of int
            Sample ids, shape ``(n,)``, or the batch that has them. Padding rows count as done.

        Returns
        -------
        numpy.ndarray of bool, shape (n,)
            True where nothing is left to do.

        Raises
        ------
        SampleIndexError
            If an id is out of range.
        TargetError
            If the batch is of other samples than the mosaic.
        """
        row_ids, is_padding = self._rows.of(ids)
        return np.asarray((self._states[row_ids] != _NOT_DONE) | is_padding)

    def write(
        self, ids: Batch | ArrayLike, predictions: Any, *, selected: ArrayLike | None = None
    ) -> None:
        """Write the predictions of some samples.

        They reach the disk when 8 MiB have come together, after 30 s, or with ``flush()``.

        Parameters
        ----------
        ids : Batch, or array-like of int
            The batch, whose padding rows are then left out; or sample ids, shape ``(n,)``.
        predictions : array-like
            An array or tensor, shape ``(n, *shape)`` with the shape of the field in one sample.
        selected : array-like of int, optional
            The ids of a :meth:`Samples.select` that the batch comes from.

        Raises
        ------
        SampleIndexError
            If an id is out of range.
        TargetError
            If the predictions have another shape, a sample was written before in this run, the
            batch is of other samples, or the mosaic was complete when it was opened.
        UnsupportedDataError
            If the predictions are not real numbers of up to 64 bits.
        ClosedError
            If the mosaic is closed.
        """
        self._require_open()
        if self._was_complete:
            raise TargetError(
                f"the mosaic at {self.target} is complete: every sample is written",
                remedy="open it with xarray.open_zarr, or pass overwrite=True to write it anew",
            )
        row_ids, is_padding = self._rows.of(ids, selected)
        checked = as_predictions(predictions, len(row_ids), self._grid.layout)
        self._check_twice(row_ids[~is_padding])
        rows = np.flatnonzero(~is_padding & (self._states[row_ids] == _NOT_DONE))
        # Weighted samples may be in a batch several times.
        rows = rows[np.unique(row_ids[rows], return_index=True)[1]]
        self.num_skipped += int(np.count_nonzero(~is_padding)) - len(rows)
        if not len(rows):
            return
        if self._waiting and self._waiting[0][1].dtype != checked.dtype:
            self.flush()
        values = self._grid.rows_of(checked[rows])
        self._waiting.append((row_ids[rows], values))
        self._waiting_nbytes += values.nbytes
        self._states[row_ids[rows]] = _DONE_NOW
        is_late = time.monotonic() - self._flushed_at >= _FLUSH_SECONDS
        if self._waiting_nbytes >= _FLUSH_NBYTES or is_late:
            self.flush()

    def flush(self) -> None:
        """Write everything that waits in memory to the disk, in one file.

        Raises
        ------
        ClosedError
            If the mosaic is closed.
        StoreFullError
            If no room is left. Make some, and run the same again.
        SourceAccessError
            If the disk cannot be written to for another reason.
        """
        self._require_open()
        self._flushed_at = time.monotonic()
        if not self._waiting:
            return
        ids, values = map(np.concatenate, zip(*self._waiting, strict=True))
        try:
            self._parts.add(ids, self._grid.starts_of(ids), values)
        except SourceAccessError:
            if not self._take_merged():
                raise
            warn_caller(
                f"another process has written all samples of {self.target}, and has merged them. "
                f"{len(ids)} predictions of this one are left out, and so are any that follow",
                TargetWarning,
            )
            self._states[self._states == _NOT_DONE] = _DONE_BEFORE
        self._waiting, self._waiting_nbytes = [], 0

    def close(self) -> None:
        """Write what is left, and merge the mosaic if all ranks are done. Once is enough.

        Of several ranks, the one that finds all samples written merges. If some are missing, call
        :func:`xloader.merge` when all ranks have ended.

        Raises
        ------
        TargetError
            If a sample was written twice, with different predictions, or something else lies at the
            target.
        MemoryBudgetError
            If the memory is too small for a chunk.
        StoreFullError, SourceAccessError
            If the store cannot be written. Run the same again to merge.
        """
        if self.is_closed:
            return
        self.flush()
        self.is_closed = True
        if self.target is None:
            self._merge_in_memory()
        elif not self._take_merged() and (self._world.world_size == 1 or self._has_all()):
            self.summary = merge_store(self.target, memory=self._memory, overwrite=self._overwrite)
        if self.summary is not None:
            _warn_of_holes(self.summary, self.target)

    def _take_merged(self) -> bool:
        """Whether the store is complete without this process, whose summary is taken then."""
        if self._kept is not None and not self._kept.has_begun():
            self.summary = merged_summary(self._kept, self._grid.target)
        return self.summary is not None and self.summary.is_complete

    def _has_all(self) -> bool:
        """Whether the files of all ranks together hold all samples."""
        num_done, num_ids = len(np.unique(done_ids(self._parts.records()))), len(self._states)
        if num_done < num_ids:
            _LOG.info(
                "%s: %d of %d samples are written. If no other rank is left, call "
                "xloader.merge(%r)", self.target, num_done, num_ids, str(self.target),
            )  # fmt: skip
        return num_done == num_ids

    def _merge_in_memory(self) -> None:
        grid, records = self._grid.target, self._parts.records()
        dtype = merged_dtype(records)
        arrays = [
            (np.full(variable.shape, np.nan, dtype), np.zeros(variable.shape, np.int32))
            for variable in grid.variables
        ]
        self.summary = merge_boxes(grid, records, arrays, self._memory)
        self._parts = MemoryParts()
        values, counts = {}, {}
        for variable, (merged, coverage) in zip(grid.variables, arrays, strict=True):
            values[variable.name] = (variable.dims, merged, dict(variable.attrs))
            counts[variable.name] = (variable.dims, coverage)
        indexes = xr.Coordinates(
            {dim: self._labels[dim] for dim in self._labels.dims if dim in self._labels.xindexes}
        )
        self._merged[""] = xr.Dataset(values, self._labels.coords)
        self._merged[COVERAGE] = xr.Dataset(counts, indexes)

    def _check_twice(self, ids: Ints) -> None:
        """Check that no sample is written twice in one run, unless its weight repeats it."""
        if self._is_weighted:
            return
        distinct, counts = np.unique(ids, return_counts=True)
        again = distinct[(counts > 1) | (self._states[distinct] == _DONE_NOW)]
        if len(again):
            raise TargetError(
                "a sample was written before",
                given=f"{len(again)} of {len(distinct)} ids, of which the first is {again[0]}",
                remedy="take one epoch of the loader; write(batch, ...) leaves padding out",
            )

    def _open_parts(self) -> FolderParts | MemoryParts:
        kept = self._kept
        if kept is None:
            if self._world.world_size > 1:
                raise OptionError(
                    "a mosaic in memory holds the predictions of one process only",
                    given=f"no target, on rank {self._world.rank} of {self._world.world_size}",
                    remedy='pass a path: samples.mosaic("forecast.zarr")',
                )
            return MemoryParts()
        if self._overwrite and self._world.world_size > 1:
            raise OptionError(
                "overwrite=True would remove what other ranks have written",
                given=f"rank {self._world.rank} of {self._world.world_size}",
                remedy=f"remove {kept.target} and {kept.folder} before the ranks start",
            )
        grid = replace(self._grid.target, labels=self._labels)
        opened = open_target(kept, grid, overwrite=self._overwrite)
        if isinstance(opened, FolderParts):
            return opened
        self.summary, self._was_complete = opened, True
        return MemoryParts()

    def _result(self, group: str) -> xr.Dataset:
        self._require_summary()
        if self.target is None:
            return self._merged[group]
        return open_merged(self.target, self._grid.target, self._labels, group)

    def _require_open(self) -> None:
        if self.is_closed:
            raise ClosedError(
                "the mosaic is closed", remedy="write in its with block, or call samples.mosaic"
            )

    def _require_summary(self) -> MosaicSummary:
        if self.summary is None:
            raise TargetError(
                "the mosaic is not merged yet",
                given=repr(self),
                remedy="close it; after writes of several ranks, call xloader.merge",
            )
        return self.summary


def _warn_of_holes(summary: MosaicSummary, target: Path | None) -> None:
    if summary.is_complete and not summary.num_uncovered:
        return
    kept = ""
    if target is not None and not summary.is_complete:
        folder = KeptResult(target, TargetGrid).folder
        kept = f" {folder} is kept, so that the other samples can be written later."
    warn_caller(
        f"the mosaic has holes: {summary}. Cells stay empty around samples that select, dropna, "
        "split or weights left out, and where a stride passes over them or windows end before the "
        f"border; wrap= and pad= help there.{kept}",
        TargetWarning,
    )
