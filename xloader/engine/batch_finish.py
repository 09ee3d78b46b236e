"""The last steps of a whole batch once it is gathered: transforms, a look for NaN, dtypes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from xloader.core.axis import Ints
from xloader.core.nans import CountNans, FieldNans, OnNan, is_looked_at, look_for_nans
from xloader.engine.buffers import Arrays


class BatchTransform(Protocol):
    """A function that turns a gathered batch into what is delivered."""

    def __call__(self, arrays: Arrays, ids: Ints, occurrences: Ints | None = None, /) -> Arrays:
        """Transform a batch.

        Parameters
        ----------
        arrays : dict of str to numpy.ndarray
            The gathered arrays, by field name.
        ids : numpy.ndarray of int64, shape (n,)
            The sample of each row.
        occurrences : numpy.ndarray of int64, shape (n,), optional
            Which time in the epoch each sample occurs. By default, every sample occurs for the
            first time.

        Returns
        -------
        dict of str to numpy.ndarray
            The arrays to deliver.
        """
        ...


def untransformed(arrays: Arrays, ids: Ints, occurrences: Ints | None = None, /) -> Arrays:
    """The gathered arrays, for samples without transforms."""
    return arrays


def unconverted(arrays: Arrays, /) -> Arrays:
    """The transformed arrays, where they keep their dtypes."""
    return arrays


@dataclass(frozen=True, eq=False)
class BatchFinish:
    """The steps between a gathered batch and a delivered one. By default there are none.

    Parameters
    ----------
    transform : callable
        Takes gathered arrays, ids and, where samples may occur more than once, their occurrences.
        Returns the arrays to deliver.
    convert : callable
        Takes the transformed arrays, and returns them in the dtypes in which they are delivered.
    on_nan : {"warn", "count", "raise", "ignore"}
        In which batches NaN is looked for, and what happens if there is any.
    nan_counts : mapping of str to callable
        By field, how its NaN values are counted, for fields that are delivered as stored.
    """

    transform: BatchTransform = untransformed
    convert: Callable[[Arrays], Arrays] = unconverted
    on_nan: OnNan = "ignore"
    nan_counts: Mapping[str, CountNans] = field(default_factory=dict)

    def is_needed(self, index: int) -> bool:
        """Whether a batch is transformed, converted or looked at; given the number of its step."""
        is_changed = self.transform is not untransformed or self.convert is not unconverted
        return is_changed or is_looked_at(self.on_nan, index)

    def apply(
        self, index: int, arrays: Arrays, ids: Ints, occurrences: Ints | None, num_own: int
    ) -> tuple[Arrays, tuple[FieldNans, ...]]:
        """Finish a batch.

        Parameters
        ----------
        index : int
            Number of the step among the process's steps.
        arrays : dict of str to numpy.ndarray
            The gathered arrays.
        ids, occurrences : numpy.ndarray of int64, shape (n,)
            The sample of each row, and which time it occurs; None for the first time everywhere.
        num_own : int
            Number of the first rows in which NaN is looked for. The others fill the batch up.

        Returns
        -------
        arrays : dict of str to numpy.ndarray
            The arrays to deliver.
        nans : tuple of FieldNans
            The NaN values found, if they were looked for.

        Raises
        ------
        NanError
            If the batch holds NaN, with ``on_nan="raise"``.
        TransformError
            If a function of the user fails.
        """
        arrays = self.transform(arrays, ids, occurrences)
        nans = look_for_nans(self.on_nan, index, arrays, ids[:num_own], self.nan_counts)
        return self.convert(arrays), nans
