"""What errors and warnings tell beside themselves: whose function, which line, what was meant."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from difflib import get_close_matches

from xloader.errors import TransformError, XloaderError, XloaderWarning


class names_function:
    """Turn whatever a function of the user's raises into an error that names the function.

    An exception that is let out may mean something else where it arrives: a ``StopIteration``
    would end an epoch as if it were complete.

    Parameters
    ----------
    what : str
        The function, and what it was called for.

    Raises
    ------
    TransformError
        From what the function raised, unless that is an error of xloader's own.

    Examples
    --------
    >>> with names_function("map(speed)"):
    ...     next(iter(()))
    Traceback (most recent call last):
    xloader.errors.TransformError: map(speed) failed (StopIteration). To mend it: ...
    """

    # No generator: contextlib takes a RuntimeError out of a StopIteration for that itself.
    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, XloaderError):
            return
        told = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise TransformError(
            f"{self._what} failed ({told})",
            remedy="mend the function; what it raised is the cause of this error",
        ) from error


def warn_caller(message: str, category: type[XloaderWarning]) -> None:
    """Warn at the line that called xloader, though it be by way of PyTorch's loaders.

    Parameters
    ----------
    message : str
    category : type of XloaderWarning
    """
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def _is_ours(module: str) -> bool:
    return f"{module}.".startswith(("xloader.", "torch.utils.data.", "torchdata."))


def extra_remedy(extras: str) -> str:
    """What to do where a library of an extra is missing.

    Examples
    --------
    >>> extra_remedy("torch")
    'install the extra "torch": pip install ".[torch]", in a clone of xloader'
    """
    # There is no release to install by its name yet.
    return f'install the extra "{extras}": pip install ".[{extras}]", in a clone of xloader'


def closest(name: object, known: Iterable[str]) -> str | None:
    """The known name that a wrong one most likely stands for, if there is one.

    Examples
    --------
    >>> closest("SST", ["sst", "msl"]), closest("wind", ["sst", "msl"])
    ('sst', None)
    """
    by_lower = {one.lower(): one for one in known}
    found = get_close_matches(str(name).lower(), by_lower, n=1)
    return by_lower[found[0]] if found else None
