"""The library that is compiled from the C files of this folder when xloader is installed.

Its functions are called through ctypes, which releases Python's lock meanwhile. They use nothing of
Python's own interface, so one library serves every release of Python. Without a C compiler there is
no library. Each caller then does the same in Python.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

FOLDER: Final = Path(__file__).parent
LIBRARY: Final = "_compiled.so"

Function = Callable[..., Any]

ADDRESS: Final = ctypes.c_void_p
NUMBER: Final = ctypes.c_int64
"""The types of arguments: an address or None, and an integer."""


@functools.cache
def load_library(folder: Path = FOLDER) -> tuple[ctypes.CDLL | None, str]:
    """Load the compiled library.

    The environment variable ``XLOADER_COMPILED=0`` switches it off.

    Parameters
    ----------
    folder : pathlib.Path
        The folder of the library and of its sources.

    Returns
    -------
    library : ctypes.CDLL or None
        The library.
    reason : str
        Why there is none.
    """
    if os.environ.get("XLOADER_COMPILED") == "0":
        return None, "XLOADER_COMPILED=0 is set"
    if not (folder / LIBRARY).exists():
        return None, "it was installed from the wheel for any platform, or without a C compiler"
    try:
        library = ctypes.CDLL(str(folder / LIBRARY))
        library.xloader_source_hash.restype = ctypes.c_int64
        is_ours = library.xloader_source_hash() == source_hash(sources_in(folder))
    except (OSError, AttributeError) as error:
        return None, f"the compiled library does not load ({error})"
    if not is_ours:
        return None, "the compiled library is of another release; install xloader again"
    return library, ""


def find_function(name: str, arguments: Sequence[type[Any]]) -> Function | None:
    """Find a function of the compiled library. It returns an integer.

    Parameters
    ----------
    name : str
        Its name.
    arguments : sequence of type
        The types of its arguments, each `ADDRESS` or `NUMBER`.

    Returns
    -------
    callable or None
        The function; None if there is no library.
    """
    library, _ = load_library()
    return None if library is None else _bind(library, name, tuple(arguments))


@functools.cache
def _bind(library: ctypes.CDLL, name: str, arguments: tuple[type[Any], ...]) -> Function:
    function: Function = ctypes.CFUNCTYPE(NUMBER, *arguments)((name, library))
    return function


def sources_in(folder: Path) -> list[Path]:
    """The C files that the library is compiled from, and their headers, in a fixed order."""
    return sorted([*folder.glob("*.c"), *folder.glob("*.h")])


def source_hash(sources: Iterable[Path]) -> int:
    """The number that a library holds which was compiled from some files."""
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).digest()
    return int.from_bytes(digest[:7], "little")


def address_of(array: NDArray[Any]) -> int:
    """The address in memory of an array's first element."""
    # Of memory with gaps only one element is a buffer, and an exception would take several times as
    # long.
    buffer: Any = array if array.flags.c_contiguous else array[(slice(0, 1),) * array.ndim]
    try:
        # This takes a fifth of the time of the array's own description of itself.
        return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    except (TypeError, ValueError):
        # It cannot be written, or is empty.
        address: int = array.__array_interface__["data"][0]
        return address
