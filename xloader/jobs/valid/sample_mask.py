"""Masks of samples: one bit for each sample id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from xloader.core.window_sets import WindowBits
from xloader.errors import OptionError, printable


@dataclass(frozen=True, eq=False, repr=False)
class SampleMask:
    """One bit for each sample, which says whether the sample is kept.

    It is made by :meth:`xloader.Samples.is_valid`, and :meth:`xloader.Samples.select` takes it.
    Masks of the same samples are combined by ``&``, ``|`` and ``~``. ``numpy.asarray(mask)`` gives
    one bool for each sample.

    Parameters
    ----------
    bits : WindowBits
        One bit for each sample id.
    check : str
        The check that the mask shows, in words.
    num_reads : int, default 0
        Number of (variable, chunk) pairs that were read for it. 0 if it was found in the cache,
        and for combined masks.
    seconds : float, default 0.0
        Time that was needed to compute it, in seconds.

    Examples
    --------
    >>> warm = SampleMask.of([True, True, False, False])
    >>> calm = SampleMask.of([True, False, True, False])
    >>> len(warm), warm.num_valid, (warm & calm).num_valid, np.asarray(~warm | calm).tolist()
    (4, 2, 1, [True, False, True, True])
    """

    bits: WindowBits
    check: str = "a mask"
    num_reads: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, flags: ArrayLike, check: str = "a mask") -> Self:
        """Pack one bool for each sample, shape ``(n,)``.

        Raises
        ------
        OptionError
            If ``flags`` are not bools, or not 1-d.
        """
        given = np.asarray(flags)
        if given.dtype.kind != "b" or given.ndim != 1:
            raise OptionError(
                "these are not the flags of a mask, one bool for each sample",
                given=f"{given.dtype} of shape {given.shape}",
                remedy="compare numbers first, for example SampleMask.of(values > 0)",
            )
        return cls(WindowBits.of_flags(given), check)

    def __len__(self) -> int:
        return self.bits.size

    @property
    def num_valid(self) -> int:
        """Number of samples that are kept."""
        return len(self.bits)

    # Then NumPy leaves ``array & mask`` to the mask.
    __array_ufunc__ = None

    def __and__(self, other: SampleMask | ArrayLike) -> SampleMask:
        mask = self._same(other)
        return SampleMask(self.bits & mask.bits, f"{self.check} & {mask.check}")

    def __or__(self, other: SampleMask | ArrayLike) -> SampleMask:
        mask = self._same(other)
        return SampleMask(self.bits | mask.bits, f"({self.check} | {mask.check})")

    __rand__, __ror__ = __and__, __or__

    def __bool__(self) -> bool:
        raise OptionError(
            "a mask is neither true nor false",
            given=repr(self),
            remedy="write mask & other for and, | for or, ~ for not; mask.num_valid is a number",
        )

    def __invert__(self) -> SampleMask:
        return SampleMask(~self.bits, f"~({self.check})")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("the bits of a mask cannot become an array without a copy")
        flags = self.bits.flags(0, len(self))
        return flags if dtype is None else flags.astype(dtype)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SampleMask):
            return NotImplemented
        return len(self) == len(other) and np.array_equal(self.bits.words, other.bits.words)

    def __hash__(self) -> int:
        return hash((len(self), self.bits.words.tobytes()))

    def __repr__(self) -> str:
        counts = f"{self.num_valid:,} of {len(self):,} samples"
        return printable(f"<xloader.SampleMask, {counts}: {self.check}>")

    def _same(self, given: SampleMask | ArrayLike) -> SampleMask:
        """The other mask, or one flag for each sample, as a mask of the same samples."""
        mask = given if isinstance(given, SampleMask) else SampleMask.of(given)
        if len(self) != len(mask):
            raise OptionError(
                "the masks belong to different samples",
                given=f"masks of {len(self):,} and {len(mask):,} samples",
                remedy="make both masks by is_valid of the same samples",
            )
        return mask
