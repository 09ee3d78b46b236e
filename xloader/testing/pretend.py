"""Codecs and disks that only sleep, to see what a loader does besides, on any machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from xloader.compiled.library import NUMBER, find_function, load_library
from xloader.errors import MissingDependencyError


@contextmanager
def pretend_codec(ns_per_byte: float) -> Iterator[None]:
    """Have native decoding only sleep, for so long for each decoded byte.

    A sleep needs no core, so 16 threads decode side by side on any machine. The values are
    whatever was in the memory before. It holds for all loaders of this process, and for chunks that
    native threads decode: those compressed by zstd or blosc, or not at all.

    Parameters
    ----------
    ns_per_byte : float
        Nanoseconds for each decoded byte. With 0, decoding takes no time.

    Raises
    ------
    MissingDependencyError
        If xloader was installed without its compiled library.

    Examples
    --------
    >>> from xloader.testing import pretend_codec
    >>> with pretend_codec(2.0):
    ...     pass  # iterate over a loader, and look at its report
    """
    yield from _pretend("codec", round(ns_per_byte * 1e3), -1)


@contextmanager
def pretend_disk(ms_per_read: float) -> Iterator[None]:
    """Have each read of native threads wait, as for a disk that turns or a file system far away.

    The values are as they are stored. It holds for all loaders of this process.

    Parameters
    ----------
    ms_per_read : float
        Milliseconds that each read of a chunk waits.

    Raises
    ------
    MissingDependencyError
        If xloader was installed without its compiled library.

    Examples
    --------
    >>> from xloader.testing import pretend_disk
    >>> with pretend_disk(5.0):
    ...     pass  # iterate over a loader, and look at its report
    """
    yield from _pretend("disk", round(ms_per_read * 1e6), 0)


def _pretend(what: str, number: int, end: int) -> Iterator[None]:
    function = find_function(f"xloader_pretend_{what}", (NUMBER,))
    if function is None:
        raise MissingDependencyError(
            "there is no native decoding that could only sleep",
            given=load_library()[1],
            remedy="install xloader where there is a C compiler",
        )
    function(number)
    try:
        yield
    finally:
        function(end)
