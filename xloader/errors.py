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
    |   |-- MissingChunkError               it is absent, and on_missing="raise"
    |   `-- ReadTimeoutError (TimeoutError) it did not come in time
    |-- StoreChangedError (RuntimeError)    the store is not the one that was opened
    |-- ForkError (RuntimeError)            a handle used on the wrong side of a fork
    |-- NanError (ValueError)               a batch holds NaN, and on_nan="raise"
    |-- WorkersError (RuntimeError)         workers that would start workers of their own
    |-- TransformError (RuntimeError)       a function of the user's raised something
    |-- RanksError (RuntimeError)           ranks that do not do the same, or do it twice over
    `-- ClosedError (RuntimeError)          used after close()

    XloaderWarning (UserWarning)
    |-- MixingWarning                       the shuffle is far from a full one
    |-- AmplificationWarning                chunks will be read more often than asked
    |-- EmptyEpochWarning                   with drop_last, not one batch is full
    |-- WorkersWarning                      a DataLoader is not what its sampler planned for
    |-- NanWarning                          a batch holds NaN
    |-- UnplannedWarning                    a DataLoader reads samples without a plan
    |-- MissingChunkWarning                 absent chunks were read as the fill value
    |-- SkippedWarning                      samples were left out, with on_error="skip"
    |-- SlowReadWarning                     a batch has waited long for a chunk
    `-- ZarrReleaseWarning                  a release of zarr that is read the slow way
"""

from __future__ import annotations

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

    Its text ends with a ``memory=`` that would do; ``remedy`` is what else would.

    Attributes
    ----------
    minimum_nbytes : int
        The smallest budget, in bytes, that would do; 0 in an error that came from a worker of a
        ``DataLoader``, whose text has it.
    """

    def __init__(
        self,
        what: str,
        *,
        given: object = None,
        minimum_nbytes: int = 0,
        remedy: str = "a smaller batch",
    ) -> None:
        self.minimum_nbytes = minimum_nbytes
        if not minimum_nbytes:
            # PyTorch makes an error of a worker anew, from its text alone.
            super().__init__(what)
            return
        # No GiB: rounding up to whole ones would ask for far more than is needed.
        units = ((1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
        size, unit = next(own for own in units if minimum_nbytes >= own[0])
        shown = f" ({minimum_nbytes / size:.1f} {unit})" * (size > 1)
        super().__init__(
            what,
            given=given,
            allowed=f"at least {minimum_nbytes} bytes{shown}",
            remedy=f'pass memory="{-(-minimum_nbytes // size)}{unit}", or {remedy}',
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


class ReadTimeoutError(ChunkError, TimeoutError):
    """A chunk did not come within the time that reads may take.

    Attributes
    ----------
    seconds : float
        What each attempt was given.
    attempts : int
        How many there were.
    """

    def __init__(
        self,
        what: str = "",
        *,
        seconds: float = 0.0,
        attempts: int = 0,
        store: str = "",
        variable: str = "",
        chunk: tuple[int, ...] = (),
        key: str = "",
    ) -> None:
        self.seconds = seconds
        self.attempts = attempts
        times = "one attempt" if attempts == 1 else f"{attempts} attempts"
        super().__init__(
            what or f"a chunk did not come: {times} of {seconds:g} s",
            store=store,
            variable=variable,
            chunk=chunk,
            key=key,
            remedy="see whether the store answers; pass a longer read_timeout= if it is slow (and "
            "to the client of a store of your own, which may have one as well), "
            "more max_retries= where it fails now and then, or on_error='skip' to go on without it",
        )


class StoreChangedError(XloaderError, RuntimeError):
    """The store is no longer what was opened: its metadata changed, or it is gone."""


class ForkError(XloaderError, RuntimeError):
    """A handle was carried over a ``fork``, where it would hang or read garbage."""


class NanError(XloaderError, ValueError):
    """A batch holds NaN, and ``on_nan="raise"``.

    Attributes
    ----------
    field : str
        The first field that holds any. Empty in an error that came from a worker of a
        ``DataLoader``; its text has it.
    ids : tuple of int
        The samples of the batch whose part of that field does.
    """

    def __init__(
        self,
        what: str,
        *,
        given: object = None,
        allowed: object = None,
        remedy: str = "",
        field: str = "",
        ids: tuple[int, ...] = (),
    ) -> None:
        self.field = field
        self.ids = ids
        super().__init__(what, given=given, allowed=allowed, remedy=remedy)


class WorkersError(XloaderError, RuntimeError):
    """A worker process is about to start worker processes of its own."""


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


class NanWarning(XloaderWarning):
    """A batch holds NaN, which spreads to the weights of whatever is trained on it."""


class EmptyEpochWarning(XloaderWarning):
    """There are fewer samples than one batch, and ``drop_last`` leaves them out."""


class UnplannedWarning(XloaderWarning):
    """A ``DataLoader`` takes samples themselves, whose chunks are read anew for each of them."""


class MissingChunkWarning(XloaderWarning):
    """Chunks absent from the store were read as the fill value."""


class SkippedWarning(XloaderWarning):
    """Chunks could not be had, and samples that need them were left out."""


class SlowReadWarning(XloaderWarning):
    """A batch has waited long for a chunk."""


class ZarrReleaseWarning(XloaderWarning):
    """The installed zarr is not known here, so arrays are read through its own indexing."""
