"""One number for each row of a table of integers.

NumPy sorts and compares numbers much faster than rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from xloader.core.axis import Ints

_MOST_BITS: Final = 62
"""The most bits of a number. One more is the sign."""


def number_rows(columns: Sequence[Ints], num_rows: int) -> Ints:
    """Number the rows of some columns: two numbers are equal exactly if all columns are.

    The numbers sort as the rows do, by the first column first. int64, of shape ``(num_rows,)``.
    """
    numbers, radix = np.zeros(num_rows, np.int64), 1
    for column in columns if num_rows else ():
        least, size = int(column.min()), int(np.ptp(column)) + 1
        if size == 1:
            continue
        if (radix * size).bit_length() > _MOST_BITS:
            numbers = np.unique(numbers, return_inverse=True)[1]
            radix = int(numbers.max()) + 1
        numbers, radix = numbers * size + (column - least), radix * size
    return numbers
