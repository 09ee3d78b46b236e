"""Text such as "2GiB" means what it means to dask."""

from __future__ import annotations

import pytest
from dask.utils import byte_sizes, parse_bytes

from xloader.core.nbytes import parse_nbytes
from xloader.core.option_checks import MOST_NBYTES
from xloader.errors import OptionError

NUMBERS = (
    "",
    "1",
    "1.5",
    "1e6",
    "+2",
    ".5",
    "5.",
    "1_0",
    "-3",
    "0",
    "1e",
    "e3",
    "inf",
    "nan",
    "1,5",
)
UNITS = (*byte_sizes, "GiB", "GIB", "MB", "Ki", "bytes", "x", "\u212ai", "é")


@pytest.mark.parametrize("unit", UNITS)
def test_text_means_what_it_means_to_dask(unit: str) -> None:
    for number in NUMBERS:
        for text in (number + unit, f" {number} {unit} "):
            try:
                expected = parse_bytes(text)
            except ValueError:
                expected = 0
            if 0 < expected <= MOST_NBYTES:
                assert parse_nbytes(text) == expected
                continue
            with pytest.raises(OptionError, match="memory is"):
                parse_nbytes(text)
