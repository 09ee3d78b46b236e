"""The list of samples that a ``collate_fn`` gets. It keeps the batch that it was cut from."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.errors import OptionError
from xloader.loader.batches.batch import Batch
from xloader.loader.batches.batch_origin import BatchOrigin
from xloader.recipe.recipe import Recipe


class Rows(list[tuple[Any, ...]]):
    """Samples as PyTorch's collate functions take them: a list with one tuple for each sample.

    If the samples were cut from stacked arrays, :attr:`batch` holds these arrays, so that they
    need not be stacked again. Names, ids, flags and origin are kept in any case. Once items of the
    list are replaced, added, moved or removed, it is an ordinary list: ``batch``, ``names``,
    ``ids``, ``is_padding`` and ``origin`` are then None, as they may no longer match the items.

    Parameters
    ----------
    batch : Batch
        Stacked arrays or tensors, one for each field, each of shape ``(n, ...)``. The items of
        the list are views of them: 0-d arrays where a field has one number per sample.

    Examples
    --------
    >>> x, y = np.arange(6.0).reshape(2, 3), np.array([8, 9])
    >>> batch = Batch([x, y], ["x", "y"], np.array([4, 1]))
    >>> rows = Rows(batch)
    >>> len(rows), rows[1]
    (2, (array([3., 4., 5.]), array(9)))
    >>> rows.batch is batch, np.shares_memory(rows[1][0], batch.x)
    (True, True)
    >>> rows.reverse()
    >>> rows.batch is None, rows.ids is None
    (True, True)
    """

    _batch: Batch | None
    _names: tuple[str, ...]
    _ids: Ints
    _is_padding: NDArray[np.bool_]
    _origin: BatchOrigin | None
    _kept: tuple[tuple[Any, ...], ...]

    def __init__(self, batch: Batch) -> None:
        ids = batch.require_ids()
        # A row of one number is a 0-d view.
        columns = [[array[row, ...] for row in range(len(ids))] for array in batch]
        samples = zip(*columns, strict=True)
        self._keep(samples, batch.names, ids, batch.is_padding, batch.origin)
        self._batch = batch

    @classmethod
    def of(
        cls,
        samples: Iterable[tuple[Any, ...]],
        names: Iterable[str],
        ids: Ints,
        is_padding: NDArray[np.bool_] | None = None,
        origin: BatchOrigin | None = None,
    ) -> Rows:
        """Make a list of samples that are not stacked, and perhaps cannot be.

        Their :attr:`batch` is None.

        Parameters
        ----------
        samples : iterable of tuple
            One tuple for each sample, with one value for each field: arrays of any shapes,
            tensors or numbers.
        names : iterable of str
            Names of the fields.
        ids : numpy.ndarray
            Ids of the samples, int64, shape ``(n,)``.
        is_padding, origin : optional
            As for :class:`Batch`.

        Returns
        -------
        Rows
            The list.

        Raises
        ------
        OptionError
            If the numbers of samples and ids differ, or those of values and names.

        Examples
        --------
        >>> rows = Rows.of([(np.zeros(3),), (np.zeros(5),)], ["x"], np.array([4, 1]))
        >>> rows.names, rows.ids.tolist(), rows.batch is None
        (('x',), [4, 1], True)
        """
        rows = cls.__new__(cls)
        rows._keep(samples, names, ids, is_padding, origin)
        return rows

    @property
    def batch(self) -> Batch | None:
        """The stacked arrays; None if there are none, or if the list was changed."""
        return self._batch if self.is_whole else None

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the fields; None if the list was changed."""
        return self._names if self.is_whole else None

    @property
    def ids(self) -> Ints | None:
        """Ids of the samples, int64, shape ``(n,)``; None if the list was changed."""
        return self._ids if self.is_whole else None

    @property
    def is_padding(self) -> NDArray[np.bool_] | None:
        """True where a sample repeats another, bool, ``(n,)``; None if the list was changed."""
        return self._is_padding if self.is_whole else None

    @property
    def origin(self) -> BatchOrigin | None:
        """The samples that the items are of; None if they are not known or the list was changed."""
        return self._origin if self.is_whole else None

    @property
    def is_whole(self) -> bool:
        """Whether the items are those that the list was made with, in the same order."""
        # By identity: comparing arrays with == gives arrays, not booleans.
        return len(self) == len(self._kept) and all(map(operator.is_, self, self._kept))

    def __reduce__(self) -> tuple[object, ...]:
        if not self.is_whole:
            return list, (list(self),)
        if self._batch is not None:
            # Only the batch is pickled, as pickling many views one by one is slow.
            return Rows, (self._batch,)
        return Rows.of, (list(self), self._names, self._ids, self._is_padding, self._origin)

    def _keep(
        self,
        samples: Iterable[tuple[Any, ...]],
        names: Iterable[str],
        ids: Ints,
        is_padding: NDArray[np.bool_] | None,
        origin: BatchOrigin | None,
    ) -> None:
        super().__init__(samples)
        self._batch = None
        self._names = tuple(names)
        self._ids = np.asarray(ids, np.int64)
        if is_padding is None:
            is_padding = np.zeros(len(self._ids), bool)
        self._is_padding = np.asarray(is_padding, bool)
        self._origin = origin
        self._kept = tuple(self)
        counts = {len(sample) for sample in self} or {len(self._names)}
        if len(self) != len(self._ids) or counts != {len(self._names)}:
            raise OptionError(
                "the samples, ids and names of a list do not match",
                given=f"{len(self)} samples, {len(self._ids)} ids, {len(self._names)} names, "
                f"values a sample: {sorted(counts)}",
                remedy="give an id for each sample, and a name for each value",
            )


@dataclass(frozen=True, eq=False)
class SampleNames:
    """All samples, of which a loader has a part, and the ids that it gives to those of its part.

    Batches, transforms and random numbers see these ids, as if the loader had all samples. `ids`:
    id among all samples of each sample of the part, ascending.
    """

    recipe: Recipe
    ids: Ints

    def of(self, rows: Ints) -> Ints:
        """The ids of some samples of the part, given their numbers in it."""
        return self.ids[rows]

    def rows_of(self, ids: Ints) -> Ints:
        """The numbers in the part of some of its samples, given their ids."""
        return np.asarray(np.searchsorted(self.ids, ids), np.int64)
