"""Numbers of bytes: parse text such as "2GiB", and format numbers as text."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any, Final

from xloader.core.option_checks import MOST_NBYTES, is_number
from xloader.errors import OptionError

_BYTES: Final = 'text such as "512MiB" or "2GB", or a whole number of bytes'


class MemoryShare(str):
    """The part of a machine's memory that a loader takes: ``"50%"``, ``"64GiB/node"`` or ``"1/2"``.

    A fraction is taken by itself: while it lives, other loaders take less. `maker`: for which
    options and samples. `limit`: of which memory it is a part, once the ranks have agreed.
    """

    maker: Any = None
    limit: Any = None

    def __reduce__(self) -> tuple[object, ...]:
        # In another process it counts for nothing.
        return MemoryShare, (str(self),), {"limit": self.limit}

    @property
    def is_by_itself(self) -> bool:
        """Whether the user has left out the memory."""
        return not self.endswith(_PARTS)

    def nbytes_of(self, nbytes: int, num_ranks: int) -> int:
        """The bytes of a rank, on a machine with so many bytes and ranks."""
        if self.endswith("/node"):
            return max(parse_nbytes(self.removesuffix("/node")) // num_ranks, 1)
        if self.is_by_itself:
            # Numbers that differ a little become the same one.
            return 1 << max(int(nbytes * Fraction(self) / num_ranks).bit_length() - 1, 0)
        is_percent = re.fullmatch(r"\d+(\.\d+)? ?%", self)
        part = Fraction(self[:-1].strip()) / 100 if is_percent else 0
        if not 0 < part <= 1:
            allowed = f'above "0%", up to "100%"; {_BYTES}; "64GiB/node" for all ranks there'
            raise OptionError("memory is no part of the machine's", given=self, allowed=allowed)
        return max(int(nbytes * part / num_ranks), 1)


_PARTS: Final = ("%", "/node")


def as_share(memory: Any) -> Any:
    """The memory, as a share if its text says that it is one."""
    if not isinstance(memory, str) or not memory.strip().endswith(_PARTS):
        return memory
    share = memory if isinstance(memory, MemoryShare) else MemoryShare(memory.strip())
    share.nbytes_of(1, 1)
    return share


# Numbers and units as dask's `parse_bytes` takes them. To import dask takes longer than most plans.
_TEXT = re.compile(r"(?s)\A(.*?)(?:([kmgtp])(i?))?b?\Z")


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
