"""Random numbers for augmentation, drawn for whole batches and yet each sample's own.

What a sample gets depends on (seed, epoch, sample id, occurrence) and on the call, and on nothing
else: not on the batch it is in, its row, the thread or the worker.
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
"""Sets the keys of samples apart from those of orders, which come of the same seed and epoch."""


def sample_keys(
    seed: int, epoch: int, ids: ArrayLike, occurrences: ArrayLike | None = None
) -> Words:
    """A key for each sample, from which what is random about it follows.

    Parameters
    ----------
    seed, epoch : int
        Those of the loader.
    ids : array-like of int
        Sample ids, shape ``(n,)``.
    occurrences : array-like of int, optional
        Which time in the epoch it is that each sample comes, from 0; the first time by default.

    Returns
    -------
    numpy.ndarray of uint64
        Shape ``(n,)``.

    Examples
    --------
    >>> keys = sample_keys(0, 3, [7, 8, 7], [0, 0, 1])
    >>> bool((keys[:1] == sample_keys(0, 3, [7])).all()), len(set(keys.tolist()))
    (True, 3)
    """
    whole = np.asarray(ids, np.int64)
    times = np.zeros_like(whole) if occurrences is None else np.asarray(occurrences, np.int64)
    if times.shape != whole.shape:
        raise OptionError(
            "occurrences are not one for each sample",
            given=f"{times.shape} for ids of shape {whole.shape}",
            allowed="the same shape",
        )
    # The first words are random, so that adding to them meets no other sample's.
    words = draw(derive_key(_SAMPLES, seed, epoch), whole)
    return draw(derive_key(_SAMPLES, seed), words + times.astype(np.uint64))


class Rng:
    """Random numbers for the samples of one batch, a pure function of what they are.

    Each call draws anew: calls are counted, and the same call on any batch that has a sample
    gives that sample the same numbers. Where a call is not made for every batch, such as one
    behind an ``if``, give it a name, so that those after it do not depend on whether it was.
    A ``name`` always gives the same numbers.

    Parameters
    ----------
    ids : array-like of int
        Ids of the batch's samples, shape ``(n,)``.
    occurrences : array-like of int, optional
        Which time in the epoch each of them comes, from 0; the first time by default.
    seed, epoch : int, default 0
        Those of the loader.

    Notes
    -----
    Each number is hashed from its sample's key, the call and its place in the shape; there is no
    stream that others could move on. Integers are the same on any machine, and floats too but
    for the last bit of ``normal``, where libraries round logarithms and cosines differently.

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
        self,
        ids: ArrayLike,
        occurrences: ArrayLike | None = None,
        *,
        seed: int = 0,
        epoch: int = 0,
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
        """One for each sample, before any call: it gives the sample the same numbers.

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
        """Floats in ``[low, high)``, but for what rounding makes of them.

        Parameters
        ----------
        shape : int or tuple of int
            Of one sample's numbers; one number by default.
        low, high : float
            The bounds.
        name : str, optional
            What the draw is for, instead of its place among the calls.
        dtype : {"float64", "float32"}
            Of the numbers.

        Returns
        -------
        numpy.ndarray
            Shape ``(n, *shape)``.

        Examples
        --------
        >>> Rng([4, 9]).uniform((2,), -1, 1).round(3).tolist()
        [[...], [...]]
        """
        kind = np.dtype(dtype)
        if kind == np.float32:
            # More bits than a float32 has would round up to 1 now and then.
            share = (self._bits(shape, name) >> np.uint64(40)).astype(kind) * kind.type(2**-24)
        elif kind == np.float64:
            share = _unit(self._bits(shape, name))
        else:
            raise OptionError("uniform has no such dtype", given=kind, allowed="float32, float64")
        return np.asarray(share * kind.type(high - low) + kind.type(low))

    def normal(
        self,
        shape: int | tuple[int, ...] = (),
        mean: float = 0.0,
        std: float = 1.0,
        *,
        name: str | None = None,
    ) -> NDArray[np.float64]:
        """Normally distributed float64.

        Parameters
        ----------
        shape : int or tuple of int
            Of one sample's numbers; one number by default.
        mean, std : float
            Mean and standard deviation.
        name : str, optional
            What the draw is for, instead of its place among the calls.

        Returns
        -------
        numpy.ndarray
            Shape ``(n, *shape)``.

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
            raise OptionError("the standard deviation is negative", given=std, allowed=">= 0")
        one, other = np.moveaxis(self._bits((2, *_as_shape(shape)), name), 1, 0)
        # Box and Muller's; 1 less the first number is in (0, 1], of which there is a logarithm.
        radius = np.sqrt(-2.0 * np.log1p(-_unit(one)))
        return np.asarray(mean + std * radius * np.cos(2.0 * math.pi * _unit(other)))

    def integers(
        self,
        low: int,
        high: int | None = None,
        shape: int | tuple[int, ...] = (),
        *,
        name: str | None = None,
    ) -> Ints:
        """Integers in ``[low, high)``; in ``[0, low)`` where there is no ``high``, as NumPy's.

        Parameters
        ----------
        low, high : int
            The bounds, less than 2**32 apart.
        shape : int or tuple of int
            Of one sample's numbers; one number by default.
        name : str, optional
            What the draw is for, instead of its place among the calls.

        Returns
        -------
        numpy.ndarray of int64
            Shape ``(n, *shape)``.

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
                allowed="1 to 2**32 - 1 integers",
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
    """What random numbers follow from, beside the ids of samples.

    Parameters
    ----------
    seed, epoch : int, default 0
        Those of the loader; of what is read outside an epoch, 0.
    occurrences : numpy.ndarray of int64, optional
        Which time in the epoch it is that each sample of a batch comes; the first by default.

    Examples
    --------
    >>> chance = Chance(seed=1, epoch=5)
    >>> first, second = chance.rng([4, 9], 0), chance.rng([4, 9], 1)
    >>> bool((first.uniform() == Rng([4, 9], seed=1, epoch=5).uniform()).all())
    True
    >>> bool((first.uniform() == second.uniform()).any())
    False
    """

    seed: int = 0
    epoch: int = 0
    occurrences: Ints | None = None

    def rng(self, ids: ArrayLike, function: int) -> Rng:
        """Numbers for a batch.

        Parameters
        ----------
        ids : array-like of int
            Sample ids, shape ``(n,)``.
        function : int
            For which of the functions that take numbers, from 0: each has calls of its own, so
            that the second does not flip just what the first turned. Calls by name are shared.
        """
        keys = sample_keys(self.seed, self.epoch, ids, self.occurrences)
        return Rng._of(keys, (function,) if function else ())


NO_EPOCH = Chance()
"""Chance of samples that are read one by one, outside any epoch."""


def _as_shape(shape: int | tuple[int, ...]) -> tuple[int, ...]:
    return (int(shape),) if isinstance(shape, int | np.integer) else tuple(shape)


def _unit(bits: Words) -> NDArray[np.float64]:
    """The upper 53 bits as a float64 in ``[0, 1)``."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
