"""Numbers of bytes: parse text such as "2GiB", and format numbers as text."""

from __future__ import annotations

import re
from typing import Any

from xloader.core.option_checks import MOST_NBYTES, is_number
from xloader.errors import OptionError

# Numbers and units as dask's `parse_bytes` takes them. To import dask takes longer than most plans.
_TEXT = re.compile(r"(?s)\A(.*?)(?:([kmgtp])(i?))?b?\Z")


def parse_nbytes(memory: int | str) -> int:
    """Parse a number of bytes from text such as ``"512MiB"``, or check a number."""
    allowed = 'text such as "512MiB" or "2GB", or a whole number of bytes'
    nbytes = _nbytes_of(memory)
    if nbytes <= 0:
        raise OptionError("memory is not a number of bytes", given=repr(memory), allowed=allowed)
    if nbytes > MOST_NBYTES:
        raise OptionError(
            "memory is more than any machine has",
            given=memory,
            remedy="pass the part of the machine's memory that this process may use, <= 1024 PiB",
        )
    return nbytes


def _nbytes_of(memory: Any) -> int:
    """The number of bytes, or 0 if it cannot be parsed."""
    try:
        if isinstance(memory, str):
            number, prefix, middle = _TEXT.findall(memory.replace(" ", "").lower())[0]
            return int(float(number or 1) * (1024 if middle else 1000) ** " kmgtp".find(prefix))
        nbytes = int(memory) if is_number(memory) else 0
    except (ValueError, OverflowError):
        return 0
    return nbytes if nbytes == memory else 0


def show_nbytes(nbytes: int) -> str:
    """Format a number of bytes with a unit from B to TiB."""
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
