"""Random numbers for augmentation, drawn for whole batches at once.

The numbers of a sample depend on (seed, epoch, sample id, occurrence) and on the call only. They
do not depend on the batch, the row, the thread or the worker.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from xloader.core.axis import Ints
from xloader.core.counter_rng import Words, derive_key, draw
from xloader.errors import OptionError

_CALLED_BY_NUMBER, _CALLED_BY_NAME = 1, 2
_SAMPLES = 0x5A3D
"""Separates the keys of samples from those of orders, which use the same seed and epoch."""


def sample_keys(
    seed: int, epoch: int, ids: ArrayLike, occurrences: ArrayLike | None = None
) -> Words:
    """Make a key for each sample, which determines its random numbers."""
    whole = np.asarray(ids, np.int64)
    times = np.zeros_like(whole) if occurrences is None else np.asarray(occurrences, np.int64)
    if times.shape != whole.shape:
        raise OptionError(
            "occurrences and ids differ in shape",
            given=f"occurrences of shape {times.shape}, ids of shape {whole.shape}",
        )
    # Occurrences are added to random words: added to the ids, 7 + 1 would have the key of 8.
    words = draw(derive_key(_SAMPLES, seed, epoch), whole)
    return draw(derive_key(_SAMPLES, seed), words + times.astype(np.uint64))


class Rng:
    """Random numbers by sample. The same samples always get the same numbers.

    Each call draws new numbers: the n-th call gives a sample the same in any batch. Give a call
    that is not made for every batch, as inside an ``if``, a ``name``: calls of one name give the
    same numbers, and later calls do not depend on it.

    Parameters
    ----------
    ids : array-like of int
        Ids of the batch's samples, shape ``(n,)``.
    occurrences : array-like of int, optional
        Shape ``(n,)``: how often each sample has occurred in the epoch before; 0 by default.
    seed, epoch : int, default 0
        Seed and epoch of the loader.

    Notes
    -----
    Each number is a hash of the sample's key, the call and the place in the shape. Numbers are the
    same on any machine, except for the last bit of ``normal``.

    Examples
    --------
    >>> rng = Rng([4, 9, 2], seed=1, epoch=5)
    >>> is_flipped = rng.uniform() < 0.5
    >>> noise = rng.normal((2, 2), 0.0, 0.1)
    >>> is_flipped.shape, noise.shape
    ((3,), (3, 2, 2))

    In another batch, sample 9 gets the same:

    >>> other = Rng([9, 7], seed=1, epoch=5)
    >>> bool((other.uniform() < 0.5)[0] == is_flipped[1])
    True
    >>> bool((other.normal((2, 2), 0.0, 0.1)[0] == noise[1]).all())
    True
    """

    def __init__(
        self, ids: ArrayLike, occurrences: ArrayLike | None = None, *, seed: int = 0, epoch: int = 0
    ) -> None:
        self._keys = sample_keys(seed, epoch, ids, occurrences)
        self._function: tuple[int, ...] = ()
        self._num_calls = 0

    @classmethod
    def _of(cls, keys: Words, function: tuple[int, ...]) -> Rng:
        rng = cls.__new__(cls)
        rng._keys, rng._function, rng._num_calls = keys, function, 0
        return rng

    def __len__(self) -> int:
        return len(self._keys)

    def split(self) -> list[Rng]:
        """Make an `Rng` for each sample, which gives the same numbers from the first call on.

        Returns
        -------
        list of Rng
            One for each sample, in row order.

        Examples
        --------
        >>> rng = Rng([4, 9])
        >>> first, second = rng.split()
        >>> bool(second.uniform()[0] == rng.uniform()[1])
        True
        """
        return [Rng._of(self._keys[row : row + 1], self._function) for row in range(len(self))]

    def __repr__(self) -> str:
        return f"<xloader Rng for {len(self)} samples, after {self._num_calls} calls>"

    def uniform(
        self,
        shape: int | tuple[int, ...] = (),
        low: float = 0.0,
        high: float = 1.0,
        *,
        name: str | None = None,
        dtype: Literal["float32", "float64"] = "float64",
    ) -> NDArray[Any]:
        """Draw uniform floats in ``[low, high)``. Rounding may give ``high``.

        Parameters
        ----------
        shape : int or tuple of int
            Shape of one sample's numbers; one number by default.
        low, high : float
            The bounds.
        name : str, optional
            Identifies the draw, instead of its place among the calls.
        dtype : {"float64", "float32"}
            The dtype of the numbers.

        Returns
        -------
        numpy.ndarray
            The numbers, shape ``(n, *shape)``.

        Raises
        ------
        OptionError
            If the dtype is neither of these.

        Examples
        --------
        >>> Rng([4, 9]).uniform((2,), -1, 1).round(3).tolist()
        [[...], [...]]
        """
        number_dtype = np.dtype(dtype)
        if number_dtype == np.float32:
            # A float32 has 24 bits of precision: more bits would sometimes round up to 1.
            bits = self._bits(shape, name) >> np.uint64(40)
            share = bits.astype(number_dtype) * number_dtype.type(2**-24)
        elif number_dtype == np.float64:
            share = _unit(self._bits(shape, name))
        else:
            raise OptionError(
                "uniform cannot draw this dtype", given=number_dtype, allowed="float32, float64"
            )
        return np.asarray(share * number_dtype.type(high - low) + number_dtype.type(low))

    def normal(
        self,
        shape: int | tuple[int, ...] = (),
        mean: float = 0.0,
        std: float = 1.0,
        *,
        name: str | None = None,
    ) -> NDArray[np.float64]:
        """Draw normally distributed floats.

        Parameters
        ----------
        shape, name : optional
            As for :meth:`uniform`.
        mean, std : float
            Mean and standard deviation.

        Returns
        -------
        numpy.ndarray of float64
            The numbers, shape ``(n, *shape)``.

        Raises
        ------
        OptionError
            If the standard deviation is negative.

        Examples
        --------
        >>> Rng([4, 9]).normal((3, 2)).shape
        (2, 3, 2)
        """
        if not std >= 0:
            raise OptionError("the standard deviation is negative", given=std)
        radius_bits, angle_bits = np.moveaxis(self._bits((2, *_as_shape(shape)), name), 1, 0)
        # The Box-Muller transform. 1 minus the first number is in (0, 1]: its logarithm is finite.
        radius = np.sqrt(-2.0 * np.log1p(-_unit(radius_bits)))
        return np.asarray(mean + std * radius * np.cos(2.0 * math.pi * _unit(angle_bits)))

    def integers(
        self,
        low: int,
        high: int | None = None,
        shape: int | tuple[int, ...] = (),
        *,
        name: str | None = None,
    ) -> Ints:
        """Draw integers in ``[low, high)``, or in ``[0, low)`` without ``high``, as in NumPy.

        Parameters
        ----------
        low, high : int
            The bounds, less than 2**32 apart.
        shape, name : optional
            As for :meth:`uniform`.

        Returns
        -------
        numpy.ndarray of int64
            The numbers, shape ``(n, *shape)``.

        Raises
        ------
        OptionError
            If there is no integer between the bounds, or there are too many.

        Examples
        --------
        >>> turns = Rng([4, 9, 2]).integers(4)
        >>> turns.shape, set(turns.tolist()) <= {0, 1, 2, 3}
        ((3,), True)
        """
        first, end = (0, low) if high is None else (low, high)
        if not 0 < end - first < 1 << 32:
            raise OptionError(
                "integers cannot be drawn between these bounds",
                given=f"[{first}, {end})",
                allowed="1 to 2**32 - 1 integers between them",
            )
        upper = self._bits(shape, name) >> np.uint64(32)
        return ((upper * np.uint64(end - first)) >> np.uint64(32)).astype(np.int64) + first

    def _bits(self, shape: int | tuple[int, ...], name: str | None) -> Words:
        """64 random bits for each number, shape ``(n, *shape)``."""
        sizes = _as_shape(shape)
        if name is None:
            call = derive_key(_CALLED_BY_NUMBER, self._num_calls, *self._function)
            self._num_calls += 1
        else:
            call = derive_key(_CALLED_BY_NAME, *name.encode())
        places = np.arange(math.prod(sizes), dtype=np.uint64)
        bits = draw(call, self._keys[:, None] + places)
        return bits.reshape(len(self), *sizes)


@dataclass(frozen=True, eq=False)
class Chance:
    """Everything that random numbers are derived from, besides the ids of the samples."""

    seed: int = 0
    epoch: int = 0
    occurrences: Ints | None = None

    def rng(self, ids: ArrayLike, function: int) -> Rng:
        """Make the random numbers for a batch.

        `function`: each function gets other numbers, so that the second does not flip just the
        samples that the first has turned.
        """
        keys = sample_keys(self.seed, self.epoch, ids, self.occurrences)
        return Rng._of(keys, (function,) if function else ())


NO_EPOCH = Chance()
"""The `Chance` of samples that are read one by one, outside any epoch."""


def _as_shape(shape: int | tuple[int, ...]) -> tuple[int, ...]:
    return (int(shape),) if isinstance(shape, int | np.integer) else tuple(shape)


def _unit(bits: Words) -> NDArray[np.float64]:
    """The upper 53 bits as a float64 in ``[0, 1)``."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
