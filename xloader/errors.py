"""Every error and warning of xloader, in one tree.

Each error is also a child of the builtin that a caller would catch, and its message says,
in this order: what is wrong, what was given, what is allowed, and what to do::

    XloaderError
    |-- OptionError (ValueError)            an option outside its range
    |   |-- WindowError                     a window that does not fit its dimension
    |   |-- EmptySamplesError               nothing left to deliver
    |   |-- MemoryBudgetError               too little memory, with the minimum
    |   |-- StackError                      variables that cannot share one array
    |   |-- LanesError                      lanes that do not divide
    |   `-- StateError                      a state that is damaged, or of something else
    |-- UnknownNameError (KeyError)         a variable, dimension, field or key that is not there
    |-- SampleIndexError (IndexError)       a sample id out of range
    |-- UnsupportedDataError (TypeError)    data that cannot become an array of numbers
    |-- SourceNotFoundError (FileNotFoundError)
    |-- SourceAccessError (OSError)         a store that does not answer, or does not let us in
    |-- MissingDependencyError (ImportError)
    |-- ChunkError (OSError)                one chunk of one variable
    |   |-- CorruptChunkError               its bytes do not decode
    |   `-- MissingChunkError               it is absent, and on_missing="raise"
    |-- StoreChangedError (RuntimeError)    the store is not the one that was opened
    |-- ForkError (RuntimeError)            a handle used on the wrong side of a fork
    |-- TransformError (RuntimeError)       a function of the user's raised something
    |-- RanksError (RuntimeError)           ranks that do not do the same, or do it twice over
    `-- ClosedError (RuntimeError)          used after close()

    XloaderWarning (UserWarning)
    |-- MixingWarning                       the shuffle is far from a full one
    |-- AmplificationWarning                chunks will be read more often than asked
    |-- WorkersWarning                      a DataLoader is not what its sampler planned for
    |-- MissingChunkWarning                 absent chunks were read as the fill value
    `-- ZarrReleaseWarning                  a release of zarr that is read the slow way
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from difflib import get_close_matches

_MOST_CHARACTERS = 2000
"""Of what was given or is allowed, as an error prints it."""


class XloaderError(Exception):
    """Base of every error that xloader raises on purpose.

    Parameters
    ----------
    what : str
        What is wrong, as a phrase without a full stop.
    given : object, optional
        The value at fault.
    allowed : object, optional
        The values that would do.
    remedy : str, optional
        What the caller can do, as a phrase without a full stop.

    Examples
    --------
    >>> print(OptionError("stride is too small", given=0, allowed=">= 1", remedy="pass stride=1"))
    stride is too small. Given: 0. Allowed: >= 1. To mend it: pass stride=1.
    """

    def __init__(
        self, what: str, *, given: object = None, allowed: object = None, remedy: str = ""
    ) -> None:
        parts = [what]
        if given is not None:
            parts.append(f"Given: {_shortened(given)}")
        if allowed is not None:
            parts.append(f"Allowed: {_shortened(allowed)}")
        if remedy:
            parts.append(f"To mend it: {remedy}")
        self.what = what
        self.given = given
        self.allowed = allowed
        self.remedy = remedy
        text = ". ".join(parts)
        super().__init__(text if text.endswith("?") else f"{text}.")

    def __str__(self) -> str:
        # KeyError prints the repr of its argument, which would quote and escape a sentence.
        return str(self.args[0])

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _shortened(value: object) -> str:
    """The beginning and the end of a long text: a list of a million ids helps nobody."""
    try:
        text = str(value)
    except ValueError:
        # Python writes no number of more than some thousand digits.
        text = "a number of too many digits to write it"
    if len(text) <= _MOST_CHARACTERS:
        return text
    half = _MOST_CHARACTERS // 2
    return f"{text[:half]} ... {text[-half:]}"


def _rebuild(
    kind: type[XloaderError], args: tuple[object, ...], state: dict[str, object]
) -> XloaderError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class OptionError(XloaderError, ValueError):
    """An option has a value outside its range."""


class WindowError(OptionError):
    """A window, stride or dilation does not fit its dimension."""


class EmptySamplesError(OptionError):
    """No sample is left to deliver."""


class MemoryBudgetError(OptionError):
    """The memory budget cannot carry even the smallest plan.

    Attributes
    ----------
    minimum_nbytes : int
        The smallest budget, in bytes, that would do; 0 in an error that came from a worker of a
        ``DataLoader``, whose text has it.
    """

    def __init__(
        self, what: str, *, given: object = None, minimum_nbytes: int = 0, remedy: str = ""
    ) -> None:
        self.minimum_nbytes = minimum_nbytes
        if not minimum_nbytes:
            # PyTorch makes an error of a worker anew, from its text alone.
            super().__init__(what)
            return
        super().__init__(
            what,
            given=given,
            allowed=f"at least {minimum_nbytes} bytes ({minimum_nbytes / 2**20:.1f} MiB)",
            remedy=remedy or f'pass memory="{-(-minimum_nbytes // 2**20)}MiB" or a smaller batch',
        )


class StackError(OptionError):
    """Variables of one field have dimensions that cannot share one array."""


class LanesError(OptionError):
    """The lanes do not divide the global batch, or the ranks do not divide the lanes."""


class StateError(OptionError):
    """A saved state is damaged, or belongs to other samples or another global batch."""


class UnknownNameError(XloaderError, KeyError):
    """A variable, dimension, field or key has a name that is not there."""


class SampleIndexError(XloaderError, IndexError):
    """A sample id lies outside ``[0, len(samples))``."""


class UnsupportedDataError(XloaderError, TypeError):
    """Data that cannot become an array of numbers."""


class SourceNotFoundError(XloaderError, FileNotFoundError):
    """There is nothing to open where the source should be."""


class SourceAccessError(XloaderError, OSError):
    """A store cannot be reached, does not answer, or does not let this reader in."""


class MissingDependencyError(XloaderError, ImportError):
    """An optional library is needed and not installed."""


class ChunkError(XloaderError, OSError):
    """One chunk of one variable cannot be had.

    Attributes
    ----------
    store, variable, key : str
        Where the chunk was looked for. Empty in an error that came from a worker of a
        ``DataLoader``; its text has them.
    chunk : tuple of int
        The chunk's index along each dimension of the variable.
    """

    def __init__(
        self,
        what: str,
        *,
        store: str = "",
        variable: str = "",
        chunk: tuple[int, ...] = (),
        key: str = "",
        remedy: str = "",
    ) -> None:
        self.store = store
        self.variable = variable
        self.chunk = chunk
        self.key = key
        if not variable:
            # PyTorch makes an error of a worker anew, from its text alone.
            super().__init__(what)
            return
        super().__init__(
            what,
            given=f"variable {variable!r}, chunk {chunk}, key {key!r} in {store}",
            remedy=remedy,
        )


class CorruptChunkError(ChunkError):
    """The bytes of a chunk do not decode to the chunk's values."""


class MissingChunkError(ChunkError):
    """A chunk is absent from the store, and ``on_missing="raise"``."""


class StoreChangedError(XloaderError, RuntimeError):
    """The store no longer has the shape or chunks it had when it was opened."""


class ForkError(XloaderError, RuntimeError):
    """A handle was carried over a ``fork``, where it would hang or read garbage."""


class TransformError(XloaderError, RuntimeError):
    """A function of the user's raised an error, which is the cause of this one."""


class RanksError(XloaderError, RuntimeError):
    """Ranks are about to do different things, or to deal out once more what was dealt."""


class ClosedError(XloaderError, RuntimeError):
    """Something was used after it had been closed."""


class XloaderWarning(UserWarning):
    """Base of every warning that xloader gives."""


class MixingWarning(XloaderWarning):
    """Batches are drawn from far fewer places than a full shuffle's would be."""


class AmplificationWarning(XloaderWarning):
    """The budget does not allow the asked ``max_amplification``."""


class WorkersWarning(XloaderWarning):
    """A ``DataLoader`` takes batches otherwise than its sampler planned for."""


class MissingChunkWarning(XloaderWarning):
    """Chunks absent from the store were read as the fill value."""


class ZarrReleaseWarning(XloaderWarning):
    """The installed zarr is not known here, so arrays are read through its own indexing."""


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
