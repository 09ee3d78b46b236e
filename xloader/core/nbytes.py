"""Numbers of bytes: parse text such as "2GiB", and format numbers as text."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Final

from xloader.core.option_checks import MOST_NBYTES, is_number
from xloader.errors import OptionError

_BYTES: Final = 'text such as "512MiB" or "2GB", or a whole number of bytes'
_NODE: Final = "/node"


class MemoryShare(str):
    """The fraction of its rank's memory that a loader takes by itself, such as ``"1/2"``.

    While it lives, other loaders of the process take less. `maker`: for which options and samples.
    """

    maker: Any = None

    def __reduce__(self) -> tuple[object, ...]:
        # In another process it counts for nothing.
        return MemoryShare, (str(self),)


def is_of_machine(memory: object) -> bool:
    """Whether a memory is a part of what a machine has: ``"50%"``, ``"64GiB/node"``, a share."""
    return isinstance(memory, MemoryShare) or (
        isinstance(memory, str) and memory.strip().endswith(("%", _NODE))
    )


def nbytes_of_machine(memory: str, nbytes: int, num_ranks: int) -> int:
    """The bytes of a rank for such a memory, on a machine with so many bytes and ranks."""
    if isinstance(memory, MemoryShare):
        # Numbers that differ a little become the same one.
        return 1 << max(int(nbytes * Fraction(memory) / num_ranks).bit_length() - 1, 0)
    text = memory.strip()
    if text.endswith(_NODE):
        return max(parse_nbytes(text.removesuffix(_NODE)) // num_ranks, 1)
    try:
        part = Fraction(text.removesuffix("%").strip()) / 100
    except (ValueError, ZeroDivisionError):
        part = Fraction(0)
    if not 0 < part <= 1:
        raise OptionError(
            "memory is not a part of what the machine has",
            given=repr(memory),
            allowed=f'"1%" to "100%"; {_BYTES}; or such a text for all ranks of a machine: '
            '"64GiB/node"',
        )
    return max(int(nbytes * part / num_ranks), 1)


def parse_nbytes(memory: int | str) -> int:
    """Parse a number of bytes from text such as ``"512MiB"``, or check a number."""
    nbytes = _nbytes_of(memory)
    if nbytes <= 0:
        raise OptionError("memory is not a number of bytes", given=repr(memory), allowed=_BYTES)
    if nbytes > MOST_NBYTES:
        raise OptionError(
            "memory is more than any machine has",
            given=memory,
            remedy="pass the part of the machine's memory that this process may use, <= 1024 PiB",
        )
    return nbytes


def _nbytes_of(memory: Any) -> int:
    """The number of bytes, or 0 if it cannot be parsed."""
    if not is_number(memory) and not isinstance(memory, str):
        return 0
    try:
        if isinstance(memory, str):
            # Imported only here: importing dask takes longer than most plans.
            from dask.utils import parse_bytes

            return parse_bytes(memory)
        nbytes = int(memory)
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
