"""All errors and warnings that xloader raises, in one class hierarchy.

Each error also inherits from the builtin exception in brackets, so a caller can catch either. Its
message says, in this order and as far as each is known: what is wrong, what was given, what is
allowed, and what to do::

    XloaderError
    |-- OptionError (ValueError)            an option outside its range, or of its data
    |   |-- EmptySamplesError               nothing left to deliver
    |   |-- MemoryBudgetError               too little memory; names the minimum
    |   |-- StateError                      a state or partial results, damaged or of something else
    |   `-- TargetError                     something else lies where a store is to be written
    |-- UnknownNameError (KeyError)         a variable, dimension, field or key that does not exist
    |-- SampleIndexError (IndexError)       a sample id out of range
    |-- UnsupportedDataError (TypeError)    data of a kind that xloader cannot use
    |   `-- ArrayNotGroupError              one array, and not the group that holds it
    |-- SourceNotFoundError (FileNotFoundError)   nothing to open at the given place
    |-- SourceAccessError (OSError)         a store that does not answer, or refuses access
    |-- StoreFullError (OSError)            no room is left where a store is written
    |-- MissingDependencyError (ImportError)      an optional library that is not installed
    |-- ChunkError (OSError)                a chunk that cannot be read
    |   |-- CorruptChunkError               its bytes do not decode
    |   |-- MissingChunkError               it is absent, and on_missing="raise"
    |   `-- ReadTimeoutError (TimeoutError) it did not arrive in time
    |-- StoreChangedError (RuntimeError)    the store has changed since it was opened
    |-- ForkError (RuntimeError)            a handle used in a forked child process
    |-- NanError (ValueError)               a batch holds NaN, and on_nan="raise"
    |-- WorkersError (RuntimeError)         worker processes that cannot start, or that have died
    |-- ClusterError (RuntimeError)         a dask cluster that lost workers, tasks or its scheduler
    |-- TransformError (RuntimeError)       a function of the user raised an error
    |-- RanksError (RuntimeError)           ranks that disagree, or would divide samples twice
    `-- ClosedError (RuntimeError)          an object used after close()

    XloaderWarning (UserWarning)
    |-- PlanWarning                         far from a full shuffle, or more reads than allowed
    |-- EpochWarning                        an epoch begins anew in the same order, or is empty
    |-- ChunkWarning                        chunks absent, skipped, or waited for long
    |-- NanWarning                          a batch holds NaN
    |-- LongitudeWarning                    a slice of longitudes ends at the seam of the labels
    |-- StatisticsWarning                   statistics that may be of other data
    |-- TargetWarning                       a store or mosaic unfinished, or written otherwise
    |-- WorkersWarning                      a DataLoader reads without a plan, or copies much
    |-- ClusterWarning                      a cluster is not used, or repeats tasks
    |-- EnvironmentWarning                  libraries or the system make epochs slower
    `-- BatchGeneratorWarning               options of xbatcher's generators without effect
"""

from __future__ import annotations

import unicodedata

_MOST_CHARACTERS = 2000
"""Longest text, in characters, in which an error prints a given or an allowed value."""

_HIDDEN = ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp")
"""Unicode's categories of characters that are not to be seen, but for spaces."""


def printable(text: str, kept: str = "\n") -> str:
    r"""Text as it may be shown, with escapes for characters that a terminal obeys or hides.

    Names and attributes of a store can hold any character: control characters, marks that turn the
    direction of writing, and others without width.
    """
    if text.isprintable():
        return text
    return "".join(
        repr(one)[1:-1] if unicodedata.category(one) in _HIDDEN and one not in kept else one
        for one in text
    )


class XloaderError(Exception):
    """Base class of all errors that xloader raises on purpose.

    Parameters
    ----------
    what : str
        What is wrong, as a phrase without a full stop.
    given : object, optional
        The value that is wrong.
    allowed : object, optional
        The values that are allowed.
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
        text = printable(". ".join(parts))
        super().__init__(text if text.endswith("?") else f"{text}.")

    def __str__(self) -> str:
        # KeyError prints the repr of its argument, which would quote and escape a sentence.
        return str(self.args[0])

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _shortened(value: object) -> str:
    """The value as text, with the middle cut out if it is longer than `_MOST_CHARACTERS`."""
    try:
        text = str(value)
    except ValueError:
        # By default, Python refuses to print an integer of more than 4300 digits.
        text = "a number with too many digits to print"
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


class EmptySamplesError(OptionError):
    """No sample is left to deliver."""


def show_memory(nbytes: int) -> str:
    """The option ``memory`` for at least so many bytes, as it is written in code."""
    size, unit = _unit_of(nbytes)
    return f'memory="{-(-nbytes // size)}{unit}"'


def _unit_of(nbytes: int) -> tuple[int, str]:
    # Not GiB: rounding up to whole GiB would ask for far more than is needed.
    units = ((1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
    return next(own for own in units if nbytes >= own[0])


class MemoryBudgetError(OptionError):
    """The memory budget is too small for even the smallest plan.

    Parameters
    ----------
    what : str
        What is wrong, as a phrase without a full stop.
    given : object, optional
        The budget that was given.
    minimum_nbytes : int
        The smallest sufficient budget, in bytes, which the message suggests as ``memory=``. It is
        also an attribute. 0 if the error came from a worker of a ``DataLoader``; then only the
        message names it.
    remedy : str
        What the caller can do instead of passing this much memory. It is also the attribute
        ``instead``.
    num_sharing : int
        Number of threads that share the memory, if they are those of a worker of a cluster.
    """

    def __init__(
        self,
        what: str,
        *,
        given: object = None,
        minimum_nbytes: int = 0,
        remedy: str = "use a smaller batch",
        num_sharing: int = 1,
    ) -> None:
        self.minimum_nbytes = minimum_nbytes
        self.instead = remedy
        if not minimum_nbytes:
            # PyTorch rebuilds an error of a worker process from its text alone.
            super().__init__(what)
            return
        size, unit = _unit_of(minimum_nbytes)
        shown = f" ({minimum_nbytes / size:.1f} {unit})" * (size > 1)
        told = f"pass {show_memory(minimum_nbytes)}, or {remedy}"
        if num_sharing > 1:
            given = f"{given}, of which each of {num_sharing} threads of a worker has its share"
            told += ", or give the workers fewer threads"
        super().__init__(
            what, given=given, allowed=f"at least {minimum_nbytes} bytes{shown}", remedy=told
        )


class StateError(OptionError):
    """A saved state, or partial results, are damaged, incomplete or of other samples or options."""


class TargetError(OptionError):
    """Something else lies where a store or mosaic is written, or what is written does not fit."""


class UnknownNameError(XloaderError, KeyError):
    """A variable, dimension, field or key with this name does not exist."""


class SampleIndexError(XloaderError, IndexError):
    """A sample id lies outside ``[0, len(samples))``."""


class UnsupportedDataError(XloaderError, TypeError):
    """Data of a kind that xloader cannot read, convert to numbers or send to another process."""


class ArrayNotGroupError(UnsupportedDataError):
    """A path leads to one array of a Zarr store, and not to the group that holds it."""


class SourceNotFoundError(XloaderError, FileNotFoundError):
    """There is no source of data at the given place."""


class SourceAccessError(XloaderError, OSError):
    """A store cannot be reached, does not answer, or refuses access."""


class StoreFullError(XloaderError, OSError):
    """No room is left where a store is written. What is written so far stays, and counts."""


class MissingDependencyError(XloaderError, ImportError):
    """An optional library is needed but not installed."""


class ChunkError(XloaderError, OSError):
    """One chunk of one variable cannot be read.

    Attributes
    ----------
    store, variable, key : str
        The store, the variable and the chunk's key in the store. Empty if the error came from a
        worker of a ``DataLoader``; then only the message names them.
    chunk : tuple of int
        Index of the chunk along each dimension of the variable; empty like ``key``.
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
            # PyTorch rebuilds an error of a worker process from its text alone.
            super().__init__(what)
            return
        super().__init__(
            what,
            given=f"variable {variable!r}, chunk {chunk}, key {key!r} in {store}",
            remedy=remedy,
        )


class CorruptChunkError(ChunkError):
    """The stored bytes of a chunk cannot be decoded to its values."""


class MissingChunkError(ChunkError):
    """A chunk is absent from the store, and ``on_missing="raise"``."""


def show_attempts(number: int) -> str:
    """Return a number of attempts in words."""
    return "one attempt" if number == 1 else f"{number} attempts"


class ReadTimeoutError(ChunkError, TimeoutError):
    """A chunk did not arrive within the time that a read may take.

    Attributes
    ----------
    seconds : float
        Time limit of each attempt, in seconds.
    attempts : int
        Number of attempts.
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
        super().__init__(
            what or f"a chunk did not arrive in {show_attempts(attempts)} of {seconds:g} s",
            store=store,
            variable=variable,
            chunk=chunk,
            key=key,
            remedy="check that the store answers; if it is slow, pass a longer read_timeout= to "
            "xloader.open (and raise the time limit of a store object that you pass); if reads "
            "fail now and then, pass it a larger max_retries=; to skip the samples that need this "
            "chunk, pass on_error='skip' to the loader",
        )


class StoreChangedError(XloaderError, RuntimeError):
    """The store has changed since it was opened: other metadata, or the store is gone."""


class ForkError(XloaderError, RuntimeError):
    """A handle was opened before a ``fork`` and used in the child process.

    There it would hang or read garbage.
    """


class NanError(XloaderError, ValueError):
    """A batch holds NaN, and ``on_nan="raise"``.

    Attributes
    ----------
    field : str
        The first field that holds NaN. Empty if the error came from a worker of a
        ``DataLoader``; then only the message names it.
    ids : tuple of int
        Ids of the samples of the batch that have NaN in this field; empty like ``field``.
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
    """Worker processes cannot start here, or one of them has died."""


class ClusterError(XloaderError, RuntimeError):
    """A dask cluster has lost its workers, its tasks or its scheduler."""


class TransformError(XloaderError, RuntimeError):
    """A function of the user raised an error; ``__cause__`` is that error."""


class RanksError(XloaderError, RuntimeError):
    """Ranks are about to do different things, or to divide samples that are already divided."""


class ClosedError(XloaderError, RuntimeError):
    """An object was used after it had been closed."""


class XloaderWarning(UserWarning):
    """Base class of all warnings of xloader."""


class PlanWarning(XloaderWarning):
    """The plan mixes far less than a full shuffle, or reads chunks more often than allowed."""


class LongitudeWarning(XloaderWarning):
    """A slice of longitudes leaves out what lies at the other end of the labels."""


class WorkersWarning(XloaderWarning):
    """A ``DataLoader`` reads without a plan or otherwise than planned, or copies much data."""


class EpochWarning(XloaderWarning):
    """A shuffled epoch begins anew with the same batches, or has no full batch."""


class NanWarning(XloaderWarning):
    """A batch holds NaN, which would spread to the weights of the trained model."""


class TargetWarning(XloaderWarning):
    """A store or mosaic is unfinished or has holes, or is written otherwise than advised."""


class ChunkWarning(XloaderWarning):
    """Chunks are absent, were skipped, or have been waited for long."""


class StatisticsWarning(XloaderWarning):
    """Statistics are in other units or of another grid, or lie at the path of a job already."""


class BatchGeneratorWarning(XloaderWarning):
    """An option of a ``BatchGenerator`` has no effect, or two generators differ in length."""


class ClusterWarning(XloaderWarning):
    """A dask cluster is not used, has no worker yet, or must run the same tasks again and again."""


class EnvironmentWarning(XloaderWarning):
    """The libraries or the system make epochs slower than they could be.

    The compiled library is missing, or the system refused to pin memory for a device.
    """
