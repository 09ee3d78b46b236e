"""All errors and warnings that xloader raises, in one class hierarchy.

Each error also inherits from the builtin exception in brackets, so a caller can catch either. Its
message says, in this order and as far as each is known: what is wrong, what was given, what is
allowed, and what to do::

    XloaderError
    |-- OptionError (ValueError)            an option outside its range
    |   |-- WindowError                     a window that does not fit its dimension
    |   |-- EmptySamplesError               nothing left to deliver
    |   |-- MemoryBudgetError               too little memory; names the minimum
    |   |-- StackError                      variables that cannot share one array
    |   |-- StateError                      a state that is damaged, or belongs to another loader
    |   |-- MosaicError                     predictions that do not fit their mosaic
    |   |-- PartsError                      partial results that do not make a whole
    |   `-- TargetError                     something else lies where a store is to be written
    |-- UnknownNameError (KeyError)         a variable, dimension, field or key that does not exist
    |-- SampleIndexError (IndexError)       a sample id out of range
    |-- UnsupportedDataError (TypeError)    data of a kind that xloader cannot use
    |   `-- ArrayNotGroupError              one array, and not the group that holds it
    |-- SourceNotFoundError (FileNotFoundError)   nothing to open at the given place
    |-- SourceAccessError (OSError)         a store that does not answer, or refuses access
    |-- StoreFullError (OSError)            no room is left where a store is written
    |-- PackingError (ValueError)           values that their packing cannot hold within its bound
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
    |-- MixingWarning                       the shuffle is far from a full one
    |-- AmplificationWarning                chunks will be read more often than allowed
    |-- EmptyEpochWarning                   with drop_last, an epoch has no full batch
    |-- LongitudeWarning                    a slice of longitudes ends at the seam of the labels
    |-- WorkersWarning                      a DataLoader is used differently than planned
    |-- RepeatedEpochWarning                a shuffled epoch begins anew, in the same order
    |-- NanWarning                          a batch holds NaN
    |-- UnplannedWarning                    a DataLoader reads samples without a plan
    |-- MissingChunkWarning                 absent chunks were read as the fill value
    |-- UnfinishedStoreWarning              a store that materialize has not completed
    |-- RepeatedTasksWarning                an epoch runs the same dask tasks again and again
    |-- CopiesWarning                       data in memory are copied to each process
    |-- SkippedWarning                      samples were skipped, with on_error="skip"
    |-- SlowReadWarning                     a batch has waited long for a chunk
    |-- PinningWarning                      memory that a GPU reads could not be pinned
    |-- StatisticsWarning                   statistics that may be of other data
    |-- ShardsWarning                       shards smaller than advised are written
    |-- MosaicWarning                       a mosaic with holes, or not merged
    |-- BatchGeneratorWarning               options of xbatcher's generators without effect
    |-- ClusterWarning                      a cluster is not used, or has no worker yet
    |-- ZarrReleaseWarning                  an unknown release of zarr; reading is slower
    `-- LibraryWarning                      the compiled library is missing; epochs take longer
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


class WindowError(OptionError):
    """A window, stride or dilation does not fit its dimension."""


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


class StackError(OptionError):
    """Variables have names, sizes or dimensions that do not fit together in one array."""


class StateError(OptionError):
    """A saved state is damaged, or belongs to other samples, another global batch or plan."""


class MosaicError(OptionError):
    """Predictions do not fit their mosaic.

    They have another shape, belong to other samples, or were written before.
    """


class PartsError(OptionError):
    """Partial results do not make a whole: some are missing, come twice, or are of another job."""


class TargetError(OptionError):
    """Something else lies where a store is to be written, such as a store of other samples."""


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


class PackingError(XloaderError, ValueError):
    """Values lie outside the range of their packing, or would differ by more than its bound."""


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


class MixingWarning(XloaderWarning):
    """Batches come from far fewer regions than batches of a full shuffle would."""


class AmplificationWarning(XloaderWarning):
    """The memory budget is too small to keep to ``max_amplification``."""


class LongitudeWarning(XloaderWarning):
    """A slice of longitudes leaves out what lies at the other end of the labels."""


class WorkersWarning(XloaderWarning):
    """A ``DataLoader`` takes batches differently than planned."""


class RepeatedEpochWarning(XloaderWarning):
    """A shuffled epoch begins anew with the batches that it began with before."""


class NanWarning(XloaderWarning):
    """A batch holds NaN, which would spread to the weights of the trained model."""


class EmptyEpochWarning(XloaderWarning):
    """All samples are left out: they do not fill one global batch, and ``drop_last=True``."""


class UnplannedWarning(XloaderWarning):
    """A ``DataLoader`` indexes samples one by one, so chunks are read again for each sample."""


class MissingChunkWarning(XloaderWarning):
    """Chunks absent from the store were read as the fill value."""


class UnfinishedStoreWarning(XloaderWarning):
    """A store was opened that `Samples.materialize` has not completed."""


class RepeatedTasksWarning(XloaderWarning):
    """Each block of a dask array needs so many tasks that an epoch runs them again and again."""


class CopiesWarning(XloaderWarning):
    """Many bytes that are held in memory are copied to each process that receives them."""


class SkippedWarning(XloaderWarning):
    """Chunks could not be read, so other samples stand in for those that need them."""


class SlowReadWarning(XloaderWarning):
    """A batch has waited a long time for a chunk."""


class PinningWarning(XloaderWarning):
    """Memory could not be pinned, so that copies to the device are slower."""


class StatisticsWarning(XloaderWarning):
    """Statistics are in other units or of another grid, or lie at the path of a job already."""


class ShardsWarning(XloaderWarning):
    """Memory is too small to write the advised shards, so smaller ones are written."""


class MosaicWarning(XloaderWarning):
    """A mosaic has holes, lacks damaged files, or was written by another process meanwhile."""


class BatchGeneratorWarning(XloaderWarning):
    """An option of a ``BatchGenerator`` has no effect, or two generators differ in length."""


class ClusterWarning(XloaderWarning):
    """A dask cluster is not used or no longer used, or has no worker yet."""


class ZarrReleaseWarning(XloaderWarning):
    """The installed zarr is unknown to xloader, which reads through zarr's own indexing.

    The values are the same, reading is slower, and absent chunks are not noticed.
    """


class LibraryWarning(XloaderWarning):
    """The compiled library is missing, so that epochs take longer."""
